"""The publisher against the in-memory API server."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fleet.core.clock import ManualClock
from fleet.core.errors import ApiConflict, ApiFailed, ApiForbidden, ApiInvalid, ApiUnavailable
from fleet.core.messages import DeviceView, NodeView, ReasonView
from fleet.core.settings_parse import parse
from fleet.kube.base import NODES, SLICES, Change, Event, Name, Object, Selection, name_of
from fleet.kube.slice_equality import Feature
from fleet.plugin.slices.exclusivity import Exclusivity, HostLocks
from fleet.plugin.slices.pool_view import PoolReading, read_pools
from fleet.plugin.slices.publisher import Publisher, PublisherTerms
from fleet.plugin.slices.report import PublishReport
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine, Target
from tests.lab.apiserver.gates import (
    GATES_1_34,
    GATES_1_36,
    LIMITS_1_34,
    PARTITIONABLE,
    Features,
)

NODE = "node-a"
DRIVER = "gpu.fleetscrub.dev"
QUARANTINED = f"{DRIVER}/quarantined"


class SteppedClock(ManualClock):
    """A clock whose wall reading somebody sets; its monotonic one goes on as if nothing were."""

    step_s = 0.0

    def now(self) -> float:
        """Seconds since the epoch, as the machine believes."""
        return super().now() + self.step_s


class Bench:
    """A cluster with one node, a publisher, and devices whose state a test sets."""

    def __init__(
        self,
        count: int = 8,
        *,
        features: Features | None = None,
        partitioned: int = 0,
        newer: tuple[str, ...] = (),
    ) -> None:
        """`partitioned`: as many further accelerators of two partitions each. `newer`: fields of
        slices that the server knows and we do not."""
        self.clock = SteppedClock(1_700_000_000.0)
        self.engine = Engine(
            clock=self.clock, features=features, extra_fields={SLICES: newer} if newer else None
        )
        self.cluster = MemoryCluster(self.engine)
        self.make_node()
        self.kinds: dict[str, dict[str, Any]] = {f"GPU-{n}": {} for n in range(count)}
        for parent in (f"GPU-{n}" for n in range(count, count + partitioned)):
            units = tuple(f"{parent}/m{at}" for at in range(2))
            self.kinds[parent] = {"units": units}
            for at, unit in enumerate(units):
                self.kinds[f"{parent}-P{at}"] = {"accelerator": parent, "units": (unit,)}
        self.changes: dict[str, dict[str, Any]] = {uuid: {} for uuid in self.kinds}
        self.publisher = self.start()
        self.report = PublishReport()

    def make_node(self) -> None:
        """Create the Node object."""
        head = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        self.cluster.create(NODES, head)

    def start(self, **changes: Any) -> Publisher:
        """A new process."""
        settings = parse({"profile": "strict"})
        exclusivity = changes.pop("exclusivity", None)
        given = PublisherTerms.from_settings(settings, node=NODE, **changes)
        self.publisher = Publisher(
            self.cluster, given, exclusivity=exclusivity, monotonic=self.clock.monotonic
        )
        return self.publisher

    def view(self) -> NodeView:
        """The node now."""
        now = self.clock.now()
        devices = tuple(
            DeviceView(
                **{
                    "uuid": uuid, "name": uuid.lower(), "accelerator": uuid,
                    "units": (f"{uuid}/all",), "memory_bytes": 80 * 2**30, "state": "CLEAN",
                    "checked_at": now, "since": 7.0, **self.kinds.get(uuid, {}), **changes,
                }
            )
            for uuid, changes in self.changes.items()
        )  # fmt: skip
        return NodeView(
            node=NODE, incarnation="i", boot_id="b", at=now, simulated=True, backend="simulated",
            devices=devices,
        )  # fmt: skip

    def step(self, *, after: float = 1.0, silent: bool = False) -> PublishReport:
        """One step, `after` seconds later."""
        self.clock.advance(after)
        view = None if silent else self.view()
        self.report = self.publisher.step(self.clock.now(), view)
        return self.report

    def quarantine(self, uuid: str, *codes: str) -> None:
        """Take a device out of service."""
        reasons = tuple(ReasonView(code=c, source="health", liftable=True) for c in codes)
        self.changes[uuid] = {"state": "QUARANTINED", "reasons": reasons}

    def slices(self) -> list[Object]:
        """What the server holds."""
        return list(self.engine.list(SLICES, Selection()).items)

    def pool(self) -> PoolReading:
        """The pool as a reader sees it."""
        return read_pools(self.slices())[(DRIVER, NODE)]

    def taints(self, device: str) -> Mapping[str, str]:
        """Taints of a device in a complete pool: key without driver -> value."""
        reading = self.pool()
        assert reading.complete, reading.trouble
        (entry,) = reading.devices[device]
        return {t["key"].partition("/")[2]: t.get("value", "") for t in entry.get("taints") or ()}

    def wipe(self) -> None:
        """What kubelet does when a plugin was away."""
        self.engine.delete_collection(SLICES, Selection(fields=f"spec.nodeName={NODE}"))


@pytest.fixture
def bench() -> Bench:
    """Eight clean devices, published."""
    made = Bench()
    assert made.step().settled
    return made


# --- publishing ----------------------------------------------------------------


def test_a_node_is_published_once_and_then_left_alone(bench: Bench) -> None:
    """Invariant 28: one slice; neither time nor a restart causes a write."""
    assert len(bench.slices()) == 1
    assert bench.pool().allocatable("gpu-0")
    before = len(bench.cluster.writes())
    for _ in range(100):
        assert bench.step().settled
    bench.start()
    assert bench.step().settled
    assert len(bench.cluster.writes()) == before


def test_reading_is_frugal_without_news(bench: Bench) -> None:
    """A step a second lists once a resync period, not once a second."""
    before = len(bench.cluster.calls)
    for _ in range(60):
        bench.step()
    assert len(bench.cluster.calls) - before == 2 * 2


def test_states_that_change_nothing_for_the_scheduler_are_not_written(bench: Bench) -> None:
    """DESIGN 5, Slices: from DIRTY over WIPING to CHECKING is one write, back to CLEAN another."""
    before = len(bench.cluster.writes())
    for state in ("IN_USE", "DIRTY", "WIPING", "CHECKING"):
        bench.changes["GPU-0"] = {"state": state}
        bench.step()
        assert bench.taints("gpu-0") == {"not-clean": ""}
    bench.changes["GPU-0"] = {}
    assert bench.step().settled
    assert bench.taints("gpu-0") == {}
    assert len(bench.cluster.writes()) - before == 2


def test_one_hundred_devices_and_a_quarantine(bench: Bench) -> None:
    """B09: a hundred partitions, then device 37 is quarantined: the taint lands."""
    made = Bench(100)
    made.step()
    assert len(made.slices()) == 2
    made.quarantine("GPU-37", "ecc-uncorrectable")
    report = made.step()
    assert report.settled
    assert made.taints("gpu-37") == {"not-clean": "", "quarantined": "ecc-uncorrectable"}
    assert all(len(found["spec"]["devices"]) <= 64 for found in made.slices())


def test_seventeen_reasons_are_one_taint_on_any_server() -> None:
    """B09: also where only four taints fit on a device (1.34)."""
    gates = GATES_1_34 | {"DRADeviceTaints"}
    made = Bench(8, features=Features(gates=gates, limits=LIMITS_1_34))
    made.quarantine("GPU-0", *(f"reason-{n}" for n in range(17)))
    assert made.step().settled
    assert made.taints("gpu-0").keys() == {"not-clean", "quarantined"}


def test_the_agent_device_is_published_when_asked(bench: Bench) -> None:
    """DESIGN 7: the agent device comes with the others and stays free of taints."""
    bench.start(agent=True)
    bench.changes["GPU-0"] = {"state": "DIRTY"}
    assert bench.step().settled
    assert bench.taints("agent") == {}
    bench.step(after=100.0, silent=True)
    assert bench.taints("agent") == {}


def test_no_device_is_an_empty_slice() -> None:
    """Reference 2.2: driver up, no devices: one empty slice."""
    made = Bench(0)
    assert made.step().settled
    (found,) = made.slices()
    assert not found["spec"].get("devices")


def test_a_bound_but_unexposed_device_evicts(bench: Bench) -> None:
    """DESIGN 5: bound but not exposed when the device fails: the owner makes the pod again."""
    bench.publisher.evicting(["GPU-1"])
    bench.quarantine("GPU-1", "xid")
    bench.step()
    taint = bench.pool().taint("gpu-1", QUARANTINED)
    assert taint is not None
    assert taint["effect"] == "NoExecute"


def test_a_closed_publisher_leaves_its_slices_and_its_locks(bench: Bench, tmp_path: Path) -> None:
    """Reference 6: no slice is deleted for a restart; the next process can lock at once."""
    first = bench.start(exclusivity=Exclusivity(locks=HostLocks(tmp_path)))
    assert bench.step().settled
    bench.start(exclusivity=Exclusivity(locks=HostLocks(tmp_path)))
    first.close()
    assert bench.step().settled
    assert len(bench.pool().devices) == 8
    bench.publisher.close()


def test_a_second_publisher_of_the_host_withdraws_nothing_of_the_first(
    bench: Bench, tmp_path: Path
) -> None:
    """B4: who has no lock offers nothing in its own pool; the first one's slices stay."""
    first = bench.start(exclusivity=Exclusivity(locks=HostLocks(tmp_path)))
    bench.step()
    settings = parse({"profile": "strict", "kubernetes": {"driver": "gpu.twin.example.com"}})
    twin = Publisher(
        bench.cluster,
        PublisherTerms.from_settings(settings, node=NODE),
        exclusivity=Exclusivity(locks=HostLocks(tmp_path)),
        monotonic=bench.clock.monotonic,
    )
    report = twin.step(bench.clock.now(), bench.view())
    assert len(report.withdrawn) == 8
    assert read_pools(bench.slices())[("gpu.twin.example.com", NODE)].devices == {}
    assert len(bench.pool().devices) == 8
    first.close()


