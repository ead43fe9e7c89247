"""Trouble of API server, store and network by seed: what goes wrong is drawn, never planned."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, Lease, Token, UnitId
from fleet.kube.base import (
    Change,
    Cluster,
    Event,
    Listing,
    Name,
    Object,
    PatchKind,
    Resource,
    Selection,
)
from fleet.stores.base import HistoryEntry, LeaseStore, Release, Renewal
from tests.twin.clock import Timeline

T = TypeVar("T")
EVERYTHING = Selection()


@dataclass
class Dice:
    """Draws by kind. `rates`: probability of each kind; `on` False: nothing goes wrong.

    What strikes has a name: kind, place and how many times it could have struck there before. With
    `only`, exactly the strikes named happen, whatever the rates say: so a story is played again
    with less trouble.
    """

    seed: str
    rates: Mapping[str, float]
    only: frozenset[str] | None = None
    on: bool = True
    outage: bool = False
    """Nothing of ours reaches the API server."""
    cut: set[str] = field(default_factory=set)
    """Who reaches neither API server nor store."""
    struck: list[str] = field(default_factory=list)
    told: Callable[[str, str], object] = lambda kind, where: None  # noqa: ARG005 - told nobody
    """Told of each strike."""
    _counts: dict[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def strikes(self, kind: str, where: str = "") -> bool:
        """Whether this kind of trouble happens to `where` now."""
        rate = self.rates.get(kind, 0.0)
        if not self.on or rate <= 0.0:
            return False
        number = self._counts[kind, where] = self._counts.get((kind, where), 0) + 1
        if self.only is None:
            if self._rng.random() >= rate:
                return False
        elif f"{kind}@{where}#{number}" not in self.only:
            return False
        self.struck.append(f"{kind}@{where}#{number}")
        self.told(kind, where)
        return True

    def moves(self, kind: str, number: int, where: str = "") -> bool:
        """Whether a move of the story, already drawn, is made."""
        name = f"{kind}@story#{number}"
        if self.only is not None and name not in self.only:
            return False
        self.struck.append(name)
        self.told(kind, where)
        return True

    def chance(self) -> random.Random:
        """A source for whatever the strike that just happened is to be like."""
        return random.Random(f"{self.seed}/{self.struck[-1]}")

    def away(self, where: str) -> bool:
        """Whether `where` does not reach the API server."""
        return self.outage or where in self.cut


@dataclass
class FaultyCluster:
    """A `Cluster` between a caller and the server, on a bad day."""

    inner: Cluster
    dice: Dice
    timeline: Timeline
    where: str = ""
    """Whose client this is: a node's name, "" for a coordinator's."""
    counts: dict[str, int] = field(default_factory=dict)

    def get(self, resource: Resource, name: Name) -> Object:
        """One object."""
        return self._read("get", lambda: self.inner.get(resource, name))

    def list(self, resource: Resource, selection: Selection = EVERYTHING) -> Listing:
        """All objects selected."""
        return self._read("list", lambda: self.inner.list(resource, selection))

    def watch(
        self,
        resource: Resource,
        selection: Selection = EVERYTHING,
        *,
        timeout_s: float,
        alive: bool = False,  # noqa: ARG002 - lists tell enough
    ) -> Iterator[Event]:
        """All objects, SYNCED, and the end: time stands still within a call."""
        assert timeout_s > 0.0
        for item in self.list(resource, selection).items:
            yield Event(Change.ADDED, item)
        yield Event(Change.SYNCED)

    def create(self, resource: Resource, body: Object) -> Object:
        """Create."""
        return self._write("create", resource, lambda: self.inner.create(resource, _copy(body)))

    def replace(self, resource: Resource, body: Object, *, subresource: str = "") -> Object:
        """PUT."""
        content = _copy(body)
        return self._write(
            "replace",
            resource,
            lambda: self.inner.replace(resource, content, subresource=subresource),
        )

    def apply(
        self, resource: Resource, body: Object, *, manager: str, subresource: str = ""
    ) -> Object:
        """Server-side apply."""
        content = _copy(body)
        return self._write(
            "apply",
            resource,
            lambda: self.inner.apply(resource, content, manager=manager, subresource=subresource),
        )

    def patch(
        self,
        resource: Resource,
        name: Name,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        kind: PatchKind,
        subresource: str = "",
    ) -> Object:
        """Patch."""
        content = _copy(body)
        return self._write(
            "patch",
            resource,
            lambda: self.inner.patch(resource, name, content, kind=kind, subresource=subresource),
        )

    def delete(
        self, resource: Resource, name: Name, *, uid: str = "", resource_version: str = ""
    ) -> None:
        """Delete."""
        self._write(
            "delete",
            resource,
            lambda: self.inner.delete(resource, name, uid=uid, resource_version=resource_version),
        )

    def _read(self, verb: str, act: Callable[[], T]) -> T:
        self._count(verb)
        if self.dice.away(self.where) or self.dice.strikes("read-lost", self.where):
            raise errors.ApiUnavailable(f"{verb}: no answer")
        return act()

    def _write(self, verb: str, resource: Resource, act: Callable[[], T]) -> T:
        self._count(f"{verb} {resource.plural}")
        dice, where = self.dice, self.where
        if dice.strikes("write-conflict", where):
            raise errors.ApiConflict(f"{verb}: the object has been modified", reason="Conflict")
        if dice.away(where) or dice.strikes("write-lost", where):
            raise errors.ApiUnavailable(f"{verb}: no connection")
        if dice.strikes("write-failed", where):
            raise errors.ApiFailed(f"{verb}: 500")
        if dice.strikes("write-invalid", where):
            raise errors.ApiInvalid(f"{verb}: 422", causes=[])
        if dice.strikes("write-late", where):
            wait_s = dice.chance().uniform(0.3, 8.0)
            self.timeline.after(wait_s, lambda: carried_out(act), "late write")
            raise errors.ApiUnavailable(f"{verb}: timed out, and carried out later")
        answer = act()
        if dice.strikes("write-unanswered", where):
            raise errors.ApiUnavailable(f"{verb}: the answer was lost")
        return answer

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def carried_out(act: Callable[[], object]) -> None:
    """What arrives late is done all the same; nobody hears of it."""
    try:
        act()
    except errors.FleetError:
        return  # its guard did not hold any more


def _copy(body: Any) -> Any:
    return json.loads(json.dumps(body))


@dataclass
class FaultyStore:
    """A `LeaseStore` that is away at times, and loses answers."""

    inner: LeaseStore
    dice: Dice
    where: str = ""

    def init(self) -> Token:
        """Mint the epoch."""
        return self.inner.init()

    def adopt(self, at_least: Token, operator: str) -> Token:
        """Mint a newer epoch."""
        return self.inner.adopt(at_least, operator)

    def reinstate(self, leases: Sequence[Lease]) -> list[bool | errors.FleetError]:
        """Put leases back."""
        return self.inner.reinstate(leases)

    def newest(self) -> Token:
        """Last token issued."""
        return self._ask(self.inner.newest)

    def suspended(self) -> Token | None:
        """Whether it grants."""
        return self._ask(self.inner.suspended)

    def learn(self, floor: Token) -> None:
        """Compare with a node's floor."""
        self._ask(lambda: self.inner.learn(floor))

    def acquire(
        self, requests: Sequence[AcquireRequest], *, out_of_service_max: int | None = None
    ) -> list[Lease | errors.FleetError]:
        """Grant."""
        return self._ask(
            lambda: self.inner.acquire(requests, out_of_service_max=out_of_service_max)
        )

    def renew(self, renewals: Sequence[Renewal]) -> list[Lease | errors.FleetError]:
        """Prolong."""
        return self._ask(lambda: self.inner.renew(renewals))

    def release(self, releases: Sequence[Release]) -> list[bool | errors.FleetError]:
        """Give back."""
        return self._ask(lambda: self.inner.release(releases))

    def holder(self, unit: UnitId) -> Lease | None:
        """The lease of a unit."""
        return self._ask(lambda: self.inner.holder(unit))

    def leases(self, holder: Holder | None = None) -> list[Lease]:
        """Leases in force."""
        return self._ask(lambda: self.inner.leases(holder))

    def held_by(self, holders: Collection[Holder], *, lapsed: bool = False) -> list[Lease]:
        """Leases of these holders."""
        return self._ask(lambda: self.inner.held_by(holders, lapsed=lapsed))

    def history(self, limit: int) -> list[HistoryEntry]:
        """What happened."""
        return self.inner.history(limit)

    def _ask(self, act: Callable[[], T]) -> T:
        if self.where in self.dice.cut or self.dice.strikes("store-away", self.where):
            raise errors.StoreUnavailable("the store does not answer")
        answer = act()
        if self.dice.strikes("store-unanswered", self.where):
            raise errors.StoreUnavailable("the store's answer was lost")
        return answer
