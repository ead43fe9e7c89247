"""`fleet devices`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.cli.main import main


def test_devices_are_listed_with_their_state(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`fleet devices` shows every device of every node; a new one is never CLEAN (promise 5)."""
    assert main(["devices", "--state", str(state)]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].startswith("SIMULATED")
    for place in ("node-01", "node-02", "gpu-0", "gpu-1"):
        assert place in text
    assert "CLEAN" not in text
