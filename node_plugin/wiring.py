"""One plugin put together: kubelet's servers in front, the node's door behind, slices beside.

`fleet.wiring.adapters` builds what belongs to the node; here is only what a plugin adds to it. The
loops of the product's kubelet side are the threads of `Plugin`; each runs a step that may fail
without ending the thread.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict

from fleet.control.coordinator_absence import BAD_PERIOD_S, COMPONENT, Uncoordinated
from fleet.core import errors
from fleet.core.clock import SystemClock
from fleet.core.errors import FleetError
from fleet.core.messages import NodeView
from fleet.kube import identity
from fleet.kube.base import PODS, SLICES, Cluster, Name, Selection
from fleet.kube.events import Events, Kind, Regarding
from fleet.kube.rights import Rights
from fleet.node.journal.lock import read_owner
from fleet.plugin.claims import ClaimServing
from fleet.plugin.health import Health as Judged
from fleet.plugin.health import HealthVerdict
from fleet.plugin.orphans import Orphans
from fleet.plugin.reconciler import Keeper
from fleet.plugin.requests import AskedClaim, PreparedClaim
from fleet.plugin.slices.device_attributes import names
from fleet.plugin.slices.instances import PublishingInstance
from fleet.rpc import trouble
from fleet.rpc.client import DoorNode
from fleet.wiring import adapters, plugin
from fleet.wiring.adapters import NodePlan
from node_plugin.children import Child, Vigil
from node_plugin.health import DeviceHealth, Health, HealthBoard
from node_plugin.ports import Lack, Standing
from node_plugin.registration import Registered
from node_plugin.server import PluginServer, ServerSettings, ThreadedServer
from node_plugin.vitals import Vitals

# Events about the plugin's own pod: why it is not ready, and what its node cannot do.
#
# Of a failed probe kubelet tells the status code alone, and a log is read by whoever knows whose.
# So whatever lasts is told where an operator looks first: `kubectl describe pod`. These events are
# in our own namespace, which no tenant reads; with the plugin outside of a pod there are none.

PERIOD_S = 5.0
"""Period, s, in which is looked at what there is to tell."""
TOLD_AFTER_S = 10.0
"""Time, s, something has to last: a start and a change of owners pass by themselves."""
TEXTS_MAX = 8
"""Texts told under one reason while it lasts: one that is another each time fills no server."""
_FIGURES = re.compile(r"\d+")


def pod_of(name: str, uid: str) -> Regarding | None:
    """The pod ``namespace/name`` with this UID; None where the plugin runs in none."""
    namespace, slash, own = name.partition("/")
    return Regarding(PODS, Name(own, namespace), uid) if uid and slash and own else None


class PodEvents:
    """Tells of one pod. For one thread."""

    def __init__(self, events: Events, pod: Regarding) -> None:
        self._events = events
        self._pod = pod
        self._since: dict[str, float] = {}
        self._told: dict[str, dict[str, str]] = {}
        """By reason the texts of this time, as they were first, by what they are without their
        figures: a figure that grows is no news."""

    def step(self, lacks: Iterable[Lack], now: float) -> None:
        """Tell of what has lasted. Raises nothing the API can cause. `now`: s, never going back."""
        found = [*lacks]
        there = {one.reason for one in found}
        self._since = {reason: self._since.get(reason, now) for reason in there}
        self._told = {reason: self._told.get(reason, {}) for reason in there}
        for one in found:
            told, key = self._told[one.reason], _FIGURES.sub("", one.text)
            if now - self._since[one.reason] < TOLD_AFTER_S:
                continue
            if key in told or len(told) < TEXTS_MAX:
                text = told.setdefault(key, one.text)
                self._events.record(self._pod, one.reason, text, kind=Kind.WARNING)


LOG = logging.getLogger(__name__)

ORPHANS_PERIOD_S = 30.0
"""Period, s, in which claims are compared with the API."""
ALONE_GRACE_S = 0.5
"""Grace, s, of a standby that no node actor competes with."""
WATCH_S = 300.0
"""Time, s, one watch request lasts."""
STANDBY = "standby"
KUBELET_S = 5.0
"""Kubelet looks for new plugins once a second. A claim that is allocated before it has ours fails
in kubelet, which tries again after 60 to 90 s."""
RIGHTS_S = 10.0
"""Period, s, in which it is asked whether a right that was missing is granted by now."""
RETRY_S = 2.0
"""Pause, s, after a step or watch that failed as a whole."""
_HEALTH = {
    Judged.HEALTHY: Health.HEALTHY,
    Judged.UNHEALTHY: Health.UNHEALTHY,
    Judged.UNKNOWN: Health.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Options:
    """What the process that runs the plugin decides. Empty means: not wanted."""

    instance: str = ""
    """UID of the plugin's pod, where several instances may meet during an update."""
    standby: bool = True
    """Run the standby as a child; False where it runs beside, in a container of its own."""
    ray_address: str = ""
    """The Ray to attach to; without one the standby serves alone."""
    pod: str = ""
    """The plugin's pod, ``namespace/name``, which events are about."""
    kubelet_s: float = KUBELET_S
    """Time, s, kubelet has to register us before slices are published all the same."""


