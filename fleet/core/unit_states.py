"""The life of a unit: is its memory clean, and who says so (the first table of DESIGN 4). Pure.

Every change of a unit's state goes through `step`; there is no other way. Facts are established by
the caller immediately before, under the unit's lock, and passed in; facts about the record itself
(open reasons, interruptions in a row) are derived here.

Doubt costs a wipe: unknown, interrupted, rebooted, corrupted all lead to DIRTY or HELD; failure and
time-out lead to QUARANTINED; nothing but a certified pass leads to CLEAN.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum

from fleet.core.model import NO_TOKEN, BootId, ClaimUid, Digest, Reason, State, Token, Unit
from fleet.core.table import Row, Table

INTERRUPTIONS_MAX = 3
"""A third wipe in a row whose worker died unasked is a fault, not bad luck."""


class Event(StrEnum):
    """What can happen to a unit."""

    PROVEN_FREE = "ProvenFree"
    WIPE_STARTED = "WipeStarted"
    WIPE_VERIFIED = "WipeVerified"
    WIPE_FAILED = "WipeFailed"
    TIMED_OUT = "TimedOut"
    CANCELLED = "Cancelled"
    INTERRUPTED = "Interrupted"
    HEALTH_PASSED = "HealthPassed"
    HEALTH_FAILED = "HealthFailed"
    EXPOSED = "Exposed"
    RELEASED = "Released"
    TEARDOWN_FAILED = "TeardownFailed"
    TRUST_LOST = "TrustLost"
    FAULT_SEEN = "FaultSeen"
    RETEST_STARTED = "RetestStarted"
    RETEST_PASSED = "RetestPassed"
    CLEARED = "Cleared"
    NEW_BOOT = "NewBoot"


class Fact(StrEnum):
    """What the caller must have established (or `step` derives) for a row to apply."""

    NO_PROCESS = "no process but listed infrastructure"
    NO_CONTAINER = "no container or cgroup of a consumer"
    NO_SURVIVOR = "no surviving worker of ours"
    WORKER_JOURNALLED = "worker journalled"
    WORKER_GONE = "worker proven gone"
    NO_CLAIM_RECORD = "no claim record"
    CERTIFICATE_DURABLE = "certificate durable"
    CERTIFICATE_ACCEPTED = "certificate accepted for this exposure"
    LEASE_OF_CLAIM = "lease of this claim"
    SAME_BOOT = "same boot"
    HOLDERS_REREAD = "holders and counters re-read"
    TENANT_GONE = "tenant proven gone"
    SPEC_GONE = "CDI spec gone"
    NO_OPEN_REASON = "no open reason"
    REASONS_LIFTABLE = "every reason liftable by rule"
    FEW_INTERRUPTIONS = "fewer than three interruptions in a row"


DERIVED = frozenset({Fact.NO_OPEN_REASON, Fact.REASONS_LIFTABLE, Fact.FEW_INTERRUPTIONS})
"""Facts read off the record; a caller that passes them is ignored."""

START_GUARD = frozenset(
    {Fact.NO_PROCESS, Fact.NO_CONTAINER, Fact.NO_SURVIVOR, Fact.WORKER_JOURNALLED}
)


def _row(state: State, event: Event, to: State, *facts: Fact) -> Row[State, Event, Fact]:
    return Row(state, event, to, frozenset(facts))


def _rows_of_service() -> Iterable[Row[State, Event, Fact]]:
    """From unknown over clean to in use and back."""
    s, e, f, row = State, Event, Fact, _row
    yield row(s.HELD, e.PROVEN_FREE, s.DIRTY, f.NO_OPEN_REASON)
    yield row(s.HELD, e.PROVEN_FREE, s.QUARANTINED)
    yield row(s.HELD, e.FAULT_SEEN, s.HELD)
    yield row(s.HELD, e.NEW_BOOT, s.HELD)

    yield row(s.DIRTY, e.WIPE_STARTED, s.WIPING, *START_GUARD)
    yield row(s.CLEAN, e.WIPE_STARTED, s.WIPING, *START_GUARD)

    yield row(s.WIPING, e.WIPE_VERIFIED, s.CHECKING)
    yield row(s.WIPING, e.CANCELLED, s.DIRTY, f.WORKER_GONE, f.NO_OPEN_REASON)
    yield row(s.WIPING, e.CANCELLED, s.QUARANTINED)
    bad_luck = (f.WORKER_GONE, f.FEW_INTERRUPTIONS, f.NO_OPEN_REASON)
    yield row(s.WIPING, e.INTERRUPTED, s.DIRTY, *bad_luck)
    yield row(s.WIPING, e.INTERRUPTED, s.QUARANTINED)
    yield row(s.WIPING, e.WIPE_FAILED, s.QUARANTINED)
    yield row(s.WIPING, e.TIMED_OUT, s.QUARANTINED)

    yield row(s.CHECKING, e.HEALTH_PASSED, s.CLEAN, f.CERTIFICATE_DURABLE, f.NO_OPEN_REASON)
    yield row(s.CHECKING, e.INTERRUPTED, s.DIRTY, f.WORKER_GONE, f.NO_OPEN_REASON)
    yield row(s.CHECKING, e.INTERRUPTED, s.QUARANTINED)
    yield row(s.CHECKING, e.HEALTH_FAILED, s.QUARANTINED)
    yield row(s.CHECKING, e.TIMED_OUT, s.QUARANTINED)

    yield row(
        s.CLEAN,
        e.EXPOSED,
        s.IN_USE,
        f.LEASE_OF_CLAIM,
        f.CERTIFICATE_ACCEPTED,
        f.SAME_BOOT,
        f.NO_SURVIVOR,
        f.HOLDERS_REREAD,
        f.NO_OPEN_REASON,
    )

    yield row(s.IN_USE, e.RELEASED, s.DIRTY, f.TENANT_GONE, f.SPEC_GONE, f.NO_OPEN_REASON)
    yield row(s.IN_USE, e.RELEASED, s.QUARANTINED, f.TENANT_GONE, f.SPEC_GONE)
    yield row(s.IN_USE, e.TEARDOWN_FAILED, s.QUARANTINED)
    yield row(s.IN_USE, e.FAULT_SEEN, s.IN_USE)
    yield row(s.IN_USE, e.TRUST_LOST, s.IN_USE)


def _rows_of_doubt() -> Iterable[Row[State, Event, Fact]]:
    """What takes a unit out of service, and how it comes back."""
    s, e, f, row = State, Event, Fact, _row
    for state in (s.DIRTY, s.WIPING, s.CHECKING, s.CLEAN):
        yield row(state, e.TRUST_LOST, s.DIRTY, f.WORKER_GONE, f.NO_OPEN_REASON)
        yield row(state, e.TRUST_LOST, s.QUARANTINED)
        yield row(state, e.FAULT_SEEN, s.QUARANTINED)
    for state in (s.DIRTY, s.WIPING, s.CHECKING, s.CLEAN, s.IN_USE):
        yield row(state, e.NEW_BOOT, s.DIRTY, f.NO_OPEN_REASON)
        yield row(state, e.NEW_BOOT, s.QUARANTINED)

    retest_guard = (*START_GUARD, f.NO_CLAIM_RECORD)
    yield row(s.QUARANTINED, e.RETEST_STARTED, s.RETESTING, *retest_guard)
    yield row(s.QUARANTINED, e.CLEARED, s.DIRTY, f.NO_OPEN_REASON)
    yield row(s.QUARANTINED, e.CLEARED, s.QUARANTINED)
    yield row(s.QUARANTINED, e.FAULT_SEEN, s.QUARANTINED)
    yield row(s.QUARANTINED, e.NEW_BOOT, s.QUARANTINED)

    yield row(s.RETESTING, e.RETEST_PASSED, s.CLEAN, f.CERTIFICATE_DURABLE, f.REASONS_LIFTABLE)
    for event in (
        e.RETEST_PASSED,
        e.WIPE_FAILED,
        e.TIMED_OUT,
        e.CANCELLED,
        e.INTERRUPTED,
        e.HEALTH_FAILED,
        e.TRUST_LOST,
        e.FAULT_SEEN,
        e.NEW_BOOT,
    ):
        yield row(s.RETESTING, event, s.QUARANTINED)


TABLE: Table[State, Event, Fact] = Table("unit", (*_rows_of_service(), *_rows_of_doubt()))


@dataclass(frozen=True, slots=True)
class Change:
    """What an event brings along; every field is optional."""

    facts: frozenset[Fact] = frozenset()
    reasons: frozenset[Reason] = frozenset()
    """Reasons to add: with FaultSeen and with every failure."""
    cleared: frozenset[tuple[str, str]] = frozenset()
    """Keys (code, source) an operator clears."""
    token: Token | None = None
    certificate: Digest | None = None
    claim: ClaimUid | None = None
    holder: str = ""
    boot_id: BootId | None = None


def step(
    unit: Unit,
    event: Event,
    *,
    now: float,
    change: Change | None = None,
    table: Table[State, Event, Fact] = TABLE,
) -> Unit:
    """The unit after `event`. Raises `IllegalTransition`; the unit given is never changed."""
    change = change or Change()
    reasons = _reasons(unit, event, change)
    facts = (change.facts - DERIVED) | _derived(unit, reasons)
    if change.certificate is None:
        facts -= {Fact.CERTIFICATE_DURABLE}
    row = table.row(unit.state, event, facts)
    moved = replace(unit, state=row.to, reasons=reasons)
    if row.to != unit.state:
        moved = replace(moved, since=now)
    moved = _settle(moved, event, change)
    if event is Event.NEW_BOOT:
        moved = replace(moved, boot_id=change.boot_id or moved.boot_id)
    return moved


def _reasons(unit: Unit, event: Event, change: Change) -> frozenset[Reason]:
    """The set after additions and, with Cleared, clearings. A reason's `since` never moves."""
    cleared = change.cleared if event is Event.CLEARED else frozenset()
    kept = {r.key: r for r in unit.reasons if (r.code, str(r.source)) not in cleared}
    for reason in change.reasons:
        kept.setdefault(reason.key, reason)
    return frozenset(kept.values())


