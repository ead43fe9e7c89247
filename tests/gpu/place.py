"""The machine a GPU check runs on: its GPUs, how much of the host is seen, and who else is there.

The process of the tests opens no driver: whoever holds a GPU may not be there while it is wiped.
All questions go through the children that the node service would use.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from fleet.core.errors import DriverAbsent, FleetError
from fleet.core.model import Accelerator, Process, ProcessKind
from fleet.core.pci import address
from fleet.core.settings import HardwareSettings
from fleet.devices.nvidia import readings
from fleet.devices.openers import sees_all
from fleet.devices.remote import RemoteBackend
from fleet.devices.sysfs import read_text
from fleet.wiring import hardware
from tests.gpu import working
from tests.gpu.contained import seen
from tests.gpu.report import REPORT

SETTINGS = "FLEET_GPU_SETTINGS"
"""Environment variable: section [hardware] as JSON, where it is not the default."""
ONLY = "FLEET_GPU_ONLY"
"""Environment variable: which GPUs are checked, by UUID or slot; unset: all."""
NO_DRIVER, IN_USE = 3, 4
"""Exit codes of a check that did not begin."""
LEAVING_S = 5.0
"""Time, s, in which a process that has ended lets go of its GPU."""
UNEXPLAINED_BYTES = 1 << 30
"""Memory in use by nobody we are shown, above which somebody is there all the same."""
STAND_IN = "STAND-IN"


@dataclass(frozen=True)
class Machine:
    """What the tests share."""

    settings: dict[str, Any]
    backend: RemoteBackend
    accelerators: tuple[Accelerator, ...]
    contained: str
    """Why only a container's own processes can be seen; "" on a host."""
    kernel_log: str
    """Why the kernel log cannot be read; "": it can."""

    @property
    def whole(self) -> tuple[Accelerator, ...]:
        """GPUs that are not partitioned now."""
        return tuple(one for one in self.accelerators if not partitioned(one))

    @property
    def parted(self) -> tuple[Accelerator, ...]:
        """GPUs with partitioning on."""
        return tuple(one for one in self.accelerators if partitioned(one))

    def accelerator(self, uuid: str) -> Accelerator:
        """One of them."""
        return next(one for one in self.accelerators if one.uuid == uuid)

    def holders(self, one: Accelerator) -> tuple[Process, ...]:
        """Who has a GPU open. Raises `BackendFailed` on a host that does not tell."""
        if self.contained:
            return tuple(seen(Path("/proc"), one.device.attributes["minor"]))
        return tuple(self.backend.processes(one.uuid))

    def strangers(self, one: Accelerator) -> tuple[Process, ...]:
        """Of them, those that are neither ours nor the host's daemons."""
        return tuple(who for who in self.holders(one) if who.kind is ProcessKind.FOREIGN)


def partitioned(one: Accelerator) -> bool:
    """Whether a GPU has partitioning on."""
    return one.device.attributes.get("mig") == "on"


def stand_in(one: Accelerator) -> bool:
    """Whether a GPU is one of tests/drivers."""
    return one.device.attributes["product"].startswith(STAND_IN)


def until(true: Callable[[], bool], *, within_s: float) -> bool:
    """Look until it is so or the time is over."""
    deadline = time.monotonic() + within_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@functools.cache
def found() -> Machine:
    """The machine, looked at once. Ends the run without a driver, or with somebody on a GPU."""
    directory = tempfile.TemporaryDirectory(prefix="fleet-gpu-check-")
    asked = HardwareSettings(**json.loads(os.environ.get(SETTINGS, "{}")))
    settings = hardware.arguments(asked, Path(directory.name))
    backend = RemoteBackend("nvidia", settings)
    atexit.register(directory.cleanup)
    atexit.register(backend.close)
    try:
        accelerators = tuple(backend.inventory())
    except DriverAbsent as error:
        _refuse(f"no GPU to check: {error}", NO_DRIVER)
    if not accelerators:
        _refuse("no GPU to check: the driver lists none", NO_DRIVER)
    accelerators = _chosen(accelerators, os.environ.get(ONLY, ""))
    first = working.ask("probe", {"settings": settings}, limit_s=60)
    machine = Machine(
        settings=settings,
        backend=backend,
        accelerators=accelerators,
        contained=_contained(Path(asked.root)),
        kernel_log=first["kernel_log"],
    )
    _tell(machine, first)
    _refuse_company(machine, first["used_bytes"])
    return machine


