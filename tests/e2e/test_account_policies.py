"""The policies for our accounts, put to a real server with tokens as pods have them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped] # ships no types
from kubernetes import client as library
from kubernetes import config as library_config

from fleet.core import errors
from fleet.core.clock import SystemClock
from fleet.core.model import RunId
from fleet.kube import claim as claims
from fleet.kube import client
from fleet.kube.base import (
    CLAIMS,
    CONFIGMAPS,
    NODES,
    PODS,
    SLICES,
    Cluster,
    Name,
    Object,
    PatchKind,
    Resource,
    Selection,
    name_of,
    uid_of,
)
from fleet.kube.marks import Marks
from fleet.stores.kubernetes import open_kubernetes_stores
from fleet.stores.kubernetes_maps import Patience
from tests.contracts.run_store_contract import record, result
from tests.deploy import manifests
from tests.e2e.ground import Ground
from tests.e2e.plugin_process import DRIVER, PluginProcess
from tests.e2e.polling import eventually
from tests.e2e.test_manifests import kubeconfig
from tests.e2e.workloads import NAMESPACES, STAY, TENANT, Wish, claim_spec, program
from tests.e2e.workloads import claim as claim_of

pytestmark = pytest.mark.e2e

GROUP = "admissionregistration.k8s.io"
FILES = sorted((manifests.ROOT / "helm" / "fleetscrub" / "accounts").glob("*.yaml"))
POLICY = Resource(
    GROUP, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False
)
HOME = "fleetscrub"
ELSEWHERE = "another-node"


@dataclass
class Accounts:
    """Callers of the API as our pods would be."""

    ground: Ground
    directory: Path
    holders: list[Name] = field(default_factory=list)
    """Pods whose tokens they are: one on a node that does not exist goes by force only."""

    def named(self, account: str, node: str) -> Path:
        """A kubeconfig with the token of a pod of this account on this node; "": of no pod."""
        pod = self._pod(account, node) if node else None
        api = library_config.new_client_from_config(  # type: ignore[no-untyped-call]
            config_file=str(self.ground.place.kubeconfig)
        )
        with api:
            bound = (
                library.V1BoundObjectReference(
                    api_version="v1", kind="Pod", name=name_of(pod).name, uid=uid_of(pod)
                )
                if pod
                else None
            )
            asked = library.AuthenticationV1TokenRequest(
                spec=library.V1TokenRequestSpec(
                    audiences=[], expiration_seconds=3600, bound_object_ref=bound
                )
            )
            answer = library.CoreV1Api(api).create_namespaced_service_account_token(
                account, HOME, asked
            )
        assert answer.status is not None
        path = self.directory / f"{account}-{node}"
        return kubeconfig(self.ground.place.kubeconfig, str(answer.status.token), path)

    def called(self, account: str, node: str = "") -> Cluster:
        """The API as that caller meets it."""
        path = self.named(account, node)
        return client.connect(str(path), qps=100.0, timeout_s=10.0)

    def _pod(self, account: str, node: str) -> Object:
        name = f"holder-{secrets.token_hex(4)}"
        container = {"name": "c", "image": self.ground.place.image, "imagePullPolicy": "Never"}
        spec = {
            "serviceAccountName": account,
            "nodeName": node,
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [{**container, "command": ["sleep", "3600"]}],
        }
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": HOME},
            "spec": spec,
        }
        self.holders.append(Name(name, HOME))
        return self.ground.cluster.create(PODS, body)


@pytest.fixture
def accounts(ground: Ground, tmp_path: Path) -> Iterator[Accounts]:
    """Accounts, rights and policies as shipped, on the server for one test."""
    assert ground.plugin.stop() == 0
    shipped = manifests.objects("rbac.yaml", "coordinator.yaml", "accounts.yaml")
    shipped += [one for path in FILES for one in yaml.safe_load_all(path.read_text())]
    shipped.sort(key=lambda one: one["kind"] != "Namespace")
    for one in shipped:
        ground.cluster.apply(manifests.resource_of(one), one, manager="fleet-e2e")
    policies = [one for one in shipped if one["kind"] == POLICY.kind]
    eventually(
        "the policies are checked",
        lambda: all(_checked(ground, name_of(one)) for one in policies),
        timeout_s=30,
    )
    found = Accounts(ground, tmp_path)
    forged = replace_of(slice_of(ground.plugin.node), lambda one: one["metadata"].pop("name", None))
    eventually("the policies are in force", lambda: not _let_in(ground, forged), timeout_s=30)
    yield found
    for holder in found.holders:
        with suppress(library.ApiException):  # the controller of such pods may have been faster
            ground.force_delete(holder)
    for one in reversed(shipped):
        ground.cluster.delete(manifests.resource_of(one), name_of(one))
    eventually(
        "the namespace is gone", lambda: not _has(ground, NAMESPACES, Name(HOME)), timeout_s=60
    )


def _checked(ground: Ground, name: Name) -> bool:
    status = ground.cluster.get(POLICY, name).get("status") or {}
    if "typeChecking" not in status:
        return False
    assert not status["typeChecking"].get("expressionWarnings"), status
    return True


def _let_in(ground: Ground, body: Object) -> bool:
    try:
        made = ground.cluster.create(SLICES, body)
    except errors.ApiForbidden:
        return False
    ground.cluster.delete(SLICES, name_of(made))
    return True


def _has(ground: Ground, resource: Resource, name: Name) -> bool:
    try:
        ground.cluster.get(resource, name)
    except errors.ApiNotFound:
        return False
    return True


def slice_of(node: str, *, driver: str = DRIVER, pool: str = "") -> Object:
    """An empty slice."""
    return {
        "apiVersion": SLICES.api_version,
        "kind": SLICES.kind,
        "metadata": {"generateName": "forged-"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool or node, "generation": 1, "resourceSliceCount": 1},
            "devices": [],
        },
    }


def replace_of(body: Object, change: Callable[[Object], object]) -> Object:
    """A copy with something else in it."""
    found = deepcopy(body)
    change(found)
    return found


@pytest.mark.timeout(300)
def test_a_nodes_account_writes_its_own_slices_only(accounts: Accounts) -> None:
    """B8: by the token of its pod a plugin is its node's; the server says what it must not."""
    ground = accounts.ground
    node = ground.plugin.node
    plugin = accounts.called("fleet-node-plugin", node)
    made = plugin.create(SLICES, slice_of(node))
    for forged, told in (
        (slice_of(ELSEWHERE), "its own node only"),
        (slice_of(node, pool=ELSEWHERE), f"publishes the pool {node} only"),
        (slice_of(node, driver="other.example.com"), "not of other.example.com"),
    ):
        with pytest.raises(errors.ApiForbidden, match=told):
            plugin.create(SLICES, forged)
    stranger = accounts.called("fleet-node-plugin", ELSEWHERE)
    nameless = accounts.called("fleet-node-plugin")
    coordinator = accounts.called("fleet-coordinator")
    for other, told in ((stranger, f"plugin of {ELSEWHERE}"), (nameless, "names no node")):
        with pytest.raises(errors.ApiForbidden, match=told):
            other.replace(SLICES, replace_of(made, _next))
        with pytest.raises(errors.ApiForbidden, match=told):
            other.delete(SLICES, name_of(made))
    taken = coordinator.replace(SLICES, replace_of(made, _next))
    assert taken["spec"]["pool"]["generation"] == 2
    with pytest.raises(errors.ApiForbidden, match="does not publish"):
        ground.cluster.replace(SLICES, replace_of(taken, _next))  # an administrator
    plugin.delete(SLICES, name_of(made))


