"""The two tables of DESIGN 4 with one row or one required fact changed."""

from __future__ import annotations

from fleet.core import unit_states
from fleet.core.claim_states import ClaimEvent, ClaimState
from fleet.core.model import State
from fleet.core.unit_states import Event, Fact
from tests.simulation import checker
from tests.simulation.mutation import (
    ONE,
    Mutant,
    UnitTable,
    at,
    claims_redirected,
    redirected,
    starting,
    unjoined,
    without,
)
from tests.simulation.rules import Rules
from tests.simulation.world import Scenario

U = unit_states.TABLE
PREPARED = ClaimState.PREPARED
ADOPTED = at(ONE, "lab", "journal lost, adopt, force delete", 3)
WEDGED = at(ONE, "lab", "wipe, clear", 2)
FAULTY = at(ONE, "lab", "fault", 1)
TWO_FAULTS = at(ONE, "lab", "fault, clear", 3)
REBOOT = at(ONE, "fast", "reboot", 1)


def units(rule: str, caught_by: str, scenario: Scenario, table: UnitTable) -> Mutant:
    """A mutant that differs in the table of units only."""
    return Mutant(rule, caught_by, scenario, Rules(units=table))


UNIT_MUTANTS: tuple[Mutant, ...] = (
    units(
        "exposure asks for a certificate of its own token",
        checker.OTHER_CERTIFICATE,
        at(ONE, "fast"),
        without(U, Event.EXPOSED, Fact.CERTIFICATE_ACCEPTED),
    ),
    units(
        "exposure re-reads the holders",
        checker.FOREIGN_MEMORY,
        at(ONE, "lab", "intruder", 1),
        without(U, Event.EXPOSED, Fact.HOLDERS_REREAD),
    ),
    units(
        "no wipe starts under a process",
        checker.WIPE_UNDER_TENANT,
        ADOPTED,
        starting(Fact.NO_PROCESS),
    ),
    units(
        "no wipe starts under a created container",
        checker.WIPE_UNDER_TENANT,
        ADOPTED,
        starting(Fact.NO_CONTAINER),
    ),
    units(
        "no wipe starts beside a surviving worker",
        checker.CLEAN_UNTRUE,
        WEDGED,
        starting(Fact.NO_SURVIVOR),
    ),
    units(
        "CLEAN needs a durable certificate",
        checker.UNCERTIFIED,
        at(ONE, "fast"),
        without(U, Event.HEALTH_PASSED, Fact.CERTIFICATE_DURABLE),
    ),
    units(
        "a retest needs a durable certificate",
        checker.UNCERTIFIED,
        FAULTY,
        without(U, Event.RETEST_PASSED, Fact.CERTIFICATE_DURABLE),
    ),
    units(
        "a new boot makes IN_USE dirty",
        checker.FOREIGN_MEMORY,
        REBOOT,
        redirected(U, Event.NEW_BOOT, State.IN_USE, State.IN_USE),
    ),
    units(
        "a new boot makes CLEAN dirty",
        checker.CLEAN_UNTRUE,
        REBOOT,
        redirected(U, Event.NEW_BOOT, State.CLEAN, State.CLEAN),
    ),
    units(
        "a wipe cut off by a restart is dirty",
        checker.CLEAN_UNTRUE,
        at(ONE, "lab", "crash", 1),
        redirected(U, Event.CANCELLED, State.WIPING, State.CLEAN),
    ),
    units(
        "checks cut off by a restart leave dirty",
        checker.UNCERTIFIED,
        at(ONE, "lab", "crash", 1),
        redirected(U, Event.INTERRUPTED, State.CHECKING, State.CLEAN),
    ),
    units(
        "a wipe whose worker died is dirty",
        checker.CLEAN_UNTRUE,
        at(ONE, "lab", "wipe", 1),
        redirected(U, Event.INTERRUPTED, State.WIPING, State.CLEAN),
    ),
    units(
        "a wipe that timed out is quarantined",
        checker.CLEAN_UNTRUE,
        at(ONE, "lab", "wipe", 1),
        redirected(U, Event.TIMED_OUT, State.WIPING, State.CLEAN),
    ),
    units(
        "the third interruption in a row is a fault",
        checker.PATIENCE,
        at(ONE, "lab", "wipe", 3),
        without(U, Event.INTERRUPTED, Fact.FEW_INTERRUPTIONS),
    ),
    units(
        "a teardown wipes: what a tenant leaves is dirty",
        checker.CLEAN_UNTRUE,
        at(ONE, "lab"),
        redirected(U, Event.RELEASED, State.IN_USE, State.CLEAN),
    ),
    units(
        "a fault takes a CLEAN unit out of service",
        checker.FIT_WITH_REASON,
        FAULTY,
        redirected(U, Event.FAULT_SEEN, State.CLEAN, State.CLEAN),
    ),
    units(
        "a reason seen in use outlasts the release",
        checker.FIT_WITH_REASON,
        FAULTY,
        without(U, Event.RELEASED, Fact.NO_OPEN_REASON),
    ),
    units(
        "a reason outlasts a new boot",
        checker.FIT_WITH_REASON,
        at(ONE, "lab", "fault, reboot", 2),
        without(U, Event.NEW_BOOT, Fact.NO_OPEN_REASON),
    ),
    units(
        "a reason outlasts the proof of freedom",
        checker.FIT_WITH_REASON,
        at(ONE, "lab", "fault, journal lost", 2),
        without(U, Event.PROVEN_FREE, Fact.NO_OPEN_REASON),
    ),
    units(
        "an operator clears reason by reason",
        checker.FIT_WITH_REASON,
        TWO_FAULTS,
        without(U, Event.CLEARED, Fact.NO_OPEN_REASON),
    ),
    units(
        "lost trust makes CLEAN dirty",
        checker.CLEAN_UNTRUE,
        at(ONE, "lab", "driver reload", 1),
        redirected(U, Event.TRUST_LOST, State.CLEAN, State.CLEAN),
    ),
    Mutant(
        "a retest lifts only what a rule may lift (asked at its start and at its end)",
        checker.LIFTED,
        FAULTY,
        Rules(
            units=without(U, Event.RETEST_PASSED, Fact.REASONS_LIFTABLE),
            dropped=frozenset({"retest asks the reasons"}),
        ),
    ),
    Mutant(
        "a survivor is proven gone (at the service's start and at the wipe's)",
        checker.CLEAN_UNTRUE,
        at(ONE, "lab", "crash", 1),
        Rules(
            units=starting(Fact.NO_SURVIVOR),
            dropped=frozenset({"survivors proven gone"}),
        ),
    ),
    Mutant(
        "without a journal nothing is free (V9: at its start and at the wipe's)",
        checker.WIPE_UNDER_TENANT,
        at(ONE, "lab", "journal lost", 1),
        Rules(
            units=starting(Fact.NO_CONTAINER, Fact.NO_PROCESS),
            dropped=frozenset({"held after loss"}),
        ),
    ),
    Mutant(
        "nothing is wiped before the tenant is proven gone (at release and at the start)",
        checker.WIPE_UNDER_TENANT,
        at(ONE, "lab", "force delete", 1),
        Rules(
            units=starting(Fact.NO_PROCESS, Fact.NO_CONTAINER),
            dropped=frozenset({"tenant proven gone"}),
        ),
    ),
    Mutant(
        "the spec is gone before the release",
        checker.SPEC_WITHOUT_RECORD,
        at(ONE, "lab"),
        Rules(
            units=without(U, Event.RELEASED, Fact.SPEC_GONE),
            dropped=frozenset({"spec gone first"}),
        ),
    ),
)

CLAIM_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a new boot sends PREPARED back to PREPARING",
        checker.FOREIGN_MEMORY,
        at(ONE, "fast", "reboot", 1),
        Rules(claims=claims_redirected(ClaimEvent.NEW_BOOT, PREPARED, PREPARED)),
    ),
    Mutant(
        "a teardown cancels and joins the prepare",
        checker.SPEC_WITHOUT_RECORD,
        at(ONE, "lab"),
        Rules(claims=unjoined(), dropped=frozenset({"serial"})),
    ),
)
