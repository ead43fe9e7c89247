"""All devices of a campaign by where they stand, and what the ended ones come to."""

from __future__ import annotations

from typing import Any

from fleet.control.campaign.report import Phase
from fleet.control.campaign.roster import Roster
from fleet.control.campaign.targets import Target
from fleet.control.campaign.track import Track, finding
from fleet.core.messages import ByteFigures, DeviceResult, Outcome
from fleet.core.model import NO_TOKEN
from fleet.devices.wipe.result import PASSES


def track(uuid: str, node: str = "n", **changed: Any) -> Track:
    target = Target(node, uuid, uuid, uuid, frozenset({uuid}), 100, NO_TOKEN, "DIRTY")
    return Track(target, "r1", **changed)


def result(
    given: Track, outcome: Outcome = Outcome.CERTIFIED, *, told: bool = False
) -> DeviceResult:
    found = (finding("wipe", "why", "what to do"),) if told else ()
    target = given.target
    return DeviceResult(
        node=target.node, device=target.name, uuid=target.uuid, outcome=outcome, state="CLEAN",
        bytes=ByteFigures(total=100, covered=100), findings=found,
    )  # fmt: skip


def end(roster: Roster, given: Track, **how: Any) -> None:
    given.phase = Phase.DONE
    roster.ended(given, result(given, **how))


def test_it_follows_a_device_through_the_campaign() -> None:
    """E2: what is in flight, what waits and what is done are known without looking at all."""
    a, b = track("a"), track("b", "m")
    roster = Roster([a, b])
    assert (roster.phases[Phase.WAITING], list(roster.flying)) == (2, [])
    a.phase, a.first_at = Phase.STARTING, 0.0
    roster.note(a)
    assert (list(roster.flying), roster.began_at) == (["a"], 0.0)
    assert roster.waiting_on("n") == []
    a.wait()
    roster.note(a)
    assert (list(roster.flying), roster.waiting_on("n")) == ([], [a])
    a.phase, a.ended_at = Phase.RUNNING, 5.0
    roster.note(a)
    end(roster, a)
    assert (roster.phases[Phase.DONE], roster.phases[Phase.RUNNING]) == (1, 0)
    assert roster.spans() == {"n": 5.0}
    assert roster.open() == [b]


def test_what_has_moved_is_told_once() -> None:
    """E2: a display learns of each change of phase, and of nothing else."""
    given = track("a")
    roster = Roster([given])
    roster.turn()
    roster.note(given)
    assert roster.moved == {}
    given.phase = Phase.RUNNING
    roster.note(given)
    assert roster.moved == {"a": given}
    roster.turn()
    assert roster.moved == {}


def test_of_many_devices_only_those_with_something_to_tell_are_remembered() -> None:
    """E5: results go to the store; the campaign's memory keeps what its report must explain."""
    tracks = [track(f"g{number}") for number in range(6)]
    roster = Roster(tracks, rows_kept=4)
    for given in tracks[:3]:
        end(roster, given)
    end(roster, tracks[3], outcome=Outcome.FAILED, told=True)
    end(roster, tracks[4], told=True)
    end(roster, tracks[5], outcome=Outcome.IN_USE)
    kept = [given.target.uuid for given in tracks if given.result is not None]
    assert kept == ["g3", "g4"]
    assert roster.sums.devices == 6
    assert roster.sums.outcomes[Outcome.CERTIFIED] == 4
    assert roster.done_bytes == roster.total_bytes == 600 * len(PASSES)


def test_remembering_has_an_end_also_for_failures() -> None:
    """E5: however many devices fail, memory is bounded; all of them are counted."""
    tracks = [track(f"g{number}") for number in range(6)]
    roster = Roster(tracks, rows_kept=4)
    for given in tracks:
        end(roster, given, outcome=Outcome.FAILED, told=True)
    assert sum(given.result is not None for given in tracks) == 4
    assert roster.sums.outcomes == {Outcome.FAILED: 6}


def test_of_few_devices_every_result_is_remembered() -> None:
    """The report of a usual fleet has a row for each device."""
    tracks = [track(f"g{number}") for number in range(4)]
    roster = Roster(tracks, rows_kept=4)
    for given in tracks:
        end(roster, given)
    assert all(given.result is not None for given in tracks)


def test_a_result_of_an_earlier_part_of_the_run_counts_but_not_as_work() -> None:
    """B02: what a resumed run keeps is done, and says nothing of this run's speed."""
    kept = track("a", phase=Phase.DONE)
    kept.result = result(kept)
    roster = Roster([kept])
    assert (roster.done_bytes, roster.wiped_bytes) == (100 * len(PASSES), 0)
    assert roster.sums.outcomes == {Outcome.CERTIFIED: 1}


def test_an_order_to_be_told_again_waits_for_its_nodes_view() -> None:
    """B60: only on what a node says now is an order repeated."""
    given = track("a", phase=Phase.STARTING, resend=True)
    roster = Roster([given])
    assert roster.resends(["m"]) == []
    assert roster.resends(["n"]) == [given]


def test_what_is_due_elsewhere_keeps_limits_from_being_blamed() -> None:
    """B50: devices that may be tried now are told from those that must wait a moment."""
    roster = Roster([track("a", retry_at=10.0), track("b", "mute")])
    assert not roster.waits(5.0, but={"mute"})
    assert roster.waits(10.0, but={"mute"})
    assert roster.waits(5.0, but=())


def test_a_resumed_run_keeps_its_rows_for_what_did_not_come_out_well() -> None:
    """E2: results of before that came out well give way once there are more devices than rows."""
    tracks = [track(f"d{number}") for number in range(10)]
    for done in tracks[:3]:
        done.phase, done.result = Phase.DONE, result(done)
    roster = Roster(tracks, rows_kept=3)
    for failed in tracks[3:]:
        end(roster, failed, outcome=Outcome.FAILED, told=True)
    kept = [one.result.outcome for one in roster.tracks.values() if one.result is not None]
    assert kept == [Outcome.FAILED] * 3
