"""The plugin's role is exactly what the plugin calls: nothing missing, nothing to spare."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from fleet.dra.waiting import Waiting, leaving
from fleet.kube.base import SLICES, Change, Event, Resource
from fleet.kube.memory.access import Access, Caller, Rule
from fleet.kube.memory.cluster import MemoryCluster
from fleet.messages import ClaimOrder
from node_plugin import wiring
from node_plugin.wiring import Options, Plugin
from tests.deploy.manifests import of_kind
from tests.fleet.dra.benches import DRIVER, NODE, Bench, bench

USER = "system:serviceaccount:fleetscrub:fleet-node-plugin"
VERBS = {"replace": "update", "apply": "patch"}
"""Calls of the port whose verb in RBAC has another name."""


def granted() -> set[tuple[str, str, str]]:
    """(group, resource, verb) of every right of the role."""
    (role,) = of_kind("ClusterRole")
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(cluster: MemoryCluster) -> set[tuple[str, str, str]]:
    """(group, resource, verb) of every call made."""
    return {
        (
            call.resource.group,
            _with_part(call.resource, call.subresource),
            VERBS.get(call.verb, call.verb),
        )
        for call in cluster.calls
    }


def _with_part(resource: Resource, subresource: str) -> str:
    return f"{resource.plural}/{subresource}" if subresource else resource.plural


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


def test_the_role_is_what_the_plugin_calls() -> None:
    """A round of publishing, claims, orphans and the watch needs every right and no other."""
    with bench() as site:
        engine = site.cluster.engine
        engine.access = Access([Rule(USER, (verb,), (what,)) for _, what, verb in granted()])
        cluster = MemoryCluster(engine, caller=Caller(USER, NODE, "fleetscrub"))
        with plugged(site, cluster) as plugin:
            stale = _publish(site, plugin)
            assert stale not in {s["metadata"]["name"] for s in site.cluster.list(SLICES).items}
            asked = site.bound("a", "gpu-0")
            assert plugin.serving.prepare(asked).devices
            plugin.serving.unprepare(asked)
            assert site.record(asked) == "ABSENT"
            _orphan(site, plugin)
            plugin._stop.set()
            plugin._watch()
        assert used(cluster) == granted()


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
    assert plugin.keeper.report.writes == 1
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
    assert plugin.orphans.step() == ()
    assert plugin.orphans.step() == ("nameless",)


def test_without_a_right_the_plugin_says_which() -> None:
    """A role that lacks a right is told of in the words of the API server, with the verb."""
    with bench() as site:
        engine = site.cluster.engine
        lacking = [
            Rule(USER, (verb,), (what,))
            for _, what, verb in granted()
            if (what, verb) != ("resourceslices", "create")
        ]
        engine.access = Access(lacking)
        cluster = MemoryCluster(engine, caller=Caller(USER, NODE, "fleetscrub"))
        with plugged(site, cluster) as plugin:
            plugin.keeper.step(site.node.view().at)
            (trouble,) = plugin.keeper.report.trouble
        assert not plugin.keeper.report.settled
        assert trouble.kind == "ApiForbidden"
        assert "create" in trouble.detail


def test_the_binding_gives_the_role_to_the_account() -> None:
    """Account, binding and role name each other, and no right is given by a wildcard."""
    (account,) = of_kind("ServiceAccount")
    (binding,) = of_kind("ClusterRoleBinding")
    (role,) = of_kind("ClusterRole")
    named = {"kind": "ServiceAccount", **account["metadata"]}
    assert binding["subjects"] == [named]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert f"system:serviceaccount:{named['namespace']}:{named['name']}" == USER
    assert not any("*" in right for right in granted())
