"""A model of kubelet's DRA manager on one node, as read in its source and measured on 1.36.2."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from fleet.core import errors
from fleet.core.model import ClaimUid, Uuid
from fleet.kube.base import CLAIMS, PODS, Cluster, Name, Object, PatchKind, name_of, uid_of
from fleet.plugin.requests import AskedClaim
from fleet.plugin.retries import PASSING
from tests.twin import objects
from tests.twin.clock import Timeline
from tests.twin.faults import Dice, carried_out
from tests.twin.node import TwinNode
from tests.twin.plugin import Plugin

BUDGET_S = 40.0
POLL_S = 0.5


@dataclass
class Cached:
    """Kubelet's memory of one claim, by namespace and name."""

    uid: str
    pods: set[str] = field(default_factory=set)
    prepared: bool = False


@dataclass
class Run:
    """One pod on this node."""

    name: Name
    uid: str
    claims: dict[Name, str] = field(default_factory=dict)
    """Claims whose preparation was begun for it."""
    running: bool = False
    ending: bool = False
    phase: str = "Succeeded"


@dataclass
class Kubelet:
    """One kubelet. `down`: the node is off."""

    node: TwinNode
    cluster: Cluster
    timeline: Timeline
    rng: random.Random
    plugin: Callable[[], Plugin]
    grace_s: Callable[[], float]
    """How long a tenant takes to leave."""
    dice: Dice
    down: bool = False
    patience_s: tuple[float, float] = (60.0, 90.0)
    """Time until a refused prepare is asked for again."""
    refused: int = 0
    started: dict[str, float] = field(default_factory=dict)
    """When each pod's container started, by UID."""
    last_error: dict[Name, str] = field(default_factory=dict)
    lingers_s: float = 0.0
    """How long the next force-deleted tenant runs on."""
    _runs: dict[str, Run] = field(default_factory=dict)
    _cache: dict[Name, Cached] = field(default_factory=dict)
    _era: int = 0

    def changed(self, before: Object | None, after: Object | None) -> None:
        """What kubelet's watch on its pods reports."""
        if self.down:
            return
        if after is None or (before is not None and uid_of(before) != uid_of(after)):
            run = self._runs.get(uid_of(before or {}))
            if run is not None and not run.ending:
                self._vanished(run)
        if after is None or objects.node_name(after) != self.node.name:
            return
        uid = uid_of(after)
        if uid not in self._runs and not objects.ended(after):
            run = self._runs[uid] = Run(name_of(after), uid)
            self._later(self.rng.uniform(0.05, 0.3), lambda: self._sync(run))
        run_ = self._runs.get(uid)
        if run_ is not None and objects.deleting(after) and not run_.ending:
            self._end(run_, self.grace_s())

    def finish(self, name: Name, phase: str = "Succeeded") -> None:
        """The pod's containers end by themselves."""
        for run in self._runs.values():
            if run.name == name and run.running and not run.ending:
                run.phase = phase
                self._end(run, 0.05)

    def runs(self, name: Name) -> bool:
        """Whether a container of the pod runs here."""
        return any(run.name == name and run.running for run in self._runs.values())

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        era = self._era

        def due() -> None:
            if self._era == era and not self.down:
                act()

        self.timeline.after(seconds, due, f"kubelet {self.node.name}")

    # --- prepare ---

    def _sync(self, run: Run) -> None:
        if run.ending or run.running or self._runs.get(run.uid) is not run:
            return
        try:
            self._check(run)
        except errors.FleetError as error:
            self._failed(run, error)
            return
        self._attempt(run, self.timeline.now() + BUDGET_S)

    def _check(self, run: Run) -> None:
        """The pre-checks, which leave no trace, then the entry in the checkpoint."""
        pod = self.cluster.get(PODS, run.name)
        if uid_of(pod) != run.uid:
            raise errors.ApiNotFound("the pod was replaced")
        found: dict[Name, str] = {}
        for name in objects.claim_names(pod).values():
            if name is None:
                raise errors.ClaimUnready("a claim is not made yet")
            claim = self.cluster.get(CLAIMS, name)
            entries = objects.reserved(claim)
            if not any(entry.get("uid") == run.uid for entry in entries):
                raise errors.ClaimUnready(f"claim {name} is not reserved for the pod")
            if objects.allocation(claim) is None:
                raise errors.ClaimUnready(f"claim {name} is not allocated")
            found[name] = uid_of(claim)
        for name, uid in found.items():
            known = self._cache.get(name)
            if known is not None and known.uid != uid:
                raise errors.ClaimReplaced(f"old ResourceClaim {name} still exists")
        for name, uid in found.items():
            self._cache.setdefault(name, Cached(uid)).pods.add(run.uid)
            run.claims[name] = uid

    def _attempt(self, run: Run, until: float) -> None:
        if run.ending:
            return
        try:
            for name, uid in run.claims.items():
                cached = self._cache[name]
                if not cached.prepared:
                    self._prepare(AskedClaim(name.namespace, uid, name.name))
                    cached.prepared = True
        except PASSING as error:
            if self.timeline.now() + POLL_S < until:
                self._later(POLL_S, lambda: self._attempt(run, until))
                return
            self._failed(run, error)
        except errors.FleetError as error:
            self._failed(run, error)
        else:
            self._later(0.2, lambda: self._start(run))

    def _prepare(self, asked: AskedClaim) -> None:
        """The call may arrive twice, and once more when kubelet has long given it up."""

        def again() -> None:
            if not self.down:
                carried_out(lambda: self.plugin().serving.prepare(asked))

        if self.dice.strikes("kubelet-late", self.node.name):
            wait_s = self.dice.chance().uniform(0.5, 30.0)
            self.timeline.after(wait_s, again, "late prepare")
        if self.dice.strikes("kubelet-doubled", self.node.name):
            again()
        self.plugin().serving.prepare(asked)

    def _failed(self, run: Run, error: errors.FleetError) -> None:
        self.refused += 1
        self.last_error[run.name] = f"{type(error).__name__}: {error.detail}"
        self._later(self.rng.uniform(*self.patience_s), lambda: self._sync(run))

    def _start(self, run: Run) -> None:
        """Containers are created if every spec is there, else tried again."""
        if run.ending or run.running:
            return
        specs = self.node.hardware.specs
        uids = [ClaimUid(uid) for uid in run.claims.values()]
        if any(uid not in specs for uid in uids):
            self._later(10.0, lambda: self._start(run))
            return
        given: dict[ClaimUid, tuple[Uuid, ...]] = {uid: specs[uid] for uid in uids}
        self.node.hardware.start(run.uid, given)
        run.running = True
        self.started[run.uid] = self.timeline.now()
        self._tell(run, "Running")

    # --- the end ---

    def _vanished(self, run: Run) -> None:
        """Force-deleted: the API has forgotten it, its containers get two seconds at most."""
        run.ending = True
        wait_s, self.lingers_s = self.lingers_s or self.rng.uniform(0.1, 2.1), 0.0
        self._later(wait_s, lambda: self._stopped(run))

    def _end(self, run: Run, seconds: float) -> None:
        run.ending = True
        self._later(seconds if run.running else 0.05, lambda: self._stopped(run))

    def _stopped(self, run: Run) -> None:
        self.node.hardware.stop(run.uid)
        run.running = False
        self._later(0.05, lambda: self._unprepare(run, self.timeline.now() + BUDGET_S))

    def _unprepare(self, run: Run, until: float) -> None:
        try:
            for name, uid in list(run.claims.items()):
                self._unprepare_claim(run, name, uid)
        except errors.FleetError as error:
            retry = isinstance(error, PASSING) and self.timeline.now() + POLL_S < until
            pause_s = POLL_S if retry else self.rng.uniform(10.0, 15.0)
            again = until if retry else self.timeline.now() + pause_s + BUDGET_S
            self._later(pause_s, lambda: self._unprepare(run, again))
            return
        self._finalise(run)

    def _unprepare_claim(self, run: Run, name: Name, uid: str) -> None:
        cached = self._cache.get(name)
        if cached is not None and cached.uid == uid:
            if cached.pods <= {run.uid}:
                cached.prepared = False  # as fixed upstream (#140527): a newcomer is prepared anew
                asked = AskedClaim(name.namespace, uid, name.name)
                if self.dice.strikes("kubelet-doubled", self.node.name):
                    carried_out(lambda: self.plugin().serving.unprepare(asked))
                self.plugin().serving.unprepare(asked)
            cached.pods.discard(run.uid)
            if not cached.pods:
                del self._cache[name]
        del run.claims[name]

    def _finalise(self, run: Run) -> None:
        """The terminal status, and for a deleted pod the end of the object."""
        try:
            pod = self.cluster.get(PODS, run.name)
            if uid_of(pod) == run.uid:
                self._tell(run, run.phase)
                if objects.deleting(pod):
                    self.cluster.delete(PODS, run.name, uid=run.uid)
        except errors.ApiNotFound:
            pass
        except errors.FleetError:
            self._later(1.0, lambda: self._finalise(run))
            return
        self._runs.pop(run.uid, None)

    def _tell(self, run: Run, phase: str) -> None:
        body = {"metadata": {"uid": run.uid}, "status": {"phase": phase}}
        try:
            self.cluster.patch(PODS, run.name, body, kind=PatchKind.MERGE, subresource="status")
        except (errors.ApiNotFound, errors.ApiInvalid, errors.ApiConflict):
            return

    # --- restart and reboot ---

    def power_off(self) -> None:
        """The node is off: nothing computes, nothing is heard."""
        self.down = True
        self._era += 1

    def power_on(self, pods: list[Object]) -> None:
        """Back with these pods at the API; the checkpoint has survived, no container did."""
        self.down = False
        self._era += 1
        living = {uid_of(pod): pod for pod in pods if objects.node_name(pod) == self.node.name}
        for cached in self._cache.values():
            cached.prepared = False
        for run in list(self._runs.values()):
            run.running = False
            pod = living.get(run.uid)
            if pod is None or objects.deleting(pod) or run.ending:
                run.ending = True
                self._later(1.0, lambda run=run: self._stopped(run))  # type: ignore[misc]
            else:
                self._later(1.0, lambda run=run: self._sync(run))  # type: ignore[misc]
        for uid, pod in living.items():
            if uid not in self._runs:
                self.changed(None, pod)

    def restart(self) -> None:
        """A new kubelet process: it does not know what is prepared, containers live on."""
        self._era += 1
        for cached in self._cache.values():
            cached.prepared = False
        for run in list(self._runs.values()):
            if run.ending:
                self._later(1.0, lambda run=run: self._stopped(run))  # type: ignore[misc]
            elif not run.running:
                self._later(1.0, lambda run=run: self._sync(run))  # type: ignore[misc]
