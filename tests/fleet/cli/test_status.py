"""`fleet status`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.cli.main import main


def test_status_of_an_unfit_fleet_is_exit_1(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A quarantined device makes `fleet status` exit 1, with reason and remedy on the screen."""
    add = ["quarantine", "add", "gpu-1", "--node", "node-02", "--reason", "smells of smoke"]
    assert main([*add, "--operator", "night shift", "--state", str(state)]) == 0
    capsys.readouterr()
    assert main(["status", "--state", str(state)]) == 1
    text = capsys.readouterr().out
    assert "node-02/gpu-1: operator" in text
    assert "smells of smoke" in text
