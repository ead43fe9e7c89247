"""The settings say where the stores are; nodes, coordinator and verbs find the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.clock import SystemClock
from fleet.core.messages import ClaimOrder
from fleet.core.model import Lease, RunId
from fleet.core.settings import MIB, KubernetesSettings, Settings, StoreKind, StoreSettings
from fleet.kube.base import CONFIGMAPS, Name
from fleet.rpc.node_api import NodeApi
from fleet.stores.factory import StorePlace
from fleet.stores.kubernetes import NAME
from fleet.stores.late import LateStore
from fleet.stores.sqlite import store_path
from fleet.wiring import adapters, plugin
from fleet.wiring.adapters import CoordinatorPlan, FleetPlan
from tests.cloud.server import REGION, CloudServer
from tests.contracts.lease_store_contract import ask, claim, closed, granted
from tests.contracts.run_store_contract import RUN, record, result
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.server import StandIn


@pytest.fixture
def api() -> Iterator[StandIn]:
    """An API server."""
    with StandIn() as server:
        yield server


@pytest.fixture
def kubeconfig(api: StandIn, tmp_path: Path) -> str:
    return str(api.kubeconfig(tmp_path / "kubeconfig"))


def settings(tmp_path: Path) -> Settings:
    """Stores on Kubernetes."""
    kubernetes = KubernetesSettings(
        cdi_directory=str(tmp_path / "cdi"),
        kubelet_root=str(tmp_path / "kubelet"),
        api_qps=1000.0,
        api_timeout_s=2.0,
        coordinator_qps=1000.0,
    )
    store = StoreSettings(kind=StoreKind.KUBERNETES, hosts=2, timeout_s=2.0)
    return Settings(kubernetes=kubernetes, store=store)


def planned(tmp_path: Path, kubeconfig: str) -> FleetPlan:
    """A fleet of one node whose leases are on Kubernetes."""
    found = adapters.plan_fleet(
        tmp_path / "state", simulate="1x1", memory_bytes=MIB, settings=settings(tmp_path)
    )
    update = {"kubeconfig": kubeconfig}
    return found.model_copy(
        update={
            "nodes": tuple(node.model_copy(update=update) for node in found.nodes),
            "coordinator": found.coordinator.model_copy(update=update),
        }
    )


def test_a_file_is_made_where_nothing_must_be_yet(tmp_path: Path) -> None:
    """DESIGN 4: SQLite of one host makes itself at first use, and says where it is."""
    place = StorePlace(Settings(), tmp_path)
    assert not place.shared
    assert place.named == str(store_path(tmp_path))
    stores = place.opener(SystemClock(), expected=lambda: False)()
    assert stores.initialised
    stores.close()
    assert store_path(tmp_path).is_file()


def test_the_product_s_client_keeps_leases_and_runs(
    api: StandIn, kubeconfig: str, tmp_path: Path
) -> None:
    """E5: the whole way over HTTP, with answers that are lost on it."""
    place = StorePlace(settings(tmp_path), tmp_path, kubeconfig)
    stores = place.open(SystemClock())
    with pytest.raises(errors.SettingsInvalid, match="not initialised"):
        stores.leases.newest()
    stores.leases.init()
    lease = granted(stores.leases, ask(claim("a"), "u1"))
    other = place.open(SystemClock())
    assert other.leases.leases() == [lease]
    assert other.leases.release([closed(claim("a"), lease.token)]) == [True]
    stores.runs.create(record())
    stores.runs.append(RUN, [result("gpu-0")])
    assert other.runs.get(RunId(RUN)).results == {"gpu-0": result("gpu-0")}
    assert "fleetscrub" in place.named
    found = MemoryCluster(api.engine).get(CONFIGMAPS, Name(NAME, "fleetscrub"))
    assert "leases.jsonl" in found["data"]


def test_node_and_coordinator_share_the_cluster_s_store(kubeconfig: str, tmp_path: Path) -> None:
    """E5: a node prepares under a lease of the cluster's store, which the coordinator sees."""
    plan = planned(tmp_path, kubeconfig)
    adapters.begin(plan.coordinator)
    with pytest.raises(errors.SettingsInvalid, match="not initialised"):
        adapters.open_coordinator(plan.coordinator)
    StorePlace(settings(tmp_path), tmp_path, kubeconfig).open(SystemClock()).leases.init()
    coordinator = adapters.open_coordinator(plan.coordinator)
    node = adapters.open_node(plan.nodes[0])
    try:
        (device,) = node.adopt(operator="me")
        order = ClaimOrder(uid="c", node=node.view().node, devices=(device.uuid,), consumers=("p",))
        assert node.prepare(order).certificates
        (lease,) = coordinator.leases()
        assert lease.holder == claim("c")
        assert node.view().devices[0].floor == str(lease.token)
    finally:
        node.close()
    assert not store_path(tmp_path / "state").exists()


