"""Claims that wait while the coordinator does not step are told, by one plugin of all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from fleet.control.binding.liveness import LATE_S, LEASE, Alive, key_of
from fleet.control.binding.view import BindingView
from fleet.control.coordinator_absence import (
    ABSENT_S,
    BAD_PERIOD_S,
    COMPONENT,
    PERIOD_S,
    REASON,
    TURN,
    TURN_S,
    Uncoordinated,
)
from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.messages import Right
from fleet.kube.base import EVENTS, LEASES, Name, Object, PatchKind
from fleet.kube.events import Events
from tests.fleet.plugin.benches import MARKS, SPACE, Bench, bench, result

OURS = "fleetscrub"
ACCOUNT = "system:serviceaccount:fleetscrub:fleet-coordinator"


@dataclass
class Site:
    """A cluster with the two Leases of the chart, and claims that wait for conditions."""

    bench: Bench
    clock: ManualClock
    stepped_at: float = 0.0

    def plugin(self, node: str = "n1") -> Uncoordinated:
        """That of one node."""
        cluster = self.bench.cluster
        events = Events(cluster, COMPONENT, self.clock)
        return Uncoordinated(cluster, MARKS, OURS, node, events, self.clock)

    def says(self, **told: Any) -> None:
        """The coordinator steps, but for what is told."""
        now = self.clock.now()
        view = BindingView(**{"stepped_at": now, **told})
        one = Alive(pid=7, host="head", at=now, began=now - 1_000.0, binding=view)
        body = {"metadata": {"annotations": {key_of(view.nodes): one.model_dump_json()}}}
        self.bench.cluster.patch(LEASES, Name(LEASE, OURS), body, kind=PatchKind.MERGE)

    def waiting(self, name: str, pod: str) -> None:
        """A claim that the scheduler has allocated, for a pod that waits in PreBind."""
        allotted = result(
            "gpu-0",
            bindingConditions=[MARKS.sanitized, MARKS.healthy],
            bindingFailureConditions=[MARKS.failed],
        )
        asked = self.bench.allocate(self.bench.create(name), allotted)
        self.bench.reserve(asked, self.bench.pod(pod, node=""))

    def told(self) -> dict[str, Object]:
        """Events of ours by kind and name of what they are about."""
        found = self.bench.cluster.list(EVENTS).items
        return {
            f"{one['involvedObject']['kind']} {one['involvedObject']['name']}": one
            for one in found
            if one["reason"] == REASON
        }


@pytest.fixture
def site() -> Iterator[Site]:
    """Nobody has reported yet."""
    with bench() as found:
        for name in (LEASE, TURN):
            head = {"apiVersion": LEASES.api_version, "kind": LEASES.kind}
            found.cluster.create(
                LEASES, {**head, "metadata": {"name": name, "namespace": OURS}, "spec": {}}
            )
        yield Site(found, ManualClock(1_700_000_000.0))


def turns(site: Site, plugin: Uncoordinated, count: int = 2) -> None:
    """So many looks, one after the other."""
    for _ in range(count):
        site.clock.advance(plugin.step())


def test_f71_claim_and_pod_are_told_while_the_coordinator_is_gone(site: Site) -> None:
    """F71: what they wait for, since when and where more is said; nobody while it steps, and once
    it steps again nothing is said of it any more."""
    plugin = site.plugin()
    site.waiting("a", "pod-of-a")
    for _ in range(3):
        site.says()
        assert plugin.step() == PERIOD_S
        site.clock.advance(PERIOD_S)
    assert site.told() == {}
    site.clock.advance(LATE_S)
    assert plugin.step() == BAD_PERIOD_S
    assert site.told() == {}, "a claim may have been allocated just now"
    site.clock.advance(BAD_PERIOD_S)
    plugin.step()
    told = site.told()
    assert set(told) == {"ResourceClaim a", "Pod pod-of-a"}
    event = told["Pod pod-of-a"]
    assert event["type"] == "Warning"
    assert event["metadata"]["namespace"] == SPACE
    assert event["message"].startswith(
        f"not ready yet: the coordinator of {MARKS.driver} has said nothing since 2023-11-14T22:14"
    )
    assert "`fleet status`" in event["message"]
    site.says()
    assert plugin.step() == PERIOD_S


def test_f71_it_is_said_at_most_every_ten_minutes(site: Site) -> None:
    """F71: the same words are one event, whose count goes up; no figure in it grows."""
    plugin = site.plugin()
    site.waiting("a", "p")
    stepped_at = site.clock.now() - LATE_S - 1
    writes = len(site.bench.cluster.writes())
    for _ in range(20):
        site.says(stepped_at=stepped_at)
        site.clock.advance(plugin.step())
    (event,) = [one for key, one in site.told().items() if key == "ResourceClaim a"]
    assert "has not stepped since 2023-11-14T22:12:49Z" in event["message"]
    assert event["count"] == 1
    events = [one for one in site.bench.cluster.writes()[writes:] if one.resource == EVENTS]
    assert len(events) == 2


def test_f71_a_right_without_which_no_claim_is_bound_is_named(site: Site) -> None:
    """F71: one that concerns no claim is told to no claim."""
    plugin = site.plugin()
    site.waiting("a", "p")
    right = Right(verb="patch", resource="nodes/status", account=ACCOUNT)
    site.says(missing=(right,))
    assert plugin.step() == PERIOD_S
    right = Right(
        verb="patch", resource="resourceclaims/status", group="resource.k8s.io", account=ACCOUNT
    )
    for _ in range(2):
        site.says(missing=(right,))
        site.clock.advance(plugin.step())
    message = site.told()["ResourceClaim a"]["message"]
    assert f"lacks a right: patch resourceclaims.resource.k8s.io/status (account {ACCOUNT})" in (
        message
    )


def test_f71_one_that_never_reported_has_time_to_start(site: Site) -> None:
    """F71: a first installation alarms nobody; one in which no coordinator starts is told."""
    plugin = site.plugin()
    site.waiting("a", "p")
    assert plugin.step() == PERIOD_S
    site.clock.advance(ABSENT_S + 1)
    turns(site, plugin)
    assert "has never reported" in site.told()["Pod p"]["message"]


def test_f71_who_does_not_wait_is_told_nothing(site: Site) -> None:
    """F71: a claim that is bound, or of a class for which nobody waits, goes on without it."""
    plugin = site.plugin()
    asked = site.bench.allocate(site.bench.create("fast"), result("gpu-0"))
    site.bench.reserve(asked, site.bench.pod("p"))
    site.says(stepped_at=site.clock.now() - LATE_S - 1)
    turns(site, plugin, 3)
    assert site.told() == {}


def test_f71_one_of_all_plugins_tells(site: Site) -> None:
    """F71: a list of all claims from every node would be the next outage; the turn passes on when
    it is not prolonged."""
    first, second = site.plugin("n1"), site.plugin("n2")
    site.waiting("a", "p")
    site.says(stepped_at=site.clock.now() - LATE_S - 1)
    lists = _lists(site)
    for _ in range(3):
        first.step()
        site.clock.advance(second.step())
    assert _lists(site) - lists == 3
    holder = site.bench.cluster.get(LEASES, Name(TURN, OURS))["spec"]["holderIdentity"]
    assert holder == "n1"
    site.clock.advance(TURN_S + 1)
    site.says(stepped_at=site.clock.now() - LATE_S - 1)
    second.step()
    holder = site.bench.cluster.get(LEASES, Name(TURN, OURS))["spec"]["holderIdentity"]
    assert holder == "n2"


def test_f71_a_turn_that_two_want_is_one_of_them_s(site: Site) -> None:
    """F71: the write is guarded by what was read; who comes second has it not."""
    plugin = site.plugin()
    site.says(stepped_at=site.clock.now() - LATE_S - 1)
    site.bench.cluster.faults.fail_next("patch", errors.ApiConflict("changed", reason="Conflict"))
    lists = _lists(site)
    assert plugin.step() == BAD_PERIOD_S
    assert _lists(site) == lists


def _lists(site: Site) -> int:
    return sum(1 for call in site.bench.cluster.calls if call.verb == "list")
