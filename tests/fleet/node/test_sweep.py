"""The health sweep: sees every device, disturbs no tenant, does not fight a wipe."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from fleet.core.messages import Outcome
from fleet.core.model import ClaimUid, OperationId, Source, State, Unit, UnitId, Uuid
from fleet.core.unit_states import Change
from fleet.devices.health import reasons
from fleet.devices.simulated import clients, faults
from fleet.node import sweep
from fleet.node.registry import Work
from tests.fleet.node.conftest import Lab, wait_for


def codes(lab: Lab, name: str = "gpu-0") -> set[str]:
    return {reason.code for reason in lab.device(name).reasons}


def test_a_hanging_device_hides_no_other_and_view_answers(lab: Lab) -> None:
    """B29: a device that does not answer is unresponsive; the others are seen, views quick."""
    lab.fault("reading-hang", seconds="60")
    lab.fault("remap-failed", device="gpu-1")
    sweeping = threading.Thread(target=lab.node.sweep)
    sweeping.start()
    started = time.monotonic()
    lab.node.view()
    assert time.monotonic() - started < 0.3
    sweeping.join()
    assert codes(lab) == {"unresponsive"}
    assert codes(lab, "gpu-1") == {"remap-failed"}
    for _ in range(4):
        lab.node.sweep()
    name = f"driver-call {lab.device().uuid}"
    stuck = [thread for thread in threading.enumerate() if thread.name == name]
    assert len(stuck) == 1
    lab.backend.clear_fault(Uuid(lab.device().uuid), "reading-hang")
    wait_for(lambda: stuck[0].name != name)
    assert lab.device().state == State.QUARANTINED
    assert lab.scrub().outcome is Outcome.CERTIFIED


def test_a_fault_in_use_is_recorded_and_disturbs_nobody(lab: Lab) -> None:
    """E1, promise 4: the tenant goes on; after its teardown the device is quarantined."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    with lab.tenant():
        lab.fault("remap-failed")
        lab.node.sweep()
        assert lab.device().state == State.IN_USE
        assert codes(lab) == {"remap-failed"}
        assert lab.specs == ["fleetscrub.dev-gpu_claim-a.json"]
    answer = lab.node.unprepare("claim-a")
    assert answer.quarantined == (lab.device().uuid,)
    assert lab.device().state == State.QUARANTINED


def test_another_driver_version_costs_the_trust_in_clean_memory(lab: Lab) -> None:
    """DESIGN 4, TrustLost: a reloaded driver may have touched memory, so CLEAN becomes DIRTY."""
    lab.node.sweep()
    lab.scrub()
    made = faults.make("counter-unread", units=[], parameters={}, times=0, seed=1)
    made.readings = {"driver_version": "simulated-2"}
    lab.backend.set_fault(Uuid(lab.device().uuid), made)
    lab.node.sweep()
    assert (lab.device().state, codes(lab)) == (State.DIRTY, set())
    assert lab.device().certificate == ""
    assert lab.scrub().outcome is Outcome.CERTIFIED
    lab.node.sweep()
    assert lab.device().state == State.CLEAN


def test_a_device_that_vanished_is_quarantined(lab: Lab) -> None:
    """Promise 5: a device off the bus is no device to allocate."""
    lab.scrub()
    with lab.backend.registers(Uuid(lab.device().uuid)).change() as register:
        register.lost = True
    (seen, other) = lab.node.sweep()
    assert (lab.device().state, codes(lab)) == (State.QUARANTINED, {"device-lost"})
    assert seen.failing
    assert not other.failing


def test_two_faults_at_once_are_both_remembered_and_a_repeated_one_is_not_new(lab: Lab) -> None:
    """B31: reasons are a set; a fault seen again keeps its first time and writes nothing."""
    lab.fault("remap-failed")
    lab.fault("reset-required")
    lab.node.sweep()
    first = lab.device().reasons
    assert {reason.code for reason in first} == {"remap-failed", "reset-required"}
    sequence = lab.node._registry.journal.sequence
    lab.node.sweep()
    assert lab.device().reasons == first
    assert lab.node._registry.journal.sequence == sequence


def test_a_stranger_on_clean_memory_makes_it_dirty(lab: Lab) -> None:
    """Promise 1: a foreign holder since the wipe voids the certificate, also after it has left."""
    lab.scrub()
    lab.scrub("gpu-1-1g-0")
    lab.scrub("gpu-1-1g-1")
    with lab.tenant(), lab.tenant("gpu-1-1g-0"):
        lab.node.sweep()
    assert lab.device().state == State.DIRTY
    assert lab.device("gpu-1-1g-0").state == State.DIRTY
    assert lab.device("gpu-1-1g-1").state == State.CLEAN


