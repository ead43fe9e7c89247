"""The models of Kubernetes against what was measured on a real cluster, with a small stand-in for
the coordinator: nothing of the product's binding is in here."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.kube.base import CLAIMS, NODES, PODS, SLICES, Name, Object
from tests.lab.apiserver.access import Caller
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine, Target
from tests.lab.apiserver.kinds import CLAIM_TEMPLATES
from tests.lab.apiserver.removal import Preconditions
from tests.twin import objects
from tests.twin.clock import Alarm, Timeline
from tests.twin.controller import Controller
from tests.twin.pools import Pools
from tests.twin.scheduler import Scheduler
from tests.twin.sight import Fed, Listed, Sight

DRIVER = "ref.example.com"
READY, FAILED = "x.example.com/Sanitized", "x.example.com/SanitizationFailed"
SPACE = "t"


@dataclass
class Ground:
    """API server, scheduler and controller; one node with as many devices as asked for."""

    devices: int = 2
    timeout_s: float = 600.0
    conditions: bool = True
    listed: bool = False
    counters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What each device consumes of the one set."""

    def __post_init__(self) -> None:
        self.timeline = Timeline()
        self.engine = Engine(clock=self.timeline)
        self.cluster = MemoryCluster(self.engine, caller=Caller(manager="test"))
        self.sight: Sight = Listed(self.cluster) if self.listed else Fed(self.engine)
        pools = Pools({objects.CLASS: (DRIVER, 0)})
        self.scheduler = Scheduler(
            self.cluster,
            self.sight,
            self.timeline,
            pools,
            random.Random(1),
            timeout_s=self.timeout_s,
        )
        self.controller = Controller(self.cluster, self.sight, self.timeline)
        self.alarms = [
            Alarm(self.timeline, self.scheduler.step),
            Alarm(self.timeline, self.controller.step),
        ]
        self.cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
        self.put_slice({})
        template = objects.template(Name("gpu", SPACE), objects.spec())
        self.cluster.create(CLAIM_TEMPLATES, template)
        self.sight.listen(lambda *_: self.soon())
        self.timeline.each.append(lambda _: self.wake())
        self.wake()

    def soon(self) -> None:
        """Scheduler and controller look within moments."""
        for alarm in self.alarms:
            alarm.wake(0.02)

    def wake(self) -> None:
        """Whoever watches hears of what changed."""
        self.sight.refresh()

    def put_slice(self, taints: dict[str, str]) -> None:
        """The node's slice; `taints`: effect by device."""
        devices = [self._device(f"d{i}", taints.get(f"d{i}", "")) for i in range(self.devices)]
        pool = {"name": "n", "generation": 1, "resourceSliceCount": 2 if self.counters else 1}
        spec = {"driver": DRIVER, "nodeName": "n", "pool": pool, "devices": devices}
        body: Object = {
            "apiVersion": SLICES.api_version,
            "kind": SLICES.kind,
            "metadata": {"name": "s"},
            "spec": spec,
        }
        if self.engine.has(Target(SLICES, Name("s"))):
            version = self.cluster.get(SLICES, Name("s"))["metadata"]["resourceVersion"]
            body["metadata"]["resourceVersion"] = version
            self.cluster.replace(SLICES, body)
        else:
            self.cluster.create(SLICES, body)
            if self.counters:
                amounts = {one: {"value": "1"} for found in self.counters.values() for one in found}
                sets = {**spec, "sharedCounters": [{"name": "d", "counters": amounts}]}
                del sets["devices"]
                self.cluster.create(SLICES, {**body, "metadata": {"name": "t"}, "spec": sets})
        self.wake()

    def _device(self, name: str, effect: str) -> Object:
        found: Object = {"name": name}
        if self.conditions:
            found |= {
                "bindsToNode": True,
                "bindingConditions": [READY],
                "bindingFailureConditions": [FAILED],
            }
        if name in self.counters:
            amounts = {one: {"value": "1"} for one in self.counters[name]}
            found["consumesCounters"] = [{"counterSet": "d", "counters": amounts}]
        if effect:
            found["taints"] = [{"key": "bad", "effect": effect}]
        return found

    def pod(self, name: str = "p", claim: str = "") -> Name:
        """A pod with a claim from the template, or a named one."""
        use: Object = {"name": "c", "resourceClaimTemplateName": "gpu"}
        if claim:
            use = {"name": "c", "resourceClaimName": claim}
        self.cluster.create(PODS, objects.pod(Name(name, SPACE), [use]))
        self.wake()
        return Name(name, SPACE)

    def claims(self) -> list[Object]:
        """All claims."""
        return list(self.cluster.list(CLAIMS).items)

    def say(self, claim: Object, kind: str, device: str = "") -> None:
        """The stand-in for a coordinator: one condition True."""
        result = next(objects.results(claim))
        condition = {
            "type": kind,
            "status": "True",
            "reason": "Said",
            "lastTransitionTime": objects.stamp(self.timeline.now()),
        }
        entry = {
            "driver": DRIVER,
            "pool": "n",
            "device": device or result["device"],
            "conditions": [condition],
        }
        metadata = {"name": claim["metadata"]["name"], "namespace": SPACE}
        body = {
            "apiVersion": CLAIMS.api_version,
            "kind": CLAIMS.kind,
            "metadata": metadata,
            "status": {"devices": [entry]},
        }
        self.cluster.apply(CLAIMS, body, manager="stand-in", subresource="status")
        self.wake()

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.timeline.run_until(self.timeline.now() + seconds)

    def bound(self, name: Name) -> bool:
        """Whether a pod has a node."""
        return bool(objects.node_name(self.cluster.get(PODS, name)))