# --- the node service is silent --------------------------------------------------


def test_a_silent_owner_makes_devices_stale_and_removes_none(bench: Bench) -> None:
    """DESIGN 5: with the owner gone the slices stay published, and nothing old is allocatable."""
    bench.step(after=59.0, silent=True)
    assert bench.taints("gpu-0") == {}
    assert bench.step(after=2.0, silent=True).settled
    assert bench.taints("gpu-0") == {"not-clean": "node-silent"}
    assert bench.step().settled
    assert bench.taints("gpu-0") == {}


def test_a_restart_with_a_silent_owner_keeps_what_is_there(bench: Bench) -> None:
    """Promise 5: a plugin that knows nothing claims nothing: old slices stay, then grow stale."""
    bench.quarantine("GPU-1", "xid")
    bench.step()
    bench.start()
    assert bench.step(silent=True).writes == 0
    bench.step(after=61.0, silent=True)
    assert bench.taints("gpu-0") == {"not-clean": "node-silent"}
    assert bench.taints("gpu-1") == {"not-clean": "", "quarantined": "xid"}


def test_nothing_known_publishes_nothing() -> None:
    """An empty pool would claim that the node has no device."""
    made = Bench()
    assert made.step(silent=True).writes == 0
    assert made.slices() == []


def test_a_lost_device_stays_under_its_name_until_retired(bench: Bench) -> None:
    """B24: seven devices go on, gpu-3 is kept with reason lost, also over a restart."""
    del bench.changes["GPU-3"]
    for _ in range(2):
        report = bench.step()
        assert report.settled
        assert report.lost == ("gpu-3",)
        assert bench.taints("gpu-3")["quarantined"] == "device-lost"
        assert all(bench.pool().allocatable(f"gpu-{n}") for n in range(8) if n != 3)
        bench.start()
        bench.step()
    bench.publisher.retire("GPU-3")
    assert bench.step().settled
    assert bench.pool().devices.keys() == {f"gpu-{n}" for n in range(8) if n != 3}


