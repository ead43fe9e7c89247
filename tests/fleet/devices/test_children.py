"""Children that ask a driver: bounded, replaced, ended; patient while a driver starts."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.processes import marked
from fleet.devices.children import Children
from fleet.devices.simulated.backend import SimulatedBackend
from fleet.devices.simulated.registers import Fault
from tests.crowding import crowded
from tests.drivers.host import Host
from tests.fleet.devices.wipe.orders import node


@pytest.fixture
def direct(tmp_path: Path) -> SimulatedBackend:
    """Two accelerators, in this process."""
    return node(tmp_path, accelerators=2)


@pytest.fixture
def children(direct: SimulatedBackend) -> Iterator[Children]:
    """The children alone, for calls with a time limit of the test's own."""
    opened = Children("simulated", direct.settings())
    yield opened
    opened.close()


def pids(uuid: str) -> tuple[int, ...]:
    """Children of one accelerator."""
    return marked(f"simulated driver, {uuid}")


def until(true: Callable[[], bool]) -> None:
    """Wait for what another process does, at most 10 s."""
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def test_b29_a_driver_that_hangs_on_one_card_is_ended_and_holds_up_no_other(
    direct: SimulatedBackend, children: Children
) -> None:
    """B29, gpus-8.14: a call that does not return is bounded; its process is gone afterwards."""
    sick, well = (accelerator.uuid for accelerator in direct.inventory())
    direct.set_fault(sick, Fault("reading-hang", [], parameters={"seconds": 60.0}))
    children.call(sick, "processes", {"accelerator": sick}, 10)
    (before,) = pids(sick)
    began = time.monotonic()
    with pytest.raises(errors.BackendFailed, match="no answer in time"):
        children.call(sick, "readings", {"accelerator": sick}, 0.3)
    assert time.monotonic() - began < 3
    until(lambda: before not in pids(sick))
    assert children.call(well, "readings", {"accelerator": well}, 10)["present"] is True
    direct.clear_fault(sick, "reading-hang")
    assert children.call(sick, "readings", {"accelerator": sick}, 10)["present"] is True
    assert before not in pids(sick)


def test_a_process_with_thousands_of_descriptors_asks_its_children(
    direct: SimulatedBackend, children: Children
) -> None:
    """E1: a node with many devices has descriptors beyond 1,024, which select() does not take."""
    uuid = direct.inventory()[0].uuid
    with crowded():
        assert children.call(uuid, "processes", {"accelerator": uuid}, 10) is not None


def test_a_child_that_died_is_replaced(direct: SimulatedBackend, children: Children) -> None:
    """A crash of the driver's library costs one answer, never the service."""
    uuid = direct.inventory()[0].uuid
    children.call(uuid, "processes", {"accelerator": uuid}, 10)
    (pid,) = pids(uuid)
    os.kill(pid, signal.SIGKILL)
    until(lambda: ") Z " in Path(f"/proc/{pid}/stat").read_text())  # its pipes are closed then
    assert children.call(uuid, "processes", {"accelerator": uuid}, 10) == []


def test_closing_ends_every_child_and_starts_none(
    direct: SimulatedBackend, children: Children
) -> None:
    """Nothing leaks: no child outlives the service, none is started once it closes."""
    uuid = direct.inventory()[0].uuid
    children.call(uuid, "processes", {"accelerator": uuid}, 10)
    children.close()
    until(lambda: not pids(uuid))
    with pytest.raises(errors.BackendFailed, match="closing"):
        children.call(uuid, "processes", {"accelerator": uuid}, 10)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A machine with two stand-in GPUs, which children of this process see."""
    made = Host(tmp_path / "standin")
    made.add_gpu()
    made.add_gpu()
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def drivers(host: Host) -> Iterator[Children]:
    """Children that ask its driver."""
    opened = Children("nvidia", {"root": str(host.hardware_root), "kernel_log": ""})
    yield opened
    opened.close()


def test_a_driver_that_takes_long_to_start_is_waited_for_and_not_started_again(
    host: Host, drivers: Children
) -> None:
    """B29: to kill a child that starts the driver would start it again, for ever; callers are told
    at once that it is starting, which says nothing of the device."""
    uuid = host.gpus[0].uuid
    given = {"accelerator": uuid}
    host.gpus[0].fault("nvmlDeviceGetHandleByPciBusId", "times 1 sleep 1.5")
    for _ in range(2):
        with pytest.raises(errors.DriverBusy, match="starting"):
            drivers.call(uuid, "readings", given, 0.2)
    started = marked(f"nvidia driver, {uuid}")
    assert len(started) == 1
    assert drivers.call(uuid, "readings", given, 10)["present"] is True
    assert marked(f"nvidia driver, {uuid}") == started


def test_whoever_must_be_alone_with_the_driver_ends_the_others_and_keeps_them_off(
    direct: SimulatedBackend, children: Children
) -> None:
    """gpus-8.36: a reset finds no other child of ours on the driver, and none comes meanwhile."""
    one, other = (accelerator.uuid for accelerator in direct.inventory())
    given = {"accelerator": other}
    children.call(other, "processes", given, 10)
    with children.alone(one):
        assert pids(other) == ()
        for key in (other, ""):
            with pytest.raises(errors.DriverBusy):
                children.call(key, "processes", given, 10)
        with pytest.raises(errors.DriverBusy), children.alone(other):
            pass
        assert children.call(one, "processes", {"accelerator": one}, 10) == []
    assert children.call(other, "processes", given, 10) == []


def test_b29_an_opening_that_fails_in_any_way_ends(
    direct: SimulatedBackend, children: Children
) -> None:
    """B29, F44: a child that cannot even be made is told to whoever asks, each time anew; its card
    does not stay "starting", and the thread that makes children lives on for the others."""
    unmakeable = "GPU-with-a-\0-in-it"  # no process can be started with that in its environment
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(errors.BackendFailed, match="no process can be started") as told:
            children.call(unmakeable, "readings", {"accelerator": unmakeable}, 5)
        assert not isinstance(told.value, errors.DriverBusy)
        assert time.monotonic() - began < 5
    well = direct.inventory()[0].uuid
    assert children.call(well, "processes", {"accelerator": well}, 20) == []
