"""Issuing: everything is said, and nothing unverified ever gets a certificate."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fleet
from fleet.core.errors import EvidenceRefused
from fleet.core.model import BootId, Digest, NodeName, Process, ProcessKind, Token, UnitId, Uuid
from fleet.devices.base import Coverage, Mismatch, ResetScrub
from fleet.devices.wipe.result import Failure, Pass
from fleet.evidence import dsse, parsed
from fleet.evidence.certificate import Attested, Issued, Reset, issue
from fleet.evidence.keys import SigningKey
from fleet.plugin import tags, tags_list
from tests.fleet.evidence.samples import (
    START,
    Verdict,
    attested,
    device_named,
    reset_of,
    wipe_of,
)

DEVICE = device_named("a", ("0", "1"))
HEAD = Digest("sha256:" + "1" * 64)


@pytest.fixture(name="key")
def key_fixture(tmp_path: Path) -> SigningKey:
    """A fresh key."""
    return SigningKey.load_or_create(tmp_path / "keys" / "node.key")


def issued(facts: Attested, key: SigningKey, *, now: float = START + 3) -> Issued:
    """A certificate of the facts."""
    return issue(facts, key=key, now=now, version="0.1")


def test_certificate_says_everything(key: SigningKey) -> None:
    """E3: identity, holder, token, method, bytes, counters, reset, posture, boot, times, chain."""
    facts = attested(
        DEVICE,
        heads={DEVICE.units[0]: HEAD, DEVICE.units[1]: None},
        sequences={DEVICE.units[0]: 4},
        token=Token(2, 7),
    )
    done = issued(facts, key)
    one = parsed.read(done.envelope)
    found = one.predicate
    assert done.digest == one.digest
    assert one.envelope.signed_by(key.public())
    assert list(parsed.contradictions(one)) == []
    assert found["device"]["attributes"]["serial"] == "0001"
    assert (found["previous_holder"], found["token"]) == ("claim:tenant-a", "2.7")
    assert found["sanitization"]["nonce_sha256"] == "ab" * 32
    mib = 1024 * 1024
    assert found["bytes"] == {
        "total": 64 * mib,
        "reserved": 3 * mib,
        "covered": 60 * mib,
        "residual": mib,
        "floor": "0.98",
    }
    assert found["health"]["counters_before"] == found["health"]["counters_after"]
    assert found["health"]["link_under_load"]["pcie_gen"] == 5
    assert found["reset"]["reason"] == "no fault; policy on-fault"
    assert found["posture"] == {"mps": "off", "scrub_on_free": "on", "driver_version": "1.0"}
    assert found["boot_id"] == "boot-1"
    assert found["started_at"] == "2023-11-14T22:13:20.250000Z"
    assert found["holders"] == [{"pid": 41, "name": "monitor", "kind": "infrastructure"}]
    assert one.chain[DEVICE.units[0]] == parsed.Link(HEAD, 5)
    assert one.chain[DEVICE.units[1]] == parsed.Link(None, 1)


def test_technique_is_clear_and_validation_is_not_ours(key: SigningKey) -> None:
    """NIST SP 800-88: technique Clear and never more; verification and validation are separate."""
    done = issued(attested(DEVICE), key)
    found = parsed.read(done.envelope).predicate
    assert found["sanitization"]["technique"] == "Clear"
    assert found["verification"]["status"] == "passed"
    assert found["validation"]["status"] == "not-performed"
    words = json.dumps(found).lower()
    assert "purge" not in words
    assert "memory clean" not in words


def test_simulated_device_cannot_be_mistaken(key: SigningKey) -> None:
    """Promise 10: subject, first field, device and summary each say that it was simulated."""
    one = parsed.read(issued(attested(DEVICE), key).envelope)
    assert one.envelope.statement["subject"][0]["name"] == "SIMULATED:SIM-a"
    assert one.predicate["simulated"] is True
    assert one.predicate["device"]["simulated"] is True
    assert one.predicate["summary"].startswith("SIMULATED DEVICE")
    real = parsed.read(issued(attested(DEVICE, backend="nvidia", simulated=False), key).envelope)
    assert real.envelope.statement["subject"][0]["name"] == "SIM-a"
    assert "SIMULATED" not in real.predicate["summary"]


def wiped(**changes: Any) -> Attested:
    """Facts whose wipe differs."""
    return attested(DEVICE, wipe=wipe_of(DEVICE, **changes))


def passes(*, names: tuple[str, ...], size: int = 60 * 1024 * 1024) -> Attested:
    """Facts whose passes differ."""
    return wiped(passes=tuple(Pass(name, size, 0.5) for name in names))


ALL = ("fill", "verify", "zero", "verify-zero")
FULL = wipe_of(DEVICE)
UNVERIFIED: dict[str, Callable[[], Attested]] = {
    "failed": lambda: wiped(failure=Failure.MISMATCH),
    "self-test": lambda: wiped(self_test_passed=False),
    "no passes": lambda: wiped(passes=()),
    "three passes": lambda: passes(names=ALL[:3]),
    "passes out of order": lambda: passes(names=(ALL[2], ALL[1], ALL[0], ALL[3])),
    "short passes": lambda: passes(names=ALL, size=1024),
    "mismatch": lambda: wiped(mismatches=(Mismatch(DEVICE.units[0], 0, 8),)),
    "mismatched bytes": lambda: wiped(mismatched_bytes=8),
    "no nonce": lambda: wiped(nonce_sha256=""),
    "no pattern": lambda: wiped(pattern=""),
    "nothing covered": lambda: wiped(coverage=Coverage(0, 0, 0)),
    "more than there is": lambda: wiped(coverage=Coverage(50 * 1024 * 1024, 0, 60 * 1024 * 1024)),
    "negative reserve": lambda: wiped(coverage=Coverage(64 << 20, -1, 60 << 20)),
    "below the floor": lambda: wiped(coverage=Coverage(128 << 20, 0, 60 << 20)),
    "floor of the policy": lambda: attested(DEVICE, coverage_floor=0.999),
    "half of the device": lambda: wiped(coverage=Coverage(63 << 20, 2 << 20, 60 << 20)),
    "device of no memory": lambda: attested(replace(DEVICE, memory_bytes=0)),
    "floor of zero": lambda: attested(DEVICE, coverage_floor=0.0),
    "floor above one": lambda: attested(DEVICE, coverage_floor=1.5),
    "floor is NaN": lambda: attested(DEVICE, coverage_floor=float("nan")),
    "other accelerator": lambda: wiped(accelerator=Uuid("SIM-b")),
    "unit missing": lambda: wiped(units=DEVICE.units[:1]),
    "unit too many": lambda: wiped(units=(*DEVICE.units, UnitId("x"))),
    "unit twice": lambda: wiped(units=(DEVICE.units[0], DEVICE.units[0])),
    "no units": lambda: attested(
        replace(DEVICE, units=()), heads={}, wipe=wipe_of(DEVICE, units=())
    ),
    "ends before it starts": lambda: wiped(ended_at=START - 1),
    "never started": lambda: wiped(started_at=0.0),
    "time is NaN": lambda: wiped(ended_at=float("nan")),
    "pass of NaN seconds": lambda: wiped(
        passes=(*FULL.passes[:3], Pass("verify-zero", 60 << 20, float("nan")))
    ),
    "foreign holder": lambda: wiped(holders=(Process(7, "stranger", ProcessKind.FOREIGN),)),
    "no counters before": lambda: wiped(before=None),
    "no counters after": lambda: wiped(after=None),
    "reset required": lambda: wiped(after=replace(FULL.after, reset_required=True)),  # type: ignore[type-var]
    "unhealthy": lambda: attested(DEVICE, healthy=False),
    "failed check": lambda: attested(DEVICE, findings=(Verdict("ecc", "fail"),)),
    "no checks": lambda: attested(DEVICE, findings=()),
    "no node": lambda: attested(DEVICE, node=NodeName("")),
    "no boot": lambda: attested(DEVICE, boot_id=BootId("")),
    "reset without reason": lambda: attested(DEVICE, reset=Reset(False, "", "")),
    "reset without method": lambda: attested(DEVICE, reset=Reset(True, "", "asked")),
    "simulation denied": lambda: attested(DEVICE, simulated=False),
    "reality denied": lambda: attested(DEVICE, backend="nvidia"),
    "head of no unit": lambda: attested(DEVICE, heads={DEVICE.units[0]: None}),
    "head without number": lambda: attested(DEVICE, heads=dict.fromkeys(DEVICE.units, HEAD)),
    "number without head": lambda: attested(DEVICE, sequences={DEVICE.units[0]: 1}),
    "text that is no text": lambda: attested(DEVICE, previous_holder="\ud800"),
}


@pytest.mark.parametrize("case", UNVERIFIED)
def test_unverified_run_is_refused(key: SigningKey, case: str) -> None:
    """Promise 8, B06, gpus-8.41: no certificate for an unfinished, unverified or doubtful run."""
    with pytest.raises(EvidenceRefused) as caught:
        issued(UNVERIFIED[case](), key)
    assert caught.value.fields["against"]


def test_refusal_tells_every_reason(key: SigningKey) -> None:
    """All that speaks against a certificate is told at once."""
    facts = attested(DEVICE, healthy=False, boot_id=BootId(""), reset=Reset(False, "", ""))
    with pytest.raises(EvidenceRefused) as caught:
        issue(facts, key=key, now=START - 1, version="")
    assert len(caught.value.fields["against"]) == 5


def test_wipe_without_a_lease_has_no_token(key: SigningKey) -> None:
    """Wiping a unit nobody holds needs no lease: its certificate names no token."""
    for token in (None, Token(0, 0)):
        one = parsed.read(issued(attested(DEVICE, token=token), key).envelope)
        assert one.token is None


def _callers(name: str) -> set[str]:
    """Functions in the product that call something of this name, as file:function."""
    found = set()
    for path in Path(fleet.__file__).parent.rglob("*.py"):
        text = path.read_text()
        for function in ast.walk(ast.parse(text)) if f"{name}(" in text else ():
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Call):
                        called = node.func
                        spelled = getattr(called, "attr", getattr(called, "id", ""))
                        if spelled == name:
                            found.add(f"{path.name}:{function.name}")
    return found


def test_only_issue_and_countersign_can_seal() -> None:
    """Promise 8: no other function can make an envelope, so none can forget a check. Isolation tags
    and their list are signed alike, as types of their own: none of them is taken for evidence."""
    assert _callers("seal") == {
        "certificate.py:issue",
        "heads.py:countersign",
        "key_list.py:sign",
        "losses.py:sign",
    }
    tags_only = {
        "tags.py:issue",
        "tags.py:signed_by",
        "tags_list.py:sign",
        "tags_list.py:_refuse_forged",
    }
    signers = {"dsse.py:seal", "dsse.py:signed_by"}
    assert _callers("pre_authentication") == signers | tags_only
    assert len({dsse.PAYLOAD_TYPE, tags.PAYLOAD_TYPE, tags_list.PAYLOAD_TYPE}) == 3


def test_canonical_identity_is_the_subject(key: SigningKey) -> None:
    """The subject's digest is of the device's identity, so that anyone can recompute it."""
    one = parsed.read(issued(attested(DEVICE), key).envelope)
    digest = dsse.digest_of(dsse.canonical(one.predicate["device"]))
    subject = one.envelope.statement["subject"][0]
    assert f"sha256:{subject['digest']['sha256']}" == digest


def test_a_reset_is_called_a_reset(key: SigningKey) -> None:
    """Issue 5: technique reset, of no standard; no byte covered, none read back, all residual."""
    found = parsed.read(issued(reset_of(DEVICE), key).envelope).predicate
    how, verification = found["sanitization"], found["verification"]
    assert (how["technique"], how["standard"]) == ("reset", "none")
    assert how["method"] == "reset and no holders; memory not read back"
    assert (how["reset_method"], how["vendor_scrub"], how["passes"]) == ("flr", "none", [])
    assert verification["status"] == "none"
    assert verification["method"] == "none: memory not read back"
    assert found["bytes"]["covered"] == 0
    assert found["bytes"]["residual"] == found["bytes"]["total"] == DEVICE.memory_bytes
    assert found["summary"].startswith("No byte was overwritten and none was read back")
    assert "no switch known" in found["summary"]
    assert "residual-memory" in found["summary"]
    words = json.dumps(found)
    assert "Clear" not in words
    assert "Purge" not in words
    assert "nonce and address" not in words


SCRUB = ResetScrub(performed=True, method="flr", vendor_scrub="off", switch="a switch")
NOT_RESET = Reset(performed=False, method="", reason="policy is never")


def rewiped(**changes: Any) -> Attested:
    """Facts of a reset whose result differs."""
    facts = reset_of(DEVICE)
    return replace(facts, wipe=replace(facts.wipe, **changes))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (rewiped(scrub=replace(SCRUB, problem="the switch is off")), "does not count"),
        (rewiped(scrub=None), "was not reset"),
        (rewiped(scrub=replace(SCRUB, performed=False)), "was not reset"),
        (rewiped(coverage=Coverage(DEVICE.memory_bytes, 0, 9)), "9 bytes covered"),
        (rewiped(coverage=Coverage(1, 0, 0)), "the reset was of 1 bytes"),
        (rewiped(holders=(Process(9, "t", ProcessKind.FOREIGN),)), "a foreign process"),
        (replace(reset_of(DEVICE), reset=NOT_RESET), "is not the one that was performed"),
        (replace(reset_of(DEVICE), backend="simulated", simulated=True), "never only reset"),
    ],
)
def test_less_than_a_reset_is_refused(key: SigningKey, facts: Attested, words: str) -> None:
    """gpus-8.41, promise 8: a reset that was not, or that claims more, has no certificate."""
    with pytest.raises(EvidenceRefused, match=words):
        issued(facts, key)
