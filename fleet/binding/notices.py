"""What owners are told by events: the words, apart from how they get to the API. Pure.

A message is read by whoever may read the object it is about: it names the device, the reason codes
and what to do, never another tenant, pod or process. `fleet.binding.informing` sends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleet.kube.telling import Kind


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to be told: `Events.record(about, notice.reason, notice.message, kind=...)`."""

    reason: str
    message: str
    kind: Kind = Kind.WARNING


def quarantined(device: str, codes: Iterable[str]) -> Notice:
    """On the node: a device of it is out of service."""
    return Notice(
        "DeviceQuarantined",
        f"{device} is out of service: {_listed(codes)};"
        f" `fleet quarantine list` shows details and remedies",
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


def _listed(codes: Iterable[str]) -> str:
    return ", ".join(sorted(set(codes))) or "unknown"
