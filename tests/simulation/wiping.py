"""Wipes in the model: guard, start, progress, stop; the idle cleaner, the retest, the publisher."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from fleet.core.unit_states import Event, Fact
from tests.simulation import checker, rules
from tests.simulation.rules import Model
from tests.simulation.world import Moves, Unit, World

GONE = frozenset({Fact.WORKER_GONE})
DURABLE = frozenset({Fact.CERTIFICATE_DURABLE})
NOTHING: frozenset[Fact] = frozenset()


@cache
def _guard(*, running: bool, created: bool, ghost: bool, free: bool) -> frozenset[Fact]:
    facts = {Fact.WORKER_JOURNALLED}
    if not running:
        facts.add(Fact.NO_PROCESS)
    if not created:
        facts.add(Fact.NO_CONTAINER)
    if not ghost:
        facts.add(Fact.NO_SURVIVOR)
    if free:
        facts.add(Fact.NO_CLAIM_RECORD)
    return frozenset(facts)


def start_facts(model: Model, world: World, units: tuple[int, ...]) -> frozenset[Fact]:
    """What the node finds when it looks at the units before a wipe or retest."""
    running = created = False
    free = True
    for device, claim in zip(model.scenario.devices, world.claims, strict=True):
        if any(unit in units for unit in device):
            running |= claim.box == "running"
            created |= claim.box == "created"
            free &= claim.record == "ABSENT"
    for looks, claim in zip(model.scenario.attached, world.claims, strict=True):
        # An idle one has nothing open. Of those we have no record of, kubelet's checkpoint tells.
        told = claim.box != "" and claim.record == "ABSENT" and claim.kubelet != "done"
        if told and model.keeps("unknown consumers keep wipes off"):
            created |= not set(looks).isdisjoint(units)
    ghost = any(world.units[unit].worker == "ghost" for unit in units)
    return _guard(running=running, created=created, ghost=ghost, free=free)


def begin(model: Model, world: World, units: tuple[int, ...], who: str, token: int) -> World | None:
    """The world with a wipe of `units` begun for `who`; None when a guard or the table refuses."""
    if any(world.units[unit].work for unit in units):
        return None
    if model.keeps("attached keeps wipes off") and model.watched(world, units):
        return None
    event = Event.RETEST_STARTED if who[0] == "r" else Event.WIPE_STARTED
    facts = start_facts(model, world, units)
    begun = model.advance(world, units, event, facts, token)
    if begun is None:
        return None
    stale = token and who[0] != "t" and any(token < begun.units[unit].acted for unit in units)
    begun = begun.each(units, work=who, certified=-1)
    for unit in units:
        if begun.units[unit].worker == "":
            begun = begun.unit(unit, worker="own")
        if token > begun.units[unit].acted:
            begun = begun.unit(unit, acted=token)
    return begun._replace(breach=checker.STALE_ACT) if stale else begun


def fenced(model: Model, world: World, units: Iterable[int], token: int) -> bool:
    """Whether the node lets an act under `token` pass."""
    if not model.keeps("fence"):
        return True
    return rules.accepts(
        tuple((world.units[unit].floor, world.units[unit].closed) for unit in units), token
    )


def accepted(world: World, units: Iterable[int], token: int, *, closing: bool = False) -> World:
    """The world with the floors raised by an act accepted under `token`, or by closing it."""
    for index in units:
        unit = world.units[index]
        floor = rules.raised(unit.floor, token, shut=unit.closed, closing=closing)
        if floor != (unit.floor, unit.closed):
            world = world.unit(index, floor=floor[0], closed=floor[1])
    return world


def stop(model: Model, world: World, who: str) -> World:
    """The world with the wipe of `who` cancelled: worker killed, joined, proven gone."""
    for index, unit in enumerate(world.units):
        if unit.work != who:
            continue
        event = Event.INTERRUPTED if unit.state == "CHECKING" else Event.CANCELLED
        moved = model.rules.unit(unit, event, GONE)
        if moved is not None:
            world = ended(world.put(index, moved._replace(work="")), (index,))
    return world


def work(model: Model, world: World) -> Moves:
    """Progress of every wipe in work."""
    coarse = model.scenario.coarse
    for who in sorted({unit.work for unit in world.units if unit.work}):
        group = tuple(i for i, unit in enumerate(world.units) if unit.work == who)
        state = world.units[group[0]].state
        if state == "WIPING":
            moved = model.advance(world, group, Event.WIPE_VERIFIED)
            if moved is not None:
                wiped = ended(moved.each(group, memory="zero"), group)
                wiped = certify(wiped, group) if coarse else wiped
                yield f"wipe {who}: all of it zero and verified", False, wiped
        elif world.units[group[0]].certified < 0:
            zero = ended(world.each(group, memory="zero"), group)
            yield f"wipe {who}: certificate durable in the ledger", False, certify(zero, group)
        yield from _passed(model, world, who, group)
        if model.suffers("wipe", world):
            yield from _failed(model, world, who, group)


def certify(world: World, group: tuple[int, ...]) -> World:
    """The world with the certificate of this wipe durable, under the token of the wipe."""
    for index in group:
        world = world.unit(index, certified=world.units[index].token)
    return world


def ended(world: World, group: tuple[int, ...]) -> World:
    """The world after the service's own worker on these units is gone; a survivor stays."""
    return world.each((u for u in group if world.units[u].worker == "own"), worker="")


