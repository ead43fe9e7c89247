"""Simulated devices and orders for them, as the tests of wiping need them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fleet.core.clock import SystemClock
from fleet.core.model import Device, UnitId
from fleet.core.settings import WipePolicy
from fleet.devices.simulated import faults
from fleet.devices.simulated.backend import SimulatedBackend, create
from fleet.devices.simulated.memory import Memory, UnitFile
from fleet.devices.wipe import engine, plan
from fleet.devices.wipe.result import WipeResult

MIB = 1 << 20


def node(
    root: Path, *, accelerators: int = 1, mib: int = 4, partitionable: int = 0
) -> SimulatedBackend:
    """A small simulated node."""
    return create(
        root,
        node="n0",
        accelerators=accelerators,
        memory_bytes=mib * MIB,
        partitionable=partitionable,
        seed=7,
    )


def whole(backend: SimulatedBackend, index: int = 0) -> Device:
    """A whole accelerator as a device."""
    return backend.inventory()[index].device


def one_file(path: Path) -> Memory:
    """A file as the memory of an accelerator with one unit, ``u/all``."""
    return Memory((UnitFile(UnitId("u/all"), path, 0, path.stat().st_size),))


def order_for(backend: SimulatedBackend, device: Device) -> plan.WipeOrder:
    """An order under the default policy, with a fixed nonce."""
    target = plan.Target(
        backend.kind,
        backend.settings(),
        device.accelerator,
        device.uuid,
        device.units,
        device.memory_bytes,
    )
    return plan.order(target, WipePolicy(), worker_id=uuid.uuid4().hex, nonce="5a" * 32)


def run(backend: SimulatedBackend, order: plan.WipeOrder) -> WipeResult:
    """Run the engine in this process."""
    return engine.run(order, backend, SystemClock(), lambda _phase, _done, _total: None)


def break_it(backend: SimulatedBackend, device: Device, fault: str, **parameters: object) -> None:
    """Set a fault on the device."""
    made = faults.make(
        fault,
        units=[str(unit) for unit in device.units],
        parameters={key: str(value) for key, value in parameters.items()},
        times=None,
        seed=3,
    )
    backend.set_fault(device.uuid, made)


def impatient(order: plan.WipeOrder) -> plan.WipeOrder:
    """The same order without the allowance for a busy host."""
    return replace(order, slow_allowance_s=0.0)


def eventually(happened: Callable[[], bool], *, within_s: float = 15.0) -> bool:
    """Look until it happened or the time is over."""
    deadline = time.monotonic() + within_s
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
