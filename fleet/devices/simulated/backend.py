"""The simulated back end over one directory.

    <root>/topology.json         what exists, written once
    <root>/boot_id               changes with a simulated reboot
    <root>/memory/<uuid>.bin     the memory of one accelerator, or, where it has partitions,
    <root>/memory/<uuid>/        one file per unit
    <root>/registers/<uuid>.json its readings, faults and clients

Several processes use a directory at once: the node service, its workers, and `fleet sim`.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fleet.core.clock import Clock, SystemClock
from fleet.core.errors import BackendFailed, DeviceLost, DeviceUnknown, InputInvalid
from fleet.core.model import Accelerator, BootId, Device, Process, ProcessKind, UnitId, Uuid
from fleet.core.processes import is_of_the_host
from fleet.devices import infrastructure
from fleet.devices.base import DeviceNode, Grant, MemorySession, Mount, ResetOutcome
from fleet.devices.health.readings import LogState, Readings
from fleet.devices.simulated import clients, layout, topology
from fleet.devices.simulated.memory import Memory
from fleet.devices.simulated.openers import openers
from fleet.devices.simulated.readings import after_reset, readings
from fleet.devices.simulated.registers import Client, Fault, Register, Registers
from fleet.devices.simulated.session import SimulatedSession
from fleet.devices.simulated.struck import DISTURBING, StruckSession

# What a container gets to use a simulated device: its memory as files, and a node that does no
# harm.
#
# The files are mounted for writing, so that a pod can be a tenant that writes and searches. The
# node has the numbers of null, which every container may open anyway: it stands for the device node
# that a real device would have.

DIRECTORY = "/dev/fleetsim"
"""Where a container finds its simulated devices."""
_NULL = (1, 3)


def of_device(device: Device, memory: Memory, *, read_only: bool = False) -> Grant:
    """The grant of one device: one file under its name, several with ``.0``, ``.1`` ... behind it.

    Raises DeviceLost when a file is missing on this host (B79).
    """
    missing = [str(path) for path in memory.paths if not path.is_file()]
    if missing or not memory.files:
        raise DeviceLost(f"{device.name} has no memory here: {', '.join(missing) or 'no file'}")
    place = f"{DIRECTORY}/{device.name}"
    several = len(memory.files) > 1
    mounts = tuple(
        Mount(
            host_path=str(path.absolute()),
            container_path=f"{place}.{number}" if several else place,
            read_only=read_only,
        )
        for number, path in enumerate(memory.paths)
    )
    return Grant(
        nodes=(_node(device.name),),
        mounts=mounts,
        environment={
            "FLEETSIM_DEVICE": device.name,
            "FLEETSIM_MEMORY": ":".join(mount.container_path for mount in mounts),
        },
    )


def of_agent(root: Path) -> Grant:
    """The grant of our own node service: the whole directory at its own path."""
    path = str(root.absolute())
    return Grant(
        nodes=(_node("agent"),), mounts=(Mount(path, path, read_only=False),), environment={}
    )


def _node(name: str) -> DeviceNode:
    major, minor = _NULL
    return DeviceNode(f"{DIRECTORY}/{name}.node", "c", major, minor, host_path="/dev/null")


_HANG_STEP_S = 0.05


class SimulatedBackend:
    """All simulated accelerators of one node (see `Backend` and `CanReset`)."""

    kind = "simulated"
    simulated = True

    def __init__(self, root: Path, clock: Clock | None = None) -> None:
        """`root` must have been made by `create`; nothing is read before the first call."""
        self.root = root
        self._clock = clock or SystemClock()
        self._topology: topology.Topology | None = None

    def settings(self) -> Mapping[str, Any]:
        """What `fleet.devices.registry.build` needs to make this back end again."""
        return {"root": str(self.root)}

    def inventory(self) -> Sequence[Accelerator]:
        """All accelerators. Raises DriverAbsent when the directory holds none."""
        if self._topology is None:
            found = topology.read(self.root / "topology.json")
            if any(layout.unsplit(self._memory, one) for one in found.accelerators):
                self._split(found.accelerators)
            self._topology = found
        return self._topology.accelerators

    def boot_id(self) -> BootId:
        """The boot of the simulated node; changes with `reboot`."""
        try:
            return BootId((self.root / "boot_id").read_text().strip())
        except OSError as error:
            raise BackendFailed(f"the boot id of {self.root} cannot be read: {error}") from error

    def device(self, named: str) -> tuple[Accelerator, Device]:
        """An accelerator or partition by its whole UUID. Raises DeviceUnknown.

        Never by index or prefix: those name another device after the next change (case B13).
        """
        for accelerator in self.inventory():
            for device in accelerator.devices:
                if device.uuid == named:
                    return accelerator, device
        raise DeviceUnknown(f"there is no device with the UUID {named!r} in {self.root}")

    def readings(self, accelerator: Uuid) -> Readings:
        """Health readings of the accelerator. Raises DeviceLost, BackendFailed."""
        found, _ = self.device(accelerator)
        registers = self.registers(found.uuid)
        register = registers.read()
        hang = register.faults.get("reading-hang")
        if hang is not None:
            register = self._hung(registers, hang)
        return self._readings(register, under_load=False)

    def log_state(self) -> LogState | None:
        """How far the log was read that the readings of any accelerator speak of; None: of none."""
        for one in self.inventory():
            register = self.registers(one.uuid).read()
            if found := readings(register, at=0.0, under_load=False).log:
                return found
        return None

    def processes(self, accelerator: Uuid) -> Sequence[Process]:
        """Living processes that have the accelerator, or the partition named, open.

        Those in its register, and whoever else has a file of its memory open: a tenant in a
        container registers nowhere.
        """
        found, device = self.device(accelerator)
        register = self.registers(found.uuid).read()
        registered = clients.alive(register, device.units)
        memory = self.memory(found.uuid).only(device.units)
        return (
            *(Process(client.pid, client.name, _kind(client)) for client in registered),
            *openers(memory.paths, known=[client.pid for client in registered]),
        )

    def grant(self, device: Device) -> Grant:
        """The files of the device's own units, bind-mounted. Raises DeviceLost without them."""
        return of_device(device, self.memory(device.accelerator).only(device.units))

    def grant_to_look(self, device: Device) -> Grant:
        """As `grant`, with the files mounted read-only."""
        memory = self.memory(device.accelerator).only(device.units)
        return of_device(device, memory, read_only=True)

    def agent_grant(self) -> Grant:
        """The whole directory, at its own path."""
        return of_agent(self.root)

    def session(self, accelerator: Uuid, units: Sequence[UnitId]) -> MemorySession:
        """Open the memory of `units`. Raises DeviceUnknown, DeviceLost, BackendFailed."""
        found, _ = self.device(accelerator)
        specs = [unit for unit in found.units if unit.id in set(units)]
        if len(specs) != len(units) or found.uuid != accelerator:
            raise DeviceUnknown(
                f"units {', '.join(units)} are not all of accelerator {accelerator!r}"
            )
        registers = self.registers(found.uuid)
        mine = clients.own(units)
        with registers.change() as register:
            clients.forget_dead(register)
            if register.lost:
                raise DeviceLost(f"{found.device.name} is not on the bus")
            for client in clients.alive(register, units):
                if client.worker_id:
                    raise BackendFailed(f"worker pid {client.pid} still has {client.units} open")
            register.clients.append(mine)
            faults = _disturbing(register, units)

        def closed() -> None:
            with registers.change() as register:
                register.clients = [client for client in register.clients if client != mine]

        def read() -> Readings:
            return self._readings(registers.read(), under_load=True)

        memory = self.memory(found.uuid)
        if not faults:
            return SimulatedSession(memory, specs, read=read, closed=closed)
        return StruckSession(
            memory, specs, read=read, closed=closed, registers=registers, faults=faults
        )

    def reset(self, accelerator: Uuid) -> ResetOutcome:
        """Reset the accelerator; memory keeps its content. Refused while anything has it open."""
        found, _ = self.device(accelerator)
        with self.registers(found.uuid).change() as register:
            holders = tuple(self.processes(found.uuid))
            if holders:
                names = ", ".join(f"{holder.name} (pid {holder.pid})" for holder in holders)
                return ResetOutcome(
                    done=False, method="simulated", detail=f"held by {names}", holders=holders
                )
            after_reset(register)
        return ResetOutcome(done=True, method="simulated")

    def reboot(self) -> BootId:
        """Start a new boot: every process is gone, volatile registers start again, memory stays."""
        for accelerator in self.inventory():
            with self.registers(accelerator.uuid).change() as register:
                clients.stop(register.clients)
                register.clients = []
                after_reset(register)
        _write_boot_id(self.root)
        return self.boot_id()

    def set_fault(self, accelerator: Uuid, fault: Fault) -> None:
        """Set a fault; the same one set before is replaced."""
        found, _ = self.device(accelerator)
        with self.registers(found.uuid).change() as register:
            register.faults[fault.name] = fault

    def clear_fault(self, accelerator: Uuid, name: str) -> bool:
        """Take a fault back, end the processes it started; whether it had been set or struck."""
        found, _ = self.device(accelerator)
        with self.registers(found.uuid).change() as register:
            ended = clients.stop([c for c in register.clients if c.fault == name])
            was_lost = name == "device-lost" and register.lost
            if was_lost:
                register.lost = False
            return bool(register.faults.pop(name, None) or ended or was_lost)

    def registers(self, accelerator: Uuid) -> Registers:
        """The register file of one accelerator."""
        return Registers(self.root / "registers" / f"{accelerator}.json")

    def memory(self, accelerator: Uuid) -> Memory:
        """The memory of one accelerator. Raises DeviceUnknown."""
        found, _ = self.device(accelerator)
        return Memory.of(self._memory, found)

    @property
    def _memory(self) -> Path:
        return self.root / "memory"

    def _split(self, accelerators: Sequence[Accelerator]) -> None:
        with _locked(self.root, "split.lock"):
            for accelerator in accelerators:
                if layout.unsplit(self._memory, accelerator):
                    layout.split(self._memory, accelerator)

    def _readings(self, register: Register, *, under_load: bool) -> Readings:
        if register.lost:
            raise DeviceLost("the device is not on the bus")
        return readings(register, at=self._clock.now(), under_load=under_load)

    def _hung(self, registers: Registers, fault: Fault) -> Register:
        deadline = time.monotonic() + float(fault.parameters["seconds"])
        while True:
            register = registers.read()
            if "reading-hang" not in register.faults or time.monotonic() >= deadline:
                return register
            time.sleep(_HANG_STEP_S)


