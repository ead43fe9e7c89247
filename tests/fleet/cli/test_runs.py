"""`fleet runs`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.cli.main import main
from fleet.cli.text import SIMULATED
from fleet.stores.base import RunRecord
from fleet.wiring import adapters


def test_runs_of_a_new_fleet_are_none(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No run is not an error; a run that does not exist is."""
    assert main(["runs", "--state", str(state)]) == 0
    assert "no run is on record" in capsys.readouterr().out
    assert main(["runs", "nope", "--state", str(state)]) == 2
    assert "nope" in capsys.readouterr().err


def run(name: str, at: float, *, simulated: bool) -> RunRecord:
    """A run on record."""
    return RunRecord(id=name, started_at=at, simulated=simulated)


def test_simulated_runs_are_told_from_real_ones(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise 10: the list says SIMULATED, and of each run which it is where there are both."""
    coordinator = adapters.open_coordinator(adapters.plan_fleet(state).coordinator)
    coordinator.open(run("a", 1.0, simulated=True))
    assert main(["runs", "--state", str(state)]) == 0
    told = capsys.readouterr().out
    assert told.startswith(SIMULATED)
    assert "(simulated)" not in told
    coordinator.open(run("b", 2.0, simulated=False))
    assert main(["runs", "--state", str(state)]) == 0
    told = capsys.readouterr().out
    assert ("a (simulated)" in told, "b (real)" in told) == (True, True)
