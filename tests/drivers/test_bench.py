"""What the agent adds to the driver's own calls stays small (issue 5, point 3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drivers import bench


def test_the_agent_adds_little_for_each_of_eight_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 5: with 8 devices less than 0.5 s each, outside of what the driver's calls take."""
    host = bench.machine(tmp_path / "machine", bench.DEVICES)
    for name, value in host.environment().items():
        monkeypatch.setenv(name, value)
    found = bench.measured(host, wipes=1)
    assert len(found.rows["readings"]) == bench.DEVICES
    assert found.added_s < bench.LIMIT_S
    assert found.median("worker, spawn to ready") > 0
