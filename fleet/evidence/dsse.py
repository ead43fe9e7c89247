"""Canonical JSON, and in-toto statements signed in DSSE envelopes. Pure.

Everything is stored in one spelling only, so that the digest of the stored bytes is the identity of
what they say, and a changed byte is always an error.

Decisions:

1. Canonical JSON here: UTF-8, keys sorted by code point, no spaces, no floating point at all. Times
   are RFC 3339 text with microseconds, durations integers of microseconds.
2. The reader accepts exactly what the writer writes: one signature, no unknown or doubled keys,
   base64 in its one canonical spelling.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn, Protocol

from fleet.core.errors import EvidenceInvalid, InputInvalid
from fleet.core.model import Digest

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_NAMED_MAX, _SHOWN_MAX = 8, 60
"""Keys that a message names, and characters of each."""
_ENVELOPE_KEYS = frozenset({"payload", "payloadType", "signatures"})
_SIGNATURE_KEYS = frozenset({"keyid", "sig"})
_PLAIN = frozenset({str, int, bool, type(None)})
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)
_STATEMENT_KEYS = frozenset({"_type", "predicate", "predicateType", "subject"})


class Signer(Protocol):
    """What signs: a private key."""

    @property
    def key_id(self) -> str: ...

    def sign(self, message: bytes) -> bytes: ...


class Verifier(Protocol):
    """What verifies: a public key."""

    def verify(self, signature: bytes, message: bytes) -> bool: ...


def canonical(value: object) -> bytes:
    """The one spelling of `value`. Raises `InputInvalid` on floats, foreign types and bad text."""
    _reject_unspellable(value)
    try:
        return _spell(value)
    except (TypeError, ValueError) as error:
        raise InputInvalid(f"cannot be written as canonical JSON: {error}") from error


def _spell(value: object) -> bytes:
    return _ENCODER.encode(value).encode()


def _reject_unspellable(value: object) -> None:
    if type(value) in _PLAIN:  # most of what there is
        return
    if isinstance(value, dict | Mapping):  # a dict is told at once, any other mapping slowly
        for key, item in value.items():
            if not isinstance(key, str):
                raise InputInvalid(f"key {key!r} of a JSON object is not text")
            _reject_unspellable(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _reject_unspellable(item)
    elif isinstance(value, float):
        raise InputInvalid(
            f"floating point number {value!r} has no spelling every reader agrees on",
            remedy="write times as RFC 3339 text and durations as integer microseconds",
        )


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        doubled = sorted(
            key for key, count in Counter(key for key, _ in pairs).items() if count > 1
        )
        raise EvidenceInvalid(f"keys {_some(doubled)} appear twice in one JSON object")
    return found


def _some(names: list[str]) -> str:
    """The first few names, each cut: whoever writes a file must not write our messages' length."""
    shown = ", ".join(repr(name[:_SHOWN_MAX]) for name in names[:_NAMED_MAX])
    return f"[{shown}{', ...' if len(names) > _NAMED_MAX else ''}]"


def _no_number(text: str) -> NoReturn:
    raise EvidenceInvalid(f"number {text[:_SHOWN_MAX]} is not an integer")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_no_duplicates, parse_float=_no_number, parse_constant=_no_number
)


def parse(content: bytes) -> Any:
    """The value whose canonical spelling is exactly `content`. Raises `EvidenceInvalid`."""
    try:
        value = _DECODER.decode(content.decode("utf-8"))
        spelled = _spell(value)
    except (ValueError, RecursionError) as error:
        raise EvidenceInvalid(f"is not JSON: {error}") from error
    if spelled != content:
        raise EvidenceInvalid("is not spelled canonically")
    return value


def digest_of(content: bytes) -> Digest:
    """``sha256:<hex>`` of `content`."""
    return Digest(f"sha256:{hashlib.sha256(content).hexdigest()}")


