"""What the node does by itself: prove free, sweep, clean idle devices, retest, drain."""

from __future__ import annotations

from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind, OperationId, Source, State, Unit, UnitId, Uuid
from fleet.devices.health import reasons
from fleet.node.registry import Work
from fleet.node.upkeep import AGE_S, Cadence, Tending, Watched
from tests import threads
from tests.fleet.node.conftest import Lab, wait_for
from tests.fleet.node.parting import parting


def tending(lab: Lab) -> Tending:
    return lab.node._tending


def due(lab: Lab, now: float) -> list[str]:
    return sorted(device.name for device in tending(lab).step(now))


def now_of(lab: Lab) -> float:
    return lab.node.view().at


def test_a_dirty_device_is_cleaned_after_its_delay_and_not_before(lab: Lab) -> None:
    """DESIGN 4: the node starts the wipe by itself when nobody holds the unit."""
    dirty_since = lab.device().since
    assert due(lab, dirty_since + AGE_S - 0.5) == []
    at = max(lab.device("gpu-1").since, dirty_since) + AGE_S + 0.1
    assert due(lab, at) == ["gpu-0", "gpu-1"]
    assert due(lab, at + 0.1) == []


def test_f76_a_first_or_cleared_device_is_wiped_within_2_s_on_an_idle_node(lab: Lab) -> None:
    """F76: on a node where nobody is at work the wipe of a device that was just found free, or
    cleared by an operator, begins within 2 s; after work of others the node waits its delay."""
    lab.node.quarantine_add("gpu-0", detail="smoke", operator="ada")
    lab.node.quarantine_clear("gpu-0", operator="ada")
    cleared = lab.device().since
    assert cleared > lab.device("gpu-1").since
    assert due(lab, cleared + 2.0) == ["gpu-0", "gpu-1"]
    delay_s = lab.settings.node.idle_delay_s
    work = Work(OperationId("op"), lab.node._registry.device("gpu-1"), idle=False)
    assert lab.node._registry.reserve(work) is None
    at = cleared + 100.0
    due(lab, at)
    lab.node._registry.unreserve(work)
    assert due(lab, at + delay_s - 1.0) == []
    assert "gpu-0" in due(lab, at + delay_s + 1.0)


def test_f76_a_longer_delay_than_the_default_is_kept() -> None:
    """F76: who asks for a longer delay than the default gets it; a shorter one is no less quick."""
    assert [Cadence(s, 60.0, 300.0).age_s for s in (0.0, 0.5, 30.0, 3600.0)] == [0, 0.5, 1, 3600]


def test_nobody_cleans_what_somebody_holds(lab: Lab) -> None:
    """Promise 4: a claim's units are its own, clean or not, in use or being prepared."""
    lab.node.prepare(lab.claim("claim-a", "gpu-1-1g-0"))
    names = due(lab, now_of(lab) + 100.0)
    assert "gpu-0" in names
    assert "gpu-1" not in names
    parts = [name for name in names if name.startswith("gpu-1-")]
    assert "gpu-1-1g-1" in parts
    assert "gpu-1-1g-0" not in parts
    units = [u for name in parts for u in lab.device(name).units]
    assert len(units) == len(set(units))


def test_a_tick_cleans_idle_devices_whole_where_it_can(lab: Lab) -> None:
    """The idle cleaner's certificates carry no lease; the device ends CLEAN."""
    lab.node.tick(now_of(lab) + 100.0)
    wait_for(lambda: {d.state for d in lab.node.view().devices} == {State.CLEAN})
    assert {unit.token for unit in lab.units()} == {None}


def test_a_quarantined_device_is_retested_by_rule_and_lifted_when_it_passes(lab: Lab) -> None:
    """Promise 6: a fresh full pass lifts reasons a rule may lift."""
    lab.fault("thermal-slowdown")
    lab.scrub()
    assert lab.device().state == State.QUARANTINED
    lab.node.tick(now_of(lab) + 10.0)
    assert not [work for work in lab.node._registry.works() if work.device.name == "gpu-0"]
    at = now_of(lab) + lab.settings.health.retest_period_s
    lab.node.tick(at + 20.0)
    wait_for(lambda: lab.device().operation == "" and lab.device().state == State.QUARANTINED)
    lab.backend.clear_fault(Uuid(lab.device().uuid), "thermal-slowdown")
    lab.node.tick(at + 30.0)
    assert lab.device().state == State.QUARANTINED
    lab.node.tick(at + 2000.0)
    wait_for(lambda: lab.device().state == State.CLEAN)
    assert lab.device().reasons == ()


