"""API server, scheduler, controllers, kubelets, nodes, plugins and coordinators, put together.

Everything that happens is an event of one timeline; all randomness comes from the seed. The checker
looks after every event.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from fleet.core import errors
from fleet.core.profiles import Profile
from fleet.core.settings import KubernetesSettings, Settings
from fleet.kube.base import CLAIMS, NODES, PODS, SLICES, Name, Object, Resource
from fleet.kube.marks import Marks
from tests.lab.apiserver.access import Caller
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine
from tests.lab.stores import MemoryLeaseStore, MemoryRunStore
from tests.twin import objects
from tests.twin.chief import Chief, Means
from tests.twin.clock import Alarm, Timeline, Timer, Wall
from tests.twin.controller import Controller
from tests.twin.coverage import Coverage, Weather
from tests.twin.faults import Dice, FaultyCluster, FaultyStore
from tests.twin.hardware import Fate, Fates
from tests.twin.kinds import SLOW, WIPES
from tests.twin.kubelet import Kubelet
from tests.twin.node import Build, TwinNode
from tests.twin.nodes import TwinNodes
from tests.twin.plugin import Plugin
from tests.twin.pools import Pools
from tests.twin.promises import Checker
from tests.twin.scheduler import Scheduler
from tests.twin.sight import Fed

SPACE = "t"
TRACE_KEPT = 400
PATIENCE_S = 60.0
"""A deadline below this may pass before a tenant that leaves in good time has left."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a world is made of."""

    seed: int = 0
    nodes: int = 2
    devices: int = 4
    profile: str = "strict"
    rates: Mapping[str, float] = field(default_factory=dict)
    """Probability of each kind of trouble; see `tests.twin.kinds`."""
    trouble: float = 0.0
    """Share of wipes that go wrong."""
    slow: float = 0.0
    """Share of wipes that take long."""
    timeout_s: float = 600.0
    grace_s: tuple[float, float] = (0.1, 2.0)
    """How long tenants take to leave."""
    delay_s: tuple[float, float] = (0.02, 0.4)
    """How long it takes to hear of a change."""
    deadline_s: float = 600.0
    """How long a tenant may outlive its teardown."""
    retest_s: float = 300.0
    """How long a quarantined device is left alone before it is tested anew."""
    period_s: float = 0.5
    """Period of a coordinator's step, though nothing is heard of."""
    checked: bool = True
    measured: bool = False
    """Whether the CPU time of coordinators is taken, which costs a call each time."""
    only: frozenset[str] | None = None
    """The strikes that happen, by name; None: as drawn."""


