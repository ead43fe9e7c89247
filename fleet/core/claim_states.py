"""The life of a claim on its node (the second table of DESIGN 4). Pure.

ABSENT includes a bounded tombstone: after one, prepare needs a live pod consumer. One operation at
a time per claim; whoever starts UNPREPARING has cancelled and joined a running prepare first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from fleet.core.model import BootId, ClaimUid, Token, UnitId, Uuid
from fleet.core.table import Row, Table


class ClaimState(StrEnum):
    """Where a claim stands on this node."""

    ABSENT = "ABSENT"
    PREPARING = "PREPARING"
    PREPARED = "PREPARED"
    UNPREPARING = "UNPREPARING"


class ClaimEvent(StrEnum):
    """What can happen to a claim on this node."""

    PREPARE = "Prepare"
    PREPARE_FAILED = "PrepareFailed"
    PREPARED = "Prepared"
    UNPREPARE = "Unprepare"
    UNPREPARED = "Unprepared"
    ORPHANED = "Orphaned"
    ABANDON = "Abandon"
    NEW_BOOT = "NewBoot"


class ClaimFact(StrEnum):
    """What must hold for a row to apply."""

    PREPARE_JOINED = "running prepare cancelled and joined"
    IDLE = "no call of this claim in work"
    SPEC_WRITTEN = "CDI spec written"
    UNITS_IN_USE = "all units IN_USE under this record"
    UNITS_RELEASED = "all units released and settled"
    LIVE_CONSUMER = "live pod consumer"


def _rows() -> Iterable[Row[ClaimState, ClaimEvent, ClaimFact]]:
    def row(
        state: ClaimState, event: ClaimEvent, to: ClaimState, *facts: ClaimFact
    ) -> Row[ClaimState, ClaimEvent, ClaimFact]:
        return Row(state, event, to, frozenset(facts))

    s, e, f = ClaimState, ClaimEvent, ClaimFact
    yield row(s.ABSENT, e.PREPARE, s.PREPARING, f.LIVE_CONSUMER)
    yield row(s.ABSENT, e.UNPREPARE, s.ABSENT)
    yield row(s.ABSENT, e.ABANDON, s.ABSENT, f.IDLE)

    yield row(s.PREPARING, e.PREPARE, s.PREPARING)
    yield row(s.PREPARING, e.PREPARE_FAILED, s.PREPARING)
    yield row(s.PREPARING, e.PREPARED, s.PREPARED, f.UNITS_IN_USE, f.SPEC_WRITTEN)
    yield row(s.PREPARING, e.UNPREPARE, s.UNPREPARING, f.PREPARE_JOINED)
    yield row(s.PREPARING, e.ORPHANED, s.UNPREPARING, f.PREPARE_JOINED)
    yield row(s.PREPARING, e.NEW_BOOT, s.PREPARING)

    yield row(s.PREPARED, e.PREPARE, s.PREPARED)
    yield row(s.PREPARED, e.UNPREPARE, s.UNPREPARING, f.PREPARE_JOINED)
    yield row(s.PREPARED, e.ORPHANED, s.UNPREPARING, f.PREPARE_JOINED)
    yield row(s.PREPARED, e.NEW_BOOT, s.PREPARING)

    yield row(s.UNPREPARING, e.UNPREPARE, s.UNPREPARING)
    yield row(s.UNPREPARING, e.UNPREPARED, s.ABSENT, f.UNITS_RELEASED)
    yield row(s.UNPREPARING, e.NEW_BOOT, s.UNPREPARING)


TABLE: Table[ClaimState, ClaimEvent, ClaimFact] = Table("claim", tuple(_rows()))


@dataclass(frozen=True, slots=True)
class Claim:
    """The durable record of a claim on this node, with all a rollback needs (case B62)."""

    uid: ClaimUid
    state: ClaimState
    devices: tuple[Uuid, ...]
    units: tuple[UnitId, ...]
    token: Token
    boot_id: BootId
    namespace: str = ""
    name: str = ""
    consumers: tuple[str, ...] = ()
    """UIDs of consumer pods seen so far."""
    spec: str = ""
    """File name of the CDI spec, decided before it is written."""
    attached: tuple[Uuid, ...] = ()
    """Devices the claim looks into with adminAccess: never held, but nobody wipes them meanwhile
    (B35)."""
    created_at: float = 0.0
    error: str = ""
    """Last failure of a prepare or unprepare, for the status."""
    attributes: dict[str, str] = field(default_factory=dict)


def step(
    state: ClaimState,
    event: ClaimEvent,
    facts: frozenset[ClaimFact] = frozenset(),
    table: Table[ClaimState, ClaimEvent, ClaimFact] = TABLE,
) -> ClaimState:
    """The state after `event`. Raises `IllegalTransition`."""
    return table.row(state, event, facts).to
