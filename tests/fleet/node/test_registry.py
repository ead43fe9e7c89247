"""Changes are whole, reservations exclusive, the witness never in the way."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.model import Accelerator, OperationId, Source, State, Uuid
from fleet.core.unit_states import Change, Event, Fact
from fleet.devices.base import Backend
from fleet.devices.health import reasons
from fleet.devices.simulated.backend import SimulatedBackend
from fleet.node.journal import mirror, witness
from fleet.node.registry import Registry, Work
from tests.fleet.node.conftest import Lab, wait_for


def work(lab: Lab, name: str, *, idle: bool = False) -> Work:
    return Work(OperationId(f"op/{name}"), lab.node._registry.device(name), idle=idle)


def give_way(lab: Lab, doing: Work) -> None:
    doing.cancel.wait(5.0)
    lab.node._registry.unreserve(doing)


def test_a_device_is_found_by_uuid_or_whole_name_only(lab: Lab) -> None:
    """B13: an index or a prefix names another device after the next change."""
    registry = lab.node._registry
    device = registry.device("gpu-0")
    assert registry.device(device.uuid) is device
    for wrong in ("0", "gpu", device.uuid[:8], ""):
        with pytest.raises(errors.DeviceUnknown):
            registry.device(wrong)


def test_a_change_moves_all_units_or_none(lab: Lab) -> None:
    """DESIGN 4: a device's units move in one transaction; one missing row undoes all."""
    registry = lab.node._registry
    part = registry.device("gpu-1-1g-0")
    fault = Change()
    registry.move(part, Event.FAULT_SEEN, fault)
    before = lab.units("gpu-1")
    with pytest.raises(errors.IllegalTransition):
        registry.move(registry.device("gpu-1"), Event.TRUST_LOST, Change())
    assert lab.units("gpu-1") == before


def test_what_goes_beside_a_change_can_refuse_it(lab: Lab) -> None:
    """A guard asked inside the transaction leaves nothing changed when it raises."""
    registry = lab.node._registry

    def refuse(_: object) -> None:
        raise errors.DeviceBusy("not now")

    with pytest.raises(errors.DeviceBusy):
        registry.move(registry.device("gpu-0"), Event.FAULT_SEEN, Change(), also=refuse)
    assert lab.device().state == State.DIRTY


def test_event_and_change_may_be_chosen_per_unit(lab: Lab) -> None:
    """A device of several units may have them in different states."""
    registry = lab.node._registry
    part, whole = registry.device("gpu-1-1g-0"), registry.device("gpu-1")
    registry.move(part, Event.FAULT_SEEN, Change())
    registry.move(
        whole,
        lambda unit: Event.TRUST_LOST if unit.state is State.DIRTY else None,
        lambda unit: Change(frozenset({Fact.WORKER_GONE}), holder=unit.id),
    )
    assert {unit.state for unit in lab.units("gpu-1")} == {State.DIRTY, State.QUARANTINED}
    assert registry.state(whole) is State.QUARANTINED


def test_overlapping_devices_are_never_reserved_together(lab: Lab) -> None:
    """Promise 9: parent and child share memory, so one operation at a time has a unit."""
    registry = lab.node._registry
    parent, child, sibling = (work(lab, f"gpu-1{n}") for n in ("", "-1g-0", "-1g-1"))
    assert registry.reserve(child) is None
    assert registry.reserve(sibling) is None
    assert registry.reserve(parent) in (child, sibling)
    assert not registry.reserved(lab.units("gpu-1")[-1].id)
    registry.unreserve(child)
    registry.unreserve(sibling)
    assert child.done.is_set()
    assert registry.reserve(parent) is None
    assert registry.works() == [parent]


