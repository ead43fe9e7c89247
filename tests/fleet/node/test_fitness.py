"""A cause of the node that fails every wipe is told once and takes no device out of service."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.core.leases import AcquireRequest
from fleet.core.messages import DeviceResult, DeviceView, Outcome, ScrubOrder
from fleet.core.model import Holder, HolderKind, Lease, State, UnitId
from fleet.core.settings import HardwareSettings, Settings
from fleet.node.service import NodeService
from fleet.wiring import adapters
from fleet.wiring.adapters import CoordinatorPlan, NodePlan
from tests.drivers.building import libraries
from tests.drivers.host import Gpu, Host
from tests.fleet.node.conftest import wait_for

GPUS = 3


class Machine:
    """A node of three GPUs whose drivers a test takes apart before it opens."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.host = Host(directory / "machine")
        for name, text in self.host.environment().items():
            patch.setenv(name, text)
        self._patch = patch
        self._directory = directory
        self.gpus: list[Gpu] = []
        for _ in range(GPUS):
            gpu = self.host.add_gpu(
                total=64 << 20, reserved=65536, context_bytes=65536, bus_width=8,
                clock_max_memory=100,
            )  # fmt: skip
            self.gpus.append(gpu)
        hardware = HardwareSettings(
            root=str(self.host.hardware_root),
            kernel_log=str(self.host.tree.put("dev/kmsg", "")),
            run_directory=str(directory / "run"),
        )
        self.settings = Settings(hardware=hardware)
        self.node: NodeService | None = None
        self._serial = 0

    def without_cuda(self) -> None:
        """The driver's library for monitoring is there, and not the one for work."""
        part = self._directory / "part"
        part.mkdir()
        shutil.copy(libraries() / "libnvidia-ml.so.1", part)
        self._patch.setenv("LD_LIBRARY_PATH", str(part))

    def open(self) -> NodeService:
        """The node service, with all devices given free by their operator."""
        state = str(self._directory / "state")
        self.coordinator = adapters.open_coordinator(
            CoordinatorPlan(state=state, settings=self.settings)
        )
        self.node = adapters.open_node(
            NodePlan(node="n1", state=state, hardware="nvidia", settings=self.settings)
        )
        self.node.adopt(devices=[device.uuid for device in self.devices], operator="ada")
        return self.node

    @property
    def devices(self) -> tuple[DeviceView, ...]:
        assert self.node is not None
        return self.node.view().devices

    def scrub(self, device: DeviceView) -> DeviceResult:
        assert self.node is not None
        request = AcquireRequest(
            frozenset(UnitId(unit) for unit in device.units),
            Holder(HolderKind.OPERATOR, "ada"),
            ttl_s=600.0,
        )
        (lease,) = self.coordinator.acquire([request])
        assert isinstance(lease, Lease)
        self._serial += 1
        name = f"op/{device.name}/{self._serial}"
        order = ScrubOrder(operation=name, node="n1", device=device.uuid, token=str(lease.token))
        (acceptance,) = self.node.scrub([order])
        assert acceptance.accepted, acceptance.error
        node = self.node
        wait_for(lambda: bool(node.view([order.operation]).results))
        self.coordinator.release(lease.holder, lease.token)
        return node.view([order.operation]).results[0]

    def degraded(self) -> tuple[str, ...]:
        """Why the node is not whole, after a sweep."""
        assert self.node is not None
        node = self.node
        node.tick(0.0)
        wait_for(lambda: bool(node.view().degraded))
        return node.view().degraded


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A machine that nothing is wrong with."""
    made = Machine(tmp_path, monkeypatch)
    yield made
    if made.node is not None:
        made.node.close()


def too_old(machine: Machine) -> None:
    (machine.host.root / "cuda_lacks").write_text("cuMemHostAlloc\n")


def not_ready(machine: Machine) -> None:
    (machine.host.root / "confidential").write_text("1\n")


def coherent(machine: Machine) -> None:
    for gpu in machine.gpus:
        gpu.set(numa_memory_node=1)


CAUSES: dict[str, tuple[Callable[[Machine], None], str, str]] = {
    "no library": (Machine.without_cuda, "libcuda.so.1 is not installed", "install the driver's"),
    "library too old": (too_old, "has no cuMemHostAlloc", "install the driver's own libcuda.so.1"),
    "coherent memory": (coherent, "memory of the host too", "NVreg_CoherentGPUMemoryMode=driver"),
    "confidential": (not_ready, "are not set ready", "nvidia-smi conf-compute -srs 1"),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_f44_a_cause_of_the_node_blames_no_device(machine: Machine, cause: str) -> None:
    """F44, F84: where CUDA is missing or too old, memory is the host's too, or the GPUs are not set
    ready, every wipe is refused before it begins, no device is quarantined, and the node says once
    what to do."""
    act, detail, remedy = CAUSES[cause]
    act(machine)
    machine.open()
    for device in machine.devices:
        result = machine.scrub(device)
        assert (result.outcome, result.state) == (Outcome.REFUSED, State.DIRTY)
        (found,) = result.findings
        assert found.check == "node-unfit"
        assert detail in found.detail
        assert remedy in found.remedy
    assert {device.state for device in machine.devices} == {State.DIRTY}
    assert [text for text in machine.degraded() if detail in text and remedy in text]


def test_f44_a_node_that_is_mended_wipes_without_a_restart(machine: Machine) -> None:
    """F44: once the cause is gone the next wipe goes through, and nothing has to be cleared."""
    not_ready(machine)
    machine.open()
    first = machine.devices[0]
    assert machine.scrub(first).outcome is Outcome.REFUSED
    (machine.host.root / "confidential_ready").write_text("1\n")
    wait_for(lambda: machine.scrub(first).outcome is Outcome.CERTIFIED)