def test_a_pod_waits_for_the_next_tick_after_its_condition_is_true() -> None:
    """Measured: True at once after the allocation binds the pod 5.0 s after it began to wait."""
    ground = Ground()
    pod = ground.pod()
    ground.run(0.5)
    (claim,) = ground.claims()
    assert objects.allocation(claim) is not None
    assert objects.BUILTIN in claim["metadata"]["finalizers"]
    assert [entry["name"] for entry in objects.reserved(claim)] == ["p"]
    ground.say(claim, READY)
    ground.run(4.3)
    assert not ground.bound(pod)
    ground.run(0.5)
    assert ground.bound(pod)


def test_without_conditions_a_pod_is_bound_at_once() -> None:
    """A device that names no conditions is not waited for."""
    ground = Ground(conditions=False)
    pod = ground.pod()
    ground.run(0.3)
    assert ground.bound(pod)


def test_after_a_failure_the_same_device_is_chosen_again() -> None:
    """Measured: failure, 5 s tick, back-off 1 s, then d0 again unless it is tainted."""
    ground = Ground()
    ground.pod()
    ground.run(0.5)
    (claim,) = ground.claims()
    first = objects.allocation(claim)
    ground.say(claim, FAILED)
    ground.run(6.6)
    (again,) = ground.claims()
    found = objects.allocation(again)
    assert found is not None
    assert first is not None
    assert found["allocationTimestamp"] != first["allocationTimestamp"]
    assert found["devices"]["results"][0]["device"] == "d0"
    assert "devices" not in again["status"]


def test_a_tainted_device_is_not_chosen_after_a_failure() -> None:
    """Measured: taint first, then the failure: the other device is chosen."""
    ground = Ground()
    ground.pod()
    ground.run(0.5)
    (claim,) = ground.claims()
    ground.put_slice({"d0": "NoSchedule"})
    ground.say(claim, FAILED)
    ground.run(6.6)
    (again,) = ground.claims()
    assert [one["device"] for one in objects.results(again)] == ["d1"]


def test_a_foreign_reservation_keeps_a_failed_claim_stuck_until_it_goes() -> None:
    """Measured: the scheduler drops its pod's entry and waits for the foreign one to go."""
    ground = Ground()
    ground.pod()
    ground.run(0.5)
    (claim,) = ground.claims()
    hold = {"apiGroup": "x.example.com", "resource": "holds", "name": "h", "uid": "2222"}
    body = objects.with_status(claim, reservedFor=[*objects.reserved(claim), hold])
    claim = ground.cluster.replace(CLAIMS, body, subresource="status")
    ground.say(claim, FAILED)
    ground.run(20.0)
    (stuck,) = ground.claims()
    assert objects.reserved(stuck) == [hold]
    assert objects.allocation(stuck) is not None
    body = objects.with_status(stuck, reservedFor=None)
    ground.cluster.replace(CLAIMS, body, subresource="status")
    ground.wake()
    ground.run(1.0)
    (free,) = ground.claims()
    assert [entry["name"] for entry in objects.reserved(free)] == ["p"]