def _next(found: Object) -> None:
    found["spec"]["pool"]["generation"] += 1


@pytest.mark.timeout(300)
def test_a_plugin_serves_under_the_policies(accounts: Accounts) -> None:
    """A5, DESIGN 5: with the token of its pod the plugin publishes, holds, prepares and tears down;
    scheduler and controllers allocate and deallocate; and what others forge is refused."""
    ground = accounts.ground
    node = ground.plugin.node
    mine = accounts.named("fleet-node-plugin", node)
    other = PluginProcess(replace(ground.place, kubeconfig=mine), ground.plugin.state, node)
    ground.instances.append(other)
    other.start()
    eventually("it serves", other.serves, timeout_s=60, tell=other.told)
    eventually("devices are clean", lambda: bool(ground.clean_devices()), timeout_s=60)
    pod = ground.run(program(STAY), ground.claim_template())
    ground.in_phase(pod, "Running")
    found = ground.claim_of(pod)
    reading = claims.read(found, Marks(DRIVER))
    assert (reading.held, reading.finalizer) == (True, True)
    _forge(accounts, found)
    ground.delete(pod)
    eventually("nothing is left", lambda: not ground.left(), timeout_s=60, tell=other.told)
    assert "forbidden" not in other.log.read_text().lower()
    assert other.stop() == 0


