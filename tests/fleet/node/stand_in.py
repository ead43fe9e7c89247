"""A node's registry over one stand-in GPU, through the real back end in the test's process."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from fleet.core.clock import SystemClock
from fleet.core.model import BootId, Device, Digest, NodeName, State, Uuid
from fleet.core.settings import HealthPolicy
from fleet.devices.nvidia.backend import NvidiaBackend
from fleet.node.bounded import BoundedCalls
from fleet.node.journal import startup
from fleet.node.journal.startup import Place
from fleet.node.partition_mode import Dividing
from fleet.node.registry import Registry
from fleet.node.sweep import Sweep
from fleet.node.validation import Validator
from tests.drivers.building import libraries
from tests.drivers.host import Gpu, Host

CERTIFICATE = Digest("sha256:" + "0" * 64)


class Nobody:
    """A node whose pods have no container, unless one is named."""

    def __init__(self) -> None:
        self.container = ""

    def created(self, _device: Uuid) -> str:
        return self.container


class Ground:
    """One GPU with partitioning off, its node's registry, and who may divide it."""

    def __init__(self, root: Path, backend: NvidiaBackend) -> None:
        place = Place(root / "journal.db", root / "witness", NodeName("n1"), "machine")
        journal = startup.open_or_set_aside(place, now=0.0).journal
        self.registry = Registry(backend, journal, place, SystemClock(), boot_id=BootId("boot-1"))
        self.registry.load()
        self.tenants = Nobody()
        self.validator = Validator(self.registry, BoundedCalls(), HealthPolicy())
        self.sweep = Sweep(self.registry, self.validator)
        self.dividing = Dividing(
            self.registry,
            self.validator,
            self.tenants,  # type: ignore[arg-type]  # all that is asked of it here
            stop_wait_s=0.1,
        )

    @property
    def device(self) -> Device:
        (whole,) = self.registry.whole()
        return whole

    def put(self, state: State, **changes: object) -> None:
        """Bring all units into a state."""
        with self.registry.commit() as commit:
            for unit in self.registry.units(self.device):
                commit.put_unit(replace(unit, state=state, **changes))  # type: ignore[arg-type]

    def clean(self) -> None:
        """As a wipe of the whole leaves it."""
        self.put(State.CLEAN, certificate=CERTIFICATE, claim=None)

    def switch(self, *, on: bool) -> Device:
        return self.dividing.switch(self.device.name, on=on, operator="ada")

    def acts(self) -> list[str]:
        return [str(act["act"]) for act in self.registry.journal.acts()]

    def states(self) -> set[State]:
        return {unit.state for unit in self.registry.units(self.device)}


def machine(root: Path, **readings: object) -> Host:
    """A machine with one GPU and an empty kernel log. The caller lets FLEET_STANDIN name it."""
    ctypes.CDLL(str(libraries() / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)
    made = Host(root)
    made.add_gpu("h100", number=0, **readings)
    (made.root / "kmsg").touch()
    return made


@contextmanager
def ground(
    host: Host,
    root: Path,
    *,
    kind: type[NvidiaBackend] = NvidiaBackend,
    several: bool = False,
) -> Iterator[Ground]:
    """The registry over that machine's GPU, CLEAN and held by nobody.

    With `several` GPUs their units are what a first start makes them.
    """
    backend = kind(
        root=str(host.hardware_root),
        kernel_log=str(host.root / "kmsg"),
        identities=str(host.root / "cards.json"),
    )
    with closing(backend):
        made = Ground(root, backend)
        if not several:
            made.clean()
        yield made
        made.registry.journal.close()


def log_xid(host: Host, gpu: Gpu, code: int, *, gi: int | None = None, slot: str = "") -> None:
    """The driver logs a fault now, of an instance where `gi` is given, of another slot if named."""
    place = slot or gpu.bus_id.rpartition(".")[0]
    inside = "" if gi is None else f" GPU-I:{gi:02d}"
    at_us = int(SystemClock().monotonic() * 1e6)
    with (host.root / "kmsg").open("a") as kernel:
        said = f"NVRM: Xid (PCI:{place}{inside}): {code}, pid=1, name=x, said"
        kernel.write(f"4,1,{at_us},-;{said}\n")
