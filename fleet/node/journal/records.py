"""Units and claims as stored text, with fields of newer versions kept (case B26).

A row stores the text and its SHA-256. The digest is over the stored bytes, never over a
re-encoding, so another spelling of the same record is not mistaken for damage.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fleet.core import sqlite
from fleet.core.claim_states import Claim, ClaimState
from fleet.core.model import (
    BootId,
    ClaimUid,
    Digest,
    Reason,
    Source,
    State,
    Token,
    Unit,
    UnitId,
    Uuid,
)

TIME_MAX_S = 1e15
"""No time, s, is as far away: it is damage, as is what is no number at all."""
_TEXTS = ("code", "detail", "remedy")


def digest(text: str) -> str:
    """Hex SHA-256 of the stored text."""
    return hashlib.sha256(text.encode()).hexdigest()


def is_whole(text: object, expected: object) -> bool:
    """Whether a stored text is the one that was written."""
    return isinstance(text, str) and digest(text) == expected


def checked(text: object, expected: object, *, where: str) -> dict[str, Any]:
    """The stored object. Raises `sqlite.Corrupt` when text and digest disagree.

    One changed bit makes bytes of a column that was a text.
    """
    if not isinstance(text, str) or not is_whole(text, expected):
        raise sqlite.Corrupt(f"the digest of {where} does not match its text")
    found = json.loads(text)
    if not isinstance(found, dict):
        raise sqlite.Corrupt(f"{where} is not an object")
    return found


def merged(record: Mapping[str, Any], older: str | None) -> str:
    """`record` as text, keeping keys of `older` that this version does not know."""
    kept = json.loads(older) if older else {}
    return json.dumps({**kept, **record}, sort_keys=True, separators=(",", ":"))


def unit_fields(unit: Unit) -> dict[str, Any]:
    """A unit as a JSON-safe object."""
    return {
        "id": unit.id,
        "state": unit.state,
        "reasons": [reason_fields(reason) for reason in sorted(unit.reasons)],
        "floor": str(unit.floor),
        "closed": unit.closed,
        "token": str(unit.token) if unit.token else None,
        "certificate": unit.certificate,
        "head": unit.head,
        "claim": unit.claim,
        "last_holder": unit.last_holder,
        "interruptions": unit.interruptions,
        "boot_id": unit.boot_id,
        "since": unit.since,
    }


def unit_from(found: Mapping[str, Any]) -> Unit:
    """Rebuild a unit. Raises KeyError or ValueError on a record that is none."""
    return Unit(
        id=UnitId(found["id"]),
        state=State(found["state"]),
        reasons=frozenset(reason_from(reason) for reason in found["reasons"]),
        floor=Token.parse(found["floor"]),
        closed=found["closed"],
        token=Token.parse(found["token"]) if found["token"] else None,
        certificate=Digest(found["certificate"]) if found["certificate"] else None,
        head=Digest(found["head"]) if found["head"] else None,
        claim=ClaimUid(found["claim"]) if found["claim"] else None,
        last_holder=found["last_holder"],
        interruptions=found["interruptions"],
        boot_id=BootId(found["boot_id"]),
        since=found["since"],
    )


def reason_fields(reason: Reason) -> dict[str, Any]:
    """A reason as a JSON-safe object."""
    return {
        "code": reason.code,
        "source": reason.source,
        "liftable": reason.liftable,
        "detail": reason.detail,
        "remedy": reason.remedy,
        "since": reason.since,
    }


def reason_from(found: Mapping[str, Any]) -> Reason:
    """Rebuild a reason. Raises KeyError, TypeError or ValueError on a record that is none."""
    texts, liftable, since = [found[name] for name in _TEXTS], found["liftable"], found["since"]
    if not all(isinstance(text, str) for text in texts) or not isinstance(liftable, bool):
        raise TypeError("a reason is of texts and a truth value")
    if not isinstance(since, int | float) or isinstance(since, bool) or not abs(since) < TIME_MAX_S:
        raise TypeError("a reason is since a time")
    code, detail, remedy = texts
    return Reason(
        code=code,
        source=Source(found["source"]),
        liftable=liftable,
        detail=detail,
        remedy=remedy,
        since=since,
    )


def claim_fields(claim: Claim) -> dict[str, Any]:
    """A claim as a JSON-safe object."""
    return {
        "uid": claim.uid,
        "state": claim.state,
        "devices": list(claim.devices),
        "units": list(claim.units),
        "token": str(claim.token),
        "boot_id": claim.boot_id,
        "namespace": claim.namespace,
        "name": claim.name,
        "consumers": list(claim.consumers),
        "spec": claim.spec,
        "attached": list(claim.attached),
        "created_at": claim.created_at,
        "error": claim.error,
        "attributes": dict(claim.attributes),
    }


def claim_from(found: Mapping[str, Any]) -> Claim:
    """Rebuild a claim. Raises KeyError or ValueError on a record that is none."""
    return Claim(
        uid=ClaimUid(found["uid"]),
        state=ClaimState(found["state"]),
        devices=tuple(Uuid(uuid) for uuid in found["devices"]),
        units=tuple(UnitId(unit) for unit in found["units"]),
        token=Token.parse(found["token"]),
        boot_id=BootId(found["boot_id"]),
        namespace=found["namespace"],
        name=found["name"],
        consumers=tuple(found["consumers"]),
        spec=found["spec"],
        attached=tuple(Uuid(uuid) for uuid in found.get("attached", ())),
        created_at=found["created_at"],
        error=found["error"],
        attributes=dict(found["attributes"]),
    )
