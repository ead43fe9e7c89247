"""Our writes to one claim: full sets, guarded, with or without the right to reserve."""

from __future__ import annotations

import pytest

from fleet.control.binding.claim_writes import AGAIN_S, Writer
from fleet.control.binding.decisions import Fault
from fleet.core import errors
from fleet.core.messages import DeviceResult, Outcome
from fleet.core.model import Holder, HolderKind, Lease, Token, UnitId
from tests.fleet.control.binding.benches import BARE, MARKS, NOW, Bench
from tests.lab.apiserver.access import Rule

LEASE = Lease(frozenset({UnitId("x/all")}), Holder(HolderKind.CLAIM, "u"), Token(1, 5))
BINDING = Rule("user", ("patch",), ("resourceclaims/binding",))


def proof(device: str) -> DeviceResult:
    """A device's certificate."""
    return DeviceResult(
        node="n1", device=device, uuid=device, outcome=Outcome.CERTIFIED, state="CLEAN",
        certificate="sha256:1",
    )  # fmt: skip


def bind(bench: Bench, writer: Writer, *devices: str) -> None:
    """Say that these devices of claim c are proven."""
    proofs = {device: proof(device) for device in devices}
    writer.bind(bench.reading(), LEASE, proofs, now=NOW)


def writer_of(bench: Bench) -> Writer:
    """Writes as the coordinator does."""
    return Writer(bench.cluster, MARKS)


def test_proofs_hold_and_receipts_are_one_write() -> None:
    """B3: the last condition never stands without the hold and the receipt."""
    bench = Bench()
    bench.given("c", "a", "b")
    writer = writer_of(bench)
    bind(bench, writer, "a", "b")
    reading = bench.reading()
    assert reading.bound
    assert reading.held
    receipts = [dict(reading.receipts[one.key]) for one in reading.devices]
    told = {"token": "1.5", "certificate": "sha256:1", "verdict": "certified"}
    assert receipts == [{**told, "uuid": "a"}, {**told, "uuid": "b"}]
    assert writer.writes == len(bench.cluster.writes()) == 1


def test_a_device_without_proof_is_never_said_to_be_proven() -> None:
    """B2: conditions go True for what was examined, or for nothing."""
    bench = Bench()
    bench.given("c", "a", "b")
    writer = writer_of(bench)
    with pytest.raises(errors.InputInvalid):
        bind(bench, writer, "a")
    with pytest.raises(errors.InputInvalid):
        writer.bind(bench.reading(), None, {"a": proof("a"), "b": proof("b")}, now=NOW)
    assert bench.words() == []


def test_admin_access_is_told_and_not_held() -> None:
    """B35: a claim that only looks in gets its conditions, and neither hold nor receipt."""
    bench = Bench()
    bench.create()
    bench.allocate("c", "a", request="look", adminAccess=True)
    bench.reserve("c", bench.pod("p"))
    writer_of(bench).bind(bench.reading(), None, {}, now=NOW)
    reading = bench.reading()
    assert reading.bound
    assert not reading.held
    assert not reading.receipts


def test_a_missing_right_costs_the_hold_alone() -> None:
    """Without the binding right conditions are said all the same; it is learnt and told once."""
    bench = Bench(rights=BARE)
    bench.given("c", "a")
    bench.given("d", "b")
    writer = writer_of(bench)
    bind(bench, writer, "a")
    assert (bench.reading().bound, bench.reading().held) == (True, False)
    assert writer.writes == 2
    assert "resourceclaims/binding" in writer.troubles["holds"]
    writer.bind(bench.reading("d"), LEASE, {"b": proof("b")}, now=NOW)
    assert bench.reading("d").bound
    assert writer.writes == 3


def test_a_right_that_was_missing_is_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    """E7: granted later, it is used without a restart; until then one claim a minute asks."""
    bench = Bench(rights=BARE)
    bench.given("c", "a")
    writer = writer_of(bench)
    bind(bench, writer, "a")
    proofs = {"a": proof("a")}
    for after, writes in ((AGAIN_S - 1.0, 3), (AGAIN_S, 5), (AGAIN_S + 1.0, 6)):
        writer.bind(bench.reading(), LEASE, proofs, now=NOW + after)
        assert (writer.writes, bench.reading().held, "holds" in writer.troubles) == (
            writes,
            False,
            True,
        )
    assert caplog.text.count("cannot be held") == 1
    writer.cluster = bench.admin
    writer.bind(bench.reading(), LEASE, proofs, now=NOW + 2 * AGAIN_S)
    assert (bench.reading().held, writer.holds, writer.troubles) == (True, True, {})


