"""Rows of a journal that say nothing any more: what they were for is held, all others stand (B72).

A unit whose row is damaged has an unknown holder, like one that was never seen. A claim whose row
is damaged may be running: it has a record again that names no pod and no device of its own, its
units are HELD under it, and its teardown, with all proofs, is what frees them. So it is with a unit
whose row names a claim that has none, and with a claim that names a unit that has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fleet.core.claim_states import Claim, ClaimState
from fleet.core.model import NO_TOKEN, BootId, ClaimUid, Unit, UnitId
from fleet.core.unit_states import fresh, raise_floor
from fleet.node.journal.journal import Damage, Journal
from fleet.node.journal.mirror import Reasons

DAMAGED = "the journal's record of this claim was damaged: it is held until it is torn down"
"""Error of a claim that was made again: its devices and pods are not known."""


def repair(journal: Journal, kept: Reasons, *, now: float) -> tuple[str, ...]:
    """Hold what damaged rows were for, in one commit; what was done, for whoever looks.

    `kept`: the copy of quarantine reasons beside the journal.
    """
    if not journal.damage:
        return ()
    units, claims = _held(journal, kept, now=now)
    with journal.commit() as commit:
        for damage in journal.damage:
            commit.drop(damage)
        for unit in units.values():
            commit.put_unit(unit)
        for claim in claims.values():
            commit.put_claim(claim)
    told = tuple(_told(damage) for damage in journal.damage)
    journal.damage = ()
    return told


def _held(
    journal: Journal, kept: Reasons, *, now: float
) -> tuple[Mapping[UnitId, Unit], Mapping[ClaimUid, Claim]]:
    """The units and claims to be held, as they are to be written."""
    boot = BootId(journal.meta.get("boot_id", ""))
    named = {unit: claim for claim in journal.claims.values() for unit in claim.units}
    gone = {UnitId(key) for key in _named(journal, "units")} | named.keys() - journal.units.keys()
    units: dict[UnitId, Unit] = {}
    for unit_id in gone:
        owner = named.get(unit_id)
        unit = Unit(unit_id, reasons=kept.get(unit_id, frozenset()), boot_id=boot, since=now)
        if owner is not None:
            unit = raise_floor(replace(unit, claim=owner.uid), owner.token)
        units[unit_id] = unit
    lost = {ClaimUid(key) for key in _named(journal, "claims")}
    lost |= {unit.claim for unit in journal.units.values() if unit.claim} - journal.claims.keys()
    claims: dict[ClaimUid, Claim] = {}
    for uid in lost:
        mine = [unit for unit in journal.units.values() if unit.claim == uid]
        for unit in mine:
            held = replace(fresh(unit), claim=uid, floor=unit.floor, closed=unit.closed, since=now)
            units[unit.id] = held
        claims[uid] = Claim(
            uid=uid,
            state=ClaimState.PREPARING,
            devices=(),
            units=tuple(sorted(unit.id for unit in mine)),
            token=NO_TOKEN,
            boot_id=boot,
            created_at=now,
            error=DAMAGED,
        )
    return units, claims


def _named(journal: Journal, table: str) -> list[str]:
    """What damaged rows were for, as far as that can be told."""
    return [one.name for one in journal.damage if one.table == table and one.name]


def _told(damage: Damage) -> str:
    if damage.table in ("units", "claims"):
        return f"{damage.why}: it is held until its holder is proven gone"
    return f"{damage.why}: the row was dropped"