def _forge(accounts: Accounts, claim: Object) -> None:
    """Writes to a claim in use that nobody may make."""
    ground, name = accounts.ground, name_of(claim)
    plugin = accounts.called("fleet-node-plugin", ground.plugin.node)
    stranger = accounts.called("fleet-node-plugin", ELSEWHERE)
    coordinator = accounts.called("fleet-coordinator")
    ended = {"status": {"allocation": None, "reservedFor": None, "devices": None}}
    mine = {"resource": "pods", "name": "p", "uid": "u"}
    reserved = [*claim["status"]["reservedFor"], mine]

    def status(cluster: Cluster, body: Object) -> None:
        cluster.patch(CLAIMS, name, body, kind=PatchKind.MERGE, subresource="status")

    with pytest.raises(errors.ApiForbidden, match="no reservation of a pod"):
        status(plugin, ended)
    with pytest.raises(errors.ApiForbidden, match="no reservation of a pod"):
        status(plugin, {"status": {"reservedFor": reserved}})
    with pytest.raises(errors.ApiForbidden, match=f"the node {ELSEWHERE}"):
        status(stranger, ended)
    labelled: Object = {"metadata": {"labels": {"a": "b"}}}
    with pytest.raises(errors.ApiForbidden, match="but our finalizer"):
        plugin.patch(CLAIMS, name, labelled, kind=PatchKind.MERGE)
    left = [one for one in claim["metadata"]["finalizers"] if not one.startswith(DRIVER)]
    bare: Object = {"metadata": {"finalizers": left}}
    with pytest.raises(errors.ApiForbidden, match="not allocated to"):
        stranger.patch(CLAIMS, name, bare, kind=PatchKind.MERGE)
    with pytest.raises(errors.ApiForbidden, match="may not allocate"):
        status(ground.cluster, ended)  # an administrator
    assert coordinator.get(CLAIMS, name)["status"]["allocation"]
    ours = [one for one in claim["metadata"]["finalizers"] if one not in left]
    for kept in (None, left, ours):
        body: Object = {"metadata": {"finalizers": kept}}
        with pytest.raises(errors.ApiForbidden, match="may not take the finalizers off"):
            ground.cluster.patch(CLAIMS, name, body, kind=PatchKind.MERGE)
    with pytest.raises(errors.ApiForbidden, match="no reservation of a pod"):
        status(coordinator, ended)
    with pytest.raises(errors.ApiForbidden, match="but our finalizer"):
        coordinator.patch(CLAIMS, name, labelled, kind=PatchKind.MERGE)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("account", ["fleet-coordinator", "fleet-uninstall"])
