"""Reading certificates back: form first, then what contradicts itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.core.errors import EvidenceInvalid
from fleet.evidence import dsse, parsed
from fleet.evidence.certificate import PREDICATE_TYPE, issue
from fleet.evidence.keys import SigningKey
from tests.fleet.evidence.samples import START, attested, device_named


@pytest.fixture(name="key")
def key_fixture(tmp_path: Path) -> SigningKey:
    """A fresh key."""
    return SigningKey.load_or_create(tmp_path / "keys" / "node.key")


def resealed(key: SigningKey, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A certificate changed and signed again, as an owner of the key could."""
    facts = attested(device_named("a"))
    genuine = dsse.open_envelope(issue(facts, key=key, now=START + 3, version="0.1").envelope)
    statement = dsse.parse(genuine.payload)
    change(statement)
    predicate = statement["predicate"]
    return dsse.seal(statement["predicateType"], statement["subject"], predicate, key=key)


def test_no_subject_or_two_is_a_contradiction(key: SigningKey) -> None:
    """A statement about nothing or about two things is reported, never a crash."""
    subjects: list[Any] = [[], [{}, {}], {}, None, "x", [7], [{"name": 1}]]
    for subject in subjects:

        def change(statement: dict[str, Any], found: Any = subject) -> None:
            statement["subject"] = found

        assert list(parsed.contradictions(parsed.read(resealed(key, change))))


MALFORMED: dict[str, Callable[[dict[str, Any]], object]] = {
    "type": lambda s: s.update(predicateType=PREDICATE_TYPE + "x"),
    "node": lambda s: s["predicate"].update(node=7),
    "token": lambda s: s["predicate"].update({"token": "seven"}),
    "chain": lambda s: s["predicate"].update(chain=[]),
    "sequence": lambda s: s["predicate"].update(chain={"u": {"previous": None, "sequence": 0}}),
    "sequence true": lambda s: s["predicate"].update(
        chain={"u": {"previous": None, "sequence": True}}
    ),
    "issued": lambda s: s["predicate"].update(issued_at="yesterday"),
    "gone": lambda s: s["predicate"].pop("device"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_certificates_are_refused(key: SigningKey, what: str) -> None:
    """What lacks the fields a verifier relies on is not a certificate."""
    with pytest.raises(EvidenceInvalid):
        parsed.read(resealed(key, MALFORMED[what]))


def test_fast_reading_agrees_with_strict_reading(key: SigningKey) -> None:
    """The index reads the same chain as the verifier does, and refuses what holds none."""
    content = resealed(key, lambda _: None)
    assert parsed.chain_of(content) == parsed.read(content).chain
    for bad in (b"{}", b"[]", b'{"payload":"!"}', b'{"payload":"e30="}'):
        with pytest.raises(EvidenceInvalid):
            parsed.chain_of(bad)