# --- B34 ------------------------------------------------------------------------


def watched(bench: Bench, change: Change, found: Object) -> None:
    """A watch event reaches the publisher."""
    bench.publisher.changed(Event(change, found))


def restored(bench: Bench, *, generation: int) -> None:
    """All is back: one copy, the same taints, above `generation`, owned by the Node of now."""
    assert bench.taints("gpu-1") == {"not-clean": "", "quarantined": "xid"}
    assert bench.pool().generation > generation
    uid = bench.cluster.get(NODES, Name(NODE))["metadata"]["uid"]
    (found,) = bench.slices()
    assert [owner["uid"] for owner in found["metadata"]["ownerReferences"]] == [uid]


@pytest.fixture
def faulty(bench: Bench) -> Bench:
    """A published node with one quarantined device."""
    bench.quarantine("GPU-1", "xid")
    assert bench.step().settled
    return bench


def test_b34_a_deleted_at_once(faulty: Bench) -> None:
    """B34 a: deleted right after it was created: back at the next step, quarantine included."""
    (found,) = faulty.slices()
    added = found["spec"]["devices"][1]["taints"]
    faulty.wipe()
    watched(faulty, Change.DELETED, found)
    assert faulty.step().settled
    restored(faulty, generation=1)
    assert faulty.slices()[0]["spec"]["devices"][1]["taints"] == added


def test_b34_b_deleted_right_after_an_update(faulty: Bench) -> None:
    """B34 b: deleted 50 ms after an update, the events arriving late and in order."""
    faulty.changes["GPU-0"] = {"state": "DIRTY"}
    faulty.step()
    (found,) = faulty.slices()
    faulty.wipe()
    watched(faulty, Change.MODIFIED, found)
    watched(faulty, Change.DELETED, found)
    assert faulty.step(after=0.05).settled
    restored(faulty, generation=1)


def test_b34_c_deleted_while_the_watch_is_down(faulty: Bench) -> None:
    """B34 c: no event at all: back within the resync period."""
    faulty.wipe()
    for _ in range(30):
        faulty.step()
    assert faulty.report.settled
    restored(faulty, generation=1)


def test_b34_d_the_node_is_created_anew(faulty: Bench) -> None:
    """B34 d: the Node has a new UID and its slices were collected: back with the new owner."""
    (found,) = faulty.slices()
    faulty.cluster.delete(NODES, Name(NODE))
    faulty.engine.collect_garbage()
    assert faulty.slices() == []
    watched(faulty, Change.DELETED, found)
    assert not faulty.step().settled
    assert [trouble.kind for trouble in faulty.report.trouble] == ["ApiNotFound"]
    faulty.make_node()
    assert faulty.step().settled
    restored(faulty, generation=1)
    faulty.engine.collect_garbage()
    assert len(faulty.slices()) == 1


def test_b34_d_the_owner_is_corrected_before_collection(faulty: Bench) -> None:
    """Invariant 30: a Node re-created while slices still exist: the owner is rewritten in time."""
    faulty.cluster.delete(NODES, Name(NODE))
    faulty.make_node()
    assert faulty.step(after=31.0).settled
    faulty.engine.collect_garbage()
    restored(faulty, generation=0)


def test_b34_e_deleted_while_our_update_is_in_flight(faulty: Bench) -> None:
    """B34 e: DeleteCollection between our reading and our PUT: 404, then back in the same step."""
    faulty.changes["GPU-0"] = {"state": "DIRTY"}
    faulty.cluster.faults.before_next("replace", faulty.wipe)
    assert faulty.step().settled
    restored(faulty, generation=1)
    assert faulty.taints("gpu-0") == {"not-clean": ""}


def test_the_kubelet_clean_up_that_comes_after_us_is_noticed(faulty: Bench) -> None:
    """Invariant 5: the wipe comes after the plugin re-published; the watch tells."""
    faulty.start()
    faulty.step()
    (found,) = faulty.slices()
    faulty.wipe()
    watched(faulty, Change.DELETED, found)
    assert faulty.step().settled
    restored(faulty, generation=1)


