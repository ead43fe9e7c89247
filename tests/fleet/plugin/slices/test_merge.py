"""What we write into slices starts from what is stored there: others' words stay, ours are set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped] # ships no types

from fleet.core.clock import ManualClock
from fleet.core.messages import DeviceView, NodeView, ReasonView
from fleet.core.settings_parse import parse
from fleet.kube.base import NODES, SLICES, Name, Object, Selection
from fleet.plugin.slices.gate import GateRules
from fleet.plugin.slices.merge import TAINTS_MAX, merged_device, merged_slice, merged_taints
from fleet.plugin.slices.publisher import Publisher, PublisherTerms
from fleet.plugin.slices.report import PublishReport
from fleet.plugin.slices.takeover import take_over
from tests.fleet.plugin.slices.test_publisher import Bench
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine

CORPUS = Path(__file__).parents[3] / "corpus"
DRIVER = "gpu.scrub.example.com"
RULES = GateRules(driver=DRIVER, fresh_s=60.0)
MAINTENANCE = "ops.example.com/maintenance"
NEWER: dict[str, Any] = {"of": ["a", "later", "API"]}
NEWER_FIELDS = (
    "newer",
    "spec.newer",
    "spec.pool.newer",
    "spec.devices.*.newer",
    "spec.devices.*.capacity.*.newer",
    "spec.devices.*.taints.*.newer",
    "spec.devices.*.consumesCounters.*.newer",
    "spec.sharedCounters.*.newer",
)


def stored(case: str, name: str) -> Object:
    """An object of a case, as the server would have it."""
    found: Object = yaml.safe_load((CORPUS / case / name).read_text())
    found["metadata"].pop("resourceVersion", None)
    return found


class Ground:
    """The cluster of the case: a cordoned node, and its slice as somebody left it."""

    def __init__(self, case: str, node: str, found: str) -> None:
        self.clock = ManualClock(1_780_000_000.0)
        self.cluster = MemoryCluster(Engine(clock=self.clock))
        made = self.cluster.create(NODES, stored(case, node))
        body = stored(case, found)
        body["metadata"]["ownerReferences"][0]["uid"] = made["metadata"]["uid"]
        self.cluster.create(SLICES, body)
        self.reasons: tuple[ReasonView, ...] = ()
        self.publisher = self.start()

    def start(self) -> Publisher:
        """A new process of the plugin."""
        settings = parse({"profile": "strict", "kubernetes": {"driver": DRIVER}})
        given = PublisherTerms.from_settings(settings, node="node-a")
        self.publisher = Publisher(self.cluster, given, monotonic=self.clock.monotonic)
        return self.publisher

    def step(self, *codes: str) -> PublishReport:
        """One step with these reasons on the device."""
        self.clock.advance(1.0)
        now = self.clock.now()
        device = DeviceView(
            uuid="GPU-00000000-0000-4000-8000-0000000000a0", name="gpu-0", memory_bytes=80 * 2**30,
            accelerator="GPU-00000000-0000-4000-8000-0000000000a0", units=("u",), since=7.0,
            state="QUARANTINED" if codes else "CLEAN", checked_at=now,
            reasons=tuple(ReasonView(code=c, source="health", liftable=True) for c in codes),
        )  # fmt: skip
        view = NodeView(
            node="node-a", incarnation="i", boot_id="b", at=now, simulated=True,
            backend="simulated", devices=(device,),
        )  # fmt: skip
        return self.publisher.step(now, view)

    def taints(self) -> dict[str, Object]:
        """Taints of the device in the only slice there is, by key."""
        (found,) = self.cluster.list(SLICES, Selection()).items
        (device,) = found["spec"]["devices"]
        return {one["key"]: one for one in device.get("taints") or ()}


def test_b74_our_quarantine_opens_and_closes_around_others() -> None:
    """B74: a taint of another owner and a cordon outlive our quarantine, restarts included."""
    ground = Ground("B74-quarantine-ownership", "node.yaml", "slice.yaml")
    theirs = ground.taints()[MAINTENANCE]
    node = ground.cluster.get(NODES, Name("node-a"))
    for codes in ((), ("xid",), ("xid", "ecc-uncorrectable"), ()):
        assert ground.step(*codes).settled
        assert ground.taints()[MAINTENANCE] == theirs
        assert (RULES.quarantined in ground.taints()) is bool(codes)
        ground.start()
        assert ground.step(*codes).writes == 0
    assert ground.taints().keys() == {MAINTENANCE}
    assert ground.cluster.get(NODES, Name("node-a")) == node


def test_b55_nothing_is_written_and_no_time_moves() -> None:
    """B55: a hundred rounds write nothing, and taints of others keep the times they have."""
    ground = Ground("B74-quarantine-ownership", "node.yaml", "slice.yaml")
    assert ground.step("xid").settled
    stand = ground.taints()
    assert sum(ground.step("xid").writes for _ in range(100)) == 0
    assert ground.step("xid", "device-lost").settled
    changed = ground.taints()
    assert changed.pop(RULES.quarantined)["effect"] == "NoExecute"
    stand.pop(RULES.quarantined)
    assert changed == stand


@pytest.mark.parametrize(
    "place",
    [
        "taint",
        "own taint",
        "device",
        "counters",
        "spec",
        "pool",
        "metadata",
        "top",
        "owner",
    ],
)
def test_b74_what_others_wrote_stays_through_every_write(place: str) -> None:
    """B74: a taint, a field or an owner that is none of ours stays, and costs no write."""
    bench = Bench(2, partitioned=1, newer=NEWER_FIELDS)
    bench.step()
    found, sets = bench.slices()
    device = found["spec"]["devices"][0]
    taint = {
        "key": MAINTENANCE,
        "value": "ticket-1",
        "effect": "NoSchedule",
        "timeAdded": "2026-01-01T00:00:00Z",
    }
    owner = {"apiVersion": "example.com/v1", "kind": "Ticket", "name": "t", "uid": "t-1"}
    match place:
        case "taint":
            device["taints"] = [taint]
        case "device":
            device["newer"] = NEWER
            device["attributes"]["example.com/rack"] = {"string": "r7"}
            device["capacity"]["memory"]["newer"] = NEWER
        case "counters":
            partition = found["spec"]["devices"][3]
            partition["consumesCounters"][0]["newer"] = NEWER
            sets["spec"]["sharedCounters"][0]["newer"] = NEWER
        case "own taint":
            bench.changes["GPU-1"] = {"state": "DIRTY"}
            bench.step()
            found, sets = bench.slices()
            found["spec"]["devices"][1]["taints"][0]["newer"] = NEWER
        case "spec":
            found["spec"]["newer"] = NEWER
        case "pool":
            found["spec"]["pool"]["newer"] = NEWER
        case "metadata":
            found["metadata"] |= {"labels": {"a": "b"}, "finalizers": ["example.com/keep"]}
        case "top":
            found["newer"] = NEWER
        case _:
            found["metadata"]["ownerReferences"].append(owner)
    for one in (found, sets):
        bench.cluster.replace(SLICES, one)
    edited = [_lasting(one) for one in bench.slices()]
    assert edited == [_lasting(one) for one in (found, sets)]
    before = len(bench.cluster.writes())
    assert bench.step(after=4000.0).settled
    assert len(bench.cluster.writes()) == before
    for codes in (("xid",), ()):
        if codes:
            bench.quarantine("GPU-0", *codes)
        else:
            bench.changes["GPU-0"] = {}
        assert bench.step().settled
    assert [_lasting(one) for one in bench.slices()] == edited


def _lasting(found: Object) -> Object:
    """All of a slice that no write of ours may change."""
    gone = ("resourceVersion", "generation", "managedFields")
    return {**found, "metadata": {k: v for k, v in found["metadata"].items() if k not in gone}}


def test_b74_a_device_that_left_comes_back_with_what_others_said() -> None:
    """B74: a device that is out of the slice for a while, or whose slice was deleted, keeps the
    taint that somebody else gave it; one they took off is not brought back."""
    bench = Bench(2)
    bench.step()
    (found,) = bench.slices()
    taint = {"key": MAINTENANCE, "value": "ticket-1", "effect": "NoSchedule"}
    found["spec"]["devices"][0]["taints"] = [taint]
    bench.cluster.replace(SLICES, found)
    bench.step(after=4000.0)
    bench.wipe()
    assert bench.step(after=4000.0).settled
    (device,) = bench.pool().devices["gpu-0"]
    assert [one["key"] for one in device["taints"]] == [MAINTENANCE]
    (found,) = bench.slices()
    del found["spec"]["devices"][0]["taints"]
    bench.cluster.replace(SLICES, found)
    bench.step(after=4000.0)
    bench.wipe()
    assert bench.step(after=4000.0).settled
    assert bench.pool().allocatable("gpu-0")


def test_b74_where_others_took_every_place_the_device_is_withdrawn() -> None:
    """B74: with no room for our taint no taint of others gives way: the device leaves the slice."""
    others = [{"key": f"site/t{n}", "value": "", "effect": "NoExecute"} for n in range(TAINTS_MAX)]
    bench = Bench(2)
    bench.step()
    (found,) = bench.slices()
    found["spec"]["devices"][0]["taints"] = others
    bench.cluster.replace(SLICES, found)
    bench.quarantine("GPU-0", "xid")
    report = bench.step(after=4000.0)
    assert report.settled
    assert "gpu-0" not in bench.pool().devices
    assert report.withdrawn.keys() == {"GPU-0"}
    bench.changes["GPU-0"] = {}
    assert bench.step().settled
    (device,) = bench.pool().devices["gpu-0"]
    assert [one["key"] for one in device["taints"]] == [one["key"] for one in others]


AT = "2026-01-01T00:00:00Z"
OURS = {"key": RULES.quarantined, "value": "xid", "effect": "NoSchedule", "timeAdded": AT}


@pytest.mark.parametrize(
    ("before", "after", "stays"),
    [
        ("NoSchedule", "NoSchedule", True),
        ("NoExecute", "NoExecute", True),
        ("NoExecute", "NoSchedule", True),
        ("NoSchedule", "NoExecute", False),
    ],
)
def test_b55_a_second_code_moves_no_time(before: str, after: str, stays: bool) -> None:
    """B55: a taint of ours keeps its time whatever its value says, until it begins to evict."""
    earlier = [{**OURS, "effect": before}]
    wanted = [{"key": RULES.quarantined, "value": "device-lost.xid", "effect": after}]
    for known in (earlier, []):
        taints = merged_taints(wanted, known, keys=RULES.keys, earlier=earlier)
        assert taints == [{**wanted[0], "timeAdded": AT} if stays else wanted[0]]


def test_b55_the_coordinators_mark_moves_no_time_either() -> None:
    """B55: a device of a silent node that is marked for one more reason keeps the taint's time."""
    found = stored("B55-taint-churn", "server-view.yaml")
    evicting = {**OURS, "effect": "NoExecute"}
    found["spec"]["devices"][0]["taints"].append(evicting)
    body = take_over(found, {"gpu-0": ("node-silent",)}, driver=DRIVER, now=1_780_000_000.0)
    assert body is not None
    taints = body["spec"]["devices"][0]["taints"]
    assert taints[:2] == found["spec"]["devices"][0]["taints"][:2]
    assert taints[2] == {**evicting, "value": "node-silent.xid"}


def test_what_is_ours_is_set_whatever_is_stored() -> None:
    """Invariant 30: a field of ours that we leave out goes, a value that was changed is back."""
    wanted = {"name": "gpu-0", "attributes": {"uuid": {"string": "u"}}}
    left = {
        "name": "gpu-0",
        "attributes": {"uuid": {"int": 1}, "old": {"bool": True}},
        "nodeName": "elsewhere",
        "bindsToNode": True,
        "taints": [OURS],
        "capacity": {"memory": {"value": "1"}},
    }
    body = merged_device(wanted, left, driver=DRIVER, keys=RULES.keys)
    assert body == wanted


def test_a_node_of_an_earlier_life_owns_nothing() -> None:
    """Invariant 30: our Node is the one controller, and an owner that is neither stays."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "new", "controller": True}
    others = {"apiVersion": "example.com/v1", "kind": "Ticket", "name": "t", "uid": "t-1"}
    old = {**owner, "uid": "old"}
    rival = {**others, "uid": "t-2", "controller": True}
    found = {"metadata": {"name": "s", "ownerReferences": [old, others, rival]}, "spec": {}}
    body = merged_slice({"pool": {"name": "n"}}, found, owner=owner)
    assert body["metadata"]["ownerReferences"] == [owner, others]
