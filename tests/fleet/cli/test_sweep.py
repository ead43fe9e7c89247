"""`fleet sweep`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.cli.main import main


def test_a_sweep_reads_every_device(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """E1: a sweep of healthy devices is exit 0 and shows each of them."""
    assert main(["sweep", "--state", str(state), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {node: len(devices) for node, devices in document["nodes"].items()} == {
        "node-01": 2,
        "node-02": 2,
    }


def test_a_sweep_that_finds_a_fault_is_exit_1(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B1: a device whose readings are a fault fails the sweep, with a remedy."""
    assert main(["devices", "--state", str(state), "--json"]) == 0
    uuid = json.loads(capsys.readouterr().out)["devices"][0]["uuid"]
    assert main(["sim", "fault", "remap-failed", "--device", uuid, "--state", str(state)]) == 0
    capsys.readouterr()
    assert main(["sweep", "--state", str(state)]) == 1
    text = capsys.readouterr().out
    assert "node-01/gpu-0: FAILS" in text
    assert "do: " in text
