"""A model of kube-scheduler's DynamicResources, as read in its source and measured on 1.36.2.

It allocates, waits in PreBind for binding conditions (a look at once and every 5 s), gives up a
failed or overdue allocation only in the next cycle (PostFilter), and never if somebody else has a
reservation on the claim.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.kube.base import (
    CLAIMS,
    PODS,
    Cluster,
    Name,
    Object,
    PatchKind,
    Resource,
    name_of,
    uid_of,
)
from tests.twin import objects
from tests.twin.pools import Place, Pools
from tests.twin.sight import Sight

TICK_S = 5.0
BACKOFF_MAX_S = 10.0
NEVER = float("inf")


class Stand(StrEnum):
    """Where a pod stands in the scheduler."""

    READY = "ready"
    WAITING = "waiting"
    BACKOFF = "backoff"


class Seen(StrEnum):
    """What PreBind sees of one claim."""

    READY = "ready"
    PENDING = "pending"
    FAILED = "failed"


@dataclass
class Turn:
    """One pod in the scheduler; lost when the scheduler restarts."""

    uid: str
    stand: Stand = Stand.READY
    due: float = 0.0
    begun: float = 0.0
    failures: int = 0
    node: str = ""
    claims: tuple[Name, ...] = ()
    stale: bool = True
    """Whether something has changed since the pod was found unschedulable."""


@dataclass
class Scheduler:
    """Drive it by `step`; a new object is a restarted scheduler."""

    cluster: Cluster
    sight: Sight
    clock: Clock
    pools: Pools
    rng: random.Random
    timeout_s: float = 600.0
    tick_s: float = TICK_S
    """Period, s, of the looks at binding conditions."""
    bound: int = 0
    failures: int = 0
    on_bound: dict[Name, float] = field(default_factory=dict)
    _turns: dict[Name, Turn] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sight.listen(self.pools.changed)
        self.sight.listen(self._changed)

    def _changed(
        self, resource: Resource, name: Name, before: Object | None, after: Object | None
    ) -> None:
        if resource != PODS:
            if resource == CLAIMS and _alike(before, after):
                return
            for turn in self._turns.values():
                turn.stale = True
            return
        open_ = after is not None and not objects.node_name(after) and not objects.ended(after)
        known = self._turns.get(name)
        if after is None or not open_:
            self._turns.pop(name, None)
        elif known is None or known.uid != uid_of(after):
            self._turns[name] = Turn(uid_of(after))
        else:
            known.stale = True

    def step(self) -> float:
        """Do what is due; returns when the next is due."""
        self.sight.refresh()
        for name in sorted(self._turns, key=str):
            turn = self._turns.get(name)
            if turn is None or self.clock.now() < turn.due:
                continue
            if turn.stand is Stand.BACKOFF:
                turn.stand, turn.stale = Stand.READY, True
            try:
                self._take(name, turn)
            except errors.FleetError:
                self._give_up(turn)
            self.sight.refresh()
        return min((t.due for t in self._turns.values() if t.due > self.clock.now()), default=NEVER)

    def _take(self, name: Name, turn: Turn) -> None:
        pod = self.sight.all(PODS).get(name)
        if pod is None or objects.deleting(pod):
            return
        if turn.stand is Stand.WAITING:
            self._look(pod, turn)
        elif turn.stale:
            turn.stale = False
            self._cycle(pod, turn)

    # --- a cycle ---

    def _cycle(self, pod: Object, turn: Turn) -> None:
        claims = self._claims(pod)
        if claims is None:
            return
        turn.claims = tuple(name_of(one) for one in claims)
        given = [one for one in claims if objects.allocation(one) is not None]
        unavailable = [one for one in given if self._unavailable(one)]
        if unavailable:
            if self._deallocate(pod, self.rng.choice(unavailable)):
                turn.stale = True
                turn.due = self.clock.now() + 0.02
            return
        chosen = self._place(claims, given)
        if chosen is None:
            return
        node, allotted = chosen
        turn.node = node
        for one in claims:
            self._reserve(pod, one, node, allotted.get(name_of(one)))
        self.sight.refresh()
        turn.stand, turn.begun = Stand.WAITING, self.clock.now()
        self._look(pod, turn)

    def _claims(self, pod: Object) -> list[Object] | None:
        """The pod's claims; None while one is missing or Terminating."""
        known = self.sight.all(CLAIMS)
        found = []
        for name in objects.claim_names(pod).values():
            claim = known.get(name) if name is not None else None
            if claim is None or objects.deleting(claim):
                return None
            found.append(claim)
        return found

    def _unavailable(self, claim: Object) -> bool:
        seen = _seen(claim)
        at = (objects.allocation(claim) or {}).get("allocationTimestamp")
        late = at is not None and self.clock.now() >= objects.seconds(at) + self.timeout_s
        return seen is Seen.FAILED or (seen is Seen.PENDING and late)

    def _deallocate(self, pod: Object, claim: Object) -> bool:
        """PostFilter: only if nobody but this pod has a reservation."""
        if any(entry.get("uid") != uid_of(pod) for entry in objects.reserved(claim)):
            return False
        body = objects.with_status(claim, allocation=None, reservedFor=None, devices=None)
        self.cluster.replace(CLAIMS, body, subresource="status")
        return True

    def _place(
        self, claims: Sequence[Object], given: Sequence[Object]
    ) -> tuple[str, Mapping[Name, list[Object]]] | None:
        """The node, and the results of each claim that has no allocation yet."""
        nodes = list(self.pools.nodes())
        self.rng.shuffle(nodes)
        for one in given:
            fixed = _fixed(one)
            nodes = [node for node in nodes if fixed in ("", node)]
        for node in nodes:
            chosen: set[Place] = set()
            allotted: dict[Name, list[Object]] = {}
            for one in claims:
                if one in given:
                    continue
                found = self.pools.fitting(one, node, chosen)
                if found is None:
                    break
                allotted[name_of(one)] = found
            else:
                return node, allotted
        return None

    def could_place(self, claims: Sequence[Object]) -> bool:
        """Whether these claims fit somewhere now."""
        given = [one for one in claims if objects.allocation(one) is not None]
        return self._place(claims, given) is not None

    def _reserve(self, pod: Object, claim: Object, node: str, found: list[Object] | None) -> None:
        """PreBind's writes for one claim: finalizer, then everything else at once."""
        mine = {"resource": "pods", "name": name_of(pod).name, "uid": uid_of(pod)}
        entries = [e for e in objects.reserved(claim) if e.get("uid") != uid_of(pod)]
        if found is None:
            if len(entries) == len(objects.reserved(claim)):
                body = objects.with_status(claim, reservedFor=[*entries, mine])
                self.cluster.replace(CLAIMS, body, subresource="status")
            return
        if objects.BUILTIN not in (claim["metadata"].get("finalizers") or ()):
            claim = self.cluster.replace(
                CLAIMS, objects.with_finalizers(claim, add=objects.BUILTIN)
            )
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        allocation = {
            "devices": {"results": found},
            "nodeSelector": {"nodeSelectorTerms": [term]},
            "allocationTimestamp": objects.stamp(self.clock.now()),
        }
        body = objects.with_status(claim, allocation=allocation, reservedFor=[*entries, mine])
        self.cluster.replace(CLAIMS, body, subresource="status")

    # --- the wait ---

    def _look(self, pod: Object, turn: Turn) -> None:
        """One look at the conditions; bind, give up or wait for the next tick."""
        now = self.clock.now()
        claims = [self.sight.all(CLAIMS).get(name) for name in turn.claims]
        found = [one for one in claims if one is not None]
        if len(found) < len(claims):
            raise errors.ApiNotFound("could not find ResourceClaim")
        seen = [_seen(one) for one in found]
        if Seen.FAILED in seen:
            self.failures += 1
            self._give_up(turn)
        elif all(one is Seen.READY for one in seen):
            self._bind(pod, turn)
        elif now >= self._deadline(found, turn):
            self._give_up(turn)
        else:
            ticks = int((now - turn.begun) / self.tick_s + 1e-6) + 1
            late = max(self._deadline(found, turn), now + 0.1)
            turn.due = min(turn.begun + ticks * self.tick_s, late)

    def _deadline(self, claims: Sequence[Object], turn: Turn) -> float:
        stamps = [(objects.allocation(one) or {}).get("allocationTimestamp") for one in claims]
        begun = [objects.seconds(one) for one in stamps if one is not None]
        return min([turn.begun, *begun]) + self.timeout_s

    def _bind(self, pod: Object, turn: Turn) -> None:
        name = name_of(pod)
        body = {"metadata": {"uid": uid_of(pod)}, "spec": {"nodeName": turn.node}}
        self.cluster.patch(PODS, name, body, kind=PatchKind.MERGE)
        self.bound += 1
        self.on_bound[name] = self.clock.now()

    def _give_up(self, turn: Turn) -> None:
        """Unreserve: the pod's own entry goes, the allocation stays; then back off."""
        turn.failures += 1
        turn.stand = Stand.BACKOFF
        turn.due = self.clock.now() + min(BACKOFF_MAX_S, 2.0 ** (turn.failures - 1))
        self.sight.refresh()
        for claim in (self.sight.all(CLAIMS).get(one) for one in turn.claims):
            if claim is None:
                continue
            entries = [e for e in objects.reserved(claim) if e.get("uid") != turn.uid]
            if len(entries) == len(objects.reserved(claim)):
                continue
            body = objects.with_status(claim, reservedFor=entries or None)
            try:
                self.cluster.replace(CLAIMS, body, subresource="status")
            except errors.FleetError:
                continue  # seen again in the next cycle: a reservation of its own is harmless


def _alike(before: Object | None, after: Object | None) -> bool:
    """Whether a claim has not changed in what scheduling looks at."""
    if before is None or after is None:
        return False
    same = before.get("status") == after.get("status")
    return same and objects.deleting(before) == objects.deleting(after)


def _seen(claim: Object) -> Seen:
    """The first device that is not ready decides; what comes after it is not looked at."""
    said = objects.conditions(claim)
    if objects.allocation(claim) is None:
        return Seen.PENDING
    for one in objects.results(claim):
        wanted = one.get("bindingConditions") or ()
        if not wanted:
            continue
        told = said.get((one["driver"], one["pool"], one["device"]), {})
        true = {kind for kind, condition in told.items() if condition["status"] == "True"}
        if true.intersection(one.get("bindingFailureConditions") or ()):
            return Seen.FAILED
        if not true.issuperset(wanted):
            return Seen.PENDING
    return Seen.READY


def _fixed(claim: Object) -> str:
    """The node that an allocation is bound to, "" for none."""
    selector = (objects.allocation(claim) or {}).get("nodeSelector") or {}
    for term in selector.get("nodeSelectorTerms") or ():
        for entry in term.get("matchFields") or ():
            return str(entry["values"][0])
    return ""
