"""A real node on the simulated back end: journal, workers, ledger, store; small and quick."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleet import bootstrap, errors
from fleet.backends.simulated import faults
from fleet.backends.simulated.backend import SimulatedBackend
from fleet.bootstrap import NodePlan, SimulatedNode
from fleet.coordinator import Coordinator
from fleet.evidence import layout
from fleet.evidence.ledger import Ledger
from fleet.leases import AcquireRequest
from fleet.messages import ClaimOrder, DeviceResult, DeviceView, ScrubOrder
from fleet.model import Holder, HolderKind, Lease, UnitId, Uuid
from fleet.node.service import NodeService
from fleet.settings import MIB, Settings

WAIT_S = 30.0


def wait_for(fact: Callable[[], bool], *, timeout_s: float = WAIT_S) -> None:
    """Return once `fact` holds; fail when it does not in time."""
    deadline = time.monotonic() + timeout_s
    pause = time.sleep
    while not fact():
        assert time.monotonic() < deadline, "the fact waited for never held"
        pause(0.01)


@dataclass
class Lab:
    """One simulated node of two accelerators (the second partitionable) and its coordinator."""

    state: Path
    settings: Settings
    node: NodeService = field(init=False)
    coordinator: Coordinator = field(init=False)
    _serial: int = 0

    def __post_init__(self) -> None:
        self.plan = NodePlan(
            node="n1",
            state=str(self.state),
            simulated=SimulatedNode(accelerators=2, memory_bytes=2 * MIB, partitionable=1),
            settings=self.settings,
        )
        coordinator = bootstrap.CoordinatorPlan(state=str(self.state), settings=self.settings)
        self.coordinator = bootstrap.open_coordinator(coordinator)
        self.open()

    def open(self, *, settings: Settings | None = None) -> NodeService:
        """Open the node service (again), as a restarted process would."""
        if settings is not None:
            self.plan = self.plan.model_copy(update={"settings": settings})
        self.node = bootstrap.open_node(self.plan)
        return self.node

    @property
    def directory(self) -> Path:
        return layout.node_directory(self.state, "n1")

    @property
    def backend(self) -> SimulatedBackend:
        """The hardware, to be broken and used behind the service's back."""
        return SimulatedBackend(self.directory / "sim")

    @property
    def ledger(self) -> Ledger:
        return Ledger(layout.ledger_directory(self.state, "n1"))

    def device(self, name: str = "gpu-0") -> DeviceView:
        return next(device for device in self.node.view().devices if device.name == name)

    def free(self) -> None:
        """Let the node prove its devices free, and nothing else."""
        self.node.tick(0.0)

    def fault(
        self, name: str, *, device: str = "gpu-0", times: int | None = None, **parameters: str
    ) -> None:
        """Break a device."""
        found = self.device(device)
        made = faults.make(
            name,
            units=list(found.units),
            parameters=parameters,
            times=times,
            seed=7,
        )
        self.backend.set_fault(Uuid(found.accelerator), made)

    def lease(self, *names: str, holder: Holder | None = None) -> Lease:
        """Acquire devices from the coordinator."""
        units = frozenset(UnitId(u) for name in names for u in self.device(name).units)
        chosen = holder or Holder(HolderKind.OPERATOR, "tester")
        ttl_s = None if chosen.kind is HolderKind.CLAIM else 600.0
        (lease,) = self.coordinator.acquire([AcquireRequest(units, chosen, ttl_s=ttl_s)])
        if isinstance(lease, errors.FleetError):
            raise lease
        return lease

    def order(self, name: str = "gpu-0", *, lease: Lease | None = None) -> ScrubOrder:
        """A scrub order under a lease of the device."""
        self._serial += 1
        granted = lease or self.lease(name)
        return ScrubOrder(
            operation=f"op/{name}/{self._serial}",
            node="n1",
            device=self.device(name).uuid,
            token=str(granted.token),
        )

    def scrub(self, name: str = "gpu-0", *, lease: Lease | None = None) -> DeviceResult:
        """Scrub one device to its end."""
        order = self.order(name, lease=lease)
        (acceptance,) = self.node.scrub([order])
        assert acceptance.accepted, acceptance.error
        return self.result(order.operation)

    def result(self, operation: str) -> DeviceResult:
        """Wait for the result of an operation."""
        wait_for(lambda: bool(self.node.view([operation]).results))
        return self.node.view([operation]).results[0]

    def claim(self, uid: str, *names: str, lease: Lease | None = None) -> ClaimOrder:
        """A claim order under a lease of its devices."""
        granted = lease or self.lease(*names, holder=Holder(HolderKind.CLAIM, uid))
        return ClaimOrder(
            uid=uid,
            node="n1",
            devices=tuple(self.device(name).uuid for name in names),
            token=str(granted.token),
            consumers=("pod-1",),
        )

    def memory(self, name: str = "gpu-0") -> Path:
        """The backing file of a device's accelerator."""
        return self.backend.memory(Uuid(self.device(name).accelerator))


def quick_settings(**wipe: object) -> Settings:
    """Settings under which a hang is over in a second."""
    base = Settings()
    chosen = {"deadline_base_s": 1.5, "kill_wait_s": 0.3, **wipe}
    policy = base.wipe.model_copy(update=chosen)
    return base.model_copy(update={"wipe": policy})


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A node whose devices are proven free (DIRTY)."""
    shared = Path("/dev/shm")  # noqa: S108 - memory files belong in memory where there is some
    state = Path(tempfile.mkdtemp(prefix="lab-", dir=shared if shared.is_dir() else None))
    made = Lab(state, quick_settings())
    made.free()
    yield made
    made.node.close()
    shutil.rmtree(state)