def _chosen(found: Sequence[Accelerator], only: str) -> tuple[Accelerator, ...]:
    """Those that were asked for, by UUID or slot; all where none was named. Ends the run for a name
    that none of them has: to check another GPU than the one meant is no check."""
    wanted = [name.strip() for name in only.split(",") if name.strip()]

    def named(one: Accelerator, name: str) -> bool:
        slot = one.device.attributes.get("pci", "")
        return name in (one.uuid, one.device.name) or (slot != "" and address(name) == slot)

    for name in wanted:
        if not any(named(one, name) for one in found):
            _refuse(f"no GPU to check: {name} is none of this machine", NO_DRIVER)
    return tuple(one for one in found if not wanted or any(named(one, n) for n in wanted))


def _contained(root: Path) -> str:
    if not sees_all(root):
        return f"{root / 'proc'} does not show all processes of the host"
    listed = (read_text(root / "proc/devices") or "").split()
    if "nvidia" not in listed and "nvidia-frontend" not in listed:
        return f"{root / 'proc/devices'} lists no device of the driver"
    return ""


def _tell(machine: Machine, first: dict[str, Any]) -> None:
    attributes = machine.accelerators[0].device.attributes
    REPORT.driver, REPORT.cuda = attributes.get("driver", ""), attributes.get("cuda_driver", "")
    root = Path(machine.settings["root"])
    REPORT.host |= {
        "contained": machine.contained,
        "kernel_log": machine.kernel_log or "readable",
        "driver_parameters": (root / readings.PROC / "params").exists(),
        "pci_bus": (root / "sys/bus/pci/devices").is_dir(),
        "held_after_close": first["held_after_close"],
    }
    if machine.contained:
        REPORT.note(
            f"{machine.contained}: who holds a GPU is known from inside this container only, and"
            " wipes run in a child of the check in place of the node's worker"
        )
    if machine.kernel_log:
        REPORT.note(f"fault codes are unknown, the kernel log cannot be read: {machine.kernel_log}")
    if any(map(stand_in, machine.accelerators)):
        REPORT.note("these are stand-ins for GPUs: no figure is one of real hardware")


def _refuse_company(machine: Machine, used_bytes: dict[str, int]) -> None:
    """A check takes all memory and ends what it finds there: nobody else may have work there."""
    for one in machine.accelerators:
        try:
            _alone(machine, one)
            strangers = machine.strangers(one)
        except FleetError as error:
            _refuse(f"who uses {one.uuid} is unknown: {error}", IN_USE)
        if strangers:
            _refuse(f"{one.uuid} is in use by {_names(strangers)}", IN_USE)
        used = used_bytes.get(one.uuid, 0)
        if machine.contained and used > UNEXPLAINED_BYTES:
            _refuse(f"{one.uuid}: {used} B are in use by nobody seen", IN_USE)


def _alone(machine: Machine, one: Accelerator) -> bool:
    """Whether nobody is on a GPU, once those that are leaving have left."""
    return until(lambda: not machine.strangers(one), within_s=LEAVING_S)


def _refuse(why: str, code: int) -> NoReturn:
    REPORT.note(f"the check did not begin: {why}")
    pytest.exit(why, returncode=code)


def _names(processes: Sequence[Process]) -> str:
    return ", ".join(f"{who.name} (pid {who.pid})" for who in processes)
