"""Isolation tags: a signed right to have devices, as one line of text. Pure.

A tag says which namespaces may have which kind of device under which deallocation policy at least,
and for claims created when. It is issued by whoever decides that, carried by the claim in its
opaque parameters, and judged at admission and again by the node; docs/isolation-tags.md has the
canonical form.

    fst1.<payload>.<signature>      both base64url without padding

Decisions:

1. The payload is canonical JSON (`fleet.evidence.dsse`), so that a tag has one spelling. The
   signature is over DSSE's pre-authentication encoding with a payload type of its own: a signature
   of an evidence key can never pass for one of a tag key, nor the other way round.
2. Times are whole seconds, as the API server writes them; a claim is judged by its creation.
3. A revoked key voids all its tags, whenever they say they were issued: who has a stolen key can
   write any time. A replaced key stays good for what it signed before.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fleet.core.errors import EvidenceInvalid, InputInvalid, Permanent, Retryable
from fleet.evidence import dsse
from fleet.plugin.configuration import TAG_MAX, Deallocation

PREFIX = "fst1"
PAYLOAD_TYPE = "application/vnd.fleetscrub.isolation-tag.v1+json"
ANY = "any"
"""Profile of a tag that is good for every device."""
WHOLE = "whole"
"""Profile of a device that is no partition."""
NAMESPACES_MAX = 16
PROFILES_MAX = 16

_LAYOUT = "%Y-%m-%dT%H:%M:%SZ"
_KEYS = frozenset(
    {
        "id",
        "issued_at",
        "key_id",
        "minimum",
        "namespaces",
        "not_after",
        "not_before",
        "profiles",
    }
)
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PROFILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}")
ID = re.compile(r"[0-9a-f]{32}")
"""Id of a tag."""
_KEY_ID = re.compile(r"[0-9a-f]{64}")
_SHORT = 16


class TagInvalid(Permanent):
    """An isolation tag does not give the right it is shown for."""

    exit_code = 1
    default_remedy = "have a tag issued for this use: docs/isolation-tags.md"


class TagKeysUnreadable(Retryable):
    """The list of tag keys cannot be read or is not signed as it must be: no tag can be judged."""

    default_remedy = (
        "put the newest list of `fleet tag key` at admission.tag_keys, and the id of its root into"
        " admission.tag_roots"
    )


@dataclass(frozen=True, slots=True)
class Tag:
    """What a tag says. Times are whole seconds since the epoch."""

    id: str
    """32 hex digits."""
    key_id: str
    """SHA-256 of the public key that signs it, hex."""
    namespaces: tuple[str, ...]
    profiles: tuple[str, ...]
    """Partition profiles, `WHOLE`, or `ANY` alone."""
    minimum: Deallocation
    not_before: int
    not_after: int
    issued_at: int

    def as_json(self) -> dict[str, Any]:
        """The payload."""
        return {
            "id": self.id,
            "issued_at": moment(self.issued_at),
            "key_id": self.key_id,
            "minimum": str(self.minimum),
            "namespaces": list(self.namespaces),
            "not_after": moment(self.not_after),
            "not_before": moment(self.not_before),
            "profiles": list(self.profiles),
        }


@dataclass(frozen=True, slots=True)
class Signed:
    """A well-formed tag; well-formed says nothing about who signed it."""

    tag: Tag
    payload: bytes
    signature: bytes

    def signed_by(self, key: dsse.Verifier) -> bool:
        """Whether the signature is this key's over this payload."""
        return key.verify(self.signature, dsse.pre_authentication(PAYLOAD_TYPE, self.payload))


@dataclass(frozen=True, slots=True)
class TagKey:
    """A key that tags may be signed with. Times are whole seconds since the epoch."""

    key_id: str
    verifier: dsse.Verifier
    since: int
    until: int | None = None
    """When another took its place; what it signed before stays good."""
    revoked_at: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Revoked:
    """A tag taken back. It is void from when the list says so, for claims created before too."""

    id: str
    at: int
    reason: str


