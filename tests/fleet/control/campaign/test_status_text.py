"""A campaign's standing in words: status and report."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.control.campaign import status_text
from fleet.control.campaign.breaker import Breaker
from fleet.control.campaign.budget import Accelerator, Service
from fleet.control.campaign.budget import Standing as Place
from fleet.control.campaign.report import ExitReason, Phase
from fleet.control.campaign.roster import Roster
from fleet.control.campaign.targets import Target
from fleet.control.campaign.track import Track
from fleet.core.messages import ByteFigures, Outcome, WipeProgress
from fleet.core.model import NO_TOKEN
from fleet.core.settings import CampaignPolicy


def track(uuid: str, node: str = "n", **changed: Any) -> Track:
    target = Target(node, uuid, uuid, uuid, frozenset({uuid}), 100, NO_TOKEN, "DIRTY")
    return Track(target, "r1", **changed)


def done(uuid: str, outcome: Outcome, **changed: Any) -> Track:
    found = track(uuid, phase=Phase.DONE, **changed)
    found.result = found.tell(outcome)
    if outcome is Outcome.CERTIFIED:
        figures = ByteFigures(total=100, reserved=20, covered=80)
        found.result = found.result.model_copy(update={"bytes": figures, "rate": 5.0})
    return found


def standing(*tracks: Track, **changed: Any) -> status_text.Standing:
    base: dict[str, Any] = {
        "run": "r1", "now": 20.0, "started_at": 10.0, "ended_at": None, "roster": Roster(tracks),
        "nodes": (), "simulated": False, "reason": None, "breaker": Breaker(CampaignPolicy()),
        "service": Service({}), "notes": (),
    }  # fmt: skip
    return status_text.Standing(**(base | changed))


def test_rate_and_time_left_count_only_work_of_this_run() -> None:
    """A resumed run's kept devices are done, but not this run's speed."""
    kept = done("a", Outcome.CERTIFIED)
    running = track(
        "b", phase=Phase.RUNNING, first_at=10.0,
        progress=WipeProgress(phase="fill", done=100, total=400, started_at=10.0),
    )  # fmt: skip
    status = status_text.status(standing(kept, running))
    assert (status.done, status.total) == (320 + 100, 320 + 400)
    assert status.rate == 10.0
    assert status.eta_s == 30.0
    assert (status.phases, status.breaker) == ({Phase.DONE: 1, Phase.RUNNING: 1}, "closed")


def test_f51_what_ended_without_covering_is_no_progress() -> None:
    """F51: ended, certified and failed are three numbers, and bar and rate count bytes covered:
    of wipes that failed or were stopped, none."""

    def failed() -> list[Track]:
        ends = (("a", Outcome.INTERRUPTED), ("b", Outcome.QUARANTINED))
        return [done(name, end, first_at=10.0, ended_at=12.0) for name, end in ends]

    status = status_text.status(standing(*failed()))
    assert (status.ended, status.certified, status.failed) == (2, 0, 2)
    assert (status.done, status.total, status.rate) == (0, 800, 0.0)
    assert [(one.done, one.total, one.rate) for one in status.devices] == [(0, 400, 0.0)] * 2
    one = done("c", Outcome.CERTIFIED, first_at=10.0, ended_at=12.0)
    used = done("d", Outcome.IN_USE)
    status = status_text.status(standing(*failed(), one, used, track("e")))
    assert (status.ended, status.certified, status.failed) == (4, 1, 2)
    assert (status.done, status.total) == (320, 800 + 320 + 400)
    assert (status.rate, status.eta_s) == (32.0, 400 / 32.0), "what has ended is not waited for"


def test_nothing_started_has_no_rate_and_no_end() -> None:
    """No figure is invented before there is one."""
    status = status_text.status(standing(track("a")))
    assert (status.rate, status.eta_s) == (0.0, None)


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        (ExitReason.STOPPED, Outcome.INTERRUPTED),
        (None, Outcome.INTERRUPTED),
        (ExitReason.BREAKER, Outcome.REFUSED),
        (ExitReason.LIMITS, Outcome.REFUSED),
    ],
)
def test_unfinished_devices_have_a_row(reason: ExitReason | None, outcome: Outcome) -> None:
    """Every device has exactly one row, also one the run never came to, with how to go on."""
    report = status_text.report(standing(track("a"), reason=reason))
    (row,) = report.devices
    assert row.outcome is outcome
    assert "--resume" in row.findings[0].remedy
    assert report.exit_code == 1


def test_the_report_of_limits_has_the_figures() -> None:
    """B50: out, of how many, allowed, and the floor."""
    service = Service(
        {"a": Accelerator("n", "", "", Place.OUT), "b": Accelerator("n", "", "", Place.SERVING)}
    )
    breaker = Breaker(CampaignPolicy(out_of_service_max=0.5, pool_floor=0.25))
    report = status_text.report(
        standing(track("b"), reason=ExitReason.LIMITS, service=service, breaker=breaker)
    )
    assert report.detail == ("1 of 2 accelerators are out of service, allowed 1; pool floor 0.25")


def test_wall_time_ends_with_the_work_and_nodes_have_their_own() -> None:
    """Closing the run record is not part of the campaign's time."""
    tracks = [
        done("a", Outcome.CERTIFIED, first_at=11.0, ended_at=13.0),
        done("b", Outcome.CERTIFIED, first_at=12.0, ended_at=15.0),
        done("c", Outcome.CERTIFIED),
    ]
    report = status_text.report(standing(*tracks, ended_at=16.0, reason=ExitReason.COMPLETE))
    assert report.wall_s == 6.0
    assert report.node_s == {"n": 4.0}