def _passed(model: Model, world: World, who: str, group: tuple[int, ...]) -> Moves:
    state = world.units[group[0]].state
    durable = DURABLE if all(world.units[unit].certified >= 0 for unit in group) else NOTHING
    event = Event.RETEST_PASSED if state == "RETESTING" else Event.HEALTH_PASSED
    moved = model.advance(world, group, event, durable)
    if moved is None:
        return
    lifted = any("X" in world.units[unit].reasons for unit in group)
    moved = ended(moved.each(group, work=""), group)
    moved = moved._replace(breach=checker.LIFTED if lifted else "")
    yield f"wipe {who}: checks passed, committed", False, moved


def _failed(model: Model, world: World, who: str, group: tuple[int, ...]) -> Moves:
    """A wipe that fails, wedges, or whose worker dies unasked."""
    spent = world.spend()
    state = world.units[group[0]].state
    wiped = state == "CHECKING" or world.units[group[0]].certified >= 0
    failure = Event.HEALTH_FAILED if wiped else Event.WIPE_FAILED
    for text, event, facts, reason, worker in (
        ("fails", failure, NOTHING, "L", ""),
        ("times out, a worker survives the kill", Event.TIMED_OUT, NOTHING, "X", "ghost"),
        ("loses its worker unasked", Event.INTERRUPTED, GONE, "", ""),
    ):
        moved = model.advance(spent, group, event, facts, add=reason)
        if moved is None:
            continue
        moved = ended(moved.each(group, work=""), group)
        if worker and state != "CHECKING":
            moved = moved.each(group, worker=worker)
        for unit in group:
            if patient(world.units[unit], moved.units[unit]):
                moved = moved._replace(breach=checker.PATIENCE)
        yield f"wipe {who} {text}", True, moved


def patient(before: Unit, after: Unit) -> bool:
    """Whether a third interruption of a wipe in a row was taken for bad luck."""
    return before.state == "WIPING" and after.state == "DIRTY" and after.interruptions > 2


def house(model: Model, world: World) -> Moves:
    """What the node does by itself: idle cleaner, retest, proof of freedom, publication."""
    for index, unit in enumerate(world.units):
        held = any(
            index in model.device(c) and claim.record != "ABSENT"
            for c, claim in enumerate(world.claims)
        )
        takes = not model.scenario.coarse or all(u.work[:1] != "i" for u in world.units)
        asked = held and model.keeps("idle cleaner asks for records")
        if unit.state == "DIRTY" and takes and not asked:
            moved = begin(model, world, (index,), f"i{index}", 0)
            if moved is not None:
                yield f"idle cleaner starts a wipe of unit {index}", False, moved
        if unit.state == "QUARANTINED" and lifts(model, unit):
            moved = begin(model, world, (index,), f"r{index}", 0)
            if moved is not None:
                yield f"retest of unit {index} starts", False, moved
        if unit.state == "HELD" and unit.claim < 0 and not _consumers(model, world, index):
            freed = model.advance(world, (index,), Event.PROVEN_FREE)
            if freed is not None:
                yield f"unit {index} is proven free", False, freed
        yield from _publish(world, index)
    yield from _ghosts(world)


def lifts(model: Model, unit: Unit) -> bool:
    """Whether a retest may be started by rule."""
    return "X" not in unit.reasons or not model.keeps("retest asks the reasons")


def _consumers(model: Model, world: World, unit: int) -> bool:
    """Who is attached and idle is not found: the guard of the wipe that follows looks again."""
    return any(
        unit in model.device(c) and (claim.box or claim.kubelet == "ready")
        for c, claim in enumerate(world.claims)
    )


def _publish(world: World, index: int) -> Moves:
    unit = world.units[index]
    unfit = rules.unfit(unit)
    if unfit and unit.published in (0, rules.OUTDATED):
        yield (
            f"quarantine of unit {index} written and read back",
            False,
            world.unit(index, published=2),
        )
    if not unfit and unit.published:
        yield (
            f"quarantine of unit {index} taken off the slice",
            False,
            world.unit(index, published=0),
        )


def _ghosts(world: World) -> Moves:
    for index, unit in enumerate(world.units):
        if unit.worker == "ghost":
            yield f"surviving worker of unit {index} ends", False, world.unit(index, worker="")
            if unit.memory != "worker":
                yield (
                    f"surviving worker writes unit {index}",
                    False,
                    world.unit(index, memory="worker"),
                )
