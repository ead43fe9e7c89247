"""What a plugin's own pod is told to operators by events."""

from __future__ import annotations

from fleet.control.coordinator_absence import COMPONENT
from fleet.core.clock import ManualClock
from fleet.kube.base import EVENTS, PODS, Name
from fleet.kube.events import Events, Regarding
from node_plugin.ports import Lack
from node_plugin.wiring import PERIOD_S, TEXTS_MAX, TOLD_AFTER_S, PodEvents, pod_of
from tests.lab.apiserver.cluster import MemoryCluster

NOW = 1_000_000.0
POD = Regarding(PODS, Name("plugin-x", "fleetscrub"), "uid-1")


def test_what_lasts_is_told_once_and_in_our_namespace() -> None:
    """An event a cause, however often it is looked at and whatever figure in it grows."""
    cluster, clock = MemoryCluster(), ManualClock(NOW)
    told = PodEvents(Events(cluster, COMPONENT, clock), POD)
    for second in range(0, 60, int(PERIOD_S)):
        told.step(
            [Lack("SlicesNotPublished", f"not confirmed since {60 + second} s: 403")],
            clock.monotonic(),
        )
        assert bool(cluster.list(EVENTS).items) == (second >= TOLD_AFTER_S)
        clock.advance(PERIOD_S)
    (event,) = cluster.list(EVENTS).items
    assert (event["reason"], event["type"]) == ("SlicesNotPublished", "Warning")
    assert event["involvedObject"]["name"] == "plugin-x"
    assert event["metadata"]["namespace"] == "fleetscrub"
    assert event["message"] == f"not confirmed since {60 + TOLD_AFTER_S:.0f} s: 403"


def test_what_passes_by_itself_is_not_told() -> None:
    """A start, or a change of owners, is no news; what comes back has to last anew."""
    cluster, clock = MemoryCluster(), ManualClock(NOW)
    told = PodEvents(Events(cluster, COMPONENT, clock), POD)
    for second in range(60):
        told.step([Lack("NodeSilent", "no owner")] if second % 10 < 9 else [], clock.monotonic())
        clock.advance(1.0)
    assert cluster.list(EVENTS).items == ()


def test_a_text_that_is_another_each_time_is_told_and_fills_no_server() -> None:
    """What lasts is the reason: names that the server makes anew hide no missing right."""
    cluster, clock = MemoryCluster(), ManualClock(NOW)
    told = PodEvents(Events(cluster, COMPONENT, clock), POD)
    for second in range(60):
        name = "".join(chr(ord("a") + int(digit)) for digit in str(second))
        told.step([Lack("SlicesIncomplete", f"POST slice-{name}: HTTP 403")], clock.monotonic())
        clock.advance(1.0)
    assert len(cluster.list(EVENTS).items) == TEXTS_MAX


def test_outside_of_a_pod_there_is_nothing_to_tell_about() -> None:
    """A plugin of a systemd unit has no pod; half a name is none."""
    assert pod_of("fleetscrub/plugin-x", "uid-1") == POD
    assert pod_of("", "uid-1") is pod_of("fleetscrub/plugin-x", "") is pod_of("x", "u") is None
