"""The product's own rules as the model calls them: real tables, real lease rules, cached.

`Rules` is where a mutant differs: other tables, or dropped flow rules. Nothing decides by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from fleet.core import claim_states as claims
from fleet.core import errors, leases, unit_states
from fleet.core.claim_states import ClaimEvent, ClaimFact, ClaimState
from fleet.core.model import (
    ClaimUid,
    Digest,
    Holder,
    HolderKind,
    Lease,
    NodeName,
    Reason,
    Source,
    State,
    Token,
    UnitId,
)
from fleet.core.model import Unit as Record
from fleet.core.table import Table
from fleet.core.unit_states import Change, Event, Fact
from tests.simulation.world import CAMPAIGN, NOBODY, Scenario, Unit, World

EPOCH = 1
JOURNAL = 8
"""So many first fields of the model's `Unit` are the journal's record."""
Journal = tuple[str, str, int, bool, int, bool, int, int]

REASONS = {
    "L": Reason("link-degraded", Source.HEALTH, liftable=True),
    "X": Reason("row-remap-failed", Source.KERNEL, liftable=False),
}
LETTERS = {reason.key: letter for letter, reason in REASONS.items()}
OUTDATED, READ_BACK = 1, 2
"""How a quarantine is published; see `Unit.published`."""


def token_of(counter: int) -> Token:
    """The real token of a counter; 0 is "none yet"."""
    return Token(EPOCH if counter else 0, counter)


def holder_of(code: int) -> Holder:
    """The real holder of a holder code."""
    if code == CAMPAIGN:
        return Holder(HolderKind.CAMPAIGN, "run")
    return Holder(HolderKind.CLAIM, str(code))


def record_of(unit: Unit) -> Record:
    """The journal's part of a model unit as the product's own record."""
    return Record(
        id=UnitId("unit"),
        state=State(unit.state),
        reasons=frozenset(REASONS[letter] for letter in unit.reasons),
        floor=token_of(unit.floor),
        closed=unit.closed,
        token=token_of(unit.token) if unit.token else None,
        certificate=Digest("sha256:0") if unit.certificate else None,
        claim=ClaimUid(str(unit.claim)) if unit.claim != NOBODY else None,
        interruptions=unit.interruptions,
    )


def fields_of(record: Record) -> Journal:
    """The journal's part of a model unit, read back from the product's record."""
    return (
        str(record.state),
        "".join(sorted(LETTERS[reason.key] for reason in record.reasons)),
        record.floor.counter,
        record.closed,
        record.token.counter if record.token else 0,
        record.certificate is not None,
        int(record.claim) if record.claim is not None else NOBODY,
        record.interruptions,
    )


def unfit(unit: Unit) -> bool:
    """Whether the unit is shown as quarantined: by its state, or by a reason open meanwhile."""
    return unit.state in ("QUARANTINED", "RETESTING") or unit.reasons != ""


@dataclass(frozen=True)
class Act:
    """What an event brings along, in the model's words."""

    event: Event
    facts: frozenset[Fact] = frozenset()
    token: int = 0
    claim: int = NOBODY
    add: str = ""
    clear: str = ""

    def change(self) -> Change:
        """The same as the product's `Change`."""
        return Change(
            facts=self.facts,
            reasons=frozenset(REASONS[letter] for letter in self.add),
            cleared=frozenset(REASONS[letter].key for letter in self.clear),
            token=token_of(self.token) if self.token else None,
            certificate=Digest("sha256:0") if Fact.CERTIFICATE_DURABLE in self.facts else None,
            claim=ClaimUid(str(self.claim)) if self.claim != NOBODY else None,
        )


FLOW_RULES = frozenset(
    {
        "abandon",
        "allocations taken back are undone",
        "claim writes carry resourceVersion",
        "claim writes name the uid",
        "adoption begins an epoch",
        "attached keeps wipes off",
        "attaching dirties",
        "attaching waits for work",
        "closing",
        "devices go out of service whole",
        "fence",
        "floor rises with acts only",
        "floors adopted",
        "held after loss",
        "holder release asks for a record",
        "holder release looks at units",
        "idle cleaner asks for records",
        "journal lock",
        "lease kept until the tombstone",
        "leases exclude",
        "node exclusivity",
        "orphan by consumer",
        "orphan specs removed",
        "orphan sweep",
        "overlap by unit",
        "own units only",
        "quarantine read back",
        "reconcile",
        "record before lease",
        "records refuse wipes",
        "release by holder",
        "release by token",
        "resourceVersion on slices",
        "retest asks the reasons",
        "running pods refuse teardown",
        "serial",
        "spec gone first",
        "store floor",
        "survivors proven gone",
        "teardown closes its token",
        "teardown unfenced",
        "tenant proven gone",
        "unknown consumers keep wipes off",
        "visibility asked in the burial",
        "visibility of this quarantine",
        "witness",
    }
)
"""Rules outside the tables, by the name under which the model asks for them."""


