"""The leases of a cluster in one ConfigMap: durable, for many processes of many hosts.

All leases of a fleet are one object, changed by compare-and-swap, because a batch is one
transaction and tokens come from one counter. A Lease object's `leaseTransitions` would not do: it
is plain content, and lost when the object is deleted and made again.

1. Epoch and counter are in the object and never lowered; a new object has a newer epoch, which
   nodes refuse until `fleet store adopt`.
2. An object that is older than what this process has seen, whose leases carry newer tokens than its
   counter, or that was put back from a copy, grants nothing until then.
3. Calls made at the same time by threads of one process share one write (group commit).
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.core.leases import AcquireRequest, is_expired
from fleet.core.model import NO_TOKEN, Holder, Lease, Token, UnitId
from fleet.kube.base import Cluster, Object, uid_of, version_of
from fleet.stores import decisions, kubernetes_state
from fleet.stores.base import Event, HistoryEntry, Release, Renewal
from fleet.stores.kubernetes_maps import ConfigMaps, Patience, parts_of, with_parts
from fleet.stores.kubernetes_runs import KubernetesRunStore
from fleet.stores.kubernetes_state import State
from fleet.stores.observation import Observation

NAME = "fleetscrub-leases"
"""Name of the object."""
LABELS = {"fleetscrub.dev/store": "leases"}

_T = TypeVar("_T")
_Answers = list[Lease | errors.FleetError]


@dataclass(frozen=True, slots=True)
class KubernetesStores:
    """Both stores of one namespace."""

    leases: KubernetesLeaseStore
    runs: KubernetesRunStore
    place: str

    @property
    def initialised(self) -> bool:
        """Whether the store has an epoch."""
        return self.leases.initialised

    def close(self) -> None:
        """Nothing is held between calls."""


def open_kubernetes_stores(
    cluster: Cluster, namespace: str, *, clock: Clock, patience: Patience
) -> KubernetesStores:
    """The stores in `namespace`; sends nothing. One that is new grants nothing before `init`."""
    maps = ConfigMaps(cluster, namespace, patience)
    return KubernetesStores(
        KubernetesLeaseStore(maps, clock),
        KubernetesRunStore(maps, clock),
        f"configmap {namespace}/{NAME}",
    )


@dataclass(slots=True)
class _Ticket:
    """One call that waits for a write to be carried out with."""

    act: Callable[[State], Any]
    value: Any = None
    error: BaseException | None = None
    done: bool = False


@dataclass(slots=True)
class _Turns:
    """One thread acts at a time, for all that came meanwhile; they need not wait for a turn."""

    tickets: list[_Ticket] = field(default_factory=list)
    busy: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def wait(self, ticket: _Ticket) -> list[_Ticket]:
        """Wait until `ticket` is done, or it is our turn: all that wait then, ours included."""
        with self.changed:
            self.tickets.append(ticket)
            while self.busy and not ticket.done:
                self.changed.wait()
            if ticket.done:
                return []
            self.busy = True
            taken, self.tickets = self.tickets, []
            return taken

    def end(self) -> None:
        """Let the next one act."""
        with self.changed:
            self.busy = False
            self.changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Act by ourselves; calls that come meanwhile stay."""
        with self.changed:
            while self.busy:
                self.changed.wait()
            self.busy = True
        try:
            yield
        finally:
            self.end()