def test_a_stranger_on_the_whole_accelerator_soils_all_its_partitions(lab: Lab) -> None:
    """Promise 1: a process that is on no single partition may have written to any."""
    lab.scrub("gpu-1")
    registers = lab.backend.registers(Uuid(lab.device("gpu-1").uuid))
    rest = lab.units("gpu-1")[-1].id
    pid = clients.start(registers, lab.memory("gpu-1"), name="tenant", units=[rest], seconds=60)
    try:
        lab.node.sweep()
    finally:
        lab.backend.reboot()
    assert pid
    assert {unit.state for unit in lab.units("gpu-1")} == {State.DIRTY}


def test_sweep_and_wipe_do_not_fight(lab: Lab) -> None:
    """A fault seen while a wipe runs is left to the wipe; a stale reading undoes no new verdict."""
    stop = threading.Event()

    def sweep_all() -> None:
        while not stop.is_set():
            lab.node.sweep()

    lab.fault("remap-pending")
    thread = threading.Thread(target=sweep_all)
    thread.start()
    try:
        results = [lab.scrub().outcome for _ in range(3)]
    finally:
        stop.set()
        thread.join()
    assert results[-1] is Outcome.CERTIFIED
    assert (lab.device().state, codes(lab)) == (State.CLEAN, set())


def test_a_unit_about_to_be_wiped_is_left_to_its_wipe(lab: Lab) -> None:
    """A fault seen between reservation and start is judged by the wipe, or by the next sweep."""
    registry = lab.node._registry
    work = Work(OperationId("op"), registry.device("gpu-0"), idle=False)
    registry.reserve(work)
    lab.fault("remap-failed")
    lab.node.sweep()
    assert codes(lab) == set()
    registry.unreserve(work)
    lab.node.sweep()
    assert codes(lab) == {"remap-failed"}


def test_a_reading_older_than_the_certificate_undoes_nothing(lab: Lab) -> None:
    """What was read before a wipe says nothing about the device that passed it."""
    health = lab.node._parts.sweep
    device = lab.node._registry.device("gpu-0")
    before = {unit.id: unit for unit in lab.units()}
    lab.scrub()
    stale = Change(reasons=frozenset({LIFTABLE}))
    health._move(device, sweep._fault, stale, before)
    assert lab.device().state == State.CLEAN
    health._move(device, sweep._fault, stale, {unit.id: unit for unit in lab.units()})
    assert lab.device().state == State.QUARANTINED


def test_a_partition_being_wiped_hides_no_fault_of_its_neighbours(lab: Lab) -> None:
    """B70: a fault of the parent reaches every partition that nobody works on."""
    lab.scrub("gpu-1-1g-1")
    lab.fault("hang", device="gpu-1-1g-0")
    order = lab.order("gpu-1-1g-0")
    lab.node.scrub([order])
    wait_for(lambda: lab.device("gpu-1-1g-0").state == State.WIPING)
    lab.fault("remap-failed", device="gpu-1")
    lab.node.sweep()
    assert lab.device("gpu-1-1g-0").state == State.WIPING
    assert lab.device("gpu-1-1g-1").state == State.QUARANTINED
    lab.result(order.operation)


def test_a_driver_that_raises_anything_is_a_fault_of_that_device_only(lab: Lab) -> None:
    """B29: the sweep survives what no driver should do."""
    path = lab.backend.registers(Uuid(lab.device().uuid)).path
    path.write_text('{"values": 3}')
    seen = lab.node.sweep()
    path.unlink()
    assert [found.failing for found in seen] == [True, False]
    assert codes(lab) == {"unresponsive"}


LIFTABLE = reasons.make("thermal-slowdown", Source.HEALTH, since=100.0)
OPERATOR = reasons.make("operator", Source.OPERATOR, since=100.0)
STUCK = Unit(UnitId("u"), State.QUARANTINED, frozenset({LIFTABLE}), since=100.0)


@pytest.mark.parametrize(
    ("units", "now", "last", "expected"),
    [
        ([STUCK], 400.0, 0.0, True),
        ([STUCK], 399.0, 0.0, False),
        ([STUCK], 500.0, 300.0, False),
        ([replace(STUCK, state=State.DIRTY)], 500.0, 0.0, False),
        ([replace(STUCK, reasons=frozenset({LIFTABLE, OPERATOR}))], 500.0, 0.0, False),
        ([replace(STUCK, claim=ClaimUid("c"))], 500.0, 0.0, False),
        ([STUCK, Unit(UnitId("v"), State.IN_USE, claim=ClaimUid("c"))], 500.0, 0.0, False),
        ([STUCK, Unit(UnitId("v"), State.CLEAN)], 500.0, 0.0, True),
    ],
)
def test_who_may_be_retested(units: list[Unit], now: float, last: float, expected: bool) -> None:
    """Promise 6: a rule lifts only liftable reasons, of devices nobody holds, once a period."""
    assert sweep.retestable(units, now=now, period_s=300.0, last=last) is expected