class _Pulse(TypedDict):
    """Who owns the node's journal, if anybody answers."""

    owner: str
    owner_reachable: bool
    unreachable: str


@dataclass
class Behind:
    """`Claims` of the gRPC side over `ClaimServing`: errors become values."""

    serving: ClaimServing

    def prepare(self, asked: Sequence[AskedClaim]) -> Mapping[str, PreparedClaim | FleetError]:
        """The outcome for each UID."""
        return {claim.uid: self._prepared(claim) for claim in asked}

    def unprepare(self, asked: AskedClaim) -> FleetError | None:
        """None when nothing of the claim is left."""
        try:
            self.serving.unprepare(asked)
        except FleetError as error:
            return error
        return None

    def _prepared(self, claim: AskedClaim) -> PreparedClaim | FleetError:
        try:
            return self.serving.prepare(claim)
        except FleetError as error:
            return error


@dataclass
class Plugin:
    """A running plugin. `start` returns once kubelet can find it."""

    plan: NodePlan
    server: PluginServer
    keeper: Keeper
    publisher: PublishingInstance
    orphans: Orphans
    cluster: Cluster
    rights: Rights
    """Over `cluster`."""
    uncoordinated: Uncoordinated | None
    """None: no pod of this node waits for a coordinator."""
    serving: ClaimServing
    door: DoorNode
    ends: Callable[[], None]
    """Closes what `fleet.wiring.plugin` opened."""
    children: Sequence[Child] = ()
    kubelet_s: float = KUBELET_S
    vigil: Vigil | None = None
    """Over the standby, where it is a child of ours."""
    events: PodEvents | None = None
    """Tells operators what is wrong; None: outside of a pod."""
    vitals: Vitals = field(init=False)
    _begun: float = 0.0
    """When it was started, by the monotonic clock."""
    _standing: Standing = field(default_factory=Standing)
    _settled: bool = False
    _met: bool = False
    """Whether the API server is known to be that of our cluster."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _threaded: ThreadedServer | None = None

    def __post_init__(self) -> None:
        self.vitals = Vitals(self.server, self, node=self.plan.node)

    def start(self) -> None:
        """Start children and threads, then serve. Raises `SocketTaken` and the like."""
        self._settle_agents()
        for child in self.children:
            child.start()
        kubernetes = self.plan.settings.kubernetes
        self._begun = time.monotonic()
        self._loop("keeper", self._keep, kubernetes.publish_period_s)
        self._loop("orphans", self._judge_orphans, ORPHANS_PERIOD_S)
        self._loop("watch", self._watch, 0.0)
        self._loop("rights", self.rights.ask_again, RIGHTS_S)
        if self.uncoordinated is not None:
            self._loop("coordinator", self.uncoordinated.step, BAD_PERIOD_S)
        if self.events is not None:
            self._loop("events", self._tell, PERIOD_S)
        self._threaded = ThreadedServer(self.server)
        try:
            self._threaded.start()
        except BaseException:
            self._threaded = None
            self.stop()
            raise

    def stop(self, grace_s: float = 10.0) -> None:
        """Kubelet first, then our threads, then the children; slices stay published.

        Harmless when called again.
        """
        threaded, self._threaded = self._threaded, None
        if threaded is not None:
            threaded.stop(grace_s)
        self._stop.set()
        for thread in self._threads:
            if thread.name != "watch":  # it ends with its request, and nothing waits for it
                thread.join(grace_s)
        for child in self.children:
            child.stop()
        self.publisher.close()
        self.ends()
        self.door.close()

    def standing(self) -> Standing:
        """How the node stood at the keeper's last step, for probes and metrics."""
        return self._standing

    def _keep(self) -> None:
        pulse = self._pulse()
        self._standing = replace(self._standing, **pulse)
        if self.vigil is not None:
            self.vigil.step(time.monotonic(), answered=pulse["owner_reachable"])
        registered = self.server.registration.state is not Registered.WAITING
        if not registered and time.monotonic() - self._begun < self.kubelet_s:
            return
        self.keeper.step(time.time())
        view = self.keeper.view
        self._standing = replace(
            self._standing,
            published_at=self.keeper.published_at,
            elsewhere=self.keeper.report.elsewhere,
            blocked=view.blocked if view else (),
            degraded=view.degraded if view else (),
            unviewed=self.keeper.unviewed,
            troubles=tuple(map(str, self.keeper.report.trouble)),
            withdrawn=_by_name(view, self.keeper.report.withdrawn),
            missing=self.rights.missing,
            view=view or self._standing.view,
        )

    def _tell(self) -> None:
        if self.events is not None:
            self.events.step(self.vitals.lacks(), time.monotonic())

    def _pulse(self) -> _Pulse:
        try:
            owner = str(self.door.pulse().get("owner", ""))
        except FleetError as error:
            return _Pulse(owner="", owner_reachable=False, unreachable=str(error))
        return _Pulse(owner=owner, owner_reachable=True, unreachable="")

    def _settle_agents(self) -> None:
        """A directory that cannot be written does not keep claims from being torn down."""
        if self.serving.agents is None or self._settled:
            return
        try:
            self.serving.agents.settle()
            self._settled = True
        except FleetError as error:
            LOG.warning("specs of the agent device are not settled yet: %s", error)

    def _judge_orphans(self) -> None:
        """Where an API server answers only later, and is another's, every claim would look gone."""
        self._settle_agents()
        self._met = self._met or identity.meet(
            Path(self.plan.state), self.cluster, [self.plan.node]
        )
        for uid in self.orphans.step():
            LOG.warning("claim %s is orphaned: its teardown has begun", uid)

    def _watch(self) -> None:
        selection = Selection(fields=f"spec.nodeName={self.plan.node}")
        for event in self.cluster.watch(SLICES, selection, timeout_s=WATCH_S):
            if self._stop.is_set():
                return
            self.publisher.changed(event)

    def _loop(self, name: str, step: Callable[[], float | None], period_s: float) -> None:
        """Run `step` in a thread; what it answers is the pause after it, s, instead of `period_s`.

        What goes wrong is said once, and again when something else does.
        """

        def run() -> None:
            said = ""
            while not self._stop.is_set():
                pause_s = period_s
                try:
                    pause_s, said = step() or period_s, ""
                except FleetError as error:
                    if str(error) != said:
                        LOG.warning("%s: %s", name, error)
                    said = str(error)
                    pause_s = max(period_s, RETRY_S)
                except Exception:
                    # The thread must go on; the log names the fault.
                    LOG.exception("%s: step failed", name)
                    pause_s = max(period_s, RETRY_S)
                self._stop.wait(pause_s)

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()


