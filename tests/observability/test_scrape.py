"""A real Prometheus scrapes a running simulated fleet: plugin, Ray with its actors, coordinator."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from fleet.core.profiles import Profile
from fleet.metrics import of_coordinator
from fleet.metrics.catalogue import METRICS, of_series
from fleet.metrics.metric import Exporter, Kind, Metric
from fleet.metrics.of_node import TIMESTAMP
from fleet.wiring import adapters
from tests.alerts import alerts
from tests.chaos.kubelet.story import Act, Call, Story
from tests.chaos.kubelet.theatre import NODE, Theatre
from tests.debian import Program
from tests.observability.prometheus import Prometheus, running

pytestmark = pytest.mark.observability
TOLD_S = 40.0
"""Time, s, in which a fact is scraped: the coordinator reads every 15 s, and Ray reports then."""
RAY_REPORTS_MS = 5000
"""Ray's report period, half of its default: no shorter than our own, and less to wait for."""
HOMES = {
    Exporter.NODE: ("plugin", "ray"),
    Exporter.COORDINATOR: ("ray",),
    Exporter.PLUGIN: ("plugin",),
}
REASONS = f'fleet_quarantine_reasons{{node="{NODE}",code="operator"}}'


@dataclass
class Scene:
    """The fleet, and who scrapes it."""

    theatre: Theatre
    prometheus: Prometheus
    log: list[str]

    def until(self, fact: Callable[[], object], why: str, timeout_s: float = TOLD_S) -> float:
        """Wait until a fact holds; how long that took, s."""
        began, pause = time.monotonic(), threading.Event()
        while not fact():
            assert time.monotonic() - began < timeout_s, why
            pause.wait(0.2)
        taken_s = time.monotonic() - began
        self.log.append(f"{why}: after {taken_s:.1f} s")
        return taken_s


