"""`fleet audit`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.cli.main import main


def test_an_audit_of_a_new_fleet_finds_nothing(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Store, nodes and ledgers of a new fleet agree: exit 0."""
    assert main(["audit", "--state", str(state), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["nodes"], document["devices"], document["findings"]) == (2, 4, [])
