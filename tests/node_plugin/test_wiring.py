"""A plugin put together: kubelet in front, the node's door behind, slices beside."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.settings import MIB
from fleet.kube.base import EVENTS, SLICES, Selection
from fleet.node.service import NodeService
from fleet.plugin.reconciler import Keeper
from fleet.plugin.requests import AskedClaim
from fleet.wiring import adapters
from fleet.wiring.adapters import NodePlan, SimulatedNode
from node_plugin.health import Health
from node_plugin.wiring import TOLD_AFTER_S, Behind, Options, Plugin, open_plugin
from tests.lab.apiserver.cluster import MemoryCluster
from tests.node_plugin.sites import NODE, Place, kubelet
from tests.node_plugin.standins import told
from tests.node_plugin.test_children import eventually

ALONE = Options(standby=False, kubelet_s=0.0)
"""Nobody but the test owns the node."""


@pytest.fixture
def site(place: Path) -> Place:
    """A node with nothing running on it, API in memory."""
    return Place(place, MemoryCluster())


def plan_of(site: Place) -> NodePlan:
    return NodePlan(
        node=NODE,
        state=str(site.root / "state"),
        simulated=SimulatedNode(accelerators=2, memory_bytes=2 * MIB),
        settings=site.settings,
        kubernetes=True,
    )


@contextmanager
def owner(plan: NodePlan) -> Iterator[NodeService]:
    """The node's owner, ticking as its process does."""
    service, stop = adapters.open_node(plan, owner="standby"), threading.Event()

    def run() -> None:
        while not stop.wait(0.05):
            service.tick(service._registry.clock.now())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        stop.set()
        thread.join(10.0)
        service.close()


@contextmanager
def running(site: Place, options: Options = ALONE) -> Iterator[Plugin]:
    """A plugin between its start and its stop."""
    plugin = open_plugin(plan_of(site), site.cluster, options)
    plugin.start()
    try:
        yield plugin
    finally:
        plugin.stop(1.0)


def test_claims_through_the_whole_plugin(site: Place) -> None:
    """E1: socket, claim, node, spec and back; a refused claim leaves its neighbour alone."""
    with owner(plan_of(site)), running(site), kubelet(site) as calls:
        eventually(lambda: site.allocatable(2))
        good, bad = site.claim("gpu-0"), site.claim("gpu-9")
        answers = calls.prepare(good, bad)
        assert set(answers) == {good.uid, bad.uid}
        assert "no device 'gpu-9'" in answers[bad.uid].error
        (device,) = answers[good.uid].devices
        assert (list(device.request_names), device.pool_name, device.device_name) == (
            ["gpu"],
            NODE,
            "gpu-0",
        )
        assert site.ids() == set(device.cdi_device_ids)
        assert calls.prepare(good)[good.uid] == answers[good.uid]
        assert calls.unprepare(good, bad) == {good.uid: "", bad.uid: ""}
        assert site.specs == []


def test_slices_wait_until_kubelet_has_the_plugin(site: Place) -> None:
    """A claim allocated before kubelet has registered the plugin costs a pod 60 to 90 s, so nothing
    is offered before that, or before kubelet had its time."""
    patient = Options(standby=False, kubelet_s=60.0)
    with owner(plan_of(site)), running(site, patient) as plugin:
        steps = [plugin.standing()]

        def looked_often() -> bool:
            """Each step of the plugin tells anew how it stands."""
            if (found := plugin.standing()) is not steps[-1]:
                steps.append(found)
            return len(steps) > 3

        eventually(looked_often)
        assert not site.allocatable(2)
        asyncio.run(told(plugin.server.paths.registration, registered=True))
        eventually(lambda: site.allocatable(2))


def test_slices_that_kubelet_deletes_come_back(site: Place) -> None:
    """B34, invariant 5: the watch tells of the wipe, long before the resync would."""
    cluster = site.cluster
    assert isinstance(cluster, MemoryCluster)
    with owner(plan_of(site)), running(site):
        eventually(lambda: site.allocatable(2))
        for _ in range(2):
            cluster.engine.delete_collection(SLICES, Selection(fields=f"spec.nodeName={NODE}"))
            eventually(lambda: site.allocatable(2))
    assert site.allocatable(2)


def test_kubelet_finds_the_plugin_only_while_it_serves(site: Place) -> None:
    """Invariants 2 and 4: both sockets come with the start and go with the stop; slices stay."""
    with owner(plan_of(site)):
        with running(site) as plugin:
            assert site.registry == ["gpu.fleetscrub.dev-reg.sock"]
            assert site.dra.exists()
            eventually(lambda: site.allocatable(2))
        assert (site.registry, site.dra.exists()) == ([], False)
        plugin.stop()
        assert site.allocatable(2)
    assert [thread.name for thread in plugin._threads if thread.is_alive()] in ([], ["watch"])