def open_plugin(plan: NodePlan, cluster: Cluster, options: Options = Options()) -> Plugin:
    """Put a plugin together; nothing is started yet. Raises `SettingsInvalid`."""
    _check(plan)
    cluster = rights = Rights(cluster, of_node=True)
    adapters.begin(adapters.CoordinatorPlan(state=plan.state, settings=plan.settings))
    door = adapters.open_door(plan)
    parts = plugin.plugin_parts(plan, cluster, door)
    kubernetes = plan.settings.kubernetes
    board = HealthBoard(fresh_s=plan.settings.health.fresh_s)
    server = PluginServer(
        ServerSettings(
            driver=kubernetes.driver,
            kubelet_root=Path(kubernetes.kubelet_root),
            instance=options.instance,
        ),
        Behind(parts.serving),
        board,
    )

    def show(found: Mapping[str, HealthVerdict]) -> None:
        board.update([_shown(parts.serving.seat.pool, name, told) for name, told in found.items()])

    children = _children(plan, options)
    pod = pod_of(options.pod, options.instance)
    events = Events(cluster, COMPONENT, SystemClock())
    keeper = plugin.keeper(plan, door, parts, show)
    keeper.missing = lambda: rights.missing
    return Plugin(
        plan=plan,
        server=server,
        keeper=keeper,
        rights=rights,
        uncoordinated=plugin.uncoordinated(plan, cluster),
        publisher=parts.publisher,
        orphans=parts.orphans,
        cluster=cluster,
        serving=parts.serving,
        door=door,
        ends=parts.store.close,
        children=children,
        kubelet_s=options.kubelet_s,
        vigil=_vigil(plan, children),
        events=PodEvents(events, pod) if pod is not None else None,
    )


