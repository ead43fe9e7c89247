"""The coordinator's roles: what it calls, what its caches may read besides, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.cli.main import main
from fleet.control.binding import liveness
from fleet.control.binding.conditions import REMEDIES, RebootConditions
from fleet.control.binding.liveness import Heartbeat
from fleet.control.binding.loop import BindingView, Loop
from fleet.control.binding.visibility import Visible
from fleet.core import errors
from fleet.core.clock import ManualClock, SystemClock
from fleet.core.leases import AcquireRequest
from fleet.core.messages import DeviceView, NodeView, ReasonView
from fleet.core.model import Holder, HolderKind, Lease, UnitId
from fleet.core.profiles import Profile
from fleet.core.settings import Settings
from fleet.kube import identity
from fleet.kube.base import CLAIMS, LEASES, NODES, PODS, Name, Object
from fleet.kube.claim import ClaimReading, read
from fleet.kube.claim_holds import Holds
from fleet.kube.events import REPEAT_S, Events, Regarding
from fleet.rpc.nodes import DoorNodes
from fleet.stores.kubernetes import open_kubernetes_stores
from fleet.stores.kubernetes_maps import ConfigMaps, Patience
from fleet.wiring import adapters, coordinator
from fleet.wiring.plans import CoordinatorPlan
from tests.deploy.manifests import Right, called, of_kind, rights, role, rules
from tests.fleet.control.repair.conftest import Site
from tests.fleet.control.repair.test_lost_nodes import lose
from tests.fleet.plugin.benches import DRIVER, MARKS, NODE, SPACE, Bench, bench, result
from tests.lab.apiserver.access import Access, Caller, Wish
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.server import StandIn

ACCOUNT = "fleet-coordinator"
USER = f"system:serviceaccount:fleetscrub:{ACCOUNT}"
GROUP = "resource.k8s.io"
ROLES = [
    role(ACCOUNT),
    *(role(name, "Role") for name in ("fleet-store", ACCOUNT, "fleet-status")),
]
DELETE = role("fleet-unexposed")
ASKED_BESIDES: set[Right] = {
    (GROUP, "resourceclaims/binding", "patch"),
    (GROUP, "resourceclaims/driver", "arbitrary-node:patch"),
}
"""Rights that no call has by itself: the server asks for them at a write of a claim's status."""
READ_BESIDES: set[Right] = {
    *((GROUP, "resourceslices", verb) for verb in ("get", "watch")),
    *((GROUP, "deviceclasses", verb) for verb in ("get", "list")),
    ("", "pods", "watch"),
}
"""Reading that only some tasks of the coordinator need, such as `fleet claim bind` and a repair."""


def limited(site: Bench, *, without: Right | None = None) -> MemoryCluster:
    """The API as the coordinator meets it, with the rights as shipped."""
    granted = [rule for one in ROLES for rule in rules(USER, one, without=without)]
    site.cluster.engine.access = Access(granted)
    return MemoryCluster(site.cluster.engine, caller=Caller(USER, manager="fleetscrub"))


def bound(site: Bench, cluster: MemoryCluster) -> None:
    """A claim is proven ready, its device fails before it is exposed, and it is let go."""
    plan = CoordinatorPlan(state=str(site.state), settings=site.settings)
    nodes = DoorNodes({NODE: site.door})
    asked = site.create("a")
    conditions = [MARKS.sanitized, MARKS.healthy]
    allotted = result(
        "gpu-0", bindingConditions=conditions, bindingFailureConditions=[MARKS.failed]
    )
    site.reserve(site.allocate(asked, allotted), site.pod("p", node=""))
    loop = Loop(lambda: coordinator.reconciling(plan, site.coordinator, nodes, cluster))

    def until(true: Callable[[ClaimReading], bool]) -> None:
        deadline = time.monotonic() + 20.0
        while not true(read(site.claim_of(asked), MARKS)):
            assert time.monotonic() < deadline, loop.view()
            loop.turn()

    until(lambda claim: claim.bound and claim.finalizer)
    assert loop.view().trouble == ""
    site.node.quarantine_add("gpu-0", detail="fails before it is exposed", operator="test")
    site.keeper().step(site.node.view().at)
    until(lambda claim: claim.failed)
    loop.stop()
    loop.run()
    name = Name(asked.name, asked.namespace)
    assert not Holds(cluster, MARKS, site.clock).release(name, asked.uid).held
    site.delete(asked)


