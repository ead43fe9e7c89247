"""The coordinator's signed list of public keys: whose each is, and when it was good.

Key files say which keys there are; the list says, under a second key, until when each one counted.
A certificate issued at or after the revocation of its key is invalid, one issued before stays
valid. The time is the certificate's own word: whoever has a stolen key can write an earlier one,
and then only the countersignatures made before the revocation tell the two apart; `fleet evidence
keys revoke` says so.

Lists are numbered and each names the one before it. Countersignatures name the newest one: an older
list in its place, genuine as it is, contradicts them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from fleet.core.errors import EvidenceInvalid, InputInvalid
from fleet.core.model import Digest
from fleet.evidence import dsse
from fleet.evidence.keys import SHORT_ID, KeyRing
from fleet.evidence.segments import Damage, Place

PREDICATE_TYPE = "https://fleetscrub.dev/key-list/v1"
MOST_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Listed:
    """One key. Times are seconds since the epoch; None: not yet."""

    key_id: str
    node: str
    """"": the coordinator's."""
    since: float
    """When it was listed first; certificates may be older."""
    until: float | None = None
    """When another took its place."""
    revoked_at: float | None = None
    reason: str = ""
    told: bool = False
    """Listed by an operator's word only: other keys of its node may be unknown to this list."""

    def as_json(self) -> dict[str, Any]:
        """JSON-safe form."""
        return {
            "key_id": self.key_id,
            "node": self.node,
            "since": dsse.moment(self.since),
            "until": None if self.until is None else dsse.moment(self.until),
            "revoked_at": None if self.revoked_at is None else dsse.moment(self.revoked_at),
            "reason": self.reason,
            "told": self.told,
        }


@dataclass(frozen=True, slots=True)
class Named:
    """One list, as a countersignature names it."""

    number: int
    digest: Digest

    def as_json(self) -> dict[str, Any]:
        """JSON-safe form; `from_json` reads it back."""
        return {"number": self.number, "digest": self.digest}

    @classmethod
    def from_json(cls, found: Mapping[str, Any] | None) -> Self | None:
        """Rebuild from `as_json`. Raises KeyError, TypeError or ValueError on anything else."""
        if found is None:
            return None
        number, digest = found["number"], found["digest"]
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"not the number of a list of keys: {number!r}")
        if not isinstance(digest, str):
            raise TypeError(f"not the digest of a list of keys: {digest!r}")
        return cls(number, Digest(digest))


@dataclass(frozen=True, slots=True)
class KeyList:
    """All keys, by id. `number` starts at 1; each list names the one before it."""

    number: int = 0
    previous: str | None = None
    keys: Mapping[str, Listed] = field(default_factory=dict)
    issued_at: float = 0.0

    def against(self, key_id: str, node: str, issued_at: float) -> tuple[str, str] | None:
        """Kind and words of what speaks against a certificate of that time; None: nothing."""
        short, found = key_id[:SHORT_ID], self.keys.get(key_id)
        if found is None:
            known = any(one.node == node and not one.told for one in self.keys.values())
            if not known or issued_at > self.issued_at:
                return None  # a node or a key younger than the list: the next one names it
            return "unlisted-key", f"signed with key {short}, which the list of keys does not name"
        if found.node != node:
            owner = found.node or "the coordinator"
            return "foreign-key", f"signed with key {short}, which is listed for {owner}"
        if found.revoked_at is not None and issued_at >= found.revoked_at:
            when = dsse.moment(found.revoked_at)
            return "revoked-key", f"signed with key {short} after it was revoked at {when}"
        if found.until is not None and issued_at > found.until:
            when = dsse.moment(found.until)
            return "replaced-key", f"signed with key {short} after it was replaced at {when}"
        return None

    def found(self, text: str) -> Listed:
        """The key whose id begins so. Raises `InputInvalid` unless it is one."""
        chosen = [one for key_id, one in self.keys.items() if text and key_id.startswith(text)]
        if len(chosen) != 1:
            raise InputInvalid(
                f"{len(chosen)} keys begin with {text!r}",
                remedy="list them with `fleet evidence keys list` and give more characters",
            )
        return chosen[0]


def renewed(
    before: KeyList, rings: Mapping[str, KeyRing], *, now: float, old: Iterable[str] = ()
) -> dict[str, Listed]:
    """The keys of `before` and of the rings (by node, "" is the coordinator); `old` end now.

    A key that is in a ring and not the present one of its owner ended when it was first seen so.
    """
    keys, ended = dict(before.keys), set(old)
    for node, ring in rings.items():
        for key in ring:
            one = keys.get(key.key_id) or Listed(key.key_id, node, since=now)
            replaced = ring.current not in ("", key.key_id) or key.key_id in ended
            if replaced and one.until is None:
                one = replace(one, until=now)
            keys[key.key_id] = replace(one, told=False)
    return keys


def revoked(
    keys: Mapping[str, Listed], one: Listed, *, at: float, reason: str
) -> dict[str, Listed]:
    """The same keys, one of them revoked; an earlier revocation stays."""
    if one.revoked_at is not None and one.revoked_at <= at:
        return dict(keys)
    return {**keys, one.key_id: replace(one, revoked_at=at, reason=reason)}


