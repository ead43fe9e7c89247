"""A simulated fleet for verbs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.wiring import adapters


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state directory of a simulated fleet that nobody has opened yet."""
    adapters.plan_fleet(tmp_path, simulate="2x2", memory_bytes=8 << 20)
    return tmp_path