def taken_over(site: Bench, cluster: MemoryCluster) -> None:
    """The pool of a node that does not publish a quarantine itself."""
    site.keeper().step(site.node.view().at)
    assert Visible(cluster, DRIVER).take_over(NODE, {"gpu-1": ("taken-over",)}, time.time())


def told(cluster: MemoryCluster) -> None:
    """An event, again later, and a node that needs a reboot."""
    clock = ManualClock(2e9)
    about = Regarding(NODES, Name(NODE), "u")
    for _ in range(2):
        Events(cluster, "fleetscrub-coordinator", clock).record(about, "Said", "twice")
        clock.advance(2 * REPEAT_S)
    reason = ReasonView(code="xid", source="health", liftable=True, remedy=min(REMEDIES))
    conditions = RebootConditions(cluster, DRIVER)
    assert conditions.step({NODE: _broken(reason)}, time.time()) == {}


def _broken(*reasons: ReasonView) -> NodeView:
    device = DeviceView(
        uuid="g",
        name="gpu-0",
        accelerator="g",
        units=("g/all",),
        memory_bytes=1,
        state="QUARANTINED",
        reasons=reasons,
    )
    return NodeView(
        node=NODE,
        incarnation="i",
        boot_id="b",
        at=time.time(),
        simulated=True,
        backend="simulated",
        devices=(device,),
    )


def stored(cluster: MemoryCluster) -> None:
    """Leases at the API: made, granted, listed, one object removed."""
    patience = Patience(timeout_s=5.0)
    stores = open_kubernetes_stores(cluster, "fleetscrub", clock=SystemClock(), patience=patience)
    stores.leases.init()
    request = AcquireRequest(frozenset({UnitId("u/0")}), Holder(HolderKind.CLAIM, "c"))
    (lease,) = stores.leases.acquire([request])
    assert isinstance(lease, Lease)
    assert list(stores.leases.leases()) == [lease]
    maps = ConfigMaps(cluster, "fleetscrub", patience)
    (found,) = maps.list("fleetscrub.dev/store=leases")
    maps.delete(found)


def given_up() -> set[Right]:
    """A node that is lost, by an operator in the head's pod or by the coordinator itself."""
    site = Site()
    site.lease(site.make_claim("c").uid, site.n1)
    site.cluster.engine.access = Access([rule for one in ROLES for rule in rules(USER, one)])
    site.cluster = cluster = MemoryCluster(site.cluster.engine, caller=Caller(USER))
    done = lose(site)
    assert (done.failed, done.slices) == ((), ("slice-n1",))
    return called(cluster)


def seen(site: Bench, cluster: MemoryCluster) -> None:
    """Its sign of life, in the Lease that is shipped; it is read where `fleet status` runs."""
    for lease in of_kind("Lease"):
        site.cluster.create(LEASES, lease)
    view = BindingView(stepped_at=time.time())
    heart = Heartbeat(lambda: view, state=site.state, cluster=cluster, namespace="fleetscrub")
    heart.beat()
    found = liveness.read(cluster, "fleetscrub").found
    assert found is not None
    assert found.wrong(found.at) == ""


def test_the_roles_are_what_the_coordinator_calls() -> None:
    """A5: pre-bind, letting go, take-over, events and the store need no more than is shipped. F71:
    its sign of life needs the right to that one object."""
    with bench(Profile.STRICT) as site:
        cluster = limited(site)
        bound(site, cluster)
        taken_over(site, cluster)
        told(cluster)
        stored(cluster)
        seen(site, cluster)
        identity.meet(site.state, cluster, [NODE])
        asked, granted = called(cluster) | given_up(), rights(*ROLES)
        asked |= {(group, what, "list") for group, what, verb in asked if verb == "watch"}
        assert asked <= granted
        assert granted - asked == ASKED_BESIDES | READ_BESIDES