WORKED_ON = frozenset({State.WIPING, State.CHECKING, State.RETESTING})
NEWS: dict[Event, frozenset[State]] = {
    Event.FAULT_SEEN: frozenset(State),
    Event.NEW_BOOT: frozenset(State),
    Event.TRUST_LOST: WORKED_ON | {State.DIRTY, State.CLEAN, State.IN_USE},
    Event.TEARDOWN_FAILED: frozenset({State.IN_USE}),
    Event.INTERRUPTED: WORKED_ON,
    Event.TIMED_OUT: WORKED_ON,
    Event.CANCELLED: WORKED_ON - {State.CHECKING},
    Event.WIPE_FAILED: WORKED_ON - {State.CHECKING},
    Event.HEALTH_FAILED: WORKED_ON - {State.WIPING},
}
"""What has happened already, by the states in which it can: no table may refuse to hear it."""
CLAIM_NEWS: dict[ClaimEvent, frozenset[ClaimState]] = {
    ClaimEvent.NEW_BOOT: frozenset(ClaimState) - {ClaimState.ABSENT},
    ClaimEvent.PREPARE_FAILED: frozenset({ClaimState.PREPARING}),
}


@dataclass(eq=False)
class Rules:
    """The protocol (or a broken version of it) that a search runs."""

    units: Table[State, Event, Fact] = unit_states.TABLE
    claims: Table[ClaimState, ClaimEvent, ClaimFact] = claims.TABLE
    dropped: frozenset[str] = frozenset()
    taken: set[tuple[str, str, str]] = field(default_factory=set, repr=False)
    """(state, event, next state) of every row used so far, of both tables."""
    unheard: set[tuple[str, str]] = field(default_factory=set, repr=False)
    """(state, event) that a table refused though it had happened."""
    _units: dict[object, Journal | None] = field(default_factory=dict, repr=False)
    _claims: dict[object, str | None] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """A misspelt rule would be kept in silence."""
        if unknown := self.dropped - FLOW_RULES:
            raise ValueError(f"no such rules: {sorted(unknown)}")

    def keeps(self, rule: str) -> bool:
        """Whether the flow rule of this name is in force."""
        return rule not in self.dropped

    def unit(
        self,
        unit: Unit,
        event: Event,
        facts: frozenset[Fact] = frozenset(),
        token: int = 0,
        **more: str | int,
    ) -> Unit | None:
        """The unit after `event` by the real `unit_states.step`; None when the table refuses."""
        key = (unit[:JOURNAL], event, facts, token, tuple(more.items()))
        try:
            found = self._units[key]
        except KeyError:
            found = self._units[key] = self._step(unit, Act(event, facts, token, **more))  # type: ignore[arg-type]
        if found is None:
            return None
        moved = Unit._make(found + unit[JOURNAL:])
        if unit.published == READ_BACK and unfit(unit) and not unfit(moved):
            return moved._replace(published=OUTDATED)
        return moved

    def _step(self, unit: Unit, act: Act) -> Journal | None:
        try:
            moved = unit_states.step(
                record_of(unit), act.event, now=0.0, change=act.change(), table=self.units
            )
        except errors.IllegalTransition:
            if State(unit.state) in NEWS.get(act.event, ()):
                self.unheard.add((unit.state, str(act.event)))
            return None
        self.taken.add((unit.state, str(act.event), str(moved.state)))
        return fields_of(moved)

    def claim(
        self, state: str, event: ClaimEvent, facts: frozenset[ClaimFact] = frozenset()
    ) -> str | None:
        """The claim's state after `event` by the real `claims.step`; None when refused."""
        key = (state, event, facts)
        if key not in self._claims:
            try:
                moved = claims.step(ClaimState(state), event, facts, self.claims)
                self._claims[key] = str(moved)
                self.taken.add((state, str(event), str(moved)))
            except errors.IllegalTransition:
                if ClaimState(state) in CLAIM_NEWS.get(event, ()):
                    self.unheard.add((state, str(event)))
                self._claims[key] = None
        return self._claims[key]


