"""Our actors in a real local Ray."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
import ray

from actors import cluster, handles, muster
from actors.handles import RemoteNode
from actors.node_actor import REMOTE_NODE_ACTOR, WORK_THREADS
from actors.nodes import RayNodes
from actors.translate import given_up, kinds, translated
from fleet.control.binding.loop import BindingView
from fleet.core import errors
from fleet.core.leases import AcquireRequest, Closure
from fleet.core.messages import DeviceResult, NodeView, Outcome, ScrubOrder
from fleet.core.model import Holder, HolderKind, Lease, State, Token, UnitId
from fleet.kube.base import CLAIMS, PODS, Name, Object, uid_of
from fleet.kube.claim import ClaimReading, read
from fleet.kube.marks import Marks
from fleet.rpc.calls import verbs
from fleet.rpc.node_api import NodeApi
from fleet.rpc.nodes import Abandonment
from fleet.stores.base import RunRecord
from fleet.wiring import adapters
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.server import StandIn

pytestmark = pytest.mark.ray

LOG = logging.getLogger(__name__)
T = TypeVar("T")
DEADLINE_S = 30.0
FIRST_LEASE_MAX_S = 10.0
"""Time, s, from the end of the coordinator's process to the first lease of the next one (E5)."""
MARKS = Marks("gpu.fleetscrub.dev")


class Fleet:
    """One simulated node with two devices of 8 MiB, and the coordinator, all behind actors.

    The coordinator reconciles the claims of an API server in this process.
    """

    def __init__(self, plan: adapters.FleetPlan) -> None:
        self.plan = plan
        self.api = StandIn().start()
        self.claims = MemoryCluster(self.api.engine)
        kubeconfig = self.api.kubeconfig(Path(plan.coordinator.state) / "kubeconfig")
        binding = {"kubernetes": True, "kubeconfig": str(kubeconfig)}
        coordinator = plan.coordinator.model_copy(update=binding)
        plan = plan.model_copy(update={"coordinator": coordinator})
        self.nodes: list[RemoteNode] = []
        made = muster.create(plan, self.nodes, host=cluster.LOCAL_HOST)
        self.coordinator = made[0]
        handles.await_serving(self.nodes)

    @property
    def node(self) -> RemoteNode:
        """The one node."""
        return self.nodes[0]

    def end(self) -> None:
        """End the actors, so that the next test gets their names."""
        for actor in (*(node.handle for node in self.nodes), self.coordinator.handle):
            ray.kill(actor)
        self.api.close()

    def binding(self) -> BindingView:
        """How the claims stand."""
        found = self.coordinator.view().binding
        assert found is not None
        return found

    def pending(self, name: str, device: str) -> Name:
        """A claim for which the scheduler waits in PreBind, with its pod."""
        pod = self.claims.create(PODS, body("v1", "Pod", name, containers=[{"name": "c"}]))
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
        spec = {"devices": {"requests": [request]}}
        claim = body(CLAIMS.api_version, CLAIMS.kind, name, **spec)
        made = self.claims.create(CLAIMS, claim)
        result = {
            "request": "gpu",
            "driver": MARKS.driver,
            "pool": self.node.name,
            "device": device,
            "bindingConditions": [MARKS.sanitized, MARKS.healthy],
            "bindingFailureConditions": [MARKS.failed],
        }
        made["status"] = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": uid_of(pod)}],
        }
        self.claims.replace(CLAIMS, made, subresource="status")
        return Name(name, "default")

    def reading(self, claim: Name) -> ClaimReading:
        """The claim now."""
        return read(self.claims.get(CLAIMS, claim), MARKS)


def body(version: str, kind: str, name: str, **spec: object) -> Object:
    """An object of the namespace ``default``."""
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


