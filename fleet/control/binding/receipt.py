"""The receipt on a claim: which device it got, wiped when, under which token, by which certificate.

Written with the conditions that let the scheduler bind (profile `strict`, and `fleet claim bind`),
read by whoever may read the claim: nothing of other tenants is in it, and no list of nodes, slices
or pods is needed for it. It is the coordinator's word; the certificate it names proves it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from fleet.control.binding.claim_facts import UNDER
from fleet.core.messages import DeviceResult, Message
from fleet.core.model import Token
from fleet.evidence.keys import SHORT_ID
from fleet.kube import claim_bodies
from fleet.kube.claim import Allotted, ClaimReading
from fleet.kube.marks import Marks

CERTIFICATE, VERDICT, UUID, WIPED_AT = "certificate", "verdict", "uuid", "wipedAt"


class Standing(StrEnum):
    """What a receipt is worth now."""

    PROVEN = "proven"
    """Wiped and checked for this claim, and nothing has been said against it since."""
    PENDING = "pending"
    """Allocated; the proof is not there yet, and no pod is started before it is."""
    FAILED = "failed"
    """The device will not become ready for this claim."""
    ENDED = "ended"
    """The claim's use has ended, and the device was given back."""
    LOOKING = "looking"
    """Allocated with adminAccess: looked into, never held, never wiped for it."""
    UNRECORDED = "unrecorded"
    """The pool's profile writes no receipts: the proof is in the node's ledger alone."""


WORDS: Mapping[Standing, str] = {
    Standing.PROVEN: "wiped, verified and checked for this claim alone",
    Standing.PENDING: "not proven yet: no pod starts on it before it is",
    Standing.FAILED: "it did not get ready for this claim; the scheduler chooses another one",
    Standing.ENDED: "the use it was proven for has ended",
    Standing.LOOKING: "looked into with adminAccess, never held and never wiped for it",
    Standing.UNRECORDED: "no receipt is written in this pool's profile; ask the operator for"
    " `fleet evidence list --device DEVICE`",
}


class DeviceReceipt(Message):
    """One device of a claim. Texts are "" where the claim does not say."""

    request: str
    node: str
    device: str
    uuid: str = ""
    token: str = ""
    certificate: str = ""
    wiped_at: str = ""
    """When its wipe ended, by the node's clock, RFC 3339 in UTC."""
    standing: Standing
    why: str = ""
    verify: tuple[str, ...] = ()
    """Commands in an export of the operator's evidence; empty without a certificate."""


class ClaimReceipt(Message):
    """All that a claim says about the devices it was given."""

    namespace: str
    name: str
    uid: str
    driver: str
    allocated: bool
    terminating: bool
    pods: tuple[str, ...]
    """Pods it is reserved for."""
    held: bool
    """Whether our reservation keeps the devices from others until they are wiped again."""
    devices: tuple[DeviceReceipt, ...]


def written(token: Token, proof: DeviceResult) -> dict[str, str | int]:
    """The receipt of one device: what goes into ``status.devices[].data``."""
    found: dict[str, str | int] = {
        UNDER: str(token),
        CERTIFICATE: proof.certificate,
        VERDICT: proof.outcome.value,
        UUID: proof.uuid,
    }
    if proof.ended_at:
        found[WIPED_AT] = claim_bodies.stamp(proof.ended_at)
    return found


def receipt(reading: ClaimReading, marks: Marks) -> ClaimReceipt:
    """What the claim itself says; nothing else is asked."""
    return ClaimReceipt(
        namespace=reading.name.namespace,
        name=reading.name.name,
        uid=reading.uid,
        driver=marks.driver,
        allocated=reading.allocated,
        terminating=reading.terminating,
        pods=tuple(pod.name for pod in reading.pods),
        held=reading.held,
        devices=tuple(_device(reading, one, marks) for one in reading.devices),
    )


def _device(reading: ClaimReading, one: Allotted, marks: Marks) -> DeviceReceipt:
    given = {key: str(value) for key, value in reading.receipts.get(one.key, {}).items()}
    standing = _standing(reading, one, marks)
    certificate = given.get(CERTIFICATE, "")
    return DeviceReceipt(
        request=one.request,
        node=one.node,
        device=one.device,
        uuid=given.get(UUID, ""),
        token=given.get(UNDER, ""),
        certificate=certificate,
        wiped_at=given.get(WIPED_AT, ""),
        standing=standing,
        why=_said(reading, one, marks) or WORDS[standing],
        verify=tuple(_commands(one.node, certificate)) if certificate else (),
    )


def _standing(reading: ClaimReading, one: Allotted, marks: Marks) -> Standing:
    if one.admin:
        return Standing.LOOKING
    if reading.is_true(one, marks.failed):
        return Standing.FAILED
    kinds = one.conditions or (marks.sanitized, marks.healthy)
    said = reading.conditions.get(one.key, {})
    if reading.receipts.get(one.key):
        told = [said.get(kind) for kind in kinds if kind in said]
        return Standing.PROVEN if "False" not in told else Standing.ENDED
    return Standing.PENDING if one.conditions else Standing.UNRECORDED


def _said(reading: ClaimReading, one: Allotted, marks: Marks) -> str:
    """Why it failed, in the coordinator's words; "" where it did not."""
    for entry in (reading.raw.get("status") or {}).get("devices") or ():
        if not isinstance(entry, dict) or _key(entry) != one.key:
            continue
        for condition in entry.get("conditions") or ():
            if isinstance(condition, dict) and condition.get("type") == marks.failed:
                return str(condition.get("message") or "")
    return ""


def _key(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    share = str(entry.get("shareID") or "")
    return str(entry.get("pool")), str(entry.get("device")), share


def _commands(node: str, certificate: str) -> Iterator[str]:
    """For whoever has an export: the file's digest, then signature and chain.

    The names are an operator's and a claim's word: what is no plain name gives no command.
    """
    short = certificate.removeprefix("sha256:")[:SHORT_ID]
    if not short.isalnum() or not node.replace("-", "").replace(".", "").isalnum():
        return
    yield f"sha256sum certificates/{node}/*-{short}.json"
    yield f"fleet evidence show {short} --directory . --json"
    yield f"fleet evidence verify --directory . --key {node}=KEY.pub"