# --- others write ---------------------------------------------------------------


def test_a_foreign_edit_is_reverted(faulty: Bench) -> None:
    """Invariant 30: a removed quarantine taint is back at the next step; fake devices go."""
    (found,) = faulty.slices()
    devices = [{k: v for k, v in d.items() if k != "taints"} for d in found["spec"]["devices"]]
    edited = {**found, "spec": {**found["spec"], "devices": [*devices, {"name": "fake"}]}}
    answer = faulty.cluster.replace(SLICES, edited)
    watched(faulty, Change.MODIFIED, answer)
    assert faulty.step().settled
    assert faulty.taints("gpu-1")["quarantined"] == "xid"
    assert "fake" not in faulty.pool().devices


def test_a_race_is_decided_anew_in_the_same_step(faulty: Bench) -> None:
    """B5: 409: read again, decide again; the other's metadata survives, its spec does not."""

    def race() -> None:
        (found,) = faulty.slices()
        found["metadata"]["annotations"] = {"somebody": "else"}
        faulty.engine.replace(_target(found), found)

    faulty.changes["GPU-0"] = {"state": "DIRTY"}
    faulty.cluster.faults.before_next("replace", race)
    assert faulty.step().settled
    assert faulty.taints("gpu-0") == {"not-clean": ""}
    assert faulty.slices()[0]["metadata"]["annotations"] == {"somebody": "else"}


def test_another_drivers_slice_over_the_same_card_stops_ours(bench: Bench) -> None:
    """B4: the device is withdrawn with the reason, its neighbours stay; and it comes back."""
    foreign = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "theirs"},
        "spec": {
            "driver": "gpu.other.example.com", "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "x", "attributes": {"uuid": {"string": "GPU-2"}}}],
        },
    }  # fmt: skip
    watched(bench, Change.ADDED, bench.cluster.create(SLICES, foreign))
    report = bench.step()
    assert report.settled
    assert report.withdrawn.keys() == {"GPU-2"}
    assert "gpu.other.example.com" in report.withdrawn["GPU-2"]
    assert "gpu-2" not in bench.pool().devices
    assert bench.pool().allocatable("gpu-3")
    bench.cluster.delete(SLICES, Name("theirs"))
    bench.step(after=31.0)
    assert bench.pool().allocatable("gpu-2")


def test_a_device_without_publisher_lease_is_not_published(bench: Bench) -> None:
    """B4: no lease, no slice entry; the reason is told."""

    class Refusing:
        def hold(self, uuids: Sequence[str], *, now: float) -> Mapping[str, str]:
            assert now >= 0
            return {uuid: "held by publisher:b" for uuid in uuids if uuid == "GPU-5"}

    bench.start(exclusivity=Exclusivity(lease=Refusing()))
    report = bench.step()
    assert report.withdrawn == {"GPU-5": "held by publisher:b"}
    assert "gpu-5" not in bench.pool().devices


# --- the server refuses ---------------------------------------------------------


def refuse(field: str) -> ApiInvalid:
    """A 422 about one field."""
    return ApiInvalid("the server refuses", causes=[("FieldValueInvalid", field, "bad")])


def test_a_refused_device_leaves_and_its_neighbours_land(bench: Bench) -> None:
    """B09: a 422 is told and counted; the device named is left out, the others are published."""
    bench.changes["GPU-3"] = {"state": "DIRTY"}
    bench.quarantine("GPU-4", "xid")
    bench.cluster.faults.fail_next("replace", refuse("spec.devices[3].taints[0].value"))
    report = bench.step()
    assert report.settled
    assert report.refused_total == 1
    assert report.trouble[0].kind == "ApiInvalid"
    assert report.trouble[0].devices == ("gpu-3",)
    assert "refuses" in report.withdrawn["GPU-3"]
    assert "gpu-3" not in bench.pool().devices
    assert bench.taints("gpu-4")["quarantined"] == "xid"
    assert bench.step(after=6.0).settled
    assert bench.taints("gpu-3") == {"not-clean": ""}


def test_a_refusal_that_names_nobody_suspects_what_changed(bench: Bench) -> None:
    """B09: without a place in the causes the changed devices leave, then return one by one."""
    for uuid in ("GPU-3", "GPU-4"):
        bench.changes[uuid] = {"state": "DIRTY"}
    bench.cluster.faults.fail_next("replace", refuse("spec"))
    report = bench.step()
    assert report.withdrawn.keys() == {"GPU-3", "GPU-4"}
    assert bench.pool().allocatable("gpu-0")
    bench.step(after=5.5)
    assert "gpu-4" not in bench.pool().devices
    bench.step(after=5.5)
    assert bench.taints("gpu-4") == {"not-clean": ""}


def test_a_server_that_refuses_everything_is_not_hammered(bench: Bench) -> None:
    """B09: an admission policy that denies every write: told each time, tried ever more rarely."""
    bench.cluster.faults.fail_next("replace", refuse(""), times=1000)
    bench.changes["GPU-3"] = {"state": "DIRTY"}
    before = len(bench.cluster.writes())
    for _ in range(600):
        bench.step()
    assert len(bench.cluster.writes()) - before < 40
    assert bench.report.refused_total > 3
    bench.cluster.faults.clear()
    for _ in range(301):
        bench.step()
    assert bench.report.settled
    assert bench.taints("gpu-3") == {"not-clean": ""}