class Assembly:
    """All parts of one cluster, put together."""

    server: type[Engine] = Engine

    def __init__(self, plan: Plan | None = None, *, fates: Fates | None = None) -> None:
        """`fates`: how wipes end, instead of what the plan's share of trouble draws."""
        self.plan = plan or Plan()
        self.timeline = Timeline()
        self.trace: list[str] = []
        self._rng = self.random("world")
        self.engine = self.server(clock=self.timeline, seed=str(self.plan.seed))
        self.sight = Fed(self.engine)
        self.store = MemoryLeaseStore(self.timeline)
        self.runs = MemoryRunStore(self.timeline)
        self.store.init()
        self.settings = Settings(
            profile=Profile(self.plan.profile),
            kubernetes=KubernetesSettings(binding_timeout_s=self.plan.timeout_s),
        )
        self.driver = self.settings.kubernetes.driver
        self.coverage = Coverage()
        self.weather = Weather(self.timeline.monotonic)
        self.dice = Dice(f"{self.plan.seed}/dice", self._rates(), self.plan.only, told=self._struck)
        self.nodes: dict[str, TwinNode] = {}
        self.kubelets: dict[str, Kubelet] = {}
        self.plugins: dict[str, Plugin] = {}
        self.spare: list[Plugin] = []
        """Plugins that go on for a while after another has taken their place."""
        self.chiefs: list[Chief] = []
        self._pods = 0
        self.stolen: set[Name] = set()
        """Claims that were given a device which another claim has."""
        self.checker = Checker(
            self.timeline,
            self.sight,
            self.store,
            self.nodes,
            Marks(self.driver),
            self.settings.profile,
            frozenset({"tenant-not-gone"} if self.plan.deadline_s < PATIENCE_S else ()),
        )
        self.lucky = False
        self._wipes: dict[tuple[str, str], int] = {}
        self._drawn = fates or self._fate
        self.peaceful = False
        self._make_kubernetes()
        for index in range(self.plan.nodes):
            self._make_node(f"n{index}")
        self.sight.listen(self._changed)
        self.timeline.each.append(self._after)
        self.start_coordinator()

    def random(self, name: str) -> random.Random:
        """A source of its own for each part, so that one more draw here changes nothing there."""
        return random.Random(f"{self.plan.seed}/{name}")

    def _rates(self) -> Mapping[str, float]:
        plan = self.plan
        wipes = {kind: plan.trouble * share for kind, (_, share) in WIPES.items()}
        return {**plan.rates, **wipes, SLOW: plan.slow}

    def _struck(self, kind: str, where: str) -> None:
        self.weather.strike(kind, where)
        self.coverage.kinds[kind] += 1

    def _fates(self, node: str, device: str) -> Fate:
        found = self._drawn(node, device)
        if found.code:
            self.checker.blame(node, device)
        return found

    def _fate(self, node: str, device: str) -> Fate:
        number = self._wipes[node, device] = self._wipes.get((node, device), 0) + 1
        rng = self.random(f"fate/{node}/{device}/{number}")
        if self.lucky:
            return Fate(rng.uniform(0.5, 3.0))
        seconds = rng.uniform(0.5, 3.0)
        if self.dice.strikes(SLOW, node):
            seconds = rng.uniform(5.0, 55.0)
        for kind, (code, _) in WIPES.items():
            if self.dice.strikes(kind, node):
                return Fate(seconds, code, wedged_s=rng.uniform(5.0, 300.0))
        return Fate(seconds)

    def _died(self, node: TwinNode) -> None:
        """The service died in the middle of something: whoever watches it starts it again."""
        self.note(f"service of {node.name} dies")
        wait_s = self.random(f"died/{node.name}/{node.starts}").uniform(0.5, 15.0)

        def again() -> None:
            if not node.alive and not self.kubelets[node.name].down:
                self.note(f"service of {node.name} starts")
                node.start()

        self.timeline.after(wait_s, again, "service starts")

    # --- making ----------------------------------------------------------------------------------

    def _make_kubernetes(self) -> None:
        self.admin = self._cluster("admin")
        self._scheduler_rng = self.random("scheduler")
        self.scheduler = self._new_scheduler()
        controllers = self._cluster("kube-controller-manager")
        self.controller = Controller(controllers, self.sight, self.timeline)
        self._controller_alarm = Alarm(self.timeline, self.controller.step, "controller")

    def _new_scheduler(self) -> Scheduler:
        found = Scheduler(
            self._cluster("kube-scheduler"),
            self.sight,
            self.timeline,
            Pools({objects.CLASS: (self.driver, 1 << 30)}),
            self._scheduler_rng,
            timeout_s=self.plan.timeout_s,
        )
        self._scheduler_alarm = Alarm(self.timeline, found.step, "scheduler")
        return found

    def _cluster(self, who: str) -> MemoryCluster:
        return MemoryCluster(self.engine, caller=Caller(manager=who))

    def _faulty(self, who: str, where: str = "") -> FaultyCluster:
        return FaultyCluster(self._cluster(who), self.dice, self.timeline, where)

    def _make_node(self, name: str) -> None:
        self._register(name)
        build = Build(
            name=name,
            devices=self.plan.devices,
            timeline=self.timeline,
            store=FaultyStore(self.store, self.dice, name),
            fates=self._fates,
            profile=self.settings.profile,
            exposed=self.checker.exposed,
            changed=self._node_changed,
            strikes=self.dice.strikes,
            died=self._died,
            acting=self._acting,
            deadline_s=self.plan.deadline_s,
            retest_s=self.plan.retest_s,
        )
        self.dice.on = False
        with self.coverage.watching(self.weather):
            self.nodes[name] = TwinNode(build)
        self.dice.on = True
        self._plug(name)
        self.kubelets[name] = Kubelet(
            self.nodes[name],
            self._cluster("kubelet"),
            self.timeline,
            self.random(f"kubelet/{name}"),
            lambda: self.plugins[name],
            self._draw(*self.plan.grace_s, f"grace/{name}"),
            self.dice,
        )

    def _acting(self, name: str) -> None:
        self.weather.where = name

    def _register(self, name: str) -> None:
        with suppress(errors.ApiConflict):  # registered twice within the delay of a watch
            body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            self.admin.create(NODES, body)

    def _plug(self, name: str) -> None:
        self.plugins[name] = Plugin(
            self.nodes[name],
            self._faulty("fleetscrub", name),
            self.timeline,
            self.settings,
            self._draw(0.1, 0.9, f"plugin/{name}"),
        )

    def _draw(self, low: float, high: float, name: str) -> Callable[[], float]:
        rng = self.random(name)
        return lambda: rng.uniform(low, high)

    # --- what follows from what ------------------------------------------------------------------

    def _node_changed(self, node: TwinNode) -> None:
        if node.name in self.plugins:
            self.plugins[node.name].node_changed()

    def _changed(
        self, resource: Resource, name: Name, before: Object | None, after: Object | None
    ) -> None:
        self.checker.changed(resource, name, before, after)
        if resource == PODS:
            for node in {objects.node_name(one) for one in (before, after) if one is not None}:
                if node in self.kubelets:
                    self.kubelets[node].changed(before, after)
        elif resource == SLICES:
            node = (after or before or {})["spec"].get("nodeName", "")
            for plugin in (self.plugins.get(node), *self.spare):
                if plugin is not None and plugin.node.name == node:
                    plugin.slice_changed(before, after)
        self._scheduler_alarm.wake(self._rng.uniform(0.01, 0.05))
        self._controller_alarm.wake(self._rng.uniform(0.02, 0.08))
        if resource == CLAIMS:
            for chief in self.chiefs:
                chief.alarm.wake(self._rng.uniform(*self.plan.delay_s))

    def _after(self, timer: Timer) -> None:
        self.sight.refresh()
        if self.plan.checked:
            self.checker.check()
        if self.plan.rates or self.plan.trouble:
            self.note(timer.name, event=True)

    def note(self, text: str, *, event: bool = False) -> None:
        """A line of the trace."""
        if event and text.startswith(("plugin", "tick", "coordinator", "kubelet", "scheduler")):
            return
        if text and text not in ("visible?", "controller"):
            self.trace.append(f"{self.timeline.monotonic():9.3f} {text}")
            del self.trace[:-TRACE_KEPT]

    # --- coordinators ---

    def start_coordinator(self) -> Chief:
        """One more coordinator."""
        nodes = TwinNodes(self.nodes, self._existing, self.dice, self.timeline)
        means = Means(
            clock=Wall(self.timeline),
            timeline=self.timeline,
            settings=self.settings,
            cluster=self._faulty("fleetscrub"),
            engine=self.engine,
            store=FaultyStore(self.store, self.dice),
            runs=self.runs,
            nodes=nodes,
            dice=self.dice,
            delay_s=self._draw(*self.plan.delay_s, f"chief/{len(self.chiefs)}"),
            period_s=self.plan.period_s,
            measured=self.plan.measured,
        )
        self.note("coordinator starts")
        on, self.dice.on = self.dice.on, False
        chief = Chief(means)
        self.dice.on = on
        self.chiefs.append(chief)
        return chief

    def _existing(self) -> list[str]:
        return sorted(name.name for name in self.sight.all(NODES))
