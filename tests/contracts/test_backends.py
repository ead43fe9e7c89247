"""Every back end that is shipped, held to the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.backends.simulated.backend import SimulatedBackend
from tests.contracts.backend_contract import BackendContract
from tests.fleet.wipe.orders import node


class TestSimulatedWhole(BackendContract):
    """Whole simulated accelerators."""

    @pytest.fixture
    def backend(self, tmp_path: Path) -> SimulatedBackend:
        """Two accelerators."""
        return node(tmp_path, accelerators=2)


class TestSimulatedPartitionable(BackendContract):
    """A simulated accelerator with partitions: many units, many holes."""

    @pytest.fixture
    def backend(self, tmp_path: Path) -> SimulatedBackend:
        """One accelerator in slices."""
        return node(tmp_path, partitionable=1)
