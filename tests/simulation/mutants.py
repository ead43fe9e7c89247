"""Broken versions of the protocol: each drops exactly one rule, and one property must notice.

A rule that stands alone is dropped alone. Where two guards cover each other on purpose (real checks
race, the model's do not), dropping one is harmless and both are dropped together; the text says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet import claims, lifecycle
from fleet.claims import ClaimEvent, ClaimFact, ClaimState
from fleet.lifecycle import Event, Fact
from fleet.model import State
from fleet.table import Table
from tests.simulation import checker
from tests.simulation.rules import Rules
from tests.simulation.world import Scenario

UnitTable = Table[State, Event, Fact]
ClaimTable = Table[ClaimState, ClaimEvent, ClaimFact]

ONE = ((0,),)
TWO = ((0,), (0,))
PARENT_CHILD = ((0, 1), (0,))
NEIGHBOURS = ((0,), (1,))


@dataclass(frozen=True)
class Mutant:
    """A broken protocol, where to look at it, and which property catches it."""

    rule: str
    caught_by: str
    scenario: Scenario
    rules: Rules
    ignored: frozenset[str] = frozenset()
    """Checks left out, to see what follows physically from what they would notice first."""

    def __str__(self) -> str:
        return f"without: {self.rule}"


def without(table: UnitTable, event: Event, *facts: Fact) -> UnitTable:
    """The table whose rows for `event` do not ask for these facts."""
    return Table(
        table.name,
        tuple(
            replace(row, requires=row.requires - set(facts)) if row.event is event else row
            for row in table.rows
        ),
    )


def redirected(table: UnitTable, event: Event, state: State, to: State) -> UnitTable:
    """The table in which `event` in `state` always leads to `to`."""
    return Table(
        table.name,
        tuple(
            replace(row, to=to, requires=frozenset())
            if row.event is event and row.state is state
            else row
            for row in table.rows
        ),
    )


def _claims(event: ClaimEvent, state: ClaimState, to: ClaimState) -> ClaimTable:
    return Table(
        claims.TABLE.name,
        tuple(
            replace(row, to=to, requires=frozenset())
            if row.event is event and row.state is state
            else row
            for row in claims.TABLE.rows
        ),
    )


def _unjoined() -> ClaimTable:
    return Table(
        claims.TABLE.name,
        tuple(
            replace(row, requires=row.requires - {ClaimFact.PREPARE_JOINED})
            for row in claims.TABLE.rows
        ),
    )


def _at(
    devices: tuple[tuple[int, ...], ...], profile: str, faults: str = "", budget: int = 0
) -> Scenario:
    kinds = frozenset(faults.split(", ")) if faults else frozenset()
    return Scenario("mutant", devices, profile=profile, faults=kinds, budget=budget)


def _flow(*rules: str) -> Rules:
    return Rules(dropped=frozenset(rules))


U = lifecycle.TABLE
START = (Event.WIPE_STARTED, Event.RETEST_STARTED)


def _starting(*facts: Fact) -> UnitTable:
    table = U
    for event in START:
        table = without(table, event, *facts)
    return table


def _of_units() -> list[Mutant]:
    """The first table, broken."""
    e, f, s = Event, Fact, State
    adopted = _at(ONE, "lab", "journal lost, adopt", 2)
    wedged = _at(ONE, "lab", "wipe, clear", 2)
    faulty = _at(ONE, "lab", "fault", 1)
    two_faults = _at(ONE, "lab", "fault, clear", 3)
    reboot = _at(ONE, "fast", "reboot", 1)

    def units(rule: str, caught_by: str, scenario: Scenario, table: UnitTable) -> Mutant:
        return Mutant(rule, caught_by, scenario, Rules(units=table))

    return [
        units(
            "exposure asks for a certificate of its own token",
            checker.OTHER_CERTIFICATE,
            _at(ONE, "fast"),
            without(U, e.EXPOSED, f.CERTIFICATE_ACCEPTED),
        ),
        units(
            "exposure re-reads the holders",
            checker.FOREIGN_MEMORY,
            _at(ONE, "lab", "intruder", 1),
            without(U, e.EXPOSED, f.HOLDERS_REREAD),
        ),
        units(
            "no wipe starts under a process",
            checker.WIPE_UNDER_TENANT,
            adopted,
            _starting(f.NO_PROCESS),
        ),
        units(
            "no wipe starts under a created container",
            checker.WIPE_UNDER_TENANT,
            adopted,
            _starting(f.NO_CONTAINER),
        ),
        units(
            "no wipe starts beside a surviving worker",
            checker.CLEAN_UNTRUE,
            wedged,
            _starting(f.NO_SURVIVOR),
        ),
        units(
            "CLEAN needs a durable certificate",
            checker.UNCERTIFIED,
            _at(ONE, "fast"),
            without(U, e.HEALTH_PASSED, f.CERTIFICATE_DURABLE),
        ),
        units(
            "a retest needs a durable certificate",
            checker.UNCERTIFIED,
            faulty,
            without(U, e.RETEST_PASSED, f.CERTIFICATE_DURABLE),
        ),
        units(
            "a new boot makes IN_USE dirty",
            checker.FOREIGN_MEMORY,
            reboot,
            redirected(U, e.NEW_BOOT, s.IN_USE, s.IN_USE),
        ),
        units(
            "a new boot makes CLEAN dirty",
            checker.CLEAN_UNTRUE,
            reboot,
            redirected(U, e.NEW_BOOT, s.CLEAN, s.CLEAN),
        ),
        units(
            "a wipe cut off by a restart is dirty",
            checker.CLEAN_UNTRUE,
            _at(ONE, "lab", "crash", 1),
            redirected(U, e.CANCELLED, s.WIPING, s.CLEAN),
        ),
        units(
            "checks cut off by a restart leave dirty",
            checker.UNCERTIFIED,
            _at(ONE, "lab", "crash", 1),
            redirected(U, e.INTERRUPTED, s.CHECKING, s.CLEAN),
        ),
        units(
            "a wipe whose worker died is dirty",
            checker.CLEAN_UNTRUE,
            _at(ONE, "lab", "wipe", 1),
            redirected(U, e.INTERRUPTED, s.WIPING, s.CLEAN),
        ),
        units(
            "a wipe that timed out is quarantined",
            checker.CLEAN_UNTRUE,
            _at(ONE, "lab", "wipe", 1),
            redirected(U, e.TIMED_OUT, s.WIPING, s.CLEAN),
        ),
        units(
            "the third interruption in a row is a fault",
            checker.PATIENCE,
            _at(ONE, "lab", "wipe", 3),
            without(U, e.INTERRUPTED, f.FEW_INTERRUPTIONS),
        ),
        units(
            "a teardown wipes: what a tenant leaves is dirty",
            checker.CLEAN_UNTRUE,
            _at(ONE, "lab"),
            redirected(U, e.RELEASED, s.IN_USE, s.CLEAN),
        ),
        units(
            "a fault takes a CLEAN unit out of service",
            checker.FIT_WITH_REASON,
            faulty,
            redirected(U, e.FAULT_SEEN, s.CLEAN, s.CLEAN),
        ),
        units(
            "a reason seen in use outlasts the release",
            checker.FIT_WITH_REASON,
            faulty,
            without(U, e.RELEASED, f.NO_OPEN_REASON),
        ),
        units(
            "a reason outlasts a new boot",
            checker.FIT_WITH_REASON,
            _at(ONE, "lab", "fault, reboot", 2),
            without(U, e.NEW_BOOT, f.NO_OPEN_REASON),
        ),
        units(
            "a reason outlasts the proof of freedom",
            checker.FIT_WITH_REASON,
            _at(ONE, "lab", "fault, journal lost", 2),
            without(U, e.PROVEN_FREE, f.NO_OPEN_REASON),
        ),
        units(
            "an operator clears reason by reason",
            checker.FIT_WITH_REASON,
            two_faults,
            without(U, e.CLEARED, f.NO_OPEN_REASON),
        ),
        units(
            "lost trust makes CLEAN dirty",
            checker.CLEAN_UNTRUE,
            _at(ONE, "lab", "driver reload", 1),
            redirected(U, e.TRUST_LOST, s.CLEAN, s.CLEAN),
        ),
        Mutant(
            "a retest lifts only what a rule may lift (asked at its start and at its end)",
            checker.LIFTED,
            faulty,
            Rules(
                units=without(U, e.RETEST_PASSED, f.REASONS_LIFTABLE),
                dropped=frozenset({"retest asks the reasons"}),
            ),
        ),
        Mutant(
            "nothing is wiped before the tenant is proven gone (at release and at the start)",
            checker.WIPE_UNDER_TENANT,
            _at(ONE, "lab", "force delete", 1),
            Rules(
                units=_starting(f.NO_PROCESS, f.NO_CONTAINER),
                dropped=frozenset({"tenant proven gone"}),
            ),
        ),
        Mutant(
            "the spec is gone before the release",
            checker.SPEC_WITHOUT_RECORD,
            _at(ONE, "lab"),
            Rules(
                units=without(U, e.RELEASED, f.SPEC_GONE),
                dropped=frozenset({"spec gone first"}),
            ),
        ),
    ]


def _of_claims() -> list[Mutant]:
    """The second table, broken."""
    return [
        Mutant(
            "a new boot sends PREPARED back to PREPARING",
            checker.FOREIGN_MEMORY,
            _at(ONE, "fast", "reboot", 1),
            Rules(
                claims=_claims(ClaimEvent.NEW_BOOT, ClaimState.PREPARED, ClaimState.PREPARED)
            ),
        ),
        Mutant(
            "a teardown cancels and joins the prepare",
            checker.SPEC_WITHOUT_RECORD,
            _at(ONE, "lab"),
            Rules(claims=_unjoined(), dropped=frozenset({"serial"})),
        ),
    ]


def _of_flows() -> list[Mutant]:
    """Rules of DESIGN 4 and 5 outside the tables, dropped."""
    late = replace(_at(ONE, "fast", "duplicate", 1), campaign=True)
    campaign = replace(_at(ONE, "strict"), campaign=True)
    two_coordinators = replace(_at(ONE, "strict", "timeout", 1), coordinators=2)
    named = replace(_at(ONE, "strict"), spare=True)
    force = _at(ONE, "fast", "force delete", 1)
    lost = _at(ONE, "fast", "journal lost", 1)
    restored = replace(_at(ONE, "fast", "store restored", 1), campaign=True)
    rows: list[tuple[str, str, Scenario, Rules]] = [
        ("the node fences acts by token", checker.STALE_ACT, late, _flow("fence")),
        (
            "teardown closes the token of its record",
            checker.LEASE_ELSEWHERE,
            named,
            _flow("teardown closes its token"),
        ),
        (
            "a rollback asks the node to abandon first",
            checker.LEASE_ELSEWHERE,
            two_coordinators,
            _flow("abandon"),
        ),
        (
            "abandon closes the token",
            checker.LEASE_ELSEWHERE,
            two_coordinators,
            _flow("closing"),
        ),
        (
            "a release ends only the lease of its own token",
            checker.LEASE_ELSEWHERE,
            campaign,
            _flow("release by token"),
        ),
        (
            "a lost journal adopts the floors",
            checker.STALE_ACT,
            replace(_at(ONE, "fast", "journal lost, duplicate", 2), campaign=True),
            _flow("floors adopted"),
        ),
        (
            "only accepted acts raise the floor, and teardown is never fenced (V5: both, where a"
            " lease ends before its record)",
            checker.TRAP,
            replace(_at(ONE, "fast", "reboot", 1), campaign=True),
            _flow(
                "floor rises with acts only",
                "teardown unfenced",
                "lease kept until the tombstone",
            ),
        ),
        ("reconcile", checker.TRAP, _at(ONE, "strict"), _flow("reconcile")),
        ("orphan sweep", checker.TRAP, force, _flow("orphan sweep")),
        (
            "an orphan is a claim nobody but us reserves, not one that does not exist",
            checker.TRAP,
            force,
            _flow("orphan by consumer"),
        ),
        (
            "quarantine is read back before anything is released",
            checker.RELEASED_UNREAD,
            _at(ONE, "lab", "wipe", 1),
            _flow("quarantine read back"),
        ),
        (
            "slice writes carry resourceVersion",
            checker.QUARANTINE_LOST,
            _at(ONE, "lab", "older write, fault", 2),
            _flow("resourceVersion on slices"),
        ),
        (
            "a new journal removes orphan specs",
            checker.SPEC_WITHOUT_RECORD,
            lost,
            _flow("orphan specs removed"),
        ),
        (
            "a journal behind its witness is set aside",
            checker.TENANT_UNKNOWN,
            _at(ONE, "lab", "journal restored", 1),
            _flow("witness"),
        ),
        (
            "a lease excludes every other holder",
            checker.LEASE_ELSEWHERE,
            campaign,
            _flow("leases exclude"),
        ),
        (
            "a teardown touches its own units only",
            checker.NEIGHBOUR,
            replace(_at(NEIGHBOURS, "lab"), clean=True, coarse=True),
            _flow("own units only", "tenant proven gone"),
        ),
        (
            "a journal has one owner at a time",
            checker.SPEC_WITHOUT_RECORD,
            _at(ONE, "lab", "take-over", 1),
            _flow("journal lock"),
        ),
        (
            "the store grants nothing below a node's floor",
            checker.GRANT_BELOW,
            restored,
            _flow("store floor"),
        ),
        (
            "adopting a store begins an epoch",
            checker.LEASE_ELSEWHERE,
            restored,
            _flow("adoption begins an epoch"),
        ),
    ]
    overlapping = replace(_at(PARENT_CHILD, "lab", "force delete", 1), clean=True, coarse=True)
    physical = frozenset({checker.LEASE_ELSEWHERE, checker.STALE_ACT})
    return [
        *(Mutant(*row) for row in rows),
        Mutant(
            "the node refuses a unit of another claim (where the store does not)",
            checker.WIPE_UNDER_TENANT,
            _at(TWO, "lab", "force delete", 1),
            _flow("node exclusivity", "leases exclude"),
            physical,
        ),
        Mutant(
            "exclusivity is by unit, not by device (where the store's is not either)",
            checker.WIPE_UNDER_TENANT,
            overlapping,
            _flow("overlap by unit", "leases exclude"),
            physical,
        ),
    ]


MUTANTS: tuple[Mutant, ...] = (*_of_units(), *_of_claims(), *_of_flows())