def test_a_failing_server_is_not_hammered_either(bench: Bench) -> None:
    """Port: 500 is never repeated blindly (the server answers so to malformed bodies)."""
    bench.cluster.faults.fail_next("replace", ApiFailed("500"), times=1000)
    bench.changes["GPU-3"] = {"state": "DIRTY"}
    before = len(bench.cluster.writes())
    for _ in range(600):
        bench.step()
    assert len(bench.cluster.writes()) - before < 40


@pytest.mark.parametrize("error", [ApiForbidden("no right"), ApiUnavailable("away")])
def test_missing_rights_and_outages_are_told_and_waited_for(
    bench: Bench, error: ApiForbidden | ApiUnavailable
) -> None:
    """Invariant 37: the trouble carries its remedy, and the write is made once it is gone."""
    bench.cluster.faults.fail_next("replace", error, times=3)
    bench.changes["GPU-3"] = {"state": "DIRTY"}
    report = bench.step()
    assert not report.settled
    assert report.trouble[0].kind == type(error).__name__
    assert report.trouble[0].remedy
    for _ in range(15):
        bench.step()
    assert bench.report.settled
    assert bench.taints("gpu-3") == {"not-clean": ""}


def test_times_survive_unrelated_changes(faulty: Bench) -> None:
    """Invariant 32: timeAdded of a quarantine is not moved by another device's life."""

    def added() -> str:
        (entry,) = faulty.pool().devices["gpu-1"]
        return str(next(t["timeAdded"] for t in entry["taints"] if t["key"] == QUARANTINED))

    before = added()
    faulty.changes["GPU-0"] = {"state": "DIRTY"}
    faulty.step(after=20.0)
    assert added() == before
    faulty.start()
    faulty.changes["GPU-0"] = {}
    faulty.step(after=20.0)
    assert added() == before
    faulty.quarantine("GPU-1", "xid", "remap-failed")
    faulty.step(after=20.0)
    assert added() == before


# --- gates off ------------------------------------------------------------------


def test_where_taints_are_dropped_unfit_devices_are_withdrawn() -> None:
    """Invariant 31: on a server without the gates an unfit device leaves the slice, told once."""
    made = Bench(4, features=Features(gates=GATES_1_34, limits=LIMITS_1_34))
    made.quarantine("GPU-1", "xid")
    report = made.step()
    assert report.settled
    assert report.dropped == frozenset(Feature) - {Feature.COUNTERS}
    assert {trouble.kind for trouble in report.trouble} == {"dropped-field"}
    assert report.withdrawn.keys() == {"GPU-1"}
    assert made.pool().devices.keys() == {"gpu-0", "gpu-2", "gpu-3"}
    writes = len(made.cluster.writes())
    for _ in range(40):
        report = made.step()
    assert report.trouble == ()
    assert report.confirmed_quarantine == {"GPU-1": 7.0}
    assert len(made.cluster.writes()) == writes
    made.changes["GPU-1"] = {}
    made.step()
    assert made.pool().allocatable("gpu-1")


# --- counters -------------------------------------------------------------------

PLAIN = GATES_1_36 - {PARTITIONABLE}


def counter_slices(made: Bench) -> list[Object]:
    """The slices of counter sets."""
    return [found for found in made.slices() if "sharedCounters" in found["spec"]]


def consuming(made: Bench) -> set[str]:
    """Names of the devices that consume counters."""
    return {
        name for name, entries in made.pool().devices.items() if "consumesCounters" in entries[0]
    }


def test_devices_that_share_memory_are_published_with_counters() -> None:
    """E1, KEP-4815, invariant 28: sets in a slice of their own, counted in the pool; what is alone
    consumes none; neither time nor a restart writes."""
    made = Bench(1, partitioned=2)
    assert made.step().settled
    assert made.pool().complete
    (sets,) = counter_slices(made)
    assert [one["name"] for one in sets["spec"]["sharedCounters"]] == [
        "gpu-1-memory",
        "gpu-2-memory",
    ]
    assert consuming(made) == {name for name in made.pool().devices if name != "gpu-0"}
    assert (made.report.generation, made.report.dropped) == (1, frozenset())
    writes = len(made.cluster.writes())
    for _ in range(30):
        assert made.step().settled
    made.start()
    assert made.step().settled
    assert len(made.cluster.writes()) == writes


@pytest.mark.parametrize("partitioned", [1, 30])
def test_a_held_partition_costs_two_writes_in_its_whole_life(partitioned: int) -> None:
    """DESIGN 5: what overlaps it is tainted while its units are in use and untainted afterwards, in
    one slice; the device itself, its neighbour and the counters are not written."""
    made = Bench(2, partitioned=partitioned)
    made.step()
    before = {name_of(one): one["metadata"]["resourceVersion"] for one in made.slices()}
    generation, writes = made.report.generation, len(made.cluster.writes())
    mine = f"GPU-{1 + partitioned}-P0"
    for state in ("IN_USE", "DIRTY", "WIPING", "CHECKING"):
        made.changes[mine] = {"state": state, "claim": "uid", "held": True}
        made.changes[mine[:-3]] = {"state": state, "claim": "uid"}
        assert made.step().settled
        assert made.taints(mine[:-3].lower()) == {"not-clean": ""}
        assert made.taints(mine.lower()) == made.taints(f"{mine[:-1]}1".lower()) == {}
    made.changes[mine] = made.changes[mine[:-3]] = {}
    assert made.step().settled
    assert made.taints(mine[:-3].lower()) == {}
    assert len(made.cluster.writes()) - writes == 2
    assert made.report.generation == generation
    changed = [
        found
        for found in made.slices()
        if found["metadata"]["resourceVersion"] != before[name_of(found)]
    ]
    assert ["devices" in found["spec"] for found in changed] == [True]