class KubernetesLeaseStore:
    """Leases in one ConfigMap; see `fleet.stores.base.LeaseStore`."""

    def __init__(self, maps: ConfigMaps, clock: Clock) -> None:
        """What ends a lease with a ttl is `clock`'s monotonic reading, whatever wall clocks say."""
        self._maps = maps
        self._clock = clock
        self._observed = Observation(clock)
        self._turns = _Turns()
        self._seen = NO_TOKEN
        self._cached: tuple[str, State] | None = None

    @property
    def initialised(self) -> bool:
        """Whether the store has an epoch."""
        found = self._maps.get(NAME)
        return found is not None and _read(found, self._observed) is not None

    def init(self) -> Token:
        """Mint the epoch, once."""
        with self._turns.alone():
            self._maps.swap(NAME, _shell)
            swapped = self._maps.swap(NAME, self._begun)
            self._seen = max(self._seen, swapped.value)
            return swapped.value

    def _begun(self, found: Object | None) -> tuple[Object | None, Token]:
        if found is None:
            raise errors.StoreUnavailable(f"{NAME} was deleted while it was made")
        state = _read(found, self._observed)
        if state is not None:
            return None, state.head.newest
        now = self._clock.now()
        epoch = decisions.mint_epoch(now, secrets.randbits(10), self._seen.epoch)
        state = kubernetes_state.begun(uid_of(found), Token(epoch, 0), now, self._observed)
        return with_parts(found, state.texts()), state.head.newest

    def adopt(self, at_least: Token, operator: str) -> Token:
        """Mint a newer epoch, take a copy for the original, and grant again."""

        def act(state: State) -> Token:
            now = self._clock.now()
            known = max(at_least, state.floor() or NO_TOKEN)
            head, before = decisions.adopt(state.head, known, now, secrets.randbits(10))
            state.lead(head)
            state.home = state.uid
            detail = decisions.adoption(operator, before)
            state.record([decisions.entry(Event.ADOPTED, now, token=head.newest, detail=detail)])
            return head.newest

        return self._do(act)

    def reinstate(self, leases: Sequence[Lease]) -> list[bool | errors.FleetError]:
        """Take in leases of claims that nodes have in their records."""

        def act(state: State) -> list[bool | errors.FleetError]:
            return [state.reinstate(lease, self._clock.now()) for lease in leases]

        return self._do(act)

    def newest(self) -> Token:
        """The epoch and the last counter issued."""
        return self._do(lambda state: state.head.newest)

    def suspended(self) -> Token | None:
        """The floor by which the store was found behind."""
        return self._do(lambda state: state.head.suspended or state.floor())

    def learn(self, floor: Token) -> None:
        """Compare with a node's floor. Writes only when it must suspend."""

        def act(state: State) -> errors.FleetError | None:
            refusal = state.behind([floor], self._clock.now())
            if refusal is not None:
                return refusal
            try:
                state.head.check(floor)
            except errors.FleetError as error:
                return error
            return None

        refusal = self._do(act)
        if refusal is not None:
            raise refusal

    def acquire(
        self, requests: Sequence[AcquireRequest], *, out_of_service_max: int | None = None
    ) -> list[Lease | errors.FleetError]:
        """Grant each request, or say why not."""

        def act(state: State) -> _Answers:
            now = self._clock.now()
            refusal = state.behind([request.min_token for request in requests], now)
            if refusal is not None:
                return [refusal for _ in requests]
            budget = None
            if out_of_service_max is not None:
                rows = [row for row in state.all() if row.holder.kind in decisions.BUDGETED]
                budget = decisions.Budget(rows, out_of_service_max, now)
            return [_acquire(state, request, budget, now) for request in requests]

        return self._do(act) if requests else self._do(lambda _: [])

    def renew(self, renewals: Sequence[Renewal]) -> list[Lease | errors.FleetError]:
        """Prolong leases."""

        def act(state: State) -> _Answers:
            now = self._clock.now()
            answers: _Answers = []
            for renewal in renewals:
                held = state.held(renewal.holder, renewal.token)
                answer = decisions.prolong(renewal, held, now)
                if isinstance(answer, Lease):
                    state.put(answer, now)
                answers.append(answer)
            return answers

        return self._do(act)

    def release(self, releases: Sequence[Release]) -> list[bool | errors.FleetError]:
        """Give leases back; whether anything was held."""

        def act(state: State) -> list[bool | errors.FleetError]:
            now = self._clock.now()
            return [_release(state, release, now) for release in releases]

        return self._do(act)

    def holder(self, unit: UnitId) -> Lease | None:
        """The lease in force on `unit`, with all its units."""

        def act(state: State) -> Lease | None:
            row = state.on([unit]).get(unit)
            if row is None or is_expired(row, self._clock.now()):
                return None
            return decisions.gathered(state.held(row.holder, row.token))[0]

        return self._do(act)

    def held_by(self, holders: Collection[Holder], *, lapsed: bool = False) -> list[Lease]:
        """The leases in force of these holders, by token."""
        wanted = frozenset(holders)

        def act(state: State) -> list[Lease]:
            mine = [row for row in state.all() if row.holder in wanted]
            now = self._clock.now()
            return decisions.gathered(row for row in mine if lapsed or not is_expired(row, now))

        return self._do(act)

    def leases(self, holder: Holder | None = None) -> list[Lease]:
        """The leases in force, by token."""

        def act(state: State) -> list[Lease]:
            now = self._clock.now()
            return decisions.gathered(
                row
                for row in state.all()
                if not is_expired(row, now) and holder in (None, row.holder)
            )

        return self._do(act)

    def history(self, limit: int) -> list[HistoryEntry]:
        """The newest entries first; the object keeps `kubernetes_state.HISTORY_KEPT`."""
        return self._do(lambda state: state.history(limit))

    # --- one write for all who wait -----------------------------------------------------------

    def _do(self, act: Callable[[State], _T]) -> _T:
        """What `act` returns for the state it was carried out on; it may run more than once."""
        ticket = _Ticket(act)
        taken = self._turns.wait(ticket)
        if taken:
            try:
                self._lead(taken)
            finally:
                self._turns.end()
        if ticket.error is not None:
            raise ticket.error
        value: _T = ticket.value
        return value

    def _lead(self, tickets: Sequence[_Ticket]) -> None:
        try:
            values = self._carry_out(tickets)
        except errors.StoreUnavailable as error:
            if len(tickets) > 1 and error.fields.get("too_large"):
                for ticket in tickets:  # What fits is carried out all the same.
                    self._lead([ticket])
                return
            _settle(tickets, error)
        except BaseException as error:
            _settle(tickets, error)
            if not isinstance(error, Exception):
                raise
        else:
            for ticket, value in zip(tickets, values, strict=True):
                ticket.value, ticket.done = value, True

    def _carry_out(self, tickets: Sequence[_Ticket]) -> list[Any]:
        def change(found: Object | None) -> tuple[Object | None, tuple[State, list[Any]]]:
            state = self._state(found)
            values = [ticket.act(state) for ticket in tickets]
            if not state.changed:
                return None, (state, values)
            return with_parts(found, state.texts()), (state, values)

        swapped = self._maps.swap(NAME, change)
        state, values = swapped.value
        self._seen = max(self._seen, state.head.newest)
        if swapped.found is not None:
            state.changed = False
            self._cached = (_version(swapped.found), state)
        return values

    def _state(self, found: Object | None) -> State:
        """The state to act on. It is changed in place, so it is kept only after a success."""
        cached, self._cached = self._cached, None
        if found is None:
            raise decisions.uninitialised()
        if cached is not None and cached[0] == _version(found):
            state: State | None = cached[1]
        else:
            state = _read(found, self._observed)
        if state is None:
            raise decisions.uninitialised()
        state.seen = self._seen
        return state


