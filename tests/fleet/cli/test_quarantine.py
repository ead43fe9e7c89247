"""`fleet quarantine`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.cli.main import main


def test_a_quarantine_is_added_listed_and_cleared(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """D4: an operator's quarantine survives the command and ends only by an operator's word."""
    where = ["--state", str(state), "--json"]
    assert main(["quarantine", "add", "gpu-0", "--node", "node-01", "--reason", "x", *where]) == 0
    added = json.loads(capsys.readouterr().out)
    assert main(["quarantine", "list", *where]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["devices"]
    assert (listed["node"], listed["uuid"]) == ("node-01", added["uuid"])
    assert [reason["code"] for reason in listed["reasons"]] == ["operator"]
    assert main(["node", "adopt", "--operator", "me", *where]) == 0
    capsys.readouterr()
    assert main(["quarantine", "clear", added["uuid"], "--operator", "me", *where]) == 0
    cleared = json.loads(capsys.readouterr().out)
    assert (cleared["state"], cleared["reasons"]) == ("DIRTY", [])