def test_a_server_that_drops_counters_gets_plain_devices() -> None:
    """Invariant 31: gate off: all devices stay on offer, told once, no slice of sets is left, and
    nothing is written any more."""
    made = Bench(1, partitioned=2, features=Features(gates=PLAIN))
    report = made.step()
    assert (report.settled, report.dropped) == (True, frozenset({Feature.COUNTERS}))
    assert [trouble.kind for trouble in report.trouble] == ["dropped-field"]
    assert len(made.slices()) == 1
    assert (consuming(made), len(made.pool().devices), report.withdrawn) == (set(), 7, {})
    writes = len(made.cluster.writes())
    for _ in range(20):
        assert made.step().trouble == ()
    assert len(made.cluster.writes()) == writes
    made.start()
    assert made.step().settled
    assert (len(made.slices()), made.pool().complete) == (1, True)
    assert len(made.cluster.writes()) - writes == 2  # it asks again: the gate may be on now


def test_a_server_that_wants_sets_beside_the_devices_gets_none() -> None:
    """Reference 2.1: 1.34 with the gate on refuses what we publish; no device is left out for it,
    and the refusal is counted."""
    gates = GATES_1_36
    made = Bench(1, partitioned=1, features=Features(gates=gates, limits=LIMITS_1_34))
    report = made.step()
    assert (report.settled, report.dropped) == (True, frozenset({Feature.COUNTERS}))
    assert (report.withdrawn, report.refused_total) == ({}, 1)
    assert (consuming(made), len(made.pool().devices)) == (set(), 4)


def test_a_slice_of_sets_that_is_refused_keeps_no_device_back() -> None:
    """B9: somebody's admission minds the counters: the pool does without, and is complete."""
    made = Bench(1, partitioned=1)
    made.cluster.faults.before_next(
        "create",
        lambda: made.cluster.faults.before_next(
            "create", lambda: made.cluster.faults.fail_next("create", refuse("spec"))
        ),
    )
    report = made.step()
    assert (report.settled, report.dropped) == (True, frozenset({Feature.COUNTERS}))
    assert report.withdrawn == {}
    assert (len(made.slices()), made.pool().complete) == (1, True)


def test_counters_are_back_whoever_took_them() -> None:
    """Invariants 29, 30, B34: sets deleted, emptied, wiped with everything, or written by halves:
    the pool is whole again, at a generation that never falls."""
    made = Bench(1, partitioned=1)
    made.step()
    for trouble in ("delete", "empty", "wipe", "unanswered"):
        top = made.report.generation
        (sets,) = counter_slices(made)
        if trouble == "delete":
            made.cluster.delete(SLICES, name_of(sets))
            watched(made, Change.DELETED, sets)
        elif trouble == "empty":
            spec = {name: value for name, value in sets["spec"].items() if name != "sharedCounters"}
            watched(made, Change.MODIFIED, made.cluster.replace(SLICES, {**sets, "spec": spec}))
        else:
            made.wipe()
            watched(made, Change.DELETED, sets)
        if trouble == "unanswered":
            made.cluster.faults.before_next(
                "create", lambda: made.cluster.faults.lose_answer_next("create")
            )
            made.step()
        assert made.step(after=10.0).settled
        assert made.report.generation >= top
        assert (len(made.slices()), len(counter_slices(made))) == (2, 1)
        assert made.pool().allocatable("gpu-1-p0")


def test_a_quarantined_partition_is_read_back_beside_counters() -> None:
    """Promise 6: taints and counters live together, and the slice of sets hides nothing."""
    made = Bench(1, partitioned=1)
    made.step()
    made.quarantine("GPU-1-P0", "xid")
    assert made.step().confirmed_quarantine == {"GPU-1-P0": 7.0}
    assert consuming(made) == {"gpu-1", "gpu-1-p0", "gpu-1-p1"}
    made.start()
    assert made.step().confirmed_quarantine == {}
    assert made.step(after=60.0).confirmed_quarantine == {"GPU-1-P0": 7.0}


def test_a_retired_or_lost_accelerator_takes_its_counters_along() -> None:
    """B24: lost it keeps them, being quarantined; retired it leaves no set, and no slice of sets
    without one."""
    made = Bench(1, partitioned=1)
    made.step()
    for uuid in ("GPU-1", "GPU-1-P0", "GPU-1-P1"):
        del made.changes[uuid]
    assert made.step().lost == ("gpu-1", "gpu-1-p0", "gpu-1-p1")
    assert made.pool().complete
    assert len(counter_slices(made)) == 1
    for uuid in ("GPU-1", "GPU-1-P0", "GPU-1-P1"):
        made.publisher.retire(uuid)
    assert made.step().settled
    assert made.pool().devices.keys() == {"gpu-0"}
    assert (len(made.slices()), counter_slices(made)) == (1, [])


# --- quarantine read back --------------------------------------------------------


