"""The rules of a certificate's text: nobody can sign what `issue` would refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.evidence import dsse, rules
from fleet.evidence.certificate import issue
from fleet.evidence.keys import SigningKey
from tests.fleet.evidence.samples import START, attested, device_named, reset_of

Text = dict[str, Any]


@pytest.fixture(name="statement")
def statement_fixture(tmp_path: Path) -> Text:
    """What a genuine certificate states."""
    key = SigningKey.load_or_create(tmp_path / "keys" / "node.key")
    done = issue(attested(device_named("a")), key=key, now=START + 3, version="0.1")
    statement: Text = dsse.parse(dsse.open_envelope(done.envelope).payload)
    return statement


def problems(statement: Text) -> list[str]:
    """Everything against a statement."""
    predicate = statement["predicate"]
    key_id = predicate.get("signer", {}).get("key_id", "")
    return list(rules.against(statement["subject"], predicate, key_id=key_id))


def resized(predicate: Text, **figures: int) -> None:
    """Other byte figures, consistent everywhere they are repeated."""
    found = predicate["bytes"]
    found.update(figures)
    found["residual"] = found["total"] - found["reserved"] - found["covered"]
    for one in (*predicate["sanitization"]["passes"], predicate["verification"]):
        one["bytes"] = found["covered"]
    for region in predicate["scope"]:
        name = {
            "allocatable-memory": "covered",
            "driver-reserved-memory": "reserved",
            "residual-memory": "residual",
        }.get(region["region"])
        region["bytes"] = found[name] if name else region["bytes"]


def relabelled(statement: Text) -> None:
    """A real device's certificate made of a simulated one's, but for its back end."""
    predicate = statement["predicate"]
    predicate["simulated"] = predicate["device"]["simulated"] = False
    predicate["summary"] = "all is well"
    resubject(statement)


def resubject(statement: Text) -> None:
    """The subject that fits the device as it is described."""
    device = statement["predicate"]["device"]
    prefix = "SIMULATED:" if device["simulated"] else ""
    digest = dsse.digest_of(dsse.canonical(device)).removeprefix("sha256:")
    statement["subject"] = [{"name": prefix + device["uuid"], "digest": {"sha256": digest}}]


def enlarged(statement: Text) -> None:
    """A device twice as large as what was wiped of it."""
    statement["predicate"]["device"]["memory_bytes"] *= 2
    resubject(statement)


LIES: dict[str, tuple[Callable[[Text], object], str]] = {
    "half of the device": (enlarged, "the device has"),
    "other device": (lambda s: s["predicate"]["device"].update(name="b"), "subject"),
    "other subject": (lambda s: s["subject"][0].update(name="GPU-1"), "named as"),
    "real": (lambda s: s["predicate"].update(simulated=False), "not clear"),
    "real everywhere": (relabelled, "back end"),
    "summary": (lambda s: s["predicate"].update(summary="all is well"), "summary"),
    "bytes": (lambda s: s["predicate"]["bytes"].update(residual=0), "add up"),
    "below its floor": (lambda s: resized(s["predicate"], covered=1 << 20), "below the floor"),
    "nothing covered": (lambda s: resized(s["predicate"], covered=0), "add up"),
    "too much covered": (lambda s: resized(s["predicate"], covered=1 << 30), "add up"),
    "floor of zero": (lambda s: s["predicate"]["bytes"].update(floor="0.0"), "floor"),
    "floor of NaN": (lambda s: s["predicate"]["bytes"].update(floor="nan"), "floor"),
    "floor of two": (lambda s: s["predicate"]["bytes"].update(floor="2.0"), "floor"),
    "no floor": (lambda s: s["predicate"]["bytes"].update(floor=1), "malformed"),
    "true bytes": (lambda s: s["predicate"]["bytes"].update(residual=True), "malformed"),
    "verified less": (lambda s: s["predicate"]["verification"].update(bytes=1), "a pass"),
    "pass left out": (lambda s: s["predicate"]["sanitization"]["passes"].pop(), "passes"),
    "passes in another order": (
        lambda s: s["predicate"]["sanitization"]["passes"].reverse(),
        "passes",
    ),
    "pass of negative time": (
        lambda s: s["predicate"]["sanitization"]["passes"][0].update(duration_us=-1),
        "no time",
    ),
    "mismatch": (
        lambda s: s["predicate"]["verification"].update(mismatched_bytes=1),
        "read back",
    ),
    "self-test": (
        lambda s: s["predicate"]["verification"].update(self_test="failed"),
        "self-test",
    ),
    "status": (lambda s: s["predicate"]["verification"].update(status="skipped"), "unverified"),
    "technique": (lambda s: s["predicate"]["sanitization"].update(technique="Purge"), "Clear"),
    "validation": (lambda s: s["predicate"]["validation"].update(status="passed"), "validation"),
    "pattern": (lambda s: s["predicate"]["sanitization"].update(pattern=""), "pattern"),
    "nonce": (lambda s: s["predicate"]["sanitization"].update(nonce_sha256=""), "nonce"),
    "health": (lambda s: s["predicate"]["health"].update(healthy=False), "unhealthy"),
    "no checks": (lambda s: s["predicate"]["health"].update(findings=[]), "no health check"),
    "failed check": (
        lambda s: s["predicate"]["health"]["findings"][0].update(verdict="fail"),
        "failed",
    ),
    "risen counters": (
        lambda s: s["predicate"]["health"]["counters_after"].update(aer_fatal=9),
        "risen",
    ),
    "foreign holder": (
        lambda s: s["predicate"]["holders"][0].update(kind="foreign"),
        "foreign process",
    ),
    "reset without method": (
        lambda s: s["predicate"]["reset"].update(performed=True),
        "no method",
    ),
    "reset without reason": (lambda s: s["predicate"]["reset"].update(reason=""), "no reason"),
    "times": (
        lambda s: s["predicate"].update(ended_at="2000-01-01T00:00:00.000000Z"),
        "backwards",
    ),
    "issued before": (
        lambda s: s["predicate"].update(issued_at="2000-01-01T00:00:00.000000Z"),
        "backwards",
    ),
    "units": (
        lambda s: s["predicate"]["chain"].update(x={"previous": None, "sequence": 1}),
        "units",
    ),
    "no units": (lambda s: s["predicate"].update(chain={}), "units"),
    "number without predecessor": (
        lambda s: s["predicate"]["chain"]["SIM-a/0"].update(sequence=2),
        "number 2 after None",
    ),
    "node": (lambda s: s["predicate"].update(node=""), "node"),
    "boot": (lambda s: s["predicate"].update(boot_id=""), "boot"),
    "version": (lambda s: s["predicate"]["software"].update(version=""), "software version"),
    "signer": (lambda s: s["predicate"].update(signer={}), "malformed"),
    "on-chip memory": (
        lambda s: s["predicate"]["scope"][3].update(covered=True, cleared_by="hope"),
        "cannot be covered",
    ),
    "region of other bytes": (lambda s: s["predicate"]["scope"][0].update(bytes=1), "region"),
    "region left out": (lambda s: s["predicate"]["scope"].pop(0), "malformed"),
    "field added": (lambda s: s["predicate"].update(remark="memory clean"), "fields"),
    "field gone": (lambda s: s["predicate"].pop("verification"), "fields"),
    "field of another type": (lambda s: s["predicate"].update(bytes=[]), "malformed"),
    "posture of another type": (lambda s: s["predicate"].update(posture=[]), "malformed"),
    "endless number": (
        lambda s: resized(s["predicate"], total=10**4000, covered=10**4000 - (3 << 20)),
        "malformed",
    ),
}


def test_genuine_certificate_has_nothing_against_it(statement: Text) -> None:
    """What `issue` writes fulfils every rule."""
    assert problems(statement) == []


@pytest.mark.parametrize("lie", LIES)
def test_what_issue_refuses_is_found(statement: Text, lie: str) -> None:
    """Promise 8: whoever holds the key cannot sign what `issue` never would without being found."""
    change, words = LIES[lie]
    change(statement)
    assert any(words in problem for problem in problems(statement)), problems(statement)


def test_every_field_may_be_anything(statement: Text) -> None:
    """Whatever stands in a field is reported and never a crash."""
    strange: list[Any] = [None, True, -1, 10**4000, "", "x", [], [[]], {}, {"x": {"y": []}}]
    for name in rules.FIELDS:
        kept = statement["predicate"][name]
        for value in strange:
            statement["predicate"][name] = value
            list(rules.against(statement["subject"], statement["predicate"], key_id="k"))
        statement["predicate"][name] = kept
    assert problems(statement) == []


@pytest.fixture(name="reset")
def reset_fixture(tmp_path: Path) -> Text:
    """What a genuine certificate of a device that was only reset states."""
    key = SigningKey.load_or_create(tmp_path / "keys" / "node.key")
    done = issue(reset_of(device_named("a")), key=key, now=START + 3, version="0.1")
    statement: Text = dsse.parse(dsse.open_envelope(done.envelope).payload)
    return statement


CLAIMS: dict[str, tuple[tuple[str, ...], object, str]] = {
    "technique": (("sanitization", "technique"), "Clear", "it is of an unverified device"),
    "standard": (("sanitization", "standard"), "NIST SP 800-88", "claims a standard"),
    "verified": (("verification", "status"), "passed", "claims to have verified"),
    "method": (("verification", "method"), "full", "claims to have verified"),
    "bytes": (("verification", "bytes"), 1, "claims a pass, or bytes"),
    "floor": (("bytes", "floor"), "0.98", "claims a pass, or bytes"),
    "passes": (("sanitization", "passes"), [{}], "claims a pass, or bytes"),
    "not reset": (("reset", "performed"), False, "is not the one that was performed"),
    "other reset": (("sanitization", "reset_method"), "bus", "is not the one that was performed"),
    "switch": (("sanitization", "vendor_scrub"), "surely", "what the vendor's own switch was"),
    "validation": (("validation", "status"), "passed", "claims a validation"),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_reset_cannot_claim_more(reset: Text, claim: str) -> None:
    """Issue 5, promise 8: a certificate of a reset that claims bytes, passes or a standard lies."""
    assert problems(reset) == []
    (section, field), value, words = CLAIMS[claim]
    reset["predicate"][section][field] = value
    assert any(words in problem for problem in problems(reset)), problems(reset)


def test_a_reset_covers_no_memory_region(reset: Text) -> None:
    """B18: the region of memory cannot be called covered by a reset."""
    for region in reset["predicate"]["scope"]:
        if region["region"] == "allocatable-memory":
            region["covered"], region["cleared_by"] = True, "the reset"
    assert any("cannot be covered" in problem for problem in problems(reset))