def _vigil(plan: NodePlan, children: Sequence[Child]) -> Vigil | None:
    standby = next((child for child in children if child.name == STANDBY), None)
    if standby is None:
        return None
    lock = adapters.lock_path(plan)

    def owner() -> int | None:
        found = read_owner(lock)
        return found.pid if found is not None and found.alive() else None

    def teller() -> int | None:
        found = trouble.read(adapters.door_path(plan))
        return found.pid if found is not None else None

    return Vigil(standby, owner, teller)


def _by_name(view: NodeView | None, withdrawn: Mapping[str, str]) -> Mapping[str, str]:
    named = names(view.devices) if view is not None else {}
    return {named.get(uuid, uuid): why for uuid, why in withdrawn.items()}


def _shown(pool: str, name: str, told: HealthVerdict) -> DeviceHealth:
    return DeviceHealth(pool, name, _HEALTH[told.health], told.message, told.checked_at)


def _check(plan: NodePlan) -> None:
    health = plan.settings.health
    if health.fresh_s < 2 * health.sweep_period_s:
        raise errors.SettingsInvalid(
            f"health.fresh_s is {health.fresh_s:g} s, less than two sweeps of"
            f" {health.sweep_period_s:g} s: every device would be stale between two sweeps",
            remedy="raise health.fresh_s or lower health.sweep_period_s",
        )


def _children(plan: NodePlan, options: Options) -> list[Child]:
    plan_file = str(plugin.write_plan(plan))
    found = []
    if options.standby:
        command = [sys.executable, "-P", "-m", "fleet.cli.main", "node", "standby"]
        command += ["--plan", plan_file, "--supervised"]
        if not options.ray_address:
            command += ["--grace", str(ALONE_GRACE_S)]
        found.append(Child(STANDBY, command))
    if options.ray_address:
        command = [sys.executable, "-P", "-m", "actors.bridge", plan_file, options.ray_address]
        found.append(Child("bridge", command))
    return found