class Model(NamedTuple):
    """What every move needs to know besides the world."""

    scenario: Scenario
    rules: Rules

    def seated(self, world: World) -> Model:
        """The same, each claim's device being the one it is allocated to now."""
        seats = self.scenario.seats
        if not seats:
            return self
        return Model(seating(self.scenario, tuple([c.seat for c in world.claims])), self.rules)

    def place(self, claim: int, seat: int) -> tuple[int, ...]:
        """Units of a device that the claim has or had."""
        seats = self.scenario.seats
        return seats[seat] if seats else self.scenario.devices[claim]

    def device(self, claim: int) -> tuple[int, ...]:
        """Units of the claim's device."""
        return self.scenario.devices[claim]

    def watched(self, world: World, units: Iterable[int]) -> bool:
        """Whether a claim with a record is attached to one of these units."""
        return any(
            looks and claim.record != "ABSENT" and not looks.isdisjoint(units)
            for looks, claim in zip(
                map(frozenset, self.scenario.attached), world.claims, strict=True
            )
        )

    def keeps(self, rule: str) -> bool:
        """Whether the flow rule of this name is in force."""
        return rule not in self.rules.dropped

    def suffers(self, fault: str, world: World) -> bool:
        """Whether this fault may strike now."""
        return world.budget > 0 and fault in self.scenario.faults

    def advance(
        self,
        world: World,
        indexes: Iterable[int],
        event: Event,
        facts: frozenset[Fact] = frozenset(),
        token: int = 0,
        **more: str | int,
    ) -> World | None:
        """The world after one event of several units together; None when one table refuses."""
        units = list(world.units)
        for index in indexes:
            moved = self.rules.unit(units[index], event, facts, token, **more)
            if moved is None:
                return None
            units[index] = moved
        return world._replace(units=tuple(units))


@cache
def seating(scenario: Scenario, chosen: tuple[int, ...]) -> Scenario:
    """The scenario with these seats as the claims' devices."""
    return replace(scenario, devices=tuple(scenario.seats[seat] for seat in chosen))


@cache
def grant(
    wanted: int,
    current: tuple[tuple[int, int], ...],
    newest: int,
    floors: tuple[tuple[int, bool], ...],
) -> int | None:
    """Token the real store rules grant `wanted` over (holder, token) of each unit, or None.

    `floors`: floor of each unit and whether it is closed; empty when the node was not asked.
    """
    names = [UnitId(f"unit-{index}") for index in range(len(current))]
    in_force = {
        name: Lease(
            units=frozenset({name}),
            holder=holder_of(code),
            token=token_of(token),
            expires_at=1.0 if code == CAMPAIGN else None,
        )
        for name, (code, token) in zip(names, current, strict=True)
        if code != NOBODY
    }
    request = leases.AcquireRequest(
        units=frozenset(names),
        holder=holder_of(wanted),
        ttl_s=1.0 if wanted == CAMPAIGN else None,
        min_token=token_of(max(floors)[0]) if floors else None,
        closed=max(floors)[1] if floors else False,
    )
    request.validate()
    issued = Token(EPOCH, newest)
    try:
        leases.check_floor(issued, request.min_token)
    except errors.StoreBehind:
        return None
    decided = leases.decide_acquire(request, in_force, issued, now=0.0)
    return decided.token.counter if isinstance(decided, leases.Granted) else None


@cache
def accepts(floors: tuple[tuple[int, bool], ...], token: int) -> bool:
    """Whether the real node gate lets an act under `token` pass units with these floors."""
    units: Iterable[Record] = [
        Record(id=UnitId(str(index)), floor=token_of(floor), closed=shut)
        for index, (floor, shut) in enumerate(floors)
    ]
    try:
        leases.check_token(units, token_of(token), EPOCH)
    except (errors.TokenStale, errors.EpochForeign):
        return False
    return True


@cache
def closed(code: int, token: int, closure: int | None) -> bool:
    """Whether the real release rule lets a claim's lease go, given the token its node closed."""
    holder = holder_of(code)
    word = (
        None
        if closure is None
        else leases.Closure(holder, token_of(closure), NodeName("n"), leases.ClosedBy.ABANDON)
    )
    try:
        leases.check_closure(holder, word, token_of(token))
    except errors.InputInvalid:
        return False
    return True


@cache
def raised(floor: int, token: int, *, shut: bool, closing: bool) -> tuple[int, bool]:
    """Floor, and whether it is closed, after an act under `token` or after `token` was closed."""
    record = Record(id=UnitId("unit"), floor=token_of(floor), closed=shut)
    move = unit_states.close_floor if closing else unit_states.raise_floor
    moved = move(record, token_of(token))
    return moved.floor.counter, moved.closed
