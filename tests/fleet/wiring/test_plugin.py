"""Wiring of the plugin's domain and of the standby: what is asked for, and nothing more."""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.settings import MIB, AdmissionSettings, KubernetesSettings, Settings
from fleet.kube.base import NODES, Name
from fleet.node.standby import Patience
from fleet.plugin.tags_claim import Isolation
from fleet.wiring import adapters, plugin
from fleet.wiring.adapters import NodePlan, SimulatedNode
from tests.fleet.admission.rights import LIST, ROOT
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.http_faults import Fault
from tests.lab.apiserver.server import StandIn


@pytest.fixture
def api() -> Iterator[StandIn]:
    """An API server."""
    with StandIn() as server:
        yield server


def plan_of(tmp_path: Path, **kubernetes: object) -> NodePlan:
    """One simulated accelerator for kubelet to hand out; everything below `tmp_path`."""
    section = KubernetesSettings(
        cdi_directory=str(tmp_path / "cdi"),
        kubelet_root=str(tmp_path / "kubelet"),
        cgroup_root=str(tmp_path / "cgroup"),
        api_timeout_s=2.0,
        **kubernetes,  # type: ignore[arg-type] # checked by the model
    )
    return NodePlan(
        node="n1",
        state=str(tmp_path / "state"),
        simulated=SimulatedNode(accelerators=1, memory_bytes=2 * MIB),
        settings=Settings(kubernetes=section),
        kubernetes=True,
    )


def test_the_cluster_of_a_kubeconfig(tmp_path: Path, api: StandIn) -> None:
    """A server that serves what is needed is taken, and asked for it."""
    cluster = plugin.open_cluster(plan_of(tmp_path), str(api.kubeconfig(tmp_path / "config")))
    with pytest.raises(errors.ApiNotFound):
        cluster.get(NODES, Name("n1"))
    assert any("resource.k8s.io/v1" in request.path for request in api.requests)


def test_a_kubeconfig_that_is_none_is_an_error(tmp_path: Path) -> None:
    """Exit 2 with the file's name, not a trace."""
    for text in (None, "{", "kind: Config"):
        path = tmp_path / "config"
        if text is not None:
            path.write_text(text)
        with pytest.raises(errors.SettingsInvalid, match="config"):
            plugin.open_cluster(plan_of(tmp_path), str(path))


def test_a_server_without_the_resources_is_refused(tmp_path: Path, api: StandIn) -> None:
    """Reference 2.5: a cluster that does not serve resource.k8s.io/v1 is named at the start."""
    api.faults.keep(Fault(path=r"/apis/resource.k8s.io/v1(\?|$)", status=404))
    with pytest.raises(errors.FleetError, match=r"resource\.k8s\.io") as refused:
        plugin.open_cluster(plan_of(tmp_path), str(api.kubeconfig(tmp_path / "config")))
    assert not isinstance(refused.value, errors.Retryable)