def test_f64_of_a_node_our_conditions_alone_are_written(accounts: Accounts, account: str) -> None:
    """F64: the server lets these accounts write conditions of our driver to a node's status, and no
    other condition, no label and no other field."""
    name = Name(accounts.ground.plugin.node)
    caller = accounts.called(account)

    def write(body: Object) -> Object:
        return caller.patch(NODES, name, body, kind=PatchKind.MERGE, subresource="status")

    def more(kind: str) -> Object:
        one = {"type": kind, "status": "False", "reason": "Test", "message": "test"}
        return {"status": {"conditions": [*before, one]}}

    before = caller.get(NODES, name)["status"]["conditions"]
    for forged, told in (
        (more("example.com/Broken"), "no condition of a node but those"),
        ({"status": {"conditions": before[1:]}}, "no condition of a node but those"),
        ({"status": {"capacity": {"example.com/made-up": "1"}}}, "but our conditions"),
        ({"metadata": {"labels": {"example.com/pool": "a"}}}, "nothing of a node but"),
    ):
        with pytest.raises(errors.ApiForbidden, match=told):
            write(forged)
    found = write(more(f"{DRIVER}/RebootRequired"))
    assert f"{DRIVER}/RebootRequired" in [one["type"] for one in found["status"]["conditions"]]
    write({"status": {"conditions": before}})


@pytest.mark.timeout(300)
def test_f64_what_other_drivers_gave_is_not_taken(accounts: Accounts) -> None:
    """F64: coordinator and uninstall end no allocation of another driver, reserve nothing there and
    say nothing about it."""
    ground = accounts.ground
    other = "other.example.com"
    claim = ground.cluster.create(CLAIMS, _plain(ground, "theirs"))
    result = {"request": TENANT, "driver": other, "pool": "p", "device": "d"}
    given = {**claim, "status": {"allocation": {"devices": {"results": [result]}}}}
    ground.cluster.replace(CLAIMS, given, subresource="status")
    said = {"driver": other, "pool": "p", "device": "d", "conditions": []}
    held = {**Marks(DRIVER).hold(node=ground.plugin.node, uid=uid_of(claim))}
    for account in ("fleet-coordinator", "fleet-uninstall"):
        caller = accounts.called(account)
        for forged in (
            {"allocation": None},
            {"reservedFor": [held]},
            {"devices": [said]},
        ):
            with pytest.raises((errors.ApiForbidden, errors.ApiInvalid)) as caught:
                caller.patch(
                    CLAIMS,
                    name_of(claim),
                    {"status": forged},
                    kind=PatchKind.MERGE,
                    subresource="status",
                )
            if "devices" not in forged:  # the server itself knows whose devices those are
                assert "fleetscrub-" in str(caught.value)
        mark: Object = {"metadata": {"finalizers": [Marks(DRIVER).finalizer]}}
        with pytest.raises(errors.ApiForbidden):
            caller.patch(CLAIMS, name_of(claim), mark, kind=PatchKind.MERGE)
    assert "allocation" in ground.cluster.get(CLAIMS, name_of(claim))["status"]


@pytest.mark.timeout(300)
def test_f66_nobody_but_ours_puts_our_finalizer_on(accounts: Accounts) -> None:
    """F66: neither at creation nor later does anybody mark a claim as ours, an administrator
    included, nor the coordinator where no device of ours is allocated; so none stays behind."""
    ground = accounts.ground
    mark: Object = {"finalizers": [Marks(DRIVER).finalizer]}
    plain = _plain(ground, "plain")
    with pytest.raises(errors.ApiForbidden, match="may not put the finalizer"):
        ground.cluster.create(CLAIMS, plain | {"metadata": {**plain["metadata"], **mark}})
    name = name_of(ground.cluster.create(CLAIMS, plain))
    body: Object = {"metadata": mark}
    with pytest.raises(errors.ApiForbidden, match="may not put the finalizer"):
        ground.cluster.patch(CLAIMS, name, body, kind=PatchKind.MERGE)
    with pytest.raises(errors.ApiForbidden, match="does not get our finalizer"):
        accounts.called("fleet-coordinator").patch(CLAIMS, name, body, kind=PatchKind.MERGE)
    labelled: Object = {"metadata": {"labels": {"a": "b"}}}
    ground.cluster.patch(CLAIMS, name, labelled, kind=PatchKind.MERGE)
    ground.cluster.delete(CLAIMS, name)
    assert not _has(ground, CLAIMS, name)