@dataclass(frozen=True, slots=True)
class TagKeys:
    """What tags are judged by: the signed list (`fleet.plugin.tags_list`), as read."""

    number: int = 0
    issued_at: int = 0
    keys: Mapping[str, TagKey] = field(default_factory=dict)
    revoked: Mapping[str, Revoked] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Use:
    """What a tag is shown for."""

    namespace: str
    created_at: float
    """When the claim was created, s since the epoch. Of a claim about to be created: now."""
    deallocation: Deallocation | None
    """What it states; None: nothing."""
    profile: str | None = None
    """Profile of the device given, `WHOLE` for no partition; None: no device is given yet."""


def issue(tag: Tag, key: dsse.Signer) -> str:
    """The tag's text. Raises `InputInvalid` for a tag that could not be read back."""
    if tag.key_id != key.key_id:
        raise InputInvalid(f"the tag names key {tag.key_id[:_SHORT]}, not the one that signs it")
    payload = dsse.canonical(tag.as_json())
    signature = key.sign(dsse.pre_authentication(PAYLOAD_TYPE, payload))
    text = ".".join((PREFIX, _encoded(payload), _encoded(signature)))
    try:
        read(text)
    except TagInvalid as error:
        raise InputInvalid(f"no tag can say that: {error.detail}") from error
    return text


def read(text: str) -> Signed:
    """Take a tag apart, strictly. Raises `TagInvalid`; does not judge the signature."""
    if len(text) > TAG_MAX:
        raise TagInvalid(f"has {len(text)} characters, a tag has at most {TAG_MAX}")
    parts = text.split(".")
    if len(parts) != 3 or parts[0] != PREFIX:
        raise TagInvalid(f"is not a tag: expected {PREFIX}.<payload>.<signature>")
    payload, signature = _decoded(parts[1], "payload"), _decoded(parts[2], "signature")
    try:
        return Signed(_tag(dsse.parse(payload)), payload, signature)
    except EvidenceInvalid as error:
        raise TagInvalid(f"its payload {error.detail}") from error


def judge(signed: Signed, keys: TagKeys, use: Use) -> Iterator[tuple[str, str]]:
    """What speaks against this use of the tag: what is wrong, and what to write."""
    tag = signed.tag
    key = keys.keys.get(tag.key_id)
    if key is None:
        short, number = tag.key_id[:_SHORT], keys.number
        wrong = f"is signed with key {short}, which the list of tag keys (number {number}) lacks"
        yield wrong, "a tag of a key that is listed"
        return
    if not signed.signed_by(key.verifier):
        yield f"its signature is not that of key {tag.key_id[:_SHORT]}", "the tag as it was issued"
        return
    yield from _withdrawn(tag, key, keys)
    if use.namespace not in tag.namespaces:
        named = ", ".join(tag.namespaces)
        yield (
            f"is for namespace {named}, not for {use.namespace}",
            f"a tag issued for {use.namespace}",
        )
    yield from _untimely(tag, int(use.created_at))
    if use.deallocation is not None and not use.deallocation.covers(tag.minimum):
        yield (
            f"demands deallocation {tag.minimum}, stated is {use.deallocation}",
            f"deallocation: {tag.minimum}",
        )
    if use.profile is not None and not allows(tag.profiles, use.profile):
        allowed = ", ".join(tag.profiles)
        yield (
            f"is for devices of profile {allowed}, given was one of profile {use.profile}",
            "a request that selects a profile of the tag, or a tag for this one",
        )


def allows(profiles: Collection[str], profile: str) -> bool:
    """Whether a device of this profile may be had under a tag of those."""
    return ANY in profiles or profile in profiles


def moment(seconds: int) -> str:
    """RFC 3339 text, UTC, whole seconds. Raises `InputInvalid` outside years 1000 to 9999."""
    try:
        found = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise InputInvalid(f"{seconds!r} is not a time: {error}") from error
    if found.year < 1000:
        raise InputInvalid(f"{seconds!r} is not a time of our days")
    return found.strftime(_LAYOUT)


