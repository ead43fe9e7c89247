"""The signed list of tag keys: which keys are good, which were replaced or revoked, and which tags
were taken back. Pure.

Nodes and the webhook read it as one file (a ConfigMap). It is signed with the root key of the tag
authority, whose id they are told in their settings: whoever can change the file cannot make a key
good that the authority did not. All keys here are of a kind of their own and never sign evidence.

The file is one canonical JSON object: ``list``, ``public`` (the root's public key, raw, base64) and
``signature`` (base64, over DSSE's pre-authentication encoding of the list's canonical spelling).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from fleet.core.errors import EvidenceInvalid, InputInvalid
from fleet.evidence import dsse
from fleet.evidence.keys import SHORT_ID, PublicKey
from fleet.plugin.tags import Revoked, TagKey, TagKeys, TagKeysUnreadable, moment, seconds_of

PAYLOAD_TYPE = "application/vnd.fleetscrub.tag-key-list.v1+json"
MOST_BYTES = 1 << 20
"""A ConfigMap holds no more."""
_KEY_BYTES = 32
_SIGNATURE_BYTES = 64


def sign(keys: TagKeys, root: dsse.Signer, public: PublicKey) -> bytes:
    """The file of this list."""
    found = as_json(keys)
    signature = root.sign(dsse.pre_authentication(PAYLOAD_TYPE, dsse.canonical(found)))
    return dsse.canonical(
        {"list": found, "public": _base64(public.raw), "signature": _base64(signature)}
    )


def read(content: bytes, roots: Collection[str]) -> TagKeys:
    """The list, if one of these root keys (ids) signed it. Raises `TagKeysUnreadable`."""
    try:
        found = dsse.parse(content.strip())
        signed = _exactly(found, {"list", "public", "signature"}, "the file")
        root = PublicKey(_raw(signed["public"], _KEY_BYTES))
        if root.key_id not in roots:
            raise TagKeysUnreadable(
                f"the list of tag keys is signed with key {root.key_id[:SHORT_ID]}, which is no"
                " root that we were told",
                remedy="put the key's whole id into admission.tag_roots if it is your authority's",
            )
        _refuse_forged(signed, root)
        return _keys(signed["list"])
    except (EvidenceInvalid, InputInvalid) as error:
        raise TagKeysUnreadable(f"the list of tag keys {error.detail}") from error


def with_key(keys: TagKeys, public: PublicKey, *, now: int) -> TagKeys:
    """With one more key, which takes the place of all that are good now."""
    ended = {
        key_id: replace(one, until=now) if one.until is None and one.revoked_at is None else one
        for key_id, one in keys.keys.items()
    }
    fresh = TagKey(public.key_id, public, since=now)
    return _next(keys, {**ended, public.key_id: fresh}, keys.revoked, now)


def without_key(keys: TagKeys, key_id: str, *, reason: str, now: int) -> TagKeys:
    """With this key revoked; an earlier revocation stays."""
    one = keys.keys[key_id]
    if one.revoked_at is not None:
        return keys
    gone = replace(one, revoked_at=now, reason=reason)
    return _next(keys, {**keys.keys, key_id: gone}, keys.revoked, now)


def without_tag(keys: TagKeys, tag_id: str, *, reason: str, now: int) -> TagKeys:
    """With this tag revoked; an earlier revocation stays."""
    if tag_id in keys.revoked:
        return keys
    return _next(keys, keys.keys, {**keys.revoked, tag_id: Revoked(tag_id, now, reason)}, now)


def chosen(keys: TagKeys, text: str) -> TagKey:
    """The key whose id begins so. Raises `InputInvalid` unless it is one."""
    found = [one for key_id, one in keys.keys.items() if text and key_id.startswith(text)]
    if len(found) != 1:
        raise InputInvalid(
            f"{len(found)} tag keys begin with {text!r}",
            remedy="list them with `fleet tag key list` and give more characters",
        )
    return found[0]


def as_json(keys: TagKeys) -> dict[str, Any]:
    """JSON-safe form of the list."""
    return {
        "issued_at": moment(keys.issued_at),
        "keys": [_key_json(keys.keys[key_id]) for key_id in sorted(keys.keys)],
        "number": keys.number,
        "revoked_tags": [
            {"id": one.id, "reason": one.reason, "revoked_at": moment(one.at)}
            for one in sorted(keys.revoked.values(), key=lambda one: one.id)
        ],
    }


def _refuse_forged(signed: Mapping[str, Any], root: PublicKey) -> None:
    message = dsse.pre_authentication(PAYLOAD_TYPE, dsse.canonical(signed["list"]))
    if not root.verify(_raw(signed["signature"], _SIGNATURE_BYTES), message):
        raise EvidenceInvalid("is not signed by the key it names")


def _next(
    before: TagKeys, keys: Mapping[str, TagKey], revoked: Mapping[str, Revoked], now: int
) -> TagKeys:
    return TagKeys(before.number + 1, now, keys, revoked)


def _key_json(key: TagKey) -> dict[str, Any]:
    if not isinstance(key.verifier, PublicKey):
        raise InputInvalid(f"key {key.key_id[:SHORT_ID]} has no public half to be listed")
    return {
        "id": key.key_id,
        "public": _base64(key.verifier.raw),
        "reason": key.reason,
        "revoked_at": None if key.revoked_at is None else moment(key.revoked_at),
        "since": moment(key.since),
        "until": None if key.until is None else moment(key.until),
    }


def _keys(found: Any) -> TagKeys:
    found = _exactly(found, {"issued_at", "keys", "number", "revoked_tags"}, "the list")
    number = found["number"]
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise EvidenceInvalid(f"has the number {number!r}")
    keys = [_key(row) for row in _rows(found["keys"])]
    revoked = [_revoked(row) for row in _rows(found["revoked_tags"])]
    return TagKeys(
        number,
        seconds_of(found["issued_at"]),
        {one.key_id: one for one in keys},
        {one.id: one for one in revoked},
    )


def _key(row: Any) -> TagKey:
    row = _exactly(row, {"id", "public", "reason", "revoked_at", "since", "until"}, "a key")
    public = PublicKey(_raw(row["public"], _KEY_BYTES))
    if public.key_id != row["id"]:
        raise EvidenceInvalid("names a key by an id that is not its own")
    return TagKey(
        public.key_id,
        public,
        seconds_of(row["since"]),
        None if row["until"] is None else seconds_of(row["until"]),
        None if row["revoked_at"] is None else seconds_of(row["revoked_at"]),
        str(row["reason"]),
    )


def _revoked(row: Any) -> Revoked:
    row = _exactly(row, {"id", "reason", "revoked_at"}, "a revoked tag")
    return Revoked(str(row["id"]), seconds_of(row["revoked_at"]), str(row["reason"]))


def _rows(found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise EvidenceInvalid("holds no list where one belongs")
    return found


def _exactly(found: Any, names: set[str], what: str) -> dict[str, Any]:
    if not isinstance(found, dict) or found.keys() != names:
        raise EvidenceInvalid(f"is not well-formed: {what} is no object of {sorted(names)}")
    return found


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _raw(text: Any, length: int) -> bytes:
    try:
        raw = base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise EvidenceInvalid("holds something else than base64") from error
    if len(raw) != length:
        raise EvidenceInvalid(f"holds {len(raw)} bytes where a key or signature has {length}")
    return raw