def test_a_server_that_is_away_keeps_no_plugin_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Invariant 19, promise 7: claims are torn down without it; the log says how it stands."""
    with StandIn() as api:
        config = api.kubeconfig(tmp_path / "config")
    with caplog.at_level(logging.WARNING):
        cluster = plugin.open_cluster(plan_of(tmp_path), str(config))
    assert "started without the API server" in caplog.text
    with pytest.raises(errors.ApiUnavailable):
        cluster.get(NODES, Name("n1"))


def test_b72_a_server_that_accepts_and_is_silent_is_waited_for_once_and_shortly(
    tmp_path: Path, api: StandIn
) -> None:
    """B72: all that a plugin's start asks the API server is waited for 2 s together; then kubelet
    is let in, and the cluster is met later."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = tmp_path / "config"
        text = api.kubeconfig(config).read_text()
        port = silent.getsockname()[1]
        config.write_text(re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", text))
        began = time.monotonic()
        _, answers = plugin.reach_cluster(plan_of(tmp_path), str(config), tmp_path / "state")
        assert not answers
        assert time.monotonic() - began < plugin.START_S + 2.0


def test_b72_a_server_that_answers_at_the_start_is_judged(tmp_path: Path, api: StandIn) -> None:
    """B72: a server that answers is held to be ours, or refused, as before."""
    config = str(api.kubeconfig(tmp_path / "config"))
    _, answers = plugin.reach_cluster(plan_of(tmp_path), config, tmp_path / "state")
    assert answers
    api.faults.keep(Fault(path=r"/apis/resource.k8s.io/v1(\?|$)", status=404))
    with pytest.raises(errors.ApiNotFound):
        plugin.reach_cluster(plan_of(tmp_path), config, tmp_path / "state")


@pytest.mark.parametrize("namespace", ["", "fleetscrub"])
def test_the_agent_device_exists_only_where_it_is_set(tmp_path: Path, namespace: str) -> None:
    """DESIGN 7: without a namespace of its own nobody may get it, so it is not there."""
    plan = plan_of(tmp_path, agent_namespace=namespace)
    door = adapters.open_door(plan)
    parts = plugin.plugin_parts(plan, MemoryCluster(), door)
    assert (parts.serving.agents is not None) is bool(namespace)
    assert (parts.orphans.agents is not None) is bool(namespace)
    parts.publisher.close()
    parts.store.close()


def test_the_plugins_parts_touch_nothing(tmp_path: Path) -> None:
    """DESIGN 7: the plugin opens no device, takes no journal, needs nobody to be there yet."""
    plan = plan_of(tmp_path)
    parts = plugin.plugin_parts(plan, MemoryCluster(), adapters.open_door(plan))
    assert not (tmp_path / "state" / "nodes").exists()
    assert not (tmp_path / "cdi").exists()
    assert parts.serving.seat.pool == "n1"
    assert parts.serving.budget_s == 40.0
    assert parts.serving.checkpoint == tmp_path / "kubelet" / "dra_manager_state"
    parts.publisher.close()
    parts.store.close()


def test_a_plan_crosses_to_a_child_whole(tmp_path: Path) -> None:
    """What a child reads is what was written, each time complete."""
    plan = plan_of(tmp_path)
    path = plugin.write_plan(plan)
    assert plugin.read_plan(path) == plan
    other = plan.model_copy(update={"labels": {"rack": "r1"}})
    assert plugin.write_plan(other) == path
    assert plugin.read_plan(path) == other
    assert [found.name for found in path.parent.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("text", [None, "", "{}", '{"node": "n1"}'])
def test_a_file_that_is_no_plan_is_an_error(tmp_path: Path, text: str | None) -> None:
    """A child started with the wrong file says which, and what to name instead."""
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(errors.InputInvalid, match="no plan of a node") as refused:
        plugin.read_plan(path)
    assert "plan.json" in refused.value.remedy


def test_a_standby_opens_the_node_as_standby(tmp_path: Path) -> None:
    """DESIGN 5, Ray: with nobody else there it owns the node and says so at the door."""
    plan = plan_of(tmp_path)
    door = adapters.open_door(plan)
    standby = plugin.open_standby(plan, Patience(grace_s=0.0, pulse_s=0.0))
    with pytest.raises(errors.NotOwner):
        door.pulse()
    standby.step()
    assert door.pulse()["owner"] == "standby"
    assert standby.service is not None
    standby.close()
    with pytest.raises((errors.NotOwner, socket.error)):
        door.pulse()
    door.close()


def test_what_claims_must_show_is_in_the_settings(tmp_path: Path) -> None:
    """C5: [admission] is what the plugin demands; without a list no tag is looked at."""
    assert plugin.isolation_of(Settings()) == Isolation("gpu.fleetscrub.dev")
    path = tmp_path / "list"
    path.write_bytes(LIST)
    section = AdmissionSettings(required=True, tag_keys=str(path), tag_roots=(ROOT.key_id,))
    found = plugin.isolation_of(Settings(admission=section))
    assert found.required
    assert found.keys is not None
    assert found.keys().number == 1
