"""`fleet scrub` as far as it needs no Ray."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.cli.main import main


def test_a_mistake_in_a_selection_is_told_before_anything_starts(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong --select is an error that names each problem, and starts no Ray."""
    assert main(["scrub", "--state", str(state), "--select", "nod=x"]) == 2
    assert "'node'" in capsys.readouterr().err


def test_a_size_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong --memory is an error that shows how to write one, and makes no fleet."""
    arguments = ["scrub", "--simulate", "1x1", "--memory", "64 miles", "--state", str(tmp_path)]
    assert main(arguments) == 2
    assert "64MiB" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_shows_the_plan_and_touches_nothing(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--dry-run lists the waves and starts no wipe."""
    assert main(["scrub", "--dry-run", "--max-parallel", "3", "--state", str(state), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["simulated"]
    assert [len(wave) for wave in document["waves"]] == [3, 1]
    assert main(["devices", "--state", str(state), "--json"]) == 0
    states = {device["state"] for device in json.loads(capsys.readouterr().out)["devices"]}
    assert states <= {"HELD", "DIRTY"}