def test_idle_cleaning_gives_way_and_nothing_else_does(lab: Lab) -> None:
    """An order takes a device from the idle cleaner; two orders do not take it from each other."""
    registry = lab.node._registry
    idle, first, second = work(lab, "gpu-0", idle=True), work(lab, "gpu-0"), work(lab, "gpu-0")
    registry.reserve(idle)
    assert registry.reserve_over_idle(work(lab, "gpu-0", idle=True), wait_s=5.0) is idle
    assert not idle.cancel.is_set()
    giving = threading.Thread(target=give_way, args=(lab, idle))
    giving.start()
    assert registry.reserve_over_idle(first, wait_s=5.0) is None
    giving.join()
    assert registry.reserve_over_idle(second, wait_s=5.0) is first
    assert not first.cancel.is_set()
    stuck = work(lab, "gpu-1", idle=True)
    registry.reserve(stuck)
    assert registry.reserve_over_idle(work(lab, "gpu-1"), wait_s=0.05) is stuck


def test_a_decision_stops_every_work_on_its_units(lab: Lab) -> None:
    """Quarantining a parent stops the wipes of all its partitions, not of the first found."""
    registry = lab.node._registry
    parts = [work(lab, f"gpu-1-1g-{n}") for n in range(3)]
    for part in parts:
        registry.reserve(part)
        threading.Thread(target=give_way, args=(lab, part)).start()
    assert registry.claim_for(work(lab, "gpu-1"), wait_s=5.0) is None
    assert all(part.cancel.is_set() for part in parts)


def test_a_witness_that_cannot_be_written_degrades_and_does_not_fail_an_act(lab: Lab) -> None:
    """The commit is durable: an act that happened is never reported as failed."""
    run = lab.directory / "run"
    (run / "n1.witness").unlink()
    run.rmdir()
    run.write_text("in the way")
    lab.node.quarantine_add("gpu-0", detail="x", operator="ada")
    assert lab.device().state == State.QUARANTINED
    assert any("witness" in text for text in lab.node.view().degraded)
    run.unlink()
    lab.node.quarantine_clear("gpu-0", operator="ada")
    assert lab.node.view().degraded == ()


def test_a_unit_never_seen_starts_held(lab: Lab) -> None:
    """B02: a device with no record is of unknown holder, never clean."""
    lab.node.close()
    with lab.journal() as journal:
        journal._database.execute("DELETE FROM units")
    lab.open()
    assert {device.state for device in lab.node.view().devices} == {State.HELD}
    lab.free()
    wait_for(lambda: lab.device().state == State.DIRTY)
    assert registry_states(lab) == {State.DIRTY}


def registry_states(lab: Lab) -> set[State]:
    registry = lab.node._registry
    return {registry.state(registry.devices[Uuid(d.uuid)]) for d in lab.node.view().devices}


def test_a_commit_the_journal_refuses_is_remembered_until_one_is_taken(lab: Lab) -> None:
    """A full disk fails every act of the node; an act refused by its own rules says nothing."""
    registry = lab.node._registry
    registry.journal._database.execute("PRAGMA query_only = ON")
    with pytest.raises(errors.FleetError), registry.commit():
        pass
    assert "journal.db" in registry.commit_trouble
    registry.journal._database.execute("PRAGMA query_only = OFF")
    with registry.commit():
        pass
    assert registry.commit_trouble == ""
    with pytest.raises(errors.DeviceBusy), registry.commit():
        raise errors.DeviceBusy("of its own")
    assert registry.commit_trouble == ""


def copied(lab: Lab) -> tuple[set[str], int]:
    """Codes in the copy of reasons, and the commit that was witnessed last."""
    place = lab.node._registry.place
    seen = witness.read(place.witness)
    assert seen is not None
    kept = mirror.read(place.mirror).reasons.values()
    return {reason.code for found in kept for reason in found}, seen.sequence


def quarantine(registry: Registry, name: str, code: str) -> None:
    reason = reasons.make(code, Source.HEALTH, detail="seen", since=1.0)
    change = Change(reasons=frozenset({reason}))
    registry.move(registry.device(name), Event.FAULT_SEEN, change)


def test_gathered_commits_share_one_witness_also_when_something_fails(lab: Lab) -> None:
    """Promise 6: each commit is durable and copied at once; the witness follows in the end."""
    registry = lab.node._registry
    before, sequence = copied(lab)
    both = {*before, "remap-failed", "device-lost"}

    def quarantine_and_fail() -> None:
        with registry.gathered():
            quarantine(registry, "gpu-0", "remap-failed")
            quarantine(registry, "gpu-1", "device-lost")
            assert registry.journal.sequence == sequence + 2
            assert copied(lab) == (both, sequence)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        quarantine_and_fail()
    assert copied(lab) == (both, sequence + 2)