@pytest.fixture(scope="module")
def fleet(
    ray_cluster: cluster.Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """One fleet for the module; every test leaves it working."""
    state = tmp_path_factory.mktemp("fleet")
    found = Fleet(adapters.plan_fleet(state, simulate="1x2", memory_bytes=8 << 20))
    yield found
    found.end()


def until(ask: Callable[[], T | None]) -> T:
    """The first answer that is not None; errors that waiting mends are waited out."""
    end = time.monotonic() + DEADLINE_S
    pause = [0.05]
    while True:
        try:
            answer = ask()
        except errors.Retryable:
            answer = None
        if answer is not None:
            return answer
        assert time.monotonic() < end, "no answer in time"
        ray.wait([ray.put(None)], timeout=pause[0])


def free(fleet: Fleet) -> str:
    """The UUID of the first device once it is proven free."""
    return until(
        lambda: next(
            (d.uuid for d in fleet.node.view().devices if d.state in (State.DIRTY, State.CLEAN)),
            None,
        )
    )


def lease(fleet: Fleet, run: str, uuid: str) -> Lease:
    """A campaign's lease on a device."""
    fleet.coordinator.open(RunRecord(id=run, started_at=1.0))
    device = next(d for d in fleet.node.view().devices if d.uuid == uuid)
    request = AcquireRequest(
        frozenset(UnitId(u) for u in device.units), Holder(HolderKind.CAMPAIGN, run), 60.0
    )
    (answer,) = fleet.coordinator.acquire([request])
    assert isinstance(answer, Lease)
    return answer


def scrubbed(fleet: Fleet, order: ScrubOrder) -> DeviceResult:
    """The result of an order, given until the node has taken it in."""
    (acceptance,) = until(lambda: fleet.node.scrub([order]))
    assert acceptance.accepted, acceptance.error
    return until(lambda: next(iter(fleet.node.view([order.operation]).results), None))


def test_a_killed_node_actor_comes_back_with_its_state(fleet: Fleet) -> None:
    """B42, B43: after kill -9 the journal answers, and a replayed order does nothing twice."""
    uuid = free(fleet)
    token = lease(fleet, "run-b43", uuid).token
    order = ScrubOrder(
        operation="op-b43", node=fleet.node.name, device=uuid, token=str(token), run="run-b43"
    )
    first = scrubbed(fleet, order)
    assert first.outcome is Outcome.CERTIFIED
    before = fleet.node.ping()

    os.kill(before.pid, signal.SIGKILL)
    after = until(lambda: found if (found := fleet.node.ping()).pid != before.pid else None)
    assert after.incarnation != before.incarnation
    device = until(lambda: next(d for d in fleet.node.view().devices if d.uuid == uuid))
    assert device.floor == str(token)

    assert scrubbed(fleet, order) == first
    # The newest certificate of its memory is still that one: nothing was wiped a second time.
    assert {fleet.node.head().units[UnitId(u)] for u in device.units} == {first.certificate}


def test_a_killed_coordinator_comes_back_with_leases_and_runs(fleet: Fleet) -> None:
    """B42: a coordinator killed with -9 knows its runs and leases, and never repeats a token."""
    device = fleet.node.view().devices[1]
    held = lease(fleet, "run-b42", device.uuid)
    other = AcquireRequest(frozenset({UnitId("x/0")}), Holder(HolderKind.CLAIM, "c"))
    os.kill(fleet.coordinator.ping(), signal.SIGKILL)
    began = time.monotonic()
    (granted,) = until(lambda: fleet.coordinator.acquire([other]))
    took_s = time.monotonic() - began
    LOG.warning("first lease %.2f s after the coordinator's process was killed", took_s)
    assert took_s < FIRST_LEASE_MAX_S
    assert isinstance(granted, Lease)
    assert granted.token > held.token
    assert held.token in [one.token for one in fleet.coordinator.leases()]
    assert "run-b42" in [run.id for run in fleet.coordinator.unfinished()]
    fleet.coordinator.close("run-b42", "complete")


def test_a_claim_is_bound_across_the_death_of_the_coordinator(fleet: Fleet) -> None:
    """B1, B42: what one life has leased, the next one goes on with from API, store and node."""
    device = until(fleet.node.view).devices[1]
    claim = fleet.pending("survivor", device.name)
    uid = fleet.reading(claim).uid
    holder = Holder(HolderKind.CLAIM, uid)

    def leased() -> Lease | None:
        return next((x for x in fleet.coordinator.leases() if x.holder == holder), None)

    lease = until(leased)
    os.kill(fleet.coordinator.ping(), signal.SIGKILL)
    found = until(lambda: found if (found := fleet.reading(claim)).finalizer else None)
    assert found.bound
    assert found.held
    assert until(leased) == lease
    view = until(lambda: found if (found := fleet.binding()).stepped_at else None)
    assert (view.open_claims, view.trouble, view.silent_nodes) == (1, "", ())
    fleet.claims.delete(CLAIMS, claim)
    fleet.claims.delete(PODS, claim)


def test_nodes_are_asked_in_batches_behind_their_actors(fleet: Fleet) -> None:
    """The coordinator's port over real actors: each answer and each error in its place."""
    nodes, name = RayNodes(), fleet.node.name

    def seen() -> Mapping[str, NodeView | errors.FleetError] | None:
        views = nodes.views({name: (), "x": ()})
        return views if isinstance(views[name], NodeView) else None

    found = until(seen)
    assert isinstance(found["x"], errors.RayUnavailable)
    assert set(nodes.names()) == {name}
    uuid = fleet.node.view().devices[0].uuid
    order = ScrubOrder.model_validate(
        {"operation": "astray", "node": name, "device": uuid, "token": "1.1"}
    )
    answers = nodes.scrub({name: [order]})[name]
    assert not isinstance(answers, errors.FleetError)
    assert [(one.accepted, one.kind) for one in answers] == [(False, "EpochForeign")]
    tokens = ("1.1", f"{2**63 - 1}.1")
    behind, ahead = nodes.abandon([Abandonment(name, "nobody", t, (uuid,)) for t in tokens])
    assert isinstance(behind, Closure)
    assert isinstance(ahead, errors.EpochForeign)
    with pytest.raises(errors.DeviceUnknown):
        nodes.node(name).quarantine_add("gpu-99", detail="x", operator="test")


def test_five_acquires_at_once_grant_one(fleet: Fleet) -> None:
    """B08: of five concurrent acquires for one unit exactly one is granted."""

    def attempt(number: int) -> Lease | errors.FleetError:
        claim = Holder(HolderKind.CLAIM, f"claim-{number}")
        return fleet.coordinator.acquire([AcquireRequest(frozenset({UnitId("u/0")}), claim)])[0]

    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(attempt, range(5)))
    assert sum(isinstance(answer, Lease) for answer in answers) == 1
    assert sum(isinstance(answer, errors.LeaseHeld) for answer in answers) == 4


