"""The plugin's role is exactly what the plugin calls: nothing missing, nothing to spare."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from fleet.control.coordinator_absence import ABSENT_S, COMPONENT, Uncoordinated
from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.messages import ClaimOrder
from fleet.kube import claim_bodies
from fleet.kube.base import CLAIMS, EVENTS, LEASES, SLICES, Change, Event, Name
from fleet.kube.claim import read
from fleet.kube.claim_bodies import Told, Word
from fleet.kube.claim_holds import Holds
from fleet.kube.events import REPEAT_S, Events
from fleet.kube.marks import MANAGER
from fleet.plugin.requests import AskedClaim
from fleet.plugin.retries import Waiting, leaving
from node_plugin import wiring
from node_plugin.ports import Lack
from node_plugin.wiring import TOLD_AFTER_S, Options, Plugin, PodEvents, pod_of
from tests.deploy.manifests import Right, called, of_kind, rights, role, rules
from tests.fleet.plugin.benches import DRIVER, MARKS, NODE, Bench, bench, result
from tests.lab.apiserver.access import Access, Caller
from tests.lab.apiserver.cluster import MemoryCluster

USER = "system:serviceaccount:fleetscrub:fleet-node-plugin"
GROUP = "resource.k8s.io"
BINDING: Right = (GROUP, "resourceclaims/binding", "patch")
SAID: Right = (GROUP, "resourceclaims/driver", "associated-node:patch")
ASKED_BESIDES = {BINDING, SAID}
"""Rights that no call has by itself: the server asks for them at a write of a claim's status."""
EVERYBODYS = {("authorization.k8s.io", "selfsubjectaccessreviews", "create")}
"""Rights of every service account by the cluster's own role ``system:basic-user``."""
ROLES = [
    role("fleet-node-plugin"),
    *(role(name, "Role") for name in ("fleet-store", "fleet-node-plugin", "fleet-status")),
]
ROLE = ROLES[0]


@contextmanager
def plugged(site: Bench, cluster: MemoryCluster) -> Iterator[Plugin]:
    """The plugin of the bench's node, put together and not started, with rights of its own."""
    site.unplug()
    plugin = wiring.open_plugin(site.plan, cluster, Options(standby=False))
    waiting = Waiting(site.clock, site._pause, leaving(plugin.door))
    plugin.serving = replace(plugin.serving, waiting=waiting, clock=site.clock)
    try:
        yield plugin
    finally:
        plugin.publisher.close()
        plugin.ends()
        plugin.door.close()


def plugged_in(site: Bench, *, without: Right | None = None) -> MemoryCluster:
    """The API as the plugin meets it, with the rights as shipped."""
    site.cluster.engine.access = Access(rules(USER, *ROLES, without=without))
    return MemoryCluster(site.cluster.engine, caller=Caller(USER, NODE, "fleetscrub"))


def test_the_role_is_what_the_plugin_calls() -> None:
    """A round of publishing, claims, orphans and the watch needs every right and no other."""
    with bench() as site:
        cluster = plugged_in(site)
        with plugged(site, cluster) as plugin:
            stale = _publish(site, plugin)
            assert stale not in {s["metadata"]["name"] for s in site.cluster.list(SLICES).items}
            asked = site.bound("a", "gpu-0")
            assert plugin.serving.prepare(asked).devices
            assert read(site.claim_of(asked), MARKS).held
            plugin.serving.unprepare(asked)
            assert site.record(asked) == "ABSENT"
            _orphan(site, plugin)
            plugin._stop.set()
            plugin._watch()
            _told(site, plugin)
        store = rights(role("fleet-store", "Role"))
        assert called(cluster) - EVERYBODYS - store | ASKED_BESIDES == rights(*ROLES) - store


def test_a_claim_is_held_and_let_go_with_the_role() -> None:
    """D6: hold and finalizer go on and off, and conditions of the use that has ended go False."""
    with bench() as site:
        asked = _proven(site)
        holds = Holds(plugged_in(site), MARKS, site.clock)
        assert holds.ensure(read(site.claim_of(asked), MARKS)).finalizer
        assert holds.release(_name(asked), asked.uid).left
        waited_for = read(site.claim_of(asked), MARKS)
        assert (waited_for.held, waited_for.bound) == (True, False)
        site.reserve(asked, MARKS.hold(node=NODE, uid=asked.uid))
        assert not holds.release(_name(asked), asked.uid).finalizer
        left = read(site.claim_of(asked), MARKS)
        assert (left.held, left.allocated) == (False, False)


@pytest.mark.parametrize("right", sorted(ASKED_BESIDES))
def test_the_rights_asked_for_besides_are_needed(right: Right) -> None:
    """D6: without one of them the server refuses what holding and letting go write."""
    with bench() as site:
        asked = _proven(site)
        Holds(site.cluster, MARKS, site.clock).ensure(read(site.claim_of(asked), MARKS))
        if right == BINDING:  # the last reservation goes with the allocation
            site.reserve(asked, MARKS.hold(node=NODE, uid=asked.uid))
        holds = Holds(plugged_in(site, without=right), MARKS, site.clock)
        with pytest.raises(errors.HoldsNotGranted):
            holds.release(_name(asked), asked.uid)


def _name(asked: AskedClaim) -> Name:
    return Name(asked.name, asked.namespace)


