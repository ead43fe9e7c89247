"""Every row and every required fact of the product's two tables, dropped one by one.

    python -m tests.simulation.sweep

searches each broken pair of tables in a few small scenarios until a property breaks, and prints
what broke, or why nothing can; 1 when one survives without a reason known.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from fleet.core import claim_states, unit_states
from fleet.core.claim_states import ClaimFact
from fleet.core.table import Row, Table
from fleet.core.unit_states import Fact
from tests.simulation import catalogue, search
from tests.simulation.joint_mutants import joint
from tests.simulation.rules import Rules
from tests.simulation.world import Scenario

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)
F = TypeVar("F", bound=StrEnum)

BAD = frozenset({"fault", "clear", "wipe"})
NODE = catalogue.ALONE - {"journal restored"}
HELD = frozenset({"journal lost", "adopt", "force delete"})
AGAIN = frozenset({"journal lost", "fault", "reboot", "clear", "crash", "driver reload"})
STAYS = frozenset({"fault", "tenant stays", "clear", "force delete"})
GROUNDS: tuple[Scenario, ...] = (
    Scenario("sweep lab F1", catalogue.ONE, "lab", 0, faults=NODE, budget=1),
    Scenario("sweep fast F1", catalogue.ONE, "fast", 0, faults=NODE, budget=1),
    Scenario("sweep strict F1", catalogue.ONE, "strict", 1, faults=catalogue.TALK, budget=1),
    joint(1, "timeout", 1),
    Scenario("sweep held F3", catalogue.ONE, "lab", 0, faults=HELD, budget=3),
    Scenario("sweep again F2", catalogue.ONE, "lab", 0, faults=AGAIN, budget=2),
    Scenario("sweep bad F3", catalogue.ONE, "lab", 0, faults=BAD, budget=3),
    Scenario("sweep stays F4", catalogue.ONE, "lab", 0, faults=STAYS, budget=4),
)
"""Smallest first; a broken version is searched in each until something breaks."""


NEVER_TAKEN = {
    # No reason is ever open in these (S5c), so a new boot never finds one there:
    ("DIRTY", "NewBoot", "QUARANTINED"),
    ("WIPING", "NewBoot", "QUARANTINED"),
    ("CHECKING", "NewBoot", "QUARANTINED"),
    ("CLEAN", "NewBoot", "QUARANTINED"),
    # No worker lives in these (it ends before CHECKING; a survivor is quarantined):
    ("CHECKING", "Interrupted", "QUARANTINED"),
    ("DIRTY", "TrustLost", "QUARANTINED"),
    ("CHECKING", "TrustLost", "QUARANTINED"),
    ("CLEAN", "TrustLost", "QUARANTINED"),
}
"""Rows that only answer a broken invariant: the tables fail closed there, the search proves it."""
TRUSTED = frozenset({"DIRTY", "WIPING", "CHECKING", "CLEAN"})
GUARDED = {
    Fact.NO_SURVIVOR: "a survivor is quarantined at the service's start and at a wipe's end",
    Fact.WORKER_GONE: "no wipe starts, and nothing is exposed, beside a survivor",
    Fact.TENANT_GONE: "the teardown asks before, and no wipe starts under a tenant",
    Fact.SPEC_GONE: "the teardown removes the spec before",
    Fact.NO_CLAIM_RECORD: "what a retest proves is under no claim's token: it is not exposed",
    Fact.REASONS_LIFTABLE: "a retest asks the reasons before it starts",
    ClaimFact.LIVE_CONSUMER: "the node reads the claim itself before it commits a record",
    ClaimFact.IDLE: "a prepare under way finds the token that was closed",
}
"""Facts asked for twice, or made good by another; where it is known how, `table_mutants` and
`flow_mutants` drop both."""
GIVEN = {
    Fact.WORKER_JOURNALLED: "the model has no process numbers: the fact is always given",
    Fact.SAME_BOOT: "a new boot drops CLEAN and its certificate: the fact is always given",
    Fact.LEASE_OF_CLAIM: "the lease is confirmed before the wipe: the fact is always given",
    ClaimFact.UNITS_IN_USE: "the step before it committed that: the fact is always given",
    ClaimFact.SPEC_WRITTEN: "the step before it wrote that: the fact is always given",
    ClaimFact.UNITS_RELEASED: "the burial asks the units themselves",
    ClaimFact.PREPARE_JOINED: "the teardown joins before it asks the table",
}
"""Facts whose loss the model cannot show, with the reason."""


WAITS = "a call is refused: what is there stays as it is until it is torn down, which goes on"
REFUSED = {
    "unit: QUARANTINED RetestStarted -> RETESTING": "quarantine ends by an operator alone",
    "unit: QUARANTINED Cleared -> QUARANTINED": "an operator is refused until one reason is left",
    "unit: RETESTING RetestPassed -> QUARANTINED": "only asked before the certificate: it waits",
    "claim: PREPARING Prepare -> PREPARING": WAITS,
    "claim: PREPARED Prepare -> PREPARED": WAITS,
    "claim: UNPREPARING Unprepare -> UNPREPARING": WAITS,
}
"""Rows whose loss refuses something: safe, and no trap, though somebody waits who need not."""


@dataclass(frozen=True)
class Break:
    """One row or fact of a table that is not there; why that may do no harm, "" when it must."""

    name: str
    rules: Rules
    excuse: str


def row_breaks(table: Table[S, E, F]) -> Iterator[tuple[str, Table[S, E, F], str]]:
    """The table without one row, for each; and without one fact of one row, for each."""
    for at, row in enumerate(table.rows):
        head = f"{table.name}: {row.state} {row.event} -> {row.to}"
        rest = table.rows[at + 1 :]
        lost = Table(table.name, table.rows[:at] + rest)
        yield head, lost, REFUSED.get(head) or _row_excuse(row, rest)
        for fact in sorted(row.requires):
            eased = replace(row, requires=row.requires - {fact})
            broken = Table(table.name, (*table.rows[:at], eased, *rest))
            yield f"{head} without {fact!s}", broken, _fact_excuse(row, fact)


def _row_excuse(row: Row[S, E, F], rest: tuple[Row[S, E, F], ...]) -> str:
    below = (one for one in rest if (one.state, one.event) == (row.state, row.event))
    if any(one.to == "QUARANTINED" and one.requires <= row.requires for one in below):
        return "the row below it quarantines: it fails closed"
    if (str(row.state), str(row.event), str(row.to)) in NEVER_TAKEN:
        return "no reachable state asks for it"
    return ""


def _fact_excuse(row: Row[S, E, F], fact: F) -> str:
    if fact == Fact.NO_OPEN_REASON and row.state in TRUSTED:
        return "no reason is open in this state (S5c)"
    if row.state == "CLEAN" and row.event == "WipeStarted":
        return "no tenant and no worker is on a CLEAN unit (S5, S9)"
    excuses = {str(one): why for one, why in (*GUARDED.items(), *GIVEN.items())}
    return excuses.get(str(fact), "")


def breaks() -> Iterator[Break]:
    """All of them."""
    for name, units, excuse in row_breaks(unit_states.TABLE):
        yield Break(name, Rules(units=units), excuse)
    for name, records, excuse in row_breaks(claim_states.TABLE):
        yield Break(name, Rules(claims=records), excuse)


def judged(broken: Break) -> str:
    """What the first search that breaks says: property and scenario; "" when none does."""
    for scenario in GROUNDS:
        rules = Rules(units=broken.rules.units, claims=broken.rules.claims)
        found = search.search(scenario, rules)
        if found.broken:
            return f"{found.broken[0]} [{scenario.name}, {len(found.story)} steps]"
    return ""


def main() -> int:
    """Sweep, print a line for each, and how many nothing noticed; 1 when one has no excuse."""
    caught = excused = bare = 0
    began = time.process_time()
    for broken in breaks():
        verdict = judged(broken)
        caught += bool(verdict)
        excused += not verdict and bool(broken.excuse)
        bare += not (verdict or broken.excuse)
        sys.stdout.write(f"{broken.name}: {verdict or broken.excuse or 'SURVIVED'}\n")
        sys.stdout.flush()
    spent_s = time.process_time() - began
    sys.stdout.write(f"{caught} caught, {excused} excused, {bare} survived, {spent_s:.0f} s CPU\n")
    return int(bare > 0)


if __name__ == "__main__":
    sys.exit(main())