def seconds_of(text: Any) -> int:
    """Seconds since the epoch of what `moment` wrote, nothing else. Raises `EvidenceInvalid`."""
    try:
        found = int(datetime.strptime(text, _LAYOUT).replace(tzinfo=UTC).timestamp())
        if moment(found) == text:
            return found
    except (TypeError, ValueError, InputInvalid):
        pass
    raise EvidenceInvalid(
        f"holds {str(text)[:40]!r}, which is no time such as 2027-01-31T12:00:00Z"
    )


def _withdrawn(tag: Tag, key: TagKey, keys: TagKeys) -> Iterator[tuple[str, str]]:
    short = tag.key_id[:_SHORT]
    if key.revoked_at is not None:
        why = f" ({key.reason})" if key.reason else ""
        yield (
            f"its key {short} was revoked at {moment(key.revoked_at)}{why}",
            "a tag of a key that is good",
        )
    elif key.until is not None and tag.issued_at > key.until:
        issued, until = moment(tag.issued_at), moment(key.until)
        wrong = f"says it was issued at {issued}, after its key {short} was replaced at {until}"
        yield wrong, "a tag of the present key"
    taken = keys.revoked.get(tag.id)
    if taken is not None:
        why = f" ({taken.reason})" if taken.reason else ""
        yield f"tag {tag.id} was revoked at {moment(taken.at)}{why}", "another tag"


def _untimely(tag: Tag, created_at: int) -> Iterator[tuple[str, str]]:
    if created_at < tag.not_before:
        begins, created = moment(tag.not_before), moment(created_at)
        wrong = f"is good for claims created from {begins} on, this one was at {created}"
        yield wrong, "a tag for now"
    elif created_at > tag.not_after:
        yield (
            f"expired at {moment(tag.not_after)}, the claim was created at {moment(created_at)}",
            "a new tag, and create the claim anew",
        )


def _tag(found: Any) -> Tag:
    if not isinstance(found, dict) or found.keys() != _KEYS:
        raise EvidenceInvalid(f"is not an object of exactly {', '.join(sorted(_KEYS))}")
    try:
        minimum = Deallocation(found["minimum"])
    except ValueError as error:
        raise EvidenceInvalid("names a minimum that is no deallocation policy") from error
    tag = Tag(
        id=_text(found["id"], ID, "id"),
        key_id=_text(found["key_id"], _KEY_ID, "key_id"),
        namespaces=_texts(found["namespaces"], _NAMESPACE, "namespaces", NAMESPACES_MAX),
        profiles=_texts(found["profiles"], _PROFILE, "profiles", PROFILES_MAX),
        minimum=minimum,
        not_before=seconds_of(found["not_before"]),
        not_after=seconds_of(found["not_after"]),
        issued_at=seconds_of(found["issued_at"]),
    )
    if tag.not_after <= tag.not_before:
        raise EvidenceInvalid("ends before it begins")
    if ANY in tag.profiles and len(tag.profiles) > 1:
        raise EvidenceInvalid(f"names {ANY!r} beside other profiles")
    return tag


def _texts(found: Any, pattern: re.Pattern[str], what: str, most: int) -> tuple[str, ...]:
    if not isinstance(found, list) or not 1 <= len(found) <= most:
        raise EvidenceInvalid(f"does not hold 1 to {most} {what}")
    texts = tuple(_text(one, pattern, what) for one in found)
    if list(texts) != sorted(set(texts)):
        raise EvidenceInvalid(f"holds {what} that are not sorted, or one twice")
    return texts


def _text(found: Any, pattern: re.Pattern[str], what: str) -> str:
    if not isinstance(found, str) or not pattern.fullmatch(found):
        raise EvidenceInvalid(f"holds {what} {str(found)[:60]!r}, which is not one")
    return found


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _decoded(text: str, what: str) -> bytes:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise TagInvalid(f"its {what} is not base64url") from error
    if _encoded(raw) != text:
        raise TagInvalid(f"its {what} is base64url in a spelling that is not canonical")
    return raw
