"""Sessions on which faults are set (what they lead to is tested with the engine)."""

from __future__ import annotations

from pathlib import Path

from fleet.devices.simulated.session import SimulatedSession
from fleet.devices.simulated.struck import StruckSession
from tests.fleet.devices.wipe.orders import break_it, node, order_for, run, whole


def test_a_fault_strikes_only_the_units_it_was_set_on(tmp_path: Path) -> None:
    """Promise 9: a fault set on one partition leaves a wipe of its neighbour alone."""
    backend = node(tmp_path, partitionable=1)
    devices = {device.name: device for device in backend.inventory()[0].devices}
    sick, well = devices["gpu-0-2g-0"], devices["gpu-0-2g-4"]
    break_it(backend, sick, "dirty-word")
    assert run(backend, order_for(backend, well)).verified
    assert not run(backend, order_for(backend, sick)).verified
    assert not run(backend, order_for(backend, devices["gpu-0"])).verified


def test_a_fault_with_a_number_strikes_that_often(tmp_path: Path) -> None:
    """A one-shot fault is over after it struck; what it did to the registers stays."""
    backend = node(tmp_path)
    device = whole(backend)
    break_it(backend, device, "ecc-uncorrectable", errors=2)
    assert not run(backend, order_for(backend, device)).verified
    assert backend.registers(device.uuid).read().faults == {}
    assert backend.readings(device.uuid).ecc_uncorrected_aggregate == 2
    assert run(backend, order_for(backend, device)).verified


def test_a_fault_until_cleared_strikes_until_cleared(tmp_path: Path) -> None:
    """A dirty word comes back with every wipe, at the same place, until the fault is taken back."""
    backend = node(tmp_path)
    device = whole(backend)
    break_it(backend, device, "dirty-word")
    places = {run(backend, order_for(backend, device)).mismatches for _ in range(2)}
    assert len(places) == 1
    assert backend.clear_fault(device.uuid, "dirty-word")
    assert run(backend, order_for(backend, device)).verified


def test_only_a_struck_device_pays_for_faults(tmp_path: Path) -> None:
    """Without a fault that acts on memory the session is the plain one."""
    backend = node(tmp_path)
    device = whole(backend)
    break_it(backend, device, "remap-failed")
    plain = backend.session(device.accelerator, device.units)
    plain.close()
    break_it(backend, device, "dirty-word")
    struck = backend.session(device.accelerator, device.units)
    struck.close()
    assert (type(plain), type(struck)) == (SimulatedSession, StruckSession)