def test_quarantine_is_confirmed_when_read_back(bench: Bench) -> None:
    """Promise 6: confirmed after a listing that follows the write, with the view's since."""
    bench.quarantine("GPU-1", "xid")
    assert bench.step().confirmed_quarantine == {"GPU-1": 7.0}
    assert [call.verb for call in bench.cluster.calls][-3:] == ["replace", "get", "list"]


@pytest.mark.parametrize("verb", ["list", "replace"])
def test_without_a_read_back_nothing_is_confirmed(bench: Bench, verb: str) -> None:
    """Promise 6: neither an unanswered write nor an answer without a reading confirms."""
    bench.quarantine("GPU-1", "xid")
    bench.cluster.faults.before_next(
        "replace",
        lambda: (
            bench.cluster.faults.fail_next("list", ApiUnavailable("away"))
            if verb == "list"
            else bench.cluster.faults.lose_answer_next("replace")
        ),
    )
    assert bench.step().confirmed_quarantine == {}
    assert bench.step(after=2.0).confirmed_quarantine == {"GPU-1": 7.0}


def test_an_older_write_that_may_still_land_is_outrun(faulty: Bench) -> None:
    """Promise 6: an unanswered write that lifts the taint cannot undo a later confirmation."""
    late: list[Object] = []
    faulty.cluster.faults.fail_next("replace", ApiUnavailable("no answer"))
    faulty.changes["GPU-1"] = {}
    faulty.step()
    late.append(faulty.cluster.writes()[-1].body)
    assert faulty.taints("gpu-1")["quarantined"] == "xid"
    faulty.quarantine("GPU-1", "xid")
    report = faulty.step(after=2.0)
    assert report.confirmed_quarantine == {"GPU-1": 7.0}
    with pytest.raises(ApiConflict):
        faulty.cluster.replace(SLICES, late[0])
    assert faulty.taints("gpu-1")["quarantined"] == "xid"


def test_a_creation_that_lands_late_misleads_nobody() -> None:
    """B34: an unanswered creation that arrives after ours is older, and is removed."""
    made = Bench()
    made.cluster.faults.fail_next("create", ApiUnavailable("no answer"))
    made.step()
    late = made.cluster.writes()[-1].body
    made.quarantine("GPU-1", "xid")
    assert made.step(after=2.0).settled
    watched(made, Change.ADDED, made.cluster.create(SLICES, late))
    assert made.taints("gpu-1")["quarantined"] == "xid"
    assert made.step().settled
    assert len(made.slices()) == 1


def test_a_lost_answer_to_a_creation_makes_no_second_slice() -> None:
    """B34: one copy only, also when the answer to the creation was lost."""
    made = Bench()
    made.cluster.faults.lose_answer_next("create")
    made.step()
    assert made.step(after=2.0).settled
    assert len(made.slices()) == 1


def test_what_an_earlier_process_wrote_counts_after_a_while(faulty: Bench) -> None:
    """Promise 6: a write of the process before us may still be under way for a request's time."""
    faulty.start()
    assert faulty.step().confirmed_quarantine == {}
    assert faulty.step(after=11.0).confirmed_quarantine == {"GPU-1": 7.0}


def test_hardware_that_is_gone_is_confirmed_by_the_view_that_was_read_back(bench: Bench) -> None:
    """B10, B24, promise 6: kept as lost, or absent after a clean-up: unlisted both ways."""
    del bench.changes["GPU-3"]
    seen = bench.step().unlisted_at
    assert seen == bench.clock.now()
    assert bench.taints("gpu-3")["quarantined"] == "device-lost"
    assert bench.step(silent=True).unlisted_at == seen
    bench.start()
    assert bench.step().unlisted_at == 0.0
    assert bench.step(after=11.0).unlisted_at == bench.clock.now()
    bench.wipe()
    bench.start()
    assert bench.step().unlisted_at == bench.clock.now()
    assert "gpu-3" not in bench.pool().devices
    bench.cluster.faults.offline = True
    bench.quarantine("GPU-1", "xid")
    assert bench.step().unlisted_at == 0.0


def test_news_heard_while_reading_confirms_nothing_yet(bench: Bench) -> None:
    """Promise 6: an event during the last reading may be newer than it: read once more first."""
    bench.quarantine("GPU-1", "xid")
    (found,) = bench.slices()
    bench.cluster.faults.before_next("list", lambda: watched(bench, Change.DELETED, found))
    assert bench.step().confirmed_quarantine == {}
    assert bench.step().confirmed_quarantine == {"GPU-1": 7.0}


def test_a_foreign_edit_takes_the_confirmation_back(faulty: Bench) -> None:
    """Promise 6: confirmed means visible now: while the server is away after news, nothing is."""
    (found,) = faulty.slices()
    faulty.cluster.faults.offline = True
    watched(faulty, Change.DELETED, found)
    assert faulty.step().confirmed_quarantine == {}


# --- the wall clock is set ---------------------------------------------------------


HOUR_S = 3600.0


def test_a_quarantine_waits_for_no_clock_set_back(bench: Bench) -> None:
    """Promise 6: after one failed write and a clock set back, the taint lands within seconds."""
    bench.quarantine("GPU-0", "ecc-uncorrectable")
    bench.cluster.faults.fail_next("replace", ApiUnavailable("away"))
    bench.step()
    bench.clock.step_s = -HOUR_S
    assert [bench.step().settled for _ in range(2)][-1]
    assert bench.taints("gpu-0")["quarantined"] == "ecc-uncorrectable"