def moment(seconds: float) -> str:
    """RFC 3339 text, UTC, microseconds. Raises `InputInvalid` on a time outside years 1 to 9999."""
    try:
        whole = datetime.fromtimestamp(seconds, tz=UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise InputInvalid(f"{seconds!r} is not a time: {error}") from error
    return whole.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def stamp(seconds: float) -> str:
    """RFC 3339 text, UTC, whole seconds: for people."""
    return f"{moment(seconds)[:19]}Z"


def seconds_of(text: str) -> float:
    """Seconds since the epoch of what `moment` wrote. Raises `EvidenceInvalid`."""
    try:
        if _MOMENT.fullmatch(text):  # as `moment` spells it; read five times as fast
            return datetime.fromisoformat(text).timestamp()
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise EvidenceInvalid(f"{text!r} is not a time as certificates write it") from error


def pre_authentication(payload_type: str, payload: bytes) -> bytes:
    """DSSE's PAE: the exact bytes that are signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A well-formed envelope; well-formed says nothing about who signed it."""

    digest: Digest
    payload: bytes
    statement: Mapping[str, Any]
    key_id: str
    signature: bytes

    @property
    def predicate_type(self) -> str:
        return str(self.statement["predicateType"])

    @property
    def predicate(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.statement["predicate"]
        return found

    def signed_by(self, key: Verifier) -> bool:
        """Whether the signature is this key's over this payload."""
        return key.verify(self.signature, pre_authentication(PAYLOAD_TYPE, self.payload))


def seal(
    predicate_type: str,
    subject: list[dict[str, Any]],
    predicate: Mapping[str, Any],
    *,
    key: Signer,
) -> bytes:
    """Sign a statement; the bytes returned are what is stored. Raises `InputInvalid`.

    Only `fleet.evidence.certificate.issue`, `fleet.evidence.heads.countersign`,
    `fleet.evidence.key_list.sign` and `fleet.evidence.losses.sign` may call this.
    """
    payload = canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": subject,
            "predicateType": predicate_type,
            "predicate": predicate,
        }
    )
    signature = key.sign(pre_authentication(PAYLOAD_TYPE, payload))
    return canonical(
        {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"keyid": key.key_id, "sig": base64.b64encode(signature).decode()}],
        }
    )


def open_envelope(content: bytes) -> Envelope:
    """Take `content` apart, strictly. Raises `EvidenceInvalid`; does not judge the signature."""
    found = _object(parse(content), _ENVELOPE_KEYS, "envelope")
    if found["payloadType"] != PAYLOAD_TYPE:
        raise EvidenceInvalid(f"payload type is {found['payloadType']!r}, not {PAYLOAD_TYPE!r}")
    signatures = found["signatures"]
    if not isinstance(signatures, list) or len(signatures) != 1:
        raise EvidenceInvalid("the envelope must hold exactly one signature")
    signature = _object(signatures[0], _SIGNATURE_KEYS, "signature")
    if not isinstance(signature["keyid"], str):
        raise EvidenceInvalid("the key id is not text")
    payload = _decode(found["payload"], "payload")
    statement = _object(parse(payload), _STATEMENT_KEYS, "statement")
    if statement["_type"] != STATEMENT_TYPE:
        raise EvidenceInvalid(f"statement type is {statement['_type']!r}")
    if not isinstance(statement["predicate"], dict):
        raise EvidenceInvalid("the predicate is not an object")
    return Envelope(
        digest=digest_of(content),
        payload=payload,
        statement=statement,
        key_id=signature["keyid"],
        signature=_decode(signature["sig"], "signature"),
    )


def _object(value: Any, keys: frozenset[str], what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise EvidenceInvalid(f"the {what} is not a JSON object")
    if value.keys() != keys:
        unknown, missing = sorted(value.keys() - keys), sorted(keys - value.keys())
        raise EvidenceInvalid(f"the {what} has unknown keys {_some(unknown)} and lacks {missing}")
    return value


def _decode(text: Any, what: str) -> bytes:
    try:
        raw = base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise EvidenceInvalid(f"the {what} is not base64") from error
    if base64.b64encode(raw).decode() != text:
        raise EvidenceInvalid(f"the {what} is base64 in a spelling that is not canonical")
    return raw
