"""Canonical JSON and envelopes: one spelling, strictly read."""

from __future__ import annotations

import base64
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.core.errors import EvidenceInvalid, InputInvalid
from fleet.evidence import dsse
from fleet.evidence.keys import SigningKey
from tests.fleet.evidence.samples import START

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(name="key")
def key_fixture(tmp_path: Path) -> SigningKey:
    """A fresh key."""
    return SigningKey.load_or_create(tmp_path / "keys" / "node.key")


def sealed(key: SigningKey) -> bytes:
    """Some sealed statement."""
    return dsse.seal("https://example.org/x", [{"name": "x"}], {"a": 1}, key=key)


def test_canonical_spelling_is_golden() -> None:
    """Canonical JSON: sorted keys, no spaces, UTF-8 unescaped, control characters escaped."""
    value = {"b": [1, -2, True, None], "a": {"é": "ü\n\u0001€", "B": "", "A": 2**63}, "": "/"}
    assert (
        dsse.canonical(value)
        == (
            '{"":"/","a":{"A":9223372036854775808,"B":"","é":"ü\\n\\u0001€"},"b":[1,-2,true,null]}'
        ).encode()
    )


def test_pre_authentication_encoding_is_golden() -> None:
    """The bytes signed are DSSE's PAE, so that other DSSE verifiers agree."""
    assert dsse.pre_authentication("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


@pytest.mark.parametrize(
    "value", [1.5, float("nan"), float("inf"), {"a": [0.0]}, {1: 2}, b"x", {"a": {1}}, "\ud800"]
)
def test_unspellable_values_are_refused(value: object) -> None:
    """Floats, NaN, keys that are not text, foreign types and half characters have no spelling."""
    with pytest.raises(InputInvalid):
        dsse.canonical(value)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_canonical_reads_back(value: object) -> None:
    """What is spelled canonically reads back as the same value and the same bytes."""
    assert dsse.parse(dsse.canonical(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        '{"b":{"a":1,"a":1}}',
        '{"b":1,"a":2}',
        '{"a": 1}',
        '{"a":1.0}',
        '{"a":1e3}',
        '{"a":NaN}',
        '{"a":"\\u0041"}',
        '{"a":"\\ud800"}',
        '{"a":1}\n',
        "",
        "[" * 100_000,
    ],
)
def test_other_spellings_are_refused(text: str) -> None:
    """Doubled keys anywhere, floats, other orders, spaces and escapes are all refused."""
    with pytest.raises(EvidenceInvalid):
        dsse.parse(text.encode())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "1970-01-01T00:00:00.000000Z"), (START, "2023-11-14T22:13:20.250000Z")],
)
def test_times_are_rfc3339_with_microseconds(seconds: float, text: str) -> None:
    """Times are text with microseconds and read back exactly."""
    assert dsse.moment(seconds) == text
    assert dsse.seconds_of(text) == seconds


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e30])
def test_impossible_times_are_refused(seconds: float) -> None:
    """A time that is no time cannot be written."""
    with pytest.raises(InputInvalid):
        dsse.moment(seconds)


@pytest.mark.parametrize(
    "text", ["2024-05-06T07:08:09.000010Z", "2024-5-6T7:8:9.00001Z", "2024-05-06T07:08:09.00001Z"]
)
def test_a_time_is_read_in_each_spelling_as_ever(text: str) -> None:
    """Issue 8: reading the usual spelling faster refuses no old one and changes no meaning."""
    assert dsse.seconds_of(text) == 1714979289.00001


@pytest.mark.parametrize(
    "text", ["2024-13-06T07:08:09.000010Z", "2024-05-06T07:08:61.000010Z", "2024-05-06", ""]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    """A7: a time no clock shows is an error, not a guess."""
    with pytest.raises(EvidenceInvalid):
        dsse.seconds_of(text)


def test_envelope_reads_back(key: SigningKey) -> None:
    """A sealed envelope opens, verifies under its key and has the digest of its bytes."""
    content = sealed(key)
    envelope = dsse.open_envelope(content)
    assert envelope.signed_by(key.public())
    assert envelope.key_id == key.key_id
    assert envelope.predicate == {"a": 1}
    assert envelope.digest == dsse.digest_of(content)


def change(content: bytes, **changes: Any) -> bytes:
    """The envelope with some keys replaced (None removes)."""
    found = {**json.loads(content), **changes}
    return dsse.canonical({name: value for name, value in found.items() if value is not None})


def test_malformed_envelopes_are_refused(key: SigningKey) -> None:
    """Unknown or missing keys, other types, no or two signatures, and loose base64 are refused."""
    content = sealed(key)
    found = json.loads(content)
    signature, payload = found["signatures"][0], found["payload"]
    statement = json.loads(base64.b64decode(payload))

    def wrapped(value: object) -> str:
        return base64.b64encode(dsse.canonical(value)).decode()

    malformed = [
        change(content, extra=1),
        change(content, payload=None),
        change(content, payloadType="text/plain"),
        change(content, signatures=[]),
        change(content, signatures=[signature, signature]),
        change(content, signatures=[{**signature, "x": 1}]),
        change(content, signatures=[{**signature, "keyid": 1}]),
        change(content, signatures=[{**signature, "sig": signature["sig"].rstrip("=")}]),
        change(content, payload=payload[:20] + "\n" + payload[20:]),
        change(content, payload=payload[:20] + "!" + payload[21:]),
        change(content, payload=wrapped({**statement, "x": 1})),
        change(content, payload=wrapped({**statement, "_type": "x"})),
        change(content, payload=wrapped({**statement, "predicate": []})),
        change(content, payload=wrapped([])),
        b"[]",
        content + b"\n",
        b" " + content,
    ]
    for one in malformed:
        with pytest.raises(EvidenceInvalid):
            dsse.open_envelope(one)


def test_stray_base64_bits_are_refused(key: SigningKey) -> None:
    """Two base64 texts of the same bytes: only the canonical one is an envelope."""
    content = sealed(key)
    signature = json.loads(content)["signatures"][0]
    text = signature["sig"]
    loose = text[:-3] + chr(ord(text[-3]) + 1) + "=="
    assert base64.b64decode(loose) == base64.b64decode(text)
    with pytest.raises(EvidenceInvalid, match="canonical"):
        dsse.open_envelope(change(content, signatures=[{**signature, "sig": loose}]))


@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed(position: int, bit: int) -> None:
    """A flipped bit makes an envelope malformed, or its signature or key id wrong."""
    key, content = _KEPT
    place = position % len(content)
    flipped = content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]
    try:
        envelope = dsse.open_envelope(flipped)
    except EvidenceInvalid:
        return
    assert envelope.key_id != key.key_id or not envelope.signed_by(key.public())


def _kept() -> tuple[SigningKey, bytes]:
    with tempfile.TemporaryDirectory() as directory:
        key = SigningKey.load_or_create(Path(directory) / "keys" / "node.key")
    return key, sealed(key)


_KEPT = _kept()


def test_b20_many_keys_are_compared_in_one_pass() -> None:
    """B20: a file of 100,000 keys with one doubled is refused at once, in a short message."""
    text = "{" + ",".join(f'"k{n}":0' for n in range(100_000)) + ',"k0":1}'
    began = time.process_time()
    with pytest.raises(EvidenceInvalid) as caught:
        dsse.parse(text.encode())
    assert time.process_time() - began < 5.0
    assert "k0" in caught.value.detail
    with pytest.raises(EvidenceInvalid) as caught:
        dsse.open_envelope(dsse.canonical({f"k{n}": 0 for n in range(10_000)}))
    assert len(caught.value.detail) < 1000