class Asked(Access):
    """Rights as shipped, with what was refused."""

    def __init__(self) -> None:
        """Those of the coordinator's account."""
        super().__init__([rule for one in ROLES for rule in rules(USER, one)])
        self.refused: list[Wish] = []

    def allows(self, caller: Caller, wish: Wish) -> bool:
        """As the base class does."""
        found = super().allows(caller, wish)
        if not found:
            self.refused.append(wish)
        return found


OPERATED = (
    ["audit"],
    ["reconcile", "--dry-run"],
    ["claim", "show", "tenant/c"],
    ["claim", "show", "--pod", "tenant/p"],
    ["uninstall", "--plan"],
    ["reconcile"],
)
"""What operators run in the head's pod that asks the API server, in docs/operations.md."""


def test_f72_an_operator_needs_no_more_than_the_coordinator_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F72: in the head's pod every verb of the operator's day has the rights it asks for, by the
    coordinator's own account: none is refused, and none says that it could not look."""
    state = tmp_path / "state"
    adapters.plan_fleet(state, simulate="1x2", memory_bytes=1 << 20)
    with StandIn() as server:
        ground(MemoryCluster(server.engine))
        server.engine.access = access = Asked()
        server.accept("of-the-pod", Caller(USER))
        token = tmp_path / "token"
        token.write_text("of-the-pod")
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig", token_file=token)
        for words in OPERATED:
            code = main([*words, "--kubeconfig", str(kubeconfig), "--state", str(state)])
            told = capsys.readouterr()
            assert code in (0, 1), (words, told)
            assert "could not" not in told.out, words
    # What events say of a claim is a tenant's to read, and is in `kubectl describe`.
    assert {(one.verb, one.resource) for one in access.refused} <= {("list", "events")}


def ground(cluster: MemoryCluster) -> None:
    """A Node, and a pod with a claim that names a device of ours."""
    cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-01"}})
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER, "count": 1}}
    meta = {"name": "c", "namespace": "tenant"}
    spec: Object = {"devices": {"requests": [request]}}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    cluster.create(CLAIMS, {**body, "metadata": meta, "spec": spec})
    containers = [{"name": "c", "image": "i"}]
    claims = [{"name": "gpu", "resourceClaimName": "c"}]
    pod: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": {**meta, "name": "p"}}
    cluster.create(PODS, {**pod, "spec": {"containers": containers, "resourceClaims": claims}})


def test_pods_are_deleted_only_with_the_role_for_it() -> None:
    """kubernetes.unexposed: delete needs a right of its own, which is not bound as shipped."""
    with bench() as site:
        cluster = limited(site)
        pod = Name(site.pod("p").name, SPACE)
        with pytest.raises(errors.ApiForbidden):
            cluster.delete(PODS, pod)
        granted = [*rules(USER, ROLES[0]), *rules(USER, DELETE)]
        site.cluster.engine.access = Access(granted)
        cluster.delete(PODS, pod)
    bindings = of_kind("ClusterRoleBinding", "coordinator.yaml")
    assert [one["roleRef"]["name"] for one in bindings] == [ACCOUNT]


def test_the_bindings_give_the_roles_to_the_accounts() -> None:
    """The coordinator has both roles, the node the store's; no right is given by a wildcard."""
    accounts = [ACCOUNT, "fleet-node-plugin", "fleet-worker"]
    assert {*accounts} <= {str(one["metadata"]["name"]) for one in of_kind("ServiceAccount")}
    (binding,) = of_kind("ClusterRoleBinding", "coordinator.yaml")
    bound = {one["metadata"]["name"]: one for one in of_kind("RoleBinding", "coordinator.yaml")}
    assert [one["name"] for one in binding["subjects"]] == [ACCOUNT]
    wanted = {"fleet-store": accounts, "fleet-status": accounts, ACCOUNT: [ACCOUNT]}
    assert bound.keys() == wanted.keys()
    for name, told in wanted.items():
        assert sorted(one["name"] for one in bound[name]["subjects"]) == sorted(told)
        assert bound[name]["roleRef"] == {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Role",
            "name": name,
        }
    every = [one for found in (binding, *bound.values()) for one in found["subjects"]]
    assert {one["namespace"] for one in every} == {Settings().store.namespace}
    assert not any("*" in right for right in rights(*ROLES, DELETE))