def test_b34_c_a_deaf_watch_and_a_clock_set_back(bench: Bench) -> None:
    """B34 c: slices that kubelet removed are back within the resync period, whatever the clock."""
    bench.clock.step_s = -HOUR_S
    bench.wipe()
    for _ in range(30):
        bench.step()
    assert bench.pool().allocatable("gpu-0")


@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
def test_a_quarantine_is_confirmed_in_its_time_whatever_the_clock(
    faulty: Bench, step_s: float
) -> None:
    """Promise 6: what an earlier process sent may land for `settle_s`: no longer, no shorter."""
    faulty.start()
    faulty.step()
    faulty.clock.step_s = step_s
    assert faulty.step().confirmed_quarantine == {}
    assert faulty.step(after=10.0).confirmed_quarantine == {"GPU-1": 7.0}


def test_a_refused_device_waits_for_no_clock_set_back(bench: Bench) -> None:
    """B09: a device left out is tried again after its wait, not an hour later."""
    bench.changes["GPU-3"] = {"state": "DIRTY"}
    bench.cluster.faults.fail_next("replace", refuse("spec.devices[3].taints[0].value"))
    assert "GPU-3" in bench.step().withdrawn
    bench.clock.step_s = -HOUR_S
    assert bench.step(after=6.0).withdrawn == {}


def test_a_publishing_right_waits_for_no_clock_set_back(bench: Bench) -> None:
    """B4: a refused right is asked for again after seconds, not an hour later."""

    class Late:
        free = False

        def hold(self, uuids: Sequence[str], *, now: float) -> Mapping[str, str]:
            assert now >= 0
            return {} if self.free else dict.fromkeys(uuids, "held by publisher:b")

    lease = Late()
    bench.start(exclusivity=Exclusivity(lease=lease))
    assert len(bench.step().withdrawn) == 8
    lease.free = True
    bench.clock.step_s = -HOUR_S
    assert bench.step(after=4.0).withdrawn == {}


def test_slices_of_before_grow_stale_whatever_the_clock(bench: Bench) -> None:
    """Promise 5: a restarted plugin whose node is silent calls what is there stale in its time."""
    bench.start()
    bench.step(silent=True)
    bench.clock.step_s = -HOUR_S
    bench.step(after=59.0, silent=True)
    assert bench.taints("gpu-0") == {}
    bench.step(after=2.0, silent=True)
    assert bench.taints("gpu-0") == {"not-clean": "node-silent"}


# --- everything at once ----------------------------------------------------------


SEEDS = (0, 1, 2, 5, 9, 20)
"""Of 3, 8 and 70 devices, each with and without partitions."""


@pytest.mark.parametrize("seed", SEEDS)
def test_any_trouble_settles(seed: int) -> None:
    """Promise 7, invariants 28 to 31: faults, races, wipes and restarts in any order; then quiet.

    On the way a quarantine that was confirmed is never allocatable while it lasts, except by the
    hand of somebody else.
    """
    chance = random.Random(seed)
    made = Bench(chance.choice([3, 8, 70]), partitioned=chance.choice([0, 0, 9]))
    confirmed: set[str] = set()
    for _ in range(60):
        tampered = _disturb(made, chance)
        report = made.step(after=chance.choice([0.2, 1.0, 12.0]), silent=chance.random() < 0.1)
        bad = {uuid for uuid, change in made.changes.items() if change.get("reasons")}
        confirmed = (confirmed | set(report.confirmed_quarantine)) & bad
        if tampered:
            confirmed = set(report.confirmed_quarantine) & bad
        pools = read_pools(made.slices())
        for uuid in confirmed:
            if (DRIVER, NODE) in pools:
                assert not pools[(DRIVER, NODE)].allocatable(uuid.lower())
    made.cluster.faults.clear()
    for _ in range(90):
        made.step(after=10.0)
    assert made.report.settled
    assert made.report.withdrawn == {}
    writes = len(made.cluster.writes())
    assert made.step().settled
    assert len(made.cluster.writes()) == writes
    for uuid, change in made.changes.items():
        assert bool(made.pool().allocatable(uuid.lower())) is (change == {})


def _disturb(made: Bench, chance: random.Random) -> bool:
    """One random event; whether somebody else changed the slices."""
    uuid = chance.choice(sorted(made.changes))
    faults, verb = made.cluster.faults, chance.choice(["create", "replace", "delete", "list"])
    kind = chance.randrange(9)
    if kind == 0:
        made.changes[uuid] = {}
    elif kind == 1:
        made.changes[uuid] = {"state": chance.choice(["DIRTY", "IN_USE"])}
    elif kind == 2:
        made.quarantine(uuid, chance.choice(["xid", "device-lost"]))
    elif kind == 3:
        faults.lose_answer_next(verb)
    elif kind == 4:
        faults.fail_next(verb, ApiUnavailable("away"), times=chance.randrange(1, 3))
    elif kind == 5:
        faults.fail_next(chance.choice(["create", "replace"]), refuse(f"spec.devices[{1}]"))
    elif kind == 6:
        made.start()
    elif kind == 7 and (found := made.slices()):
        one = chance.choice(found)
        made.cluster.faults.clear()
        made.cluster.delete(SLICES, name_of(one))
        watched(made, Change.DELETED, one)
        return True
    elif kind == 8:
        faults.offline = not faults.offline
    return False


def _target(found: Object) -> Target:
    return Target(SLICES, name_of(found))
