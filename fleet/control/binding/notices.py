"""What owners are told by events: the words, apart from how they get to the API. Pure.

A message is read by whoever may read the object it is about: it names the device, the reason codes
and what to do, never another tenant, pod or process. `fleet.control.binding.quarantine_events`
sends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleet.devices.health.reasons import CATALOGUE
from fleet.kube.events import Kind


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to be told: `Events.record(about, notice.reason, notice.message, kind=...)`."""

    reason: str
    message: str
    kind: Kind = Kind.WARNING


def quarantined(device: str, codes: Iterable[str]) -> Notice:
    """On the node: a device of it is out of service."""
    told = [_remedied(code) for code in sorted(set(codes))] or ["unknown"]
    return Notice(
        "DeviceQuarantined",
        f"{device} is out of service: {'. '.join(told)}. `fleet quarantine list` shows more",
    )


def waits(claim: str, why: str) -> Notice:
    """On a claim and the pods that wait for it. `claim`: ``namespace/name``; `why`: in words that
    its owner may read."""
    return Notice(
        "WaitForDevice",
        f"the device is not ready yet: {why}. The pod starts by itself once it is;"
        f" `fleet claim show {claim}` says more",
        Kind.NORMAL,
    )


def not_proven_wiped(device: str, codes: Iterable[str]) -> Notice:
    """On the claim and the pods that used it: their data may not be proven gone."""
    return Notice(
        "DeviceQuarantined",
        f"{device}, which this used, is out of service ({_listed(codes)}): its memory is not"
        " proven wiped; nobody is given the device until it is, or an operator decides",
    )


def tenant_lingers(device: str) -> Notice:
    """On the claim: its teardown waits for a process of its own pods."""
    return Notice(
        "TeardownWaits",
        f"{device} is not wiped yet: a process of this claim's pods still has it; end the pod"
        " (`kubectl delete pod`), nothing is killed for you",
    )


def still_used(
    device: str, codes: Iterable[str], *, pod: str = "", extended: bool = False
) -> Notice:
    """On the claim and its pods: the device they have is out of service and still theirs.

    `pod`: a pod of the claim that has it; `extended`: it got it through an extended resource.
    """
    by = f" by pod {pod}" if pod else ""
    via = " via an extended resource, for which no taint evicts it" if extended else ""
    return Notice(
        "DeviceStillInUse",
        f"{device} is out of service ({_listed(codes)}) and still in use{by}{via}: delete the pod"
        " (`kubectl delete pod`); nothing is killed for you, and the device is not wiped before",
    )


def not_wiped(device: str) -> Notice:
    """On the claim that had the device, and its pods: it cannot be wiped yet."""
    return Notice(
        "WipeWaits",
        f"{device}, which this used, cannot be wiped: something still has it open; whoever runs the"
        " node sees who it is in `fleet status`",
    )


def _remedied(code: str) -> str:
    """A code with what it means and what to do; alone where a newer node made it."""
    known = CATALOGUE.get(code)
    return f"{code} ({known.text}): {known.remedy}" if known else code


def _listed(codes: Iterable[str]) -> str:
    return ", ".join(sorted(set(codes))) or "unknown"
