"""When the units of an accelerator change: partitioning switched on or off, or back again.

The memory is the same, only divided otherwise. What was known of it under the old division decides
what is believed under the new one: nothing is CLEAN, faults go with the memory, and memory that
somebody may hold stays held.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fleet.core import unit_states
from fleet.core.model import Accelerator, Reason, Source, State, Unit, UnitId
from fleet.core.unit_states import Change, Event, Fact
from fleet.devices.health import reasons
from fleet.node.journal.journal import Commit

CHANGED = "layout-changed"
_GONE = Change(frozenset({Fact.WORKER_GONE}))


def settle(commit: Commit, known: Iterable[Unit], accelerator: Accelerator, *, now: float) -> None:
    """Bring the units of `accelerator` in line with how it is divided now.

    `known`: all units of the journal before this transaction, which has stored those of the new
    division already. Changes nothing where the division is the one that was recorded.
    """
    key, current = name(accelerator), division(accelerator)
    recorded: list[UnitId] | None = json.loads(commit.kept(key) or "null")
    if json.dumps(recorded) == current:
        return
    mine = [unit for unit in known if unit.id.startswith(f"{accelerator.uuid}/")]
    now_in = {spec.id for spec in accelerator.units}
    before = [unit for unit in mine if unit.id not in now_in]
    if recorded is not None:
        before = [unit for unit in before if unit.id in recorded]
    for unit_id in sorted(now_in):
        commit.put_unit(_believed(commit.unit(unit_id), before, now=now))
    for unit in before:
        if unit.state is State.CLEAN:
            commit.put_unit(unit_states.step(unit, Event.TRUST_LOST, now=now, change=_GONE))
    commit.set_meta(key, current)


def name(accelerator: Accelerator) -> str:
    """Under which the journal keeps how an accelerator is divided."""
    return f"layout:{accelerator.uuid}"


def division(accelerator: Accelerator) -> str:
    """How it is divided, as it is kept."""
    return json.dumps([spec.id for spec in accelerator.units])


def _believed(unit: Unit, before: Sequence[Unit], *, now: float) -> Unit:
    """One unit of the new division, by what was known under the old one."""
    if not before:
        return unit
    unit = unit_states.raise_floor(unit, max(old.floor for old in before))
    held = any(old.state in (State.HELD, State.IN_USE) or old.claim for old in before)
    found = frozenset(reason for old in before for reason in old.reasons)
    if unit.state is State.HELD:
        if found:
            unit = unit_states.step(unit, Event.FAULT_SEEN, now=now, change=Change(reasons=found))
        return unit if held else unit_states.step(unit, Event.PROVEN_FREE, now=now)
    if held:
        found |= {_changed(now)}
    if found and unit_states.TABLE.accepts(unit.state, Event.FAULT_SEEN):
        return unit_states.step(
            unit, Event.FAULT_SEEN, now=now, change=replace(_GONE, reasons=found)
        )
    if unit.state is State.CLEAN:
        return unit_states.step(unit, Event.TRUST_LOST, now=now, change=_GONE)
    return unit


def _changed(now: float) -> Reason:
    detail = "partitioning was switched while somebody held the memory"
    return reasons.make(CHANGED, Source.HEALTH, detail=detail, since=now)