def create(
    root: Path,
    *,
    node: str,
    accelerators: int,
    memory_bytes: int,
    partitionable: int = 0,
    seed: int = 0,
) -> SimulatedBackend:
    """Make the directory, or check that it already has this very shape.

    `partitionable` of the accelerators have slices. Same node, seed and names: same UUIDs. Raises
    InputInvalid when it has another shape: evidence and leases name the units that exist.
    """
    shape = topology.Shape(node, accelerators, memory_bytes, partitionable, seed)
    wanted = topology.build(shape)
    for folder in (root, root / "memory", root / "registers"):
        folder.mkdir(parents=True, exist_ok=True)
    with _locked(root, "create.lock"):
        path = root / "topology.json"
        if path.exists():
            changes = topology.differences(topology.read(path).shape, shape)
            if changes:
                raise InputInvalid(
                    f"the simulated node in {root} exists with another shape: {changes}",
                    remedy="ask for the shape it has, or use another --state directory",
                )
        else:
            topology.write(path, wanted)
        backend = SimulatedBackend(root)
        for accelerator in backend.inventory():
            layout.make(backend.memory(accelerator.uuid))
        if not (root / "boot_id").exists():
            _write_boot_id(root)
    return backend


@contextmanager
def _locked(root: Path, name: str) -> Iterator[None]:
    with (root / name).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write_boot_id(root: Path) -> None:
    temporary = root / f".boot_id.{os.getpid()}"
    temporary.write_text(str(uuid.uuid4()))
    temporary.replace(root / "boot_id")


def _kind(client: Client) -> ProcessKind:
    if client.worker_id:
        return ProcessKind.OURS
    # Whoever plays a daemon here runs no program of its name.
    known = client.name in infrastructure.daemons() and is_of_the_host(client.pid)
    return ProcessKind.INFRASTRUCTURE if known else ProcessKind.FOREIGN


def _disturbing(register: Register, units: Sequence[UnitId]) -> list[Fault]:
    return [
        fault
        for name, fault in register.faults.items()
        if name in DISTURBING and set(units).intersection(fault.units)
    ]
