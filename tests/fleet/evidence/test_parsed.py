"""Reading certificates back: form first, then what contradicts itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import EvidenceInvalid
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


LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "other device": lambda s: s["predicate"]["device"].update(memory_bytes=1),
    "other subject": lambda s: s["subject"][0].update(name="GPU-1"),
    "real": lambda s: s["predicate"].update(simulated=False),
    "bytes": lambda s: s["predicate"]["bytes"].update(residual=0),
    "covered": lambda s: s["predicate"]["verification"].update(bytes=1),
    "pass": lambda s: s["predicate"]["sanitization"]["passes"].pop(),
    "mismatch": lambda s: s["predicate"]["verification"].update(mismatched_bytes=1),
    "technique": lambda s: s["predicate"]["sanitization"].update(technique="Purge"),
    "nonce": lambda s: s["predicate"]["sanitization"].update(nonce_sha256=""),
    "status": lambda s: s["predicate"]["verification"].update(status="skipped"),
    "health": lambda s: s["predicate"]["health"].update(healthy=False),
    "times": lambda s: s["predicate"].update(ended_at="2000-01-01T00:00:00.000000Z"),
    "units": lambda s: s["predicate"]["chain"].update(x={"previous": None, "sequence": 1}),
    "signer": lambda s: s["predicate"]["signer"].update(key_id="00"),
    "field added": lambda s: s["predicate"].update(remark="memory clean"),
    "field gone": lambda s: s["predicate"].pop("verification"),
    "field of another type": lambda s: s["predicate"].update(bytes=[]),
}


@pytest.mark.parametrize("lie", LIES)
def test_contradictions_are_found(key: SigningKey, lie: str) -> None:
    """A certificate that `issue` could not have written is found, even when signed with the key."""
    assert list(parsed.contradictions(parsed.read(resealed(key, LIES[lie]))))


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