def test_after_the_timeout_a_claim_is_allocated_anew() -> None:
    """Measured: the reservation goes at 12 s, the allocation once the back-off has ended."""
    ground = Ground(timeout_s=12.0)
    ground.pod()
    ground.run(11.0)
    (claim,) = ground.claims()
    first = objects.allocation(claim)
    assert objects.reserved(claim)
    ground.run(4.0)
    (again,) = ground.claims()
    second = objects.allocation(again)
    assert first is not None
    assert second is not None
    assert first["allocationTimestamp"] != second["allocationTimestamp"]


def test_a_restarted_scheduler_goes_on_waiting() -> None:
    """Measured: the wait is resumed from the API's state, allocation and time stay."""
    ground = Ground()
    pod = ground.pod()
    ground.run(2.0)
    ground.alarms[0].stop()
    (claim,) = ground.claims()
    before = objects.allocation(claim)
    fresh = Scheduler(
        ground.cluster,
        ground.sight,
        ground.timeline,
        Pools({objects.CLASS: (DRIVER, 0)}),
        random.Random(2),
    )
    ground.alarms[0] = Alarm(ground.timeline, fresh.step)
    ground.alarms[0].wake()
    ground.run(1.0)
    (claim,) = ground.claims()
    assert objects.allocation(claim) == before
    ground.say(claim, READY)
    ground.run(5.0)
    assert ground.bound(pod)


def test_a_pod_deleted_while_it_waits_frees_its_claim() -> None:
    """Measured: the claim is deallocated at once, and a template's claim is gone."""
    ground = Ground()
    pod = ground.pod()
    ground.run(1.0)
    ground.engine.delete(Target(PODS, pod))
    ground.wake()
    ground.run(0.5)
    assert ground.claims() == []


def test_a_force_deleted_pod_frees_the_device_though_its_container_lives() -> None:
    """Measured (B17): the next pod is given the device at once, where nothing else keeps it."""
    ground = Ground(devices=1, conditions=False)
    first = ground.pod("a")
    ground.run(0.5)
    ground.engine.delete(Target(PODS, first), Preconditions(grace_s=0))
    ground.wake()
    second = ground.pod("b")
    ground.run(0.5)
    assert ground.bound(second)


def test_taints_of_noexecute_evict_bound_pods() -> None:
    """Measured: a running pod gets its deletionTimestamp, a NoSchedule taint does nothing."""
    ground = Ground(conditions=False)
    pod = ground.pod()
    ground.run(0.5)
    ground.put_slice({"d0": "NoSchedule"})
    ground.run(0.5)
    assert not objects.deleting(ground.cluster.get(PODS, pod))
    ground.put_slice({"d0": "NoExecute"})
    ground.run(0.5)
    assert objects.deleting(ground.cluster.get(PODS, pod))


def test_of_devices_that_share_counters_one_is_allocated() -> None:
    """KEP-4815, run on 1.36.2: an allocated device uses its counters up for all other pods, and
    gives them back with its claim."""
    counters = {"d0": ("m0", "m1"), "d1": ("m0",), "d2": ("m1",)}
    ground = Ground(devices=3, conditions=False, counters=counters)
    first, second, third = (ground.pod(name) for name in ("a", "b", "c"))
    ground.run(5)
    assert [ground.bound(name) for name in (first, second, third)] == [True, False, False]
    ground.put_slice({"d0": "NoSchedule"})
    ground.engine.delete(Target(PODS, first), Preconditions(grace_s=0))
    ground.wake()
    ground.run(5)
    assert [ground.bound(name) for name in (second, third)] == [True, True]
    given = [one["device"] for claim in ground.claims() for one in objects.results(claim)]
    assert sorted(given) == ["d1", "d2"]
    ground.put_slice({})
    last = ground.pod("d")
    ground.run(5)
    assert not ground.bound(last)


def test_the_models_work_through_the_port_alone() -> None:
    """With lists instead of the engine's feed the same pod gets the same device."""
    ground = Ground(listed=True, conditions=False)
    pod = ground.pod()
    ground.run(0.5)
    assert ground.bound(pod)