def test_verbs_through_ray_call_nothing_good_that_they_did_not_see(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Promise 7, E7: a cluster may be served that was not asked, and a node that answers stays."""
    through = ["--address", ray.get_runtime_context().gcs_address, "--state", str(tmp_path)]
    forget = ["node", "forget", fleet.node.name, "--no-cluster"]
    for line, code, told in (
        (["audit"], 1, "api-silent"),
        (["audit", "--no-cluster"], None, "no cluster was asked"),
        (forget, 2, "its node actor answers"),
    ):
        command = [sys.executable, "-P", "-m", "fleet.cli.main", *line, *through]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert told in done.stdout + done.stderr
        assert code in (None, done.returncode), done.stderr
        assert ("api-silent" in done.stdout) == (line == ["audit"])


def test_f72_verbs_find_ray_by_the_environment_of_the_head(fleet: Fleet, tmp_path: Path) -> None:
    """F72, F77: where the pod of Ray's head says so by variables, verbs go through that Ray, also
    with a state directory in which there is no fleet; and what a node alone could be told before,
    to retire a device or to divide one, goes there as well."""
    device = free(fleet)
    told = {**os.environ, "FLEET_ADDRESS": ray.get_runtime_context().gcs_address}
    lines = (
        (["devices", "partitioning", device, "--on"], 2, "has no partitioning to switch"),
        (["devices", "retire", device, "--reason", "it hums"], 0, "is retired, recorded for"),
        (["status", "--state", str(tmp_path)], 1, fleet.node.name),
    )
    for line, code, said in lines:
        command = [sys.executable, "-P", "-m", "fleet.cli.main", *line]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=60, env=told
        )
        assert said in done.stdout + done.stderr, (line, done.stdout, done.stderr)
        assert done.returncode == code, (line, done.stdout, done.stderr)
    assert device in fleet.node.view().retired


def test_a_command_for_another_node_is_refused(fleet: Fleet) -> None:
    """B54: a command names its node; an actor of another node refuses it and changes nothing."""
    astray = RemoteNode("node-99", fleet.node.handle)
    device = free(fleet)
    with pytest.raises(errors.WrongNode):
        astray.quarantine_add(device, detail="x", operator="test")
    assert [one.reasons for one in until(fleet.node.view).devices if one.uuid == device] == [()]


@pytest.mark.parametrize("field", ["machine_id", "boot_id"])
def test_an_actor_on_the_wrong_machine_ends_before_it_touches_anything(
    ray_cluster: cluster.Cluster, tmp_path: Path, field: str
) -> None:
    """B54: an actor that finds another machine or boot than assigned refuses to start."""
    plans = adapters.plan_fleet(tmp_path, simulate="2x1", memory_bytes=8 << 20).nodes
    plan = plans[1]  # the first one's name is taken
    right = handles.assign(plan.node, plan.model_dump_json(), host=cluster.LOCAL_HOST)
    node = handles.create_node(right.model_copy(update={field: "another"}))
    with pytest.raises(errors.WrongNode, match="another"):
        node.view()
    assert not (tmp_path / "nodes").exists()


def test_a_host_nobody_has_is_refused_at_once(ray_cluster: cluster.Cluster) -> None:
    """B54: a pin to an unknown host would be pending for ever; it is an error that says so."""
    with pytest.raises(errors.RayUnavailable, match="fleet/host=elsewhere"):
        handles.create_node(handles.assign("node-01", "{}", host="elsewhere"))


def test_a_ping_answers_while_work_is_slow(ray_cluster: cluster.Cluster) -> None:
    """B59: with every thread for work blocked in a call, a ping answers within a second."""

    class Slow:
        """A node service with nothing but slow work."""

        node, incarnation, devices, degraded, outbox = "node-slow", "i1", (), (), 0
        simulated = True

        def view(self, *_: object) -> Slow:
            return self

        def tick(self, *_: object) -> None:
            return None

        def quarantine_add(self, *_: object, **__: object) -> None:
            time.sleep(20)

    plan = '{"node": "node-slow"}'
    assignment = handles.assign("node-slow", plan, host=cluster.LOCAL_HOST).model_dump_json()
    actor = REMOTE_NODE_ACTOR.options(max_concurrency=WORK_THREADS).remote(
        assignment, lambda _: Slow()
    )
    node = RemoteNode("node-slow", actor)
    node.ping(timeout_s=DEADLINE_S)
    verb = verbs(NodeApi)["quarantine_add"]
    for _ in range(WORK_THREADS + 1):
        node.start(verb, verb.pack("u", detail="x", operator="x"))
    began = time.monotonic()
    pulse = until(lambda: found if (found := node.ping()).running else None)
    assert time.monotonic() - began < 1.0
    assert set(pulse.running) == {"quarantine_add"}
    ray.kill(actor)


def test_every_error_of_ours_arrives_as_itself(ray_cluster: cluster.Cluster) -> None:
    """B60: every class of the tree, raised in an actor, is caught as itself with its fields."""

    class Thrower:
        def throw(self, kind: type[errors.FleetError]) -> None:
            raise kind("what happened", remedy="do this", floor=Token(3, 7))

        def fail(self) -> None:
            raise KeyError("gpu-7")

    actor: Any = ray.remote(num_cpus=0)(Thrower).remote()
    for kind in kinds().values():
        with pytest.raises(kind) as caught, translated("thrower: throw"):
            ray.get(actor.throw.remote(kind), timeout=DEADLINE_S)
        assert type(caught.value) is kind
        assert (caught.value.detail, caught.value.remedy) == ("what happened", "do this")
        assert caught.value.floor == Token(3, 7)
    with pytest.raises(errors.Unforeseen, match="KeyError"), translated("thrower: fail"):
        ray.get(actor.fail.remote(), timeout=DEADLINE_S)
    ray.kill(actor)

    def gone() -> errors.FleetError | None:
        """The error of a call to an actor that has ended; the end takes a moment."""
        try:
            with translated("thrower: fail"):
                ray.get(actor.fail.remote(), timeout=DEADLINE_S)
        except errors.Unforeseen:
            return None
        except errors.FleetError as error:
            return error
        return None

    assert type(until(gone)) is errors.RayUnavailable


class Busy:
    """Takes some calls at a time and no more, as the coordinator takes those about leases."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    @ray.method(concurrency_group="leases")
    def work(self, name: str) -> None:
        """Leave a mark, then wait until it is let go on."""
        (self._folder / name).touch()
        pause = threading.Event()
        while not (self._folder / "go-on").exists():
            pause.wait(0.01)
        (self._folder / f"{name}-ended").touch()


def test_a_call_that_nobody_waits_for_any_more_is_not_begun(fleet: Fleet, tmp_path: Path) -> None:
    """Issue 8 (beyond the limit): what timed out in the queue leaves it, so that an overload ends
    with those who caused it; a call that runs goes on to its end (B6, B43)."""
    made: Any = ray.remote(num_cpus=0, concurrency_groups={"leases": 1})(Busy)  # type: ignore[call-overload]
    handle = made.remote(str(tmp_path))
    begun = handle.work.remote("first")
    until(lambda: (tmp_path / "first").exists() or None)
    queued = handle.work.remote("queued")
    for ref in (queued, begun):
        told = pytest.raises(errors.RayUnavailable, match="may or may not have run")
        with told, translated("work"), given_up(ref):
            ray.get(ref, timeout=1.0)
    (tmp_path / "go-on").touch()
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(queued, timeout=DEADLINE_S)
    assert (tmp_path / "first-ended").exists()
    assert not (tmp_path / "queued").exists()
    ray.kill(handle)
