"""A stored certificate, read back and checked against itself. Pure.

`read` judges the form, `contradictions` the content: everything that can be judged without keys and
without other certificates.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fleet.errors import EvidenceInvalid
from fleet.evidence import dsse, scope
from fleet.evidence.certificate import PREDICATE_TYPE, SIMULATED_PREFIX
from fleet.model import Digest, NodeName, Token, UnitId, Uuid

FIELDS = frozenset(
    [
        "simulated",
        "summary",
        "device",
        "node",
        "boot_id",
        "previous_holder",
        "claim",
        "run",
        "operation",
        "token",
        "profile",
        "sanitization",
        "bytes",
        "verification",
        "validation",
        "health",
        "reset",
        "posture",
        "holders",
        "scope",
        "started_at",
        "ended_at",
        "issued_at",
        "software",
        "chain",
        "signer",
    ]
)
"""Exactly what a certificate of this version says."""


@dataclass(frozen=True, slots=True)
class Link:
    """A certificate's place in one unit's chain. `sequence` starts at 1."""

    previous: Digest | None
    sequence: int


@dataclass(frozen=True, slots=True)
class Certificate:
    """A well-formed certificate. Who signed it is judged elsewhere."""

    envelope: dsse.Envelope
    node: NodeName
    device: Uuid
    device_name: str
    accelerator: Uuid
    simulated: bool
    token: Token | None
    chain: Mapping[UnitId, Link]
    issued_at: float

    @property
    def digest(self) -> Digest:
        return self.envelope.digest

    @property
    def predicate(self) -> Mapping[str, Any]:
        return self.envelope.predicate


def read(content: bytes) -> Certificate:
    """Read a stored envelope. Raises `EvidenceInvalid` when it is not a well-formed certificate."""
    envelope = dsse.open_envelope(content)
    if envelope.predicate_type != PREDICATE_TYPE:
        raise EvidenceInvalid(f"is a {envelope.predicate_type}, not a wipe certificate")
    found = envelope.predicate
    try:
        token = found["token"]
        return Certificate(
            envelope=envelope,
            node=NodeName(_text(found["node"])),
            device=Uuid(_text(found["device"]["uuid"])),
            device_name=_text(found["device"]["name"]),
            accelerator=Uuid(_text(found["device"]["accelerator"])),
            simulated=found["simulated"] is not False,
            token=None if token is None else Token.parse(token),
            chain={UnitId(unit): _link(link) for unit, link in found["chain"].items()},
            issued_at=dsse.seconds_of(_text(found["issued_at"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EvidenceInvalid(f"is not a well-formed wipe certificate: {error!r}") from error


def chain_of(content: bytes) -> Mapping[UnitId, Link]:
    """The chain a stored certificate names, without judging its form: much faster than `read`.

    For indexes only. Raises `EvidenceInvalid` when there is no chain in it.
    """
    try:
        payload = base64.b64decode(json.loads(content)["payload"])
        chain = json.loads(payload)["predicate"]["chain"]
        return {UnitId(unit): _link(link) for unit, link in chain.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EvidenceInvalid(f"holds no chain: {error!r}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _link(found: Mapping[str, Any]) -> Link:
    previous, sequence = found["previous"], found["sequence"]
    if isinstance(sequence, bool) or not isinstance(sequence, int) or sequence < 1:
        raise ValueError(f"sequence {sequence!r}")
    return Link(None if previous is None else Digest(_text(previous)), sequence)


def contradictions(certificate: Certificate) -> Iterator[str]:
    """Everything a genuine certificate cannot say: whoever signed it, it was not `issue`."""
    found = certificate.predicate
    if found.keys() != FIELDS:
        yield f"its fields are not those of a certificate: {sorted(found.keys() ^ FIELDS)}"
    try:
        yield from _subject(certificate)
        yield from _figures(found)
        if found["sanitization"]["technique"] != scope.TECHNIQUE:
            yield "it claims a technique other than Clear"
        if found["verification"]["status"] != "passed" or found["health"]["healthy"] is not True:
            yield "it is of an unverified or unhealthy device"
        if not found["sanitization"]["nonce_sha256"]:
            yield "it names no nonce"
        times = [dsse.seconds_of(found[name]) for name in ("started_at", "ended_at")]
        if times[1] < times[0] or certificate.issued_at < times[0]:
            yield "its times run backwards"
        if sorted(certificate.chain) != found["device"]["units"]:
            yield "its chain is not of the device's units"
        if found["signer"]["key_id"] != certificate.envelope.key_id:
            yield "it names another signing key than its envelope"
    except (KeyError, TypeError, IndexError, EvidenceInvalid) as error:
        yield f"a field is missing or malformed: {error!r}"


def _subject(certificate: Certificate) -> Iterator[str]:
    found = certificate.predicate
    (subject,) = certificate.envelope.statement["subject"]
    identity = hashlib.sha256(dsse.canonical(found["device"])).hexdigest()
    if subject["digest"] != {"sha256": identity}:
        yield "its subject is not the device it describes"
    prefix = SIMULATED_PREFIX if certificate.simulated else ""
    if subject["name"] != prefix + certificate.device:
        yield "its subject is not named as the device is"
    if found["device"]["simulated"] is not found["simulated"]:
        yield "it is not clear whether the device is simulated"


def _figures(found: Mapping[str, Any]) -> Iterator[str]:
    figures = found["bytes"]
    parts = [figures[name] for name in ("reserved", "covered", "residual")]
    if figures["total"] != sum(parts) or min(parts) < 0 or figures["covered"] <= 0:
        yield "its byte figures do not add up"
    covered = [found["verification"]["bytes"]]
    covered += [one["bytes"] for one in found["sanitization"]["passes"]]
    if len(covered) != 5 or any(count != figures["covered"] for count in covered):
        yield "a pass did not cover all bytes"
    if found["verification"]["mismatched_bytes"] != 0:
        yield "bytes did not read back"