def _settle(tickets: Sequence[_Ticket], error: BaseException) -> None:
    for ticket in tickets:
        ticket.error, ticket.done = error, True


def _acquire(
    state: State, request: AcquireRequest, budget: decisions.Budget | None, now: float
) -> Lease | errors.FleetError:
    grant = decisions.decide(request, state.on(request.units), state.head, now)
    if isinstance(grant, errors.FleetError):
        return grant
    if budget is not None and (refusal := budget.admit(grant.lease)) is not None:
        return refusal
    state.put(grant.lease, now)
    if not grant.same:
        state.lead(replace(state.head, newest=grant.lease.token))
        state.record(decisions.granted(grant, now))
    return grant.lease


def _release(state: State, release: Release, now: float) -> bool | errors.FleetError:
    held = state.held(release.holder, release.token)
    refusal = decisions.check_release(release, held)
    if refusal is not None:
        return refusal
    for row in held:
        for unit in row.units:
            state.drop(unit)
    state.record(decisions.released(release, held, now))
    return bool(held)


def _shell(found: Object | None) -> tuple[Object | None, None]:
    """The empty object: its UID has to be known before there is a state in it."""
    return (None, None) if found is not None else ({"metadata": {"labels": LABELS}}, None)


def _read(found: Object, observed: Observation) -> State | None:
    try:
        texts = parts_of(found)
    except ValueError as error:
        raise kubernetes_state.unreadable(str(error)) from error
    return kubernetes_state.read(texts, uid_of(found), observed)


def _version(found: Object) -> str:
    """What tells one content of the object from another, also after a restore of the server."""
    annotations = found["metadata"].get("annotations", {})
    return f"{uid_of(found)} {version_of(found)} {sorted(annotations.items())}"
