"""`fleet runs`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.cli.main import main


def test_runs_of_a_new_fleet_are_none(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No run is not an error; a run that does not exist is."""
    assert main(["runs", "--state", str(state)]) == 0
    assert "no run is on record" in capsys.readouterr().out
    assert main(["runs", "nope", "--state", str(state)]) == 2
    assert "nope" in capsys.readouterr().err