def _proven(site: Bench) -> AskedClaim:
    """A claim allocated on the node as by kube-scheduler, of which it was said that it is ready."""
    term = {"key": "metadata.name", "operator": "In", "values": [NODE]}
    conditions = {
        "bindingConditions": [MARKS.sanitized],
        "bindingFailureConditions": [MARKS.failed],
    }
    asked = site.create("a")
    site._status(
        asked,
        allocation={
            "devices": {"results": [result("gpu-0") | conditions]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [term]}]},
        },
    )
    site.reserve(asked, site.pod("p"))
    reading = read(site.claim_of(asked), MARKS)
    told = Told(reading.devices[0], (Word(MARKS.sanitized, true=True, reason="Wiped"),))
    body = claim_bodies.status(reading, MARKS, told=(told,), now=site.clock.now())
    site.cluster.apply(CLAIMS, body, manager=MANAGER, subresource="status")
    return asked


def _publish(site: Bench, plugin: Plugin) -> str:
    """Create, change and clean up slices; the name of the one that had to go."""
    old = {
        "apiVersion": SLICES.api_version,
        "kind": SLICES.kind,
        "metadata": {"name": "left-by-an-earlier-version"},
        "spec": {
            "driver": DRIVER,
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": 0, "resourceSliceCount": 1},
            "devices": [],
        },
    }
    now = site.node.view().at
    plugin.keeper.step(now)
    assert plugin.keeper.report.settled
    assert plugin.keeper.report.writes == 2  # devices, and the counters of those that overlap
    plugin.publisher.changed(Event(Change.ADDED, site.cluster.create(SLICES, old)))
    site.node.quarantine_add("gpu-1", detail="to be written", operator="test")
    plugin.keeper.step(now + 1)
    assert plugin.keeper.report.settled
    assert plugin.keeper.report.confirmed_quarantine
    return str(old["metadata"]["name"])  # type: ignore[index] # a literal above


def _orphan(site: Bench, plugin: Plugin) -> None:
    """A record without a name, as after the loss of a journal: the whole list has to deny it."""
    site.node.tick(site.node.view().at)  # gives the lease of the claim before it back
    order = ClaimOrder(uid="nameless", node=NODE, devices=("gpu-0",), consumers=("pod-x",))
    site.node.prepare(order, budget_s=20.0)
    plugin._judge_orphans()
    assert plugin.orphans.step() == ("nameless",)


def test_events_about_its_own_pod_and_waiting_claims_need_a_role() -> None:
    """Told, and counted up later: three verbs, in whatever namespace a claim waits."""
    clock = ManualClock(1_000_000.0)
    cluster = MemoryCluster()
    cluster.engine.access = Access(rules(USER, ROLE))
    ours = MemoryCluster(cluster.engine, caller=Caller(USER, NODE, "fleetscrub"))
    for _ in range(2):  # whoever starts anew finds what was told before
        pod = pod_of("fleetscrub/plugin-x", "uid-1")
        assert pod is not None
        told = PodEvents(Events(ours, COMPONENT, clock), pod)
        for _ in range(2):
            told.step([Lack("NodeBlocked", "disk full")], clock.monotonic())
            clock.advance(REPEAT_S + TOLD_AFTER_S)
    assert [(one["metadata"]["namespace"], one["count"]) for one in cluster.list(EVENTS).items] == [
        ("fleetscrub", 2)
    ]
    assert called(ours) == {("", "events", verb) for verb in ("create", "get", "patch")}


def _told(site: Bench, plugin: Plugin) -> None:
    """F71: a claim that waits for a coordinator which never reported; later once more."""
    for lease in of_kind("Lease"):
        site.cluster.create(LEASES, lease)
    allotted = result("gpu-1", bindingConditions=[MARKS.sanitized, MARKS.healthy])
    site.reserve(site.allocate(site.create("waits"), allotted), site.pod("waiting", node=""))
    clock = ManualClock(site.clock.now())
    for _ in range(2):
        teller = Uncoordinated(
            cluster=plugin.cluster, marks=MARKS, namespace="fleetscrub", node=NODE,
            events=Events(plugin.cluster, COMPONENT, clock), clock=clock,
        )  # fmt: skip
        teller.step()
        clock.advance(ABSENT_S + 2 * REPEAT_S)
        for _ in range(2):
            teller.step()
    assert {one["count"] for one in site.cluster.list(EVENTS).items} == {2}


def test_without_a_right_the_plugin_says_which() -> None:
    """A role that lacks a right is told of in the words of the API server, with the verb."""
    with bench() as site:
        cluster = plugged_in(site, without=(GROUP, "resourceslices", "create"))
        with plugged(site, cluster) as plugin:
            plugin.keeper.step(site.node.view().at)
            (trouble,) = plugin.keeper.report.trouble
            assert [*map(str, plugin.rights.missing)] == [
                f"create resourceslices.resource.k8s.io (account {USER})"
            ]
            assert "create resourceslices" in site.node.view().degraded[0], "F77: and in status"
        assert not plugin.keeper.report.settled
        assert trouble.kind == "ApiForbidden"
        assert "create" in trouble.detail


def test_the_binding_gives_the_role_to_the_account() -> None:
    """Account, binding and role name each other, and no right is given by a wildcard."""
    (account,) = of_kind("ServiceAccount", "rbac.yaml")
    named = {"kind": "ServiceAccount", **account["metadata"]}
    for kind in ("ClusterRole", "Role"):
        (binding,) = of_kind(f"{kind}Binding", "rbac.yaml")
        assert binding["subjects"] == [named]
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == (kind, named["name"])
    assert f"system:serviceaccount:{named['namespace']}:{named['name']}" == USER
    assert not any("*" in right for right in rights(*ROLES))
