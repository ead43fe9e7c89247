"""`fleet node`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.cli.main import main


def test_adoption_is_recorded_and_leads_to_dirty(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ProvenFree (c): an operator's word makes HELD devices DIRTY, never CLEAN."""
    assert main(["node", "adopt", "--operator", "me", "--state", str(state), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["operator"] == "me"
    assert {device["state"] for device in document["devices"]} == {"DIRTY"}
    assert len(document["devices"]) == 4


def test_adoption_of_an_unknown_node_names_the_known_ones(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that does not exist is an error that names those that do."""
    assert main(["node", "adopt", "--node", "node-9", "--state", str(state)]) == 2
    assert "node-01, node-02" in capsys.readouterr().err