def test_commits_of_other_threads_are_followed_at_once_while_one_gathers(lab: Lab) -> None:
    """A sweep that hangs keeps back no witness of what others did meanwhile."""
    registry = lab.node._registry
    with registry.gathered():
        other = threading.Thread(target=quarantine, args=(registry, "gpu-0", "remap-failed"))
        other.start()
        other.join()
        assert copied(lab) == ({"remap-failed"}, registry.journal.sequence)


def showing(lab: Lab, found: Sequence[Accelerator]) -> Registry:
    """The registry, after a look at a machine that shows these."""
    registry = lab.node._registry
    registry.backend = Showing(found, registry.backend)
    registry.load()
    return registry


def test_b10_a_card_that_was_away_is_not_clean_when_it_is_back(lab: Lab) -> None:
    """B10, promise 1: pulled, used elsewhere, put back: seen absent while serving."""
    lab.scrub()
    registry = lab.node._registry
    unit = registry.device("gpu-0").units[0]
    assert registry.journal.units[unit].state is State.CLEAN
    there = registry.backend.inventory()
    gone = registry.device("gpu-0").accelerator
    showing(lab, [one for one in there if one.uuid != gone])
    assert registry.journal.units[unit].state is State.DIRTY
    assert registry.device("gpu-0").uuid, "it stays known, for the sweep to find it lost"
    showing(lab, there)
    assert registry.journal.units[unit].state is State.DIRTY


def test_b10_a_card_away_at_a_start_is_not_clean_when_it_is_back(lab: Lab) -> None:
    """B10, promise 1: a restarted service knows of it from its journal only; a swap is no cure."""
    lab.scrub()
    unit = lab.node._registry.device("gpu-0").units[0]
    lab.node.close()
    put_back = lab.take_out()
    lab.open()
    assert lab.node._registry.journal.units[unit].state is State.DIRTY
    lab.node.close()
    put_back()
    lab.open()
    assert lab.node._registry.journal.units[unit].state is State.DIRTY
    assert lab.scrub().state == State.CLEAN, "no state is a trap"


@pytest.mark.parametrize("size", [0, 1])
def test_b64_memory_that_shows_another_size_is_not_clean(lab: Lab, size: int) -> None:
    """B64: a card that answers without memory, or with other memory, is not the one wiped."""
    lab.scrub()
    registry = lab.node._registry
    was = registry.backend.inventory()
    device = registry.device("gpu-0")
    one = registry.accelerators[device.accelerator]
    shown = replace(one, devices=(replace(device, memory_bytes=size),))
    others = [other for other in was if other.uuid != device.accelerator]
    showing(lab, [shown, *others])
    assert registry.journal.units[device.units[0]].state is State.DIRTY


class Showing(SimulatedBackend):
    """A back end whose inventory is told."""

    def __init__(self, found: Sequence[Accelerator], real: Backend) -> None:
        assert isinstance(real, SimulatedBackend)
        super().__init__(Path(real.settings()["root"]))
        self._found = found

    def inventory(self) -> tuple[Accelerator, ...]:
        """As told."""
        return tuple(self._found)


class Driverless(SimulatedBackend):
    """A back end whose driver went away."""

    def inventory(self) -> tuple[Accelerator, ...]:
        """None can be told."""
        raise errors.DriverAbsent("no driver")


def test_a_driver_that_is_gone_takes_the_trust_in_all_cards_with_it(lab: Lab) -> None:
    """Promise 1: what another driver does with them meanwhile is not known."""
    lab.scrub()
    registry = lab.node._registry
    assert isinstance(registry.backend, SimulatedBackend)
    registry.backend = Driverless(Path(registry.backend.settings()["root"]))
    with pytest.raises(errors.DriverAbsent):
        registry.load()
    assert State.CLEAN not in {unit.state for unit in registry.journal.units.values()}