def test_how_the_node_stands(site: Place) -> None:
    """Probes read memory: who owns the node, and when the slices were last as wanted."""
    with running(site) as plugin:
        assert not plugin.standing().owner_reachable
        with owner(plan_of(site)):
            eventually(lambda: plugin.standing().owner_reachable)
            eventually(lambda: plugin.standing().published_at is not None)
            assert plugin.standing().owner == "standby"
        eventually(lambda: not plugin.standing().owner_reachable)
        assert plugin.standing().published_at is not None


def test_a_node_that_can_prepare_nothing_says_so_and_is_tainted(site: Place) -> None:
    """A forgotten mount: probes name it and no device may be allocated, before any pod waits."""
    (site.root / "cgroup").rename(site.root / "forgotten")
    with running(site) as plugin, owner(plan_of(site)) as service:
        eventually(lambda: bool(plugin.standing().blocked))
        assert "there are no cgroups" in plugin.standing().blocked[0]
        assert set(plugin.standing().blocked) <= set(plugin.standing().degraded)
        eventually(lambda: {device.state for device in service.view().devices} == {"CLEAN"})
        eventually(lambda: plugin.standing().published_at is not None)
        assert not site.allocatable(1)


def test_a_plugin_s_pod_says_by_events_what_its_probe_cannot(site: Place) -> None:
    """Kubelet shows the status code of a failed probe alone: the cause is an event of the pod."""
    (site.root / "cgroup").rename(site.root / "forgotten")
    no_pod = replace(ALONE, pod="fleetscrub/plugin-x")
    with running(site, no_pod) as plugin:
        assert plugin.events is None  # without its UID it is no pod
    in_pod = replace(no_pod, instance="uid-1")
    with running(site, in_pod) as plugin, owner(plan_of(site)):
        assert plugin.events is not None
        eventually(lambda: bool(plugin.standing().blocked))
        began = time.monotonic()
        for later_s in (0.0, TOLD_AFTER_S):
            plugin.events.step(plugin.vitals.lacks(), began + later_s)
        (event,) = [
            one for one in site.cluster.list(EVENTS).items if one["reason"] == "NodeBlocked"
        ]
        assert event["involvedObject"]["name"] == "plugin-x"
        assert "there are no cgroups" in event["message"]


def test_health_of_the_node_is_what_kubelet_is_told(site: Place) -> None:
    """B8: a quarantined device is unhealthy on the board, by the name it is published under."""
    with owner(plan_of(site)) as service, running(site) as plugin:
        service.quarantine_add("gpu-1", detail="smells", operator="tester")

        def shown() -> dict[str, Health]:
            return {d.device: d.health for d in plugin.server.board.current() or ()}

        eventually(lambda: shown() == {"gpu-0": Health.HEALTHY, "gpu-1": Health.UNHEALTHY})


def test_a_second_plugin_does_not_rob_the_first(site: Place) -> None:
    """B46: it ends with an error, its threads with it, and the first goes on serving."""
    with owner(plan_of(site)), running(site), kubelet(site) as calls:
        second = open_plugin(plan_of(site), site.cluster, ALONE)
        with pytest.raises(errors.SocketTaken):
            second.start()
        second.stop()
        assert not [t for t in second._threads if t.is_alive() and t.name != "watch"]
        assert calls.unprepare(AskedClaim("default", "u-1", "x")) == {"u-1": ""}


def test_two_instances_serve_one_node(site: Place) -> None:
    """Invariant 40: a rolling update: claims cross from one to the other, one device has one
    holder whoever is asked, the pool is never emptied, and the one that stays takes it over."""
    options = [replace(ALONE, instance=uid) for uid in ("old-uid", "new-uid")]
    old = open_plugin(plan_of(site), site.cluster, options[0])
    with owner(plan_of(site)) as service, running(site, options[1]) as new:
        old.start()
        with kubelet(site, "new-uid") as to_new, kubelet(site, "old-uid") as to_old:
            eventually(lambda: site.allocatable(2))
            eventually(lambda: bool(old.keeper.report.elsewhere))
            asked, rival = site.claim("gpu-0"), site.claim("gpu-0")
            answer = to_old.prepare(asked)
            with ThreadPoolExecutor(2) as pool:
                again = pool.submit(to_new.prepare, asked)
                refused = pool.submit(to_old.prepare, rival)
                assert again.result() == answer
                assert "held by another claim" in refused.result()[rival.uid].error
            assert to_new.unprepare(asked) == {asked.uid: ""}
            assert to_old.prepare(rival)[rival.uid].error == ""
            new.stop(1.0)
            assert site.registry == ["gpu.fleetscrub.dev-old-uid-reg.sock"]
            assert to_old.unprepare(rival) == {rival.uid: ""}
        service.quarantine_add("gpu-1", detail="smells", operator="tester")
        eventually(lambda: "quarantined" in site.taints()["gpu-1"])
        old.stop(1.0)
    assert all(devices for devices in written(site))