def _free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def scene(prometheus_program: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One node with everything, one pod that came and went, one that runs."""
    calls = (Call(0, Act.PREPARE), Call(0, Act.UNPREPARE), Call(1, Act.PREPARE))
    story = Story(1, Profile.FAST, True, (0, 1), frozenset(), calls)
    theatre, ray_port = Theatre(story), _free()
    theatre.rays.node.arguments += (f"--metrics-export-port={ray_port}",)
    environment = pytest.MonkeyPatch()
    environment.setenv("RAY_metrics_report_interval_ms", str(RAY_REPORTS_MS))
    try:
        theatre.start()
        assert theatre.plugin is not None
        assert isinstance(theatre.plugin.args, list)
        command = [str(word) for word in theatre.plugin.args]
        targets = {
            "plugin": [command[command.index("--http") + 1]],
            "ray": [f"127.0.0.1:{ray_port}"],
        }
        place = tmp_path_factory.mktemp("prometheus")
        with running(prometheus_program, place, targets) as prometheus:
            theatre.await_owner("node actor")
            for call in calls:
                theatre.perform(call)
            yield Scene(theatre, prometheus, [])
    finally:
        environment.undo()
        theatre.end()


NOT_HERE = ("fleet_coordinator_node_silent", of_coordinator.OF_SOME)
"""Told of silent nodes and of several coordinators only."""


def _missing(metric: Metric, names: set[str]) -> bool:
    suffixes = ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
    return any(metric.name + suffix not in names for suffix in suffixes)


def test_every_metric_of_the_catalogue_appears(scene: Scene) -> None:
    """E4: each exporter tells all of its metrics, under their documented names, and no others."""

    def lacking() -> list[str]:
        names = {job: scene.prometheus.names(job) for job in ("plugin", "ray")}
        return [
            f"{metric.name} in {job}"
            for metric in METRICS
            for job in HOMES[metric.exporter]
            if _missing(metric, names[job]) and metric.name not in NOT_HERE
        ]

    try:
        scene.until(lambda: not lacking(), "every metric is there")
    except AssertionError:
        raise AssertionError(lacking()) from None
    found = scene.prometheus.names("plugin") | scene.prometheus.names("ray")
    assert {name for name in found if of_series(name) is None} == set()
    (one,) = scene.prometheus.ask('fleet_plugin_claims_total{verb="unprepare",result="done"}')
    assert one[1] == 1
    assert scene.prometheus.ask('fleet_wipes_total{job="plugin",outcome="certified"}')[0][1] >= 1


def test_both_exporters_tell_the_same_of_a_node(scene: Scene) -> None:
    """B83: they read the one journal, so that the larger of the two is the truth."""

    def totals() -> dict[str, set[float]]:
        found: dict[str, set[float]] = {}
        for job in ("plugin", "ray"):
            for labels, value in scene.prometheus.ask(f'fleet_wipes_total{{job="{job}"}}'):
                found.setdefault(labels["outcome"], set()).add(value)
        return found

    scene.until(lambda: all(len(values) == 1 for values in totals().values()), "they agree")


def test_the_rules_are_loaded_and_name_their_runbooks(scene: Scene) -> None:
    """E4: in the running Prometheus every alert is healthy and leads to its page."""
    groups = scene.prometheus.api("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {alert.name for alert in alerts()}
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{rule['name']}.md"
    scene.until(lambda: all(r["health"] == "ok" for r in _rules(scene)), "rules are evaluated")


def _rules(scene: Scene) -> list[dict[str, str]]:
    groups = scene.prometheus.api("rules")["groups"]
    return [rule for group in groups for rule in group["rules"]]


def workers(scene: Scene) -> set[str]:
    """Ray's workers that tell of the node's quarantine."""
    return {labels["WorkerId"] for labels, _ in scene.prometheus.ask(f'{REASONS[:-1]},job="ray"}}')}


def test_a_quarantine_outlives_its_actor_in_the_figures(scene: Scene) -> None:
    """B83: two devices are quarantined and the actor is killed. Its series end, those of its
    successor tell the same; the plugin tells it all the time, from whoever owns the node."""
    ask, theatre = scene.prometheus.ask, scene.theatre
    with closing(adapters.open_door(theatre.plan)) as door:
        for device in door.view().devices:
            door.quarantine_add(device.uuid, detail="a test", operator="tester")
    told = f"max by (job) ({REASONS}) == 2"
    scene.until(lambda: len(ask(told)) == 2, "both tell of the two devices")
    alert = 'ALERTS{alertname="FleetDeviceQuarantined"}'
    scene.until(lambda: ask(alert), "the alert is on its way")
    (before,) = workers(scene)
    theatre.rays.node.kill("NodeActor")
    scene.until(
        lambda: len(found := workers(scene)) == 1 and found != {before},
        "only its successor's series are there",
    )
    assert len(ask(told)) == 2
    (changes,) = ask(f'changes({REASONS[:-1]},job="plugin"}}[5m])')
    assert changes[1] <= 2, "it rose, once for each device, and never fell"


def test_figures_go_on_without_any_ray(scene: Scene) -> None:
    """B83: the standby's view is told instead, fresh and with the same totals."""
    ask, theatre = scene.prometheus.ask, scene.theatre

    def totals() -> dict[str, float]:
        found = ask('fleet_wipes_total{job="plugin"}')
        return {labels["outcome"]: value for labels, value in found}

    before = totals()
    theatre.rays.head.kill()
    theatre.rays.node.kill()
    theatre.await_owner("standby")
    scene.until(lambda: not workers(scene), "Ray's series are gone")
    fresh = f'time() - {TIMESTAMP}{{job="plugin"}} < 5'
    scene.until(lambda: ask(fresh), "the plugin tells a fresh view")
    assert [value for _, value in ask(REASONS)] == [2]
    assert totals() == before


def test_a_node_that_is_gone_leaves_no_series(scene: Scene) -> None:
    """B83: with its plugin all that it told ends; nothing tells of it any more."""
    assert scene.theatre.plugin is not None
    scene.theatre.plugin.terminate()
    gone = f'{{__name__=~"fleet_.+",node="{NODE}"}}'
    scene.until(lambda: not scene.prometheus.ask(gone), "no series of the node is left")
