"""The node service in the model: who asks for what, and the start after a crash."""

from __future__ import annotations

from typing import Any

from fleet.core import unit_states
from fleet.core.claim_states import ClaimEvent
from fleet.core.unit_states import Event
from tests.simulation import preparing, rules, teardown, wiping
from tests.simulation.rules import Model
from tests.simulation.world import NOBODY, Moves, Unit, World

STEPS = {**preparing.STEPS, **teardown.STEPS}
FORGOTTEN: dict[str, Any] = {"record": "ABSENT", "token": 0, "outbox": 0, "seek": 0}
"""What a journal that was lost or set back no longer knows of a claim."""


def moves(model: Model, world: World) -> Moves:
    """Everything a running node can do next."""
    yield from wiping.work(model, world)
    yield from wiping.house(model, world)
    for index, claim in enumerate(world.claims):
        if claim.kubelet == "prepare" and not claim.op:
            yield from preparing.called(model, world, index, claim)
        if claim.kubelet in ("unprepare", "early") and claim.op[:1] != "u":
            yield from teardown.called(model, world, index, claim)
        if claim.op[:1] != "u":
            yield from teardown.swept(model, world, index, claim)
        if claim.op:
            yield from STEPS[claim.op](model, world, index, claim)
        yield from teardown.drained(model, world, index, claim)
    yield from _loose(world)


def _loose(world: World) -> Moves:
    """A thread nobody joined finishes what it was about to do."""
    step, index = world.loose
    if step:
        after = world.claim(index, spec=True)._replace(loose=("", 0))
        yield f"an old thread of c{index} writes the spec", False, after


def start(model: Model, world: World) -> Moves:
    """The node service comes up again: same boot, new boot, or without its journal."""
    if world.node == "rebooted":
        yield "node starts on a new boot", False, _new_boot(model, world)
    elif world.node == "down":
        yield "node starts again", False, _same_boot(model, world)
    elif world.node == "older" and not model.keeps("witness"):
        yield "node starts on an older journal", False, _older(world)
    else:
        yield "node sets the journal aside", False, _set_aside(model, world)


def _new_boot(model: Model, world: World) -> World:
    for index, unit in enumerate(world.units):
        moved = model.rules.unit(unit, Event.NEW_BOOT)
        world = world.put(index, (moved or unit)._replace(work=""))
    for index, claim in enumerate(world.claims):
        state = model.rules.claim(claim.record, ClaimEvent.NEW_BOOT)
        world = world.claim(index, record=state or claim.record, spec=False)
    return world._replace(node="up")


def _same_boot(model: Model, world: World) -> World:
    for index, unit in enumerate(world.units):
        if unit.state in ("WIPING", "CHECKING", "RETESTING"):
            gone = unit.worker == "" or not model.keeps("survivors proven gone")
            facts = wiping.GONE if gone else wiping.NOTHING
            reason = "" if gone else "X"
            event = Event.INTERRUPTED if unit.state == "CHECKING" else Event.CANCELLED
            moved = model.rules.unit(unit, event, facts, add=reason)
            world = world.put(index, moved or unit)
    for index, claim in enumerate(world.claims):
        known = claim.record != "ABSENT" or not model.keeps("orphan specs removed")
        spec = (claim.spec and known) or claim.record == "PREPARED"
        world = world.claim(index, spec=spec)
    return world._replace(node="up")


def _set_aside(model: Model, world: World) -> World:
    """HELD, orphan specs gone, floors and quarantine adopted, before any act is accepted.

    A claim that has a lease may be running: its units stay HELD under a record, for its teardown.
    """
    adopts = model.keeps("floors adopted")
    for index, unit in enumerate(world.units):
        record = unit_states.fresh(rules.record_of(unit))
        fresh = Unit(*rules.fields_of(record))
        if unit.published == 2:
            fresh = fresh._replace(reasons="X")
        if adopts:
            fresh = fresh._replace(floor=world.newest, closed=True)
        if not model.keeps("held after loss"):
            fresh = fresh._replace(state="DIRTY")
        world = world.put(index, Unit._make(fresh[: rules.JOURNAL] + unit[rules.JOURNAL :]))
    for index, claim in enumerate(world.claims):
        spec = claim.spec and not model.keeps("orphan specs removed")
        world = world.claim(index, spec=spec, **FORGOTTEN)
        if model.keeps("held after loss"):
            world = _adopted(model, world, index)
    return world._replace(node="up")


def _adopted(model: Model, world: World, index: int) -> World:
    units = [unit for unit in model.device(index) if world.units[unit].holder == index]
    if not units:
        return world
    token = max(world.units[unit].lease for unit in units)
    return world.each(units, claim=index).claim(index, record="PREPARING", token=token)


def _older(world: World) -> World:
    """What a restored journal believes: the last certificate, and no claim."""
    for index, unit in enumerate(world.units):
        known = unit.certified >= 0
        state = "CLEAN" if known else "DIRTY"
        world = world.unit(index, state=state, certificate=known, claim=NOBODY, work="")
    for index in range(len(world.claims)):
        world = world.claim(index, spec=False, **FORGOTTEN)
    return world._replace(node="up")