def sign(
    keys: Mapping[str, Listed],
    *,
    number: int,
    previous: str | None,
    key: dsse.Signer,
    now: float,
) -> bytes:
    """Sign a list that follows `previous` (a digest)."""
    rows = [keys[key_id].as_json() for key_id in sorted(keys)]
    digest = hashlib.sha256(dsse.canonical(rows)).hexdigest()
    predicate = {
        "number": number,
        "previous": previous,
        "issued_at": dsse.moment(now),
        "keys": rows,
        "signer": {"service": "fleetscrub coordinator", "key_id": key.key_id},
    }
    subject = [{"name": "public keys", "digest": {"sha256": digest}}]
    return dsse.seal(PREDICATE_TYPE, subject, predicate, key=key)


def read(content: bytes) -> KeyList:
    """Read a list. Raises `EvidenceInvalid`; does not judge the signature."""
    envelope = dsse.open_envelope(content)
    if envelope.predicate_type != PREDICATE_TYPE:
        raise EvidenceInvalid(f"is a {envelope.predicate_type}, not a list of keys")
    found = envelope.predicate
    try:
        rows = [_listed(row) for row in found["keys"]]
        number, previous = found["number"], found["previous"]
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise EvidenceInvalid(f"its number is {number!r}")
        (subject,) = envelope.statement["subject"]
        spelled = hashlib.sha256(dsse.canonical(found["keys"])).hexdigest()
        if subject["digest"] != {"sha256": spelled}:
            raise EvidenceInvalid("its subject is not the keys it names")
        issued_at = dsse.seconds_of(found["issued_at"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EvidenceInvalid(f"is not a well-formed list of keys: {error!r}") from error
    return KeyList(number, previous, {row.key_id: row for row in rows}, issued_at)


def checked(content: bytes, ring: KeyRing, place: Place, damages: list[Damage]) -> KeyList | None:
    """The list, if a key of the coordinator (`ring`) signed it; else a damage says why not."""
    try:
        found, envelope = read(content), dsse.open_envelope(content)
    except EvidenceInvalid as error:
        damages.append(Damage("unreadable-key-list", error.detail, place))
        return None
    key, short = ring.get(envelope.key_id), envelope.key_id[:SHORT_ID]
    if key is None:
        detail = f"the list of keys is signed with key {short}, which is none of the coordinator's"
        damages.append(Damage("unknown-key", detail, place))
        return None
    if not envelope.signed_by(key):
        detail = f"the signature of the list of keys is not that of key {short}"
        damages.append(Damage("forged", detail, place))
        return None
    return found


@dataclass(frozen=True, slots=True)
class Kept:
    """A list as it is kept somewhere."""

    content: bytes
    place: Place
    number: int | None = None
    """What the name it is kept under says; None: names say nothing there."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The list that counts."""

    listed: KeyList
    content: bytes
    place: Place

    @property
    def name(self) -> Named:
        """As a countersignature names it."""
        return Named(self.listed.number, dsse.digest_of(self.content))


def newest(found: Iterable[Kept], ring: KeyRing, damages: list[Damage]) -> Chosen | None:
    """The list with the highest number that was signed; None: no key of the coordinator signed any.

    The name that a list is kept under is nobody's word: one that says another number, two lists of
    one number and a list that does not follow the one before it are damages.
    """
    good: dict[int, Chosen] = {}
    for one in found:
        listed = checked(one.content, ring, one.place, damages)
        if listed is None:
            continue
        if one.number not in (None, listed.number):
            detail = f"is list of keys {listed.number}, kept as number {one.number}"
            damages.append(Damage("misnamed-key-list", detail, one.place))
        other = good.setdefault(listed.number, Chosen(listed, one.content, one.place))
        if other.content != one.content:
            detail = f"is another list of keys {listed.number} than that at {other.place.file}"
            damages.append(Damage("forked-key-list", detail, one.place))
    for number, chosen in good.items():
        before, previous = good.get(number - 1), chosen.listed.previous
        expected = before.name.digest if before is not None else previous
        if previous != expected or (number == 1) != (previous is None):
            detail = f"list of keys {number} follows {previous}, which is not the one before it"
            damages.append(Damage("forked-key-list", detail, chosen.place))
    return good[max(good)] if good else None


def behind(chosen: Chosen | None, named: Named | None) -> str:
    """What is wrong with the newest list when a countersignature named `named`; "" for nothing."""
    if named is None:
        return ""
    if chosen is None:
        return f"list of keys {named.number}, which was countersigned, is not here"
    found = chosen.name
    if found.number < named.number:
        return f"is list of keys {found.number}; list {named.number} was countersigned already"
    if found.number == named.number and found.digest != named.digest:
        return f"is another list of keys {named.number} than the one that was countersigned"
    follows = found.number != named.number + 1 or chosen.listed.previous == named.digest
    return "" if follows else f"does not follow list of keys {named.number}, as countersigned"


def _listed(row: Mapping[str, Any]) -> Listed:
    def time_of(name: str) -> float | None:
        return None if row[name] is None else dsse.seconds_of(row[name])

    since = dsse.seconds_of(row["since"])
    key_id, node, reason = str(row["key_id"]), str(row["node"]), str(row["reason"])
    if not isinstance(row["told"], bool):
        raise TypeError(f"not a yes or no: {row['told']!r}")
    times = time_of("until"), time_of("revoked_at")
    return Listed(key_id, node, since, *times, reason, row["told"])