def written(site: Place) -> list[object]:
    """What each write of a slice listed."""
    cluster = site.cluster
    assert isinstance(cluster, MemoryCluster)
    calls = [call for call in cluster.writes() if call.resource == SLICES and call.body]
    return [call.body["spec"].get("devices") for call in calls]


def test_a_plugin_with_its_own_standby(site: Place) -> None:
    """DESIGN 5, Ray: without Ray the child owns the node; it gives the journal up with us."""
    plan = plan_of(site)
    with running(site, Options(kubelet_s=0.0)) as plugin, kubelet(site) as calls:
        eventually(lambda: site.allocatable(2))
        asked = site.claim()
        assert calls.prepare(asked)[asked.uid].error == ""
        assert calls.unprepare(asked)[asked.uid] == ""
        (child,) = plugin.children
        assert plugin.standing().owner == "standby"
    assert (child.pid, child.starts) == (None, 1)
    with owner(plan) as service:
        assert service.claims() == []


def test_settings_that_make_every_device_stale_are_refused(site: Place) -> None:
    """B7: a verdict must outlive two sweeps, else devices flap."""
    plan = plan_of(site)
    health = plan.settings.health.model_copy(update={"fresh_s": 30.0, "sweep_period_s": 20.0})
    slow = plan.settings.model_copy(update={"health": health})
    with pytest.raises(errors.SettingsInvalid, match="two sweeps"):
        open_plugin(plan.model_copy(update={"settings": slow}), site.cluster)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (Options(), ["standby"]),
        (Options(standby=False), []),
        (Options(ray_address="10.0.0.1:6379"), ["standby", "bridge"]),
        (Options(standby=False, ray_address="10.0.0.1:6379"), ["bridge"]),
    ],
)
def test_children_are_those_asked_for(site: Place, options: Options, names: list[str]) -> None:
    """DESIGN 5: Ray only in the bridge, which is told where Ray is; the plan goes by file."""
    plugin = open_plugin(plan_of(site), site.cluster, options)
    assert [child.name for child in plugin.children] == names
    for child in plugin.children:
        assert str(site.root / "state" / "nodes" / NODE / "plan.json") in child.command
        assert "-P" in child.command
        if child.name == "bridge":
            assert child.command[-1] == "10.0.0.1:6379"
        else:
            assert "--supervised" in child.command
    plugin.stop()


class Refusing:
    """Claims that all are refused."""

    def prepare(self, asked: AskedClaim) -> None:
        raise errors.DeviceBusy(f"{asked.uid} has to wait")

    def unprepare(self, asked: AskedClaim) -> None:
        if asked.uid != "fine":
            raise errors.NotOwner("nobody is there")


def test_errors_become_values_for_each_claim() -> None:
    """Invariant 10: what one claim meets is in its own entry; only ours are values."""
    behind = Behind(Refusing())  # type: ignore[arg-type] # the two methods are all that is used
    asked = [AskedClaim("d", uid, uid) for uid in ("a", "b")]
    found = behind.prepare(asked)
    assert {uid: type(one) for uid, one in found.items()} == {
        "a": errors.DeviceBusy,
        "b": errors.DeviceBusy,
    }
    assert isinstance(behind.unprepare(asked[0]), errors.NotOwner)
    assert behind.unprepare(AskedClaim("d", "fine", "fine")) is None


def test_a_directory_of_specs_that_cannot_be_written_keeps_nobody_from_starting(
    site: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise 7: claims are torn down meanwhile, and the agent's specs are settled once it can."""
    plan = plan_of(site)
    kubernetes = plan.settings.kubernetes.model_copy(update={"agent_namespace": "own"})
    settings = plan.settings.model_copy(update={"kubernetes": kubernetes})
    plan = plan.model_copy(update={"settings": settings})
    plugin = open_plugin(plan, site.cluster, ALONE)
    assert plugin.serving.agents is not None
    plugin.serving.agents.prepare(AskedClaim("own", "u-1", "agent"))
    ids = site.ids()
    shutil.rmtree(site.root / "cdi")
    (site.root / "cdi").write_text("")
    plugin.start()
    assert "not settled yet" in caplog.text
    (site.root / "cdi").unlink()
    plugin._settle_agents()
    assert site.ids() == ids
    plugin.stop(1.0)


def test_a_step_that_fails_does_not_end_its_thread(
    site: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """No state is a trap: the keeper goes on after whatever a step met."""
    plugin = open_plugin(plan_of(site), site.cluster, ALONE)
    met: list[str] = []

    class Failing(Keeper):
        def step(self, now: float) -> None:
            met.append(f"{now}")
            raise (KeyError("a fault of ours") if len(met) == 1 else errors.NotOwner("away"))

    plugin.keeper = Failing(plugin.door, plugin.publisher, lambda _: None)
    plugin.start()
    eventually(lambda: len(met) >= 2)
    plugin.stop(1.0)
    assert "step failed" in caplog.text
