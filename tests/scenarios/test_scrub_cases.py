"""B51: a fleet scrub over nodes as the case has them; a table of devices and six words."""

from __future__ import annotations

from fleet.cli.pages.run_figures import Read, figures
from fleet.control.campaign.verdict import Verdict, verdict
from fleet.core.messages import Outcome, ReasonView
from fleet.stores.base import RunRecord, RunState
from tests.fleet.control.campaign.test_run import Fleet, Gpu, Node, campaign, drive

LIFTABLE = ReasonView(code="dirty", source="health", liftable=True)
GONE = ReasonView(
    code="device-lost", source="health", liftable=False, detail="it is off the bus", remedy="look"
)


def eight(node: str, **changes: object) -> list[Gpu]:
    """Eight free devices of a node."""
    return [Gpu(f"{node}-{number}", **changes) for number in range(8)]  # type: ignore[arg-type]


def fleet_of_the_case() -> Fleet:
    """a: 8 free. b: 1 tainted. c: 3 in use. d: no device. e: silent. f: 8 known, 7 are there."""
    tainted, used, lost = eight("b"), eight("c"), eight("f")
    tainted[0].state, tainted[0].reasons = "QUARANTINED", (LIFTABLE,)
    for gpu in used[:3]:
        gpu.state, gpu.claim = "IN_USE", "uid"
    lost[7].state, lost[7].reasons = "QUARANTINED", (GONE,)
    fleet = Fleet(
        Node("node-a", eight("a")),
        Node("node-b", tainted),
        Node("node-c", used),
        Node("node-d", []),
        Node("node-e", eight("e")),
        Node("node-f", lost),
    )
    fleet.nodes["node-e"].silent = lambda now: now >= 0
    return fleet


def test_b51_every_device_has_one_of_six_words() -> None:
    """B51: done, busy, tainted-and-done, missing, unknown by UUID; a node without a pool, or whose
    pool nobody tells, is unknown and never "done, 0 devices"; nobody's devices wait for others.
    """
    fleet = fleet_of_the_case()
    report = drive(campaign(fleet, device_timeout_s=30), fleet)
    table = {row.uuid: verdict(row) for row in report.devices}
    words = {uuid: word for uuid, word in table.items() if word is not Verdict.DONE}
    assert words == {
        "b-0": Verdict.TAINTED_AND_DONE,
        "c-0": Verdict.BUSY,
        "c-1": Verdict.BUSY,
        "c-2": Verdict.BUSY,
        "node-d/*": Verdict.UNKNOWN,
        "node-e/*": Verdict.UNKNOWN,
        "f-7": Verdict.MISSING,
    }
    assert len(table) == 8 + 8 + 8 + 1 + 1 + 8
    assert report.exit_code == 1
    assert report.totals.verdicts == {
        Verdict.DONE: 27,
        Verdict.TAINTED_AND_DONE: 1,
        Verdict.BUSY: 3,
        Verdict.MISSING: 1,
        Verdict.UNKNOWN: 2,
    }
    assert not fleet.held, "nothing is held for devices that others have"


def test_b51_the_record_says_what_the_report_says() -> None:
    """B51: a page made from the store shows nodes nobody saw and devices never begun as well."""
    fleet = fleet_of_the_case()
    report = drive(campaign(fleet, device_timeout_s=30), fleet)
    record = RunRecord(
        id="r1", state=RunState.FINISHED, started_at=0.0, results=fleet.kept, exit_reason="complete"
    )
    found = figures(record, Read(why="none"), now=0.0)
    assert found.counts == report.totals.verdicts
    assert found.exit_code == report.exit_code


def test_b51_a_run_that_was_stopped_leaves_no_device_out() -> None:
    """B51: what the run ended before is unknown in its record, and no attempt counts for it."""
    fleet = Fleet(Node("node-a", eight("a")))
    run = campaign(fleet, max_parallel=2)

    def stop() -> None:
        if fleet.now == 1:
            run.stop(cancel=True)

    report = drive(run, fleet, stop)
    assert set(fleet.kept) == {row.uuid for row in report.devices}
    left = [row for row in fleet.kept.values() if not row.operation]
    assert len(left) == 6
    assert {verdict(row) for row in left} == {Verdict.UNKNOWN}
    assert {row.outcome for row in left} == {Outcome.INTERRUPTED}
