"""A real node on the simulated back end: journal, workers, ledger, store; small and quick."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fleet.control.coordinator import Coordinator
from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.messages import ClaimOrder, DeviceResult, DeviceView, ScrubOrder
from fleet.core.model import Holder, HolderKind, Lease, State, Token, Unit, UnitId, Uuid
from fleet.core.settings import MIB, KubernetesSettings, Settings
from fleet.core.sqlite import open_database
from fleet.devices.simulated import clients, faults
from fleet.devices.simulated.backend import SimulatedBackend
from fleet.devices.simulated.memory import Memory
from fleet.evidence import layout
from fleet.evidence.ledger import Ledger
from fleet.node.journal import schema
from fleet.node.journal.journal import Journal
from fleet.node.service import NodeService
from fleet.wiring import adapters
from fleet.wiring.adapters import NodePlan, SimulatedNode
from tests.fleet.node.trees import POD, Tree
from tests.scratch import directory

WAIT_S = 30.0
OPS = "fleet-ops"
"""The namespace whose claims may look into devices with adminAccess."""


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
        if not self.settings.kubernetes.admins:
            looking = self.settings.kubernetes.model_copy(update={"admin_namespaces": (OPS,)})
            self.settings = self.settings.model_copy(update={"kubernetes": looking})
        self.plan = NodePlan(
            node="n1",
            state=str(self.state),
            simulated=SimulatedNode(accelerators=2, memory_bytes=2 * MIB, partitionable=1),
            settings=self.settings,
        )
        coordinator = adapters.CoordinatorPlan(state=str(self.state), settings=self.settings)
        self.coordinator = adapters.open_coordinator(coordinator)
        self.open()

    def open(self, *, settings: Settings | None = None) -> NodeService:
        """Open the node service (again), as a restarted process would."""
        if settings is not None:
            self.plan = self.plan.model_copy(update={"settings": settings})
        self.node = adapters.open_node(self.plan)
        return self.node

    def take_out(self) -> Callable[[], None]:
        """Take gpu-0 out of the machine, while the service is closed; call the result to put it
        back."""
        path = self.directory / "sim" / "topology.json"
        whole = path.read_text()
        known = json.loads(whole)
        known["accelerators"] = known["accelerators"][1:]
        path.write_text(json.dumps(known))

        def put_back() -> None:
            path.write_text(whole)

        return put_back

    def restart(self, *, settings: Settings | None = None) -> NodeService:
        """Close the service and open it again."""
        self.node.close()
        return self.open(settings=settings)

    def serve(self) -> Tree:
        """Restart as a node whose devices kubelet hands out; the cgroups its pods have."""
        tree = Tree(self.state / "cgroup", "v2-systemd")
        kubernetes = KubernetesSettings(
            cdi_directory=str(self.directory / "cdi"),
            kubelet_root=str(self.state),
            cgroup_root=str(tree.root),
            admin_namespaces=(OPS,),
        )
        settings = self.settings.model_copy(update={"kubernetes": kubernetes})
        self.plan = self.plan.model_copy(update={"kubernetes": True})
        self.restart(settings=settings)
        return tree

    @contextmanager
    def store_away(self) -> Iterator[None]:
        """The lease store does not answer inside the block."""
        store = self.state / "coordinator" / "store.db"
        store.rename(store.with_suffix(".away"))
        try:
            yield
        finally:
            store.with_suffix(".away").rename(store)

    def leases_of(self, uid: str) -> list[Lease]:
        """What a claim has in the store."""
        holder = Holder(HolderKind.CLAIM, uid)
        return [lease for lease in self.coordinator.leases() if lease.holder == holder]

    def bare(self, uid: str, *names: str, **more: Any) -> ClaimOrder:
        """A claim order without a token: the node sees to the lease."""
        devices = tuple(self.device(name).uuid for name in names)
        order = {"uid": uid, "node": "n1", "devices": devices, "consumers": (POD,), **more}
        return ClaimOrder.model_validate(order)

    def attachment(self, uid: str, *names: str) -> ClaimOrder:
        """A claim order that looks into devices with adminAccess and holds none."""
        found = tuple(self.device(name).uuid for name in names)
        return self.bare(uid, attached=found, namespace=OPS)

    @contextmanager
    def journal(self) -> Iterator[Journal]:
        """The journal of the closed node, to leave in it what a crash leaves."""
        found = Journal(
            open_database(self.directory / "journal.db", schema=schema.SCHEMA, timeout_s=5.0)
        )
        yield found
        (self.directory / "run" / "n1.witness").unlink(missing_ok=True)
        found.close()

    def leave(self, state: State, name: str = "gpu-0", **changes: Any) -> None:
        """Restart the node with the units of a device in `state`, as a crash may leave them."""
        units = self.device(name).units
        self.node.close()
        with self.journal() as journal, journal.commit() as commit:
            for unit in units:
                left = replace(commit.unit(UnitId(unit)), state=state, **changes)
                commit.put_unit(left)
        self.open()

    def units(self, name: str = "gpu-0") -> list[Unit]:
        """The records of a device's units."""
        registry = self.node._registry
        return registry.units(registry.device(name))

    @property
    def specs(self) -> list[str]:
        """Names of everything in the spec directory."""
        directory = self.directory / "cdi"
        return sorted(p.name for p in directory.iterdir()) if directory.is_dir() else []

    @contextmanager
    def tenant(self, name: str = "gpu-0", *, seconds: float = 60.0) -> Iterator[int]:
        """A real process that has the device open; ends with the block."""
        found = self.device(name)
        registers = self.backend.registers(Uuid(found.accelerator))
        pid = clients.start(
            registers, self.memory(name), name="tenant", units=found.units, seconds=seconds
        )
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

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
        """Let the node prove its devices free and end its first sweep, and nothing else."""
        self.node.tick(0.0)
        self.node._tending.join(WAIT_S)

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

    def let_go(self) -> None:
        """Give back every lease that is not a claim's."""
        for lease in self.coordinator.leases():
            if lease.holder.kind is not HolderKind.CLAIM:
                self.coordinator.release(lease.holder, lease.token)

    def newer_token(self) -> Token:
        """A token issued for something that is not on this node: newer than all there are."""
        self._serial += 1
        elsewhere = frozenset({UnitId(f"elsewhere/{self._serial}")})
        request = AcquireRequest(elsewhere, Holder(HolderKind.OPERATOR, "x"), ttl_s=600.0)
        (lease,) = self.coordinator.acquire([request])
        assert isinstance(lease, Lease)
        return lease.token

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

    def memory(self, name: str = "gpu-0") -> Memory:
        """The memory of a device's accelerator, in files."""
        return self.backend.memory(Uuid(self.device(name).accelerator))


def quick_settings(**wipe: object) -> Settings:
    """Settings under which a hang is over in a second."""
    base = Settings()
    chosen = {"deadline_base_s": 1.5, "kill_wait_s": 0.3, **wipe}
    policy = base.wipe.model_copy(update=chosen)
    health = base.health.model_copy(update={"reading_timeout_s": 3.0})
    return base.model_copy(update={"wipe": policy, "health": health})


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A node whose devices are proven free (DIRTY)."""
    with directory("lab-") as state:
        made = Lab(state, quick_settings())
        made.free()
        yield made
        made.node.close()


@pytest.fixture
def away(lab: Lab) -> Iterator[Lab]:
    """A lab whose node nobody owns."""
    lab.node.close()
    yield lab
    lab.open()  # whoever comes next finds a node that can be opened