def test_verbs_find_the_store_of_a_served_node(tmp_path: Path) -> None:
    """E5: what a plugin was started with decides where the leases of its state directory are."""
    adapters.plan_fleet(
        tmp_path, simulate="1x1", memory_bytes=MIB, settings=settings(tmp_path), serve="n1"
    )
    plan = adapters.plan_fleet(tmp_path)
    assert plan.coordinator.settings.store == plan.nodes[0].settings.store
    assert plan.coordinator.settings.store.kind is StoreKind.KUBERNETES


def test_a_node_waits_for_a_store_that_nobody_has_made(kubeconfig: str, tmp_path: Path) -> None:
    """DESIGN 4: a node mints no epoch for a cluster; it comes up, and goes on once there is one."""
    place = StorePlace(settings(tmp_path), tmp_path, kubeconfig)
    store = LateStore(place.opener(SystemClock(), expected=lambda: False))
    for _ in range(2):
        with pytest.raises(errors.StoreUnavailable, match="fleet store init"):
            store.newest()
    token = place.open(SystemClock()).leases.init()
    assert store.newest() == token
    store.close()
    assert list(store.leases()) == []


def test_the_plugin_asks_over_its_own_cluster(tmp_path: Path) -> None:
    """E5: one connection to the API server serves claims, slices and leases."""
    cluster = MemoryCluster()
    plan = planned(tmp_path, "no-such-file").nodes[0]
    StorePlace(settings(tmp_path), tmp_path).open(SystemClock(), cluster).leases.init()
    node: NodeApi = adapters.open_door(plan)
    parts = plugin.plugin_parts(plan, cluster, node)
    (answer,) = parts.store.acquire([ask(claim("a"), "u1")])
    assert isinstance(answer, Lease)
    found = cluster.get(CONFIGMAPS, Name(NAME, "fleetscrub"))
    assert "claim:a" in found["data"]["leases.jsonl"]


def test_a_kubeconfig_that_is_none_is_told(tmp_path: Path) -> None:
    """E5: a coordinator says so at once; a node comes up without its store."""
    place = StorePlace(settings(tmp_path), tmp_path, str(tmp_path / "absent"))
    with pytest.raises(errors.SettingsInvalid, match="absent"):
        adapters.open_coordinator(
            CoordinatorPlan(
                state=str(tmp_path), settings=place.settings, kubeconfig=place.kubeconfig
            )
        )
    store = LateStore(place.opener(SystemClock(), expected=lambda: True))
    with pytest.raises(errors.StoreUnavailable, match="absent"):
        store.leases()


def test_a_table_of_aws_is_a_cluster_s_store(cloud: CloudServer, tmp_path: Path) -> None:
    """E5: no file is made, a coordinator makes no table, and a node waits for one."""
    store = StoreSettings(
        kind=StoreKind.DYNAMODB, table="by-settings", region=REGION, endpoint=cloud.endpoint
    )
    place = StorePlace(Settings(store=store), tmp_path)
    assert place.shared
    assert "by-settings" in place.named
    with pytest.raises(errors.SettingsInvalid, match="not initialised"):
        adapters.open_coordinator(
            CoordinatorPlan(state=str(tmp_path), settings=place.settings)
        ).leases()
    late = LateStore(place.opener(SystemClock(), expected=lambda: False))
    with pytest.raises(errors.StoreUnavailable, match="fleet store init"):
        late.newest()
    token = place.open(SystemClock()).leases.init()
    assert late.newest() == token
    assert not store_path(tmp_path).exists()
