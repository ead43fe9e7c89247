"""When what was in work."""

from __future__ import annotations

import pytest

from fleet.cli.pages.timeline import SKEW_MAX_S, timeline
from fleet.control.campaign.verdict import Verdict
from fleet.core.messages import Outcome
from tests.fleet.cli.pages.records import BEGIN, certified, failed


def test_a_line_reaches_over_all_that_is_drawn() -> None:
    """E2: spans by begin; a node's is from its first device to its last, with the worst verdict."""
    results = [
        certified(0, started_at=BEGIN + 5, ended_at=BEGIN + 9),
        failed(1, Outcome.QUARANTINED, "ecc", started_at=BEGIN + 1, ended_at=BEGIN + 4),
        certified(8, started_at=BEGIN + 2, ended_at=BEGIN + 3),
    ]
    line = timeline(results, BEGIN, BEGIN + 8)
    assert [span.name for span in line.devices] == [
        "node-0000/gpu-1",
        "node-0001/gpu-0",
        "node-0000/gpu-0",
    ]
    assert (line.begin, line.end, line.untimed) == (BEGIN, BEGIN + 9, 0)
    first, second = line.nodes(results)
    assert (first.begin, first.end, first.devices) == (BEGIN + 1, BEGIN + 9, 2)
    assert (first.verdict, second.verdict) == (Verdict.FAILED, Verdict.DONE)
    assert first.seconds == 8


def test_what_has_no_times_or_an_alien_clock_is_counted_not_drawn() -> None:
    """A device never begun, and one of a node whose clock is off, bend no drawing."""
    results = [
        certified(0, started_at=0.0, ended_at=BEGIN + 1),
        certified(1, started_at=BEGIN - SKEW_MAX_S - 1, ended_at=BEGIN),
        certified(2, started_at=BEGIN + 2, ended_at=BEGIN + 1),
        certified(3, started_at=BEGIN + 1, ended_at=BEGIN + 2),
    ]
    line = timeline(results, BEGIN, BEGIN + 3)
    assert [span.name for span in line.devices] == ["node-0000/gpu-3"]
    assert line.untimed == 3


def test_devices_in_work_are_counted_by_stretch() -> None:
    """The curve's area is the devices' time in work, wherever its steps fall."""
    results = [
        certified(0, started_at=BEGIN, ended_at=BEGIN + 4),
        certified(1, started_at=BEGIN + 1, ended_at=BEGIN + 2),
    ]
    line = timeline(results, BEGIN, BEGIN + 4)
    assert line.at_work(4) == pytest.approx([1.0, 2.0, 1.0, 1.0])
    assert sum(line.at_work(3)) * line.seconds / 3 == pytest.approx(5.0)


def test_nothing_is_a_line_too() -> None:
    """A run of no device has a line of no spans."""
    line = timeline([], BEGIN, BEGIN)
    assert line.devices == ()
    assert line.at_work(3) == [0.0, 0.0, 0.0]