def _derived(unit: Unit, reasons: frozenset[Reason]) -> AbstractSet[Fact]:
    facts: set[Fact] = set()
    if not reasons:
        facts.add(Fact.NO_OPEN_REASON)
    if all(reason.liftable for reason in reasons):
        facts.add(Fact.REASONS_LIFTABLE)
    if unit.interruptions + 1 < INTERRUPTIONS_MAX:
        facts.add(Fact.FEW_INTERRUPTIONS)
    return facts


def _settle(unit: Unit, event: Event, change: Change) -> Unit:
    """Bookkeeping that follows the state: certificate, token, claim, interruptions."""
    if event in (Event.WIPE_STARTED, Event.RETEST_STARTED):
        return replace(unit, certificate=None, token=change.token)
    if event in (Event.HEALTH_PASSED, Event.RETEST_PASSED) and unit.state is State.CLEAN:
        return replace(
            unit,
            certificate=change.certificate,
            head=change.certificate,
            reasons=frozenset(),
            interruptions=0,
        )
    if event is Event.EXPOSED:
        return replace(unit, claim=change.claim, token=change.token)
    if event is Event.INTERRUPTED:
        unit = replace(unit, interruptions=unit.interruptions + 1)
    if unit.state is State.IN_USE:
        return unit
    if event in (Event.RELEASED, Event.TEARDOWN_FAILED):
        unit = replace(unit, last_holder=change.holder or unit.last_holder)
    return replace(unit, certificate=None)


def raise_floor(unit: Unit, token: Token) -> Unit:
    """The unit with its floor at least at `token`: rises only with an act that is accepted."""
    return unit if token <= unit.floor else replace(unit, floor=token, closed=False)


def close_floor(unit: Unit, token: Token) -> Unit:
    """The unit with `token` and everything older refused from now on."""
    return unit if token < unit.floor else replace(unit, floor=token, closed=True)


def fresh(unit: Unit) -> Unit:
    """The unit as a new or set-aside journal starts it: holder unknown, nothing trusted."""
    return replace(unit, state=State.HELD, token=None, certificate=None, claim=None, floor=NO_TOKEN)
