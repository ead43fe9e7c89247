"""How a verb reaches the fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet import bootstrap
from fleet.cli.main import main


def test_a_name_on_two_nodes_must_be_narrowed_down(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device name that is on several nodes is refused rather than guessed."""
    assert main(["quarantine", "add", "gpu-0", "--reason", "x", "--state", str(state)]) == 2
    error = capsys.readouterr().err
    assert "node-01, node-02" in error
    assert "--node" in error


def test_a_state_in_use_is_refused_with_a_way_out(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A journal has one owner: while it serves, the verb only says how to reach it."""
    service = bootstrap.open_node(bootstrap.plan_fleet(state).nodes[0])
    try:
        assert main(["devices", "--state", str(state)]) == 2
    finally:
        service.close()
    error = capsys.readouterr().err
    assert "owned by" in error
    assert "--address" in error
