"""Every back end that is shipped, held to the contract."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.devices.pcie.backend import PcieBackend
from fleet.devices.simulated.backend import SimulatedBackend
from tests.contracts.backend_contract import BackendContract, GroundContract
from tests.drivers import pci_tree
from tests.fleet.devices.pcie.benches import bench
from tests.fleet.devices.wipe.orders import node


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


class TestPcieTpu(GroundContract):
    """Two TPUs by VFIO, behind one switch, each in a group of its own."""

    @pytest.fixture
    def backend(self, tmp_path: Path) -> PcieBackend:
        """v5e with one function bound to vfio-pci each."""
        other = replace(pci_tree.TPU_V5E, group="8")
        return bench(tmp_path, pci_tree.TPU_V5E, other).backend


class TestPcieGaudi(GroundContract):
    """Two Gaudi 2 with serial numbers."""

    @pytest.fixture
    def backend(self, tmp_path: Path) -> PcieBackend:
        """Two cards."""
        other = replace(pci_tree.GAUDI2, serial=2)
        return bench(tmp_path, pci_tree.GAUDI2, other).backend


class TestPcieMixed(GroundContract):
    """An AMD GPU, an older TPU, and the board's own console, which is no accelerator."""

    @pytest.fixture
    def backend(self, tmp_path: Path) -> PcieBackend:
        """Three functions, two accelerators."""
        return bench(tmp_path, pci_tree.MI300X, pci_tree.TPU_V4, pci_tree.CONSOLE).backend