@pytest.mark.timeout(300)
def test_f65_no_node_locks_the_store(accounts: Accounts) -> None:
    """F65: a node's account makes the store of leases neither immutable nor somebody's, and puts no
    annotation and no finalizer on it; the store goes on."""
    node = accounts.called("fleet-node-plugin", accounts.ground.plugin.node)
    patience = Patience(10.0)
    stores = open_kubernetes_stores(node, HOME, clock=SystemClock(), patience=patience)
    if not stores.initialised:
        stores.leases.init()
    store = Name("fleetscrub-leases", HOME)
    leases = node.get(CONFIGMAPS, store)
    owned = {"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "u"}
    changes: tuple[tuple[Object, str], ...] = (
        ({"immutable": True}, "immutable"),
        ({"metadata": {"annotations": {"a": "b"}}}, "no annotations"),
        ({"metadata": {"finalizers": ["example.com/never"]}}, "no owners and no finalizers"),
        ({"metadata": {"ownerReferences": [owned]}}, "no owners and no finalizers"),
    )
    for change, told in changes:
        forged = {**leases, **change}
        forged["metadata"] = {**leases["metadata"], **change.get("metadata", {})}
        with pytest.raises(errors.ApiForbidden, match=told):
            node.replace(CONFIGMAPS, forged)
    node.replace(CONFIGMAPS, leases)


def _plain(ground: Ground, name: str) -> Object:
    return claim_of(name, ground.namespace, claim_spec(Wish()))


@pytest.mark.timeout(300)
def test_a_nodes_account_writes_no_config_map_but_the_stores(accounts: Accounts) -> None:
    """B8: leases and runs are kept, settings and tag keys are out of reach of a node's token."""
    ground = accounts.ground
    settings = ground.cluster.create(CONFIGMAPS, _map("fleetscrub-settings"))
    for account in ("fleet-node-plugin", "fleet-worker"):
        node = accounts.called(account, ground.plugin.node)
        for forged in (_map("tag-keys"), _map("fleetscrub-run-settings")):
            with pytest.raises(errors.ApiForbidden, match="of the store only"):
                node.create(CONFIGMAPS, forged)
        with pytest.raises(errors.ApiForbidden, match="of the store only"):
            node.replace(CONFIGMAPS, settings | {"data": {"settings.json": "{}"}})
        with pytest.raises(errors.ApiForbidden, match="of the store only"):
            node.delete(CONFIGMAPS, name_of(settings))
        patience = Patience(10.0)
        stores = open_kubernetes_stores(node, HOME, clock=SystemClock(), patience=patience)
        if not stores.initialised:
            stores.leases.init()
        run = record(f"run of {account}")
        stores.runs.create(run)
        assert stores.runs.append(RunId(run.id), [result("gpu-0")]) == 1
        with pytest.raises(errors.ApiForbidden, match="deletes the store of leases"):
            node.delete(CONFIGMAPS, Name("fleetscrub-leases", HOME))
        for found in node.list(
            CONFIGMAPS, Selection(namespace=HOME, labels="fleetscrub.dev/store=run")
        ).items:
            node.delete(CONFIGMAPS, name_of(found))


def _map(name: str) -> Object:
    return {
        "apiVersion": CONFIGMAPS.api_version,
        "kind": CONFIGMAPS.kind,
        "metadata": {"name": name, "namespace": HOME},
        "data": {"a": "b"},
    }