def test_one_device_that_cannot_be_judged_keeps_no_other_held(lab: Lab) -> None:
    """B29: proof for one device does not wait for another's driver."""
    for name in ("gpu-0", "gpu-1"):
        lab.leave(State.HELD, name)
    path = lab.backend.registers(Uuid(lab.device().uuid)).path
    path.write_text("{")
    tending(lab).step(0.0)
    assert lab.device().state == State.HELD
    assert lab.device("gpu-1").state == State.DIRTY
    path.unlink()
    tending(lab).step(0.0)
    assert lab.device().state != State.HELD


def test_a_tenant_keeps_a_device_held(lab: Lab) -> None:
    """ProvenFree (d): not while a tenant is in the register file."""
    lab.leave(State.HELD)
    with lab.tenant():
        tending(lab).step(0.0)
        assert lab.device().state == State.HELD
    tending(lab).step(0.0)
    assert lab.device().state == State.DIRTY


def test_the_outbox_survives_a_store_outage_and_any_number_of_tries(lab: Lab) -> None:
    """A3: what remains remote drains from the outbox once the store is back."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    store = lab.state / "coordinator" / "store.db"
    store.rename(store.with_suffix(".away"))
    store.mkdir()
    lab.node.unprepare("claim-a")
    for step in range(4):
        lab.node.tick(1000.0 * step)
    assert lab.node.view().outbox == 1
    with lab.node._registry.commit() as commit:
        commit._database.execute("UPDATE outbox SET attempts = 5000")
    lab.node.tick(10000.0)
    assert lab.node.view().outbox == 1
    store.rmdir()
    store.with_suffix(".away").rename(store)
    lab.node.tick(20000.0)
    assert lab.node.view().outbox == 0
    assert lab.coordinator.leases() == []


def test_a_clock_that_goes_back_stops_no_sweep(lab: Lab) -> None:
    """gpus-8.44: the wall clock may jump; the sweep is late by a period at most."""
    seen: list[float] = []
    health = tending(lab).health
    for now in (1e9, 5.0):
        tending(lab).step(now)
        tending(lab).join(10.0)
        seen.append(max(found.at for found in health.last.values()))
    assert seen[1] > seen[0]


def test_a_broken_register_file_never_stops_the_step(lab: Lab) -> None:
    """Promise 9: one device's trouble is not the node's."""
    path = lab.backend.registers(Uuid(lab.device().uuid)).path
    path.write_text("{")
    lab.node.tick(now_of(lab) + 100.0)
    wait_for(lambda: lab.device("gpu-1").state == State.CLEAN)
    path.unlink()


def test_a_dirty_neighbour_costs_a_clean_partition_nothing(lab: Lab) -> None:
    """A partition wiped before binding keeps its certificate while its neighbours are cleaned."""
    lab.scrub("gpu-1")
    kept = lab.scrub("gpu-1-1g-0").certificate
    lab.node.quarantine_add("gpu-1-1g-3", detail="x", operator="ada")
    lab.node.quarantine_clear("gpu-1-1g-3", operator="ada")
    now = now_of(lab)
    assert due(lab, now + 100.0) == ["gpu-0", "gpu-1-1g-3"]
    assert due(lab, now + 100.5) == []
    assert lab.device("gpu-1-1g-0").certificate == kept


def test_a_retest_that_failed_is_not_repeated_part_by_part(lab: Lab) -> None:
    """Promise 6: once a period, whichever device the unit was retested in."""
    lab.fault("remap-pending", device="gpu-1")
    lab.node.sweep()
    assert lab.device("gpu-1").state == State.QUARANTINED
    now = now_of(lab) + 10_000.0
    assert "gpu-1" in due(lab, now)
    assert [name for name in due(lab, now + 1.0) if name.startswith("gpu-1")] == []


def released(lab: Lab, uid: str) -> None:
    """What a burial without a token leaves in the outbox is carried out."""
    tending(lab).outbox._release({"holder": f"claim:{uid}", "token": ""})


def test_a_release_by_holder_leaves_a_lease_of_another_node_alone(lab: Lab) -> None:
    """Promise 2: a named claim may be exposed elsewhere by now, under a lease of its own."""
    units = frozenset({UnitId("GPU-of-another-node/m0")})
    request = AcquireRequest(units, Holder(HolderKind.CLAIM, "claim-a"))
    (lease,) = lab.coordinator.acquire([request])
    released(lab, "claim-a")
    assert lab.leases_of("claim-a") == [lease]


def test_a_release_by_holder_finds_the_lease_of_an_earlier_device(lab: Lab) -> None:
    """Promise 7: the claim has a record again, of another device: nobody else would return it."""
    lab.lease("gpu-0", holder=Holder(HolderKind.CLAIM, "claim-a"))
    lab.node.prepare(lab.bare("claim-a", "gpu-1-1g-0"))
    released(lab, "claim-a")
    (left,) = lab.leases_of("claim-a")
    assert set(left.units) == set(lab.device("gpu-1-1g-0").units)
    assert left.token == lab.units("gpu-1-1g-0")[0].token
    assert lab.units()[0].closed


def test_a_fault_found_on_one_partition_is_looked_for_on_its_neighbours_at_once(lab: Lab) -> None:
    """B70: a fault of the parent reaches its partitions before the period of the sweep is over."""
    for name in ("gpu-1-1g-0", "gpu-1-1g-1"):
        lab.scrub(name)
    now = now_of(lab)
    tending(lab).step(now)
    wait_for(lambda: lab.node._parts.sweep.good_at(lab.node._registry.device("gpu-1")) > 0)
    tending(lab).join(1.0)
    lab.fault("remap-failed", device="gpu-1")
    lab.scrub("gpu-1-1g-0")
    assert lab.device("gpu-1-1g-0").state == State.QUARANTINED
    assert lab.device("gpu-1-1g-1").state == State.CLEAN
    tending(lab).step(now + 0.1)
    wait_for(lambda: lab.device("gpu-1-1g-1").state == State.QUARANTINED)
    assert {reason.code for reason in lab.device("gpu-1-1g-1").reasons} == {"remap-failed"}
    assert lab.device("gpu-0").reasons == ()


def test_a_fault_of_a_partitions_own_memory_stays_its_own(lab: Lab) -> None:
    """B70: what the tables do not call a fault of the accelerator takes no neighbour along."""
    for name in ("gpu-1-1g-0", "gpu-1-1g-1"):
        lab.scrub(name)
    lab.fault("dirty-word", device="gpu-1-1g-0")
    lab.scrub("gpu-1-1g-0")
    assert lab.device("gpu-1-1g-0").state == State.QUARANTINED
    tending(lab).step(now_of(lab))
    tending(lab).join(2.0)
    assert lab.device("gpu-1-1g-1").state == State.CLEAN


def test_an_instance_nobody_needs_is_removed_by_the_node_itself(lab: Lab) -> None:
    """Promise 7: what a crash left of ours goes at the next step; work and claims keep theirs."""
    backend = parting(lab)
    registry, partitions = lab.node._registry, lab.node._parts.sweep.validator.partitions
    partitions.ensure(registry.device("gpu-1-1g-0"))
    work = Work(OperationId("op"), registry.device("gpu-1"), idle=False)
    registry.reserve(work)
    tending(lab).step(0.0)
    tending(lab).join(5.0)
    assert len(backend.there) == 1
    registry.unreserve(work)
    tending(lab).step(10.0)
    tending(lab).join(5.0)
    assert (backend.there, partitions.records()) == ([], [])


def test_a_clock_set_back_leaves_no_memory_dirty_until_it_has_caught_up() -> None:
    """Promise 7: what a device waits for is then measured by a clock that nobody sets."""
    watched, uuid = Watched(), Uuid("GPU-a")
    dirty = Unit(UnitId("u"), State.DIRTY, since=9000.0)
    assert watched.reached(uuid, [dirty], 500.0, 7.0) == 9000.0
    assert watched.reached(uuid, [dirty], 502.0, 9.5) == 9002.5
    assert watched.reached(uuid, [dirty], 9010.0, 11.0) == 9010.0, "the later of the two counts"
    fault = reasons.make("thermal-slowdown", Source.HEALTH, since=9100.0)
    worse = Unit(UnitId("u"), State.QUARANTINED, frozenset({fault}), since=9000.0)
    assert watched.reached(uuid, [worse], 505.0, 20.0) == 9100.0, "what is new is seen anew"


def test_a_device_dirty_since_later_than_now_is_cleaned(lab: Lab) -> None:
    """Promise 7: the same, by the node's own steps after its clock was set back by an hour."""
    lab.scrub()
    early, clock = now_of(lab) - 3600.0, lab.node._registry.clock
    started = clock.monotonic()
    wait_for(lambda: due(lab, early + clock.monotonic() - started) == ["gpu-1"])


def test_f79_a_sweep_without_a_thread_to_be_had_is_made_up_for(lab: Lab) -> None:
    """F79, B29: at the host's limit of processes the step goes on, and the next one sweeps."""
    found = tending(lab)
    step = now_of(lab) + 2 * found.cadence.sweep_period_s
    found.join(5.0)
    with threads.none_to_be_had():
        found.step(step)
    assert found._sweeping is None
    found.step(step + 0.1)
    assert found._sweeping is not None