def test_f71_a_right_known_to_be_granted_is_used_without_asking_first() -> None:
    """F71: once it is known that the right is there, the next claim is held."""
    bench = Bench(rights=BARE)
    bench.given("c", "a")
    writer = writer_of(bench)
    bind(bench, writer, "a")
    writer.cluster = bench.admin
    writer.granted()
    writer.bind(bench.reading(), LEASE, {"a": proof("a")}, now=NOW + 1.0)
    assert (bench.reading().held, writer.troubles) == (True, {})


def test_another_missing_right_is_no_matter_of_holds() -> None:
    """A right to our driver's conditions that is missing is not taken for the binding right."""
    rights = [rule for rule in BARE if "resourceclaims/driver" not in rule.resources]
    bench = Bench(rights=[*rights, BINDING])
    bench.given("c", "a")
    writer = writer_of(bench)
    with pytest.raises(errors.ApiForbidden):
        bind(bench, writer, "a")
    assert writer.holds
    assert not bench.reading().conditions


def test_a_hold_that_is_there_is_kept_without_the_right() -> None:
    """A right that was taken away does not make us lose a hold that we could not put back."""
    bench = Bench(rights=[*BARE, BINDING])
    bench.given("c", "a")
    writer = writer_of(bench)
    bind(bench, writer, "a")
    writer.holds = False
    bench.clock.advance(5.0)
    bind(bench, writer, "a")
    writer.unbind(bench.reading(), "it is torn down", now=NOW)
    assert bench.reading().held
    assert bench.words() == [("a", "False")]


def test_a_terminating_claim_gets_conditions_without_a_hold() -> None:
    """A claim being deleted takes no new reservation (422 measured); its pod is bound anyway."""
    bench = Bench()
    bench.given("c", "a")
    bench.delete("c")
    writer = writer_of(bench)
    bind(bench, writer, "a")
    assert (bench.reading().bound, bench.reading().held) == (True, False)
    assert writer.writes == 1


def test_a_terminating_claim_keeps_the_hold_it_has() -> None:
    """What was reserved before the deletion stays."""
    bench = Bench()
    bench.given("c", "a")
    writer = writer_of(bench)
    bind(bench, writer, "a")
    bench.delete("c")
    bench.clock.advance(5.0)
    bind(bench, writer, "a")
    writer.unbind(bench.reading(), "x", now=NOW)
    assert bench.reading().held


def test_a_failure_is_told_on_every_device_and_takes_the_hold() -> None:
    """B6: the scheduler stops at the first device not ready; our hold would be in its way."""
    bench = Bench()
    bench.given("c", "a", "b")
    writer = writer_of(bench)
    bind(bench, writer, "a", "b")
    faults = (Fault("b", "wipe-failed", "its wipe was not proven", visible=True),)
    writer.fail(bench.reading(), faults, now=NOW)
    reading = bench.reading()
    failed = [reading.is_true(one, MARKS.failed) for one in reading.devices]
    assert failed == [True, True]
    assert bench.words() == [("a", "False"), ("b", "False")]
    assert not reading.held
    assert not reading.receipts
    reasons = [
        {one["reason"] for one in entry["conditions"]} for entry in reading.raw["status"]["devices"]
    ]
    assert sorted(reasons, key=str) == [{"ClaimFailed"}, {"WipeFailed"}]


def test_the_finalizer_is_one_write() -> None:
    """B3: the finalizer goes on in an apply to the claim itself."""
    bench = Bench()
    bench.given("c", "a")
    writer = writer_of(bench)
    writer.finalize(bench.reading())
    assert bench.reading().finalizer
    assert writer.writes == 1


def test_a_stale_reading_is_refused() -> None:
    """B5, B04: what was decided on an older version is not written."""
    bench = Bench()
    bench.given("c", "a")
    old, writer = bench.reading(), writer_of(bench)
    bench.deallocate("c")
    bench.allocate("c", "a")
    with pytest.raises(errors.ApiConflict):
        writer.bind(old, LEASE, {"a": proof("a")}, now=NOW)
    with pytest.raises(errors.ApiConflict):
        writer.fail(old, (), now=NOW)
    assert bench.words() == []
