"""A stored certificate, read back and checked against itself. Pure.

`read` judges the form, `contradictions` the content: everything that can be judged without keys and
without other certificates.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fleet.core.errors import EvidenceInvalid
from fleet.core.model import Digest, NodeName, Token, UnitId, Uuid
from fleet.evidence import dsse, rules
from fleet.evidence.certificate import PREDICATE_TYPE


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
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise EvidenceInvalid(f"is not a well-formed wipe certificate: {error!r}") from error


def chain_of(content: bytes) -> Mapping[UnitId, Link]:
    """The chain a stored certificate names, without judging its form: much faster than `read`.

    For indexes only. Raises `EvidenceInvalid` when there is no chain in it.
    """
    try:
        payload = base64.b64decode(json.loads(content)["payload"])
        chain = json.loads(payload)["predicate"]["chain"]
        return {UnitId(unit): _link(link) for unit, link in chain.items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
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
    envelope = certificate.envelope
    yield from rules.against(
        envelope.statement["subject"], envelope.predicate, key_id=envelope.key_id
    )
