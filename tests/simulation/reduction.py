"""Which states are the same but for names: of claims, and of units.

A renaming counts where it leaves the scenario as it is. Coordinators are kept sorted by `World`
itself, and tokens are pulled together by `store.compact`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import permutations
from typing import NamedTuple

from tests.simulation.world import Claim, Coordinator, Scenario, Unit, World

Order = tuple[int, ...]
"""New number of each, by its old one."""


class Renaming(NamedTuple):
    """Other names for everything that has one."""

    claims: Order
    units: Order
    seats: Order
    """The devices the scheduler chooses from; where it does not take part, just (0,)."""


def canonical(scenario: Scenario) -> Callable[[World], World]:
    """What brings a state of this scenario into the one form it has under any naming."""
    others = [*renamings(scenario)][1:]

    def least(world: World) -> World:
        found = world
        for renaming in others:
            claims = _claims(world, renaming)  # settles most, and renames nothing else
            if claims > found.claims:
                continue
            other = renamed(world, renaming)
            if claims < found.claims or _key(other) < _key(found):
                found = other
        return found

    return least if others else _itself


def renamings(scenario: Scenario) -> Iterator[Renaming]:
    """Every renaming under which the scenario is the same; the first one changes nothing.

    None where a claim is told from the others by more than its device: it comes a second time, or
    is attached. Devices the scheduler chooses from are one unit each.
    """
    claims, seats = range(len(scenario.devices)), scenario.seats
    units = range(len(scenario.initial().units))
    odd = scenario.spare or any(scenario.attached) or any(len(seat) > 1 for seat in seats)
    if odd or (seats and seats != tuple((unit,) for unit in units)):
        yield Renaming(tuple(claims), tuple(units), tuple(range(len(seats) or 1)))
        return
    devices = [frozenset(device) for device in scenario.devices]
    for one in permutations(claims):
        for two in permutations(units):
            moved = [frozenset(two[unit] for unit in device) for device in devices]
            if seats:
                yield Renaming(one, two, two)
            elif all(devices[one[claim]] == moved[claim] for claim in claims):
                yield Renaming(one, two, (0,))


def renamed(world: World, renaming: Renaming) -> World:
    """The same state with other names for claims and units."""
    claims, order, seats = renaming
    units: list[Unit] = [*world.units]
    for old, unit in enumerate(world.units):
        units[order[old]] = _unit(unit, claims, order)
    what, whom, token = world.message
    if what:
        whom = order[whom] if what == "untaint" else 0 if what == "scrub" else claims[whom]
    step, index = world.loose
    return world._replace(
        units=tuple(units),
        claims=_claims(world, renaming),
        coordinators=tuple(sorted(_coordinator(at, claims, seats) for at in world.coordinators)),
        message=(what, whom, token),
        loose=(step, claims[index] if step else index),
    )


def _claims(world: World, renaming: Renaming) -> tuple[Claim, ...]:
    found: list[Claim] = [*world.claims]
    for old, claim in enumerate(world.claims):
        seat = renaming.seats[claim.seat]
        found[renaming.claims[old]] = claim if seat == claim.seat else claim._replace(seat=seat)
    return tuple(found)


@cache
def _unit(unit: Unit, claims: Order, units: Order) -> Unit:
    names = len(claims)
    kind, number = unit.work[:1], unit.work[1:]
    return unit._replace(
        claim=claims[unit.claim] if 0 <= unit.claim < names else unit.claim,
        holder=claims[unit.holder] if 0 <= unit.holder < names else unit.holder,
        memory=str(claims[int(unit.memory)]) if unit.memory.isdigit() else unit.memory,
        work=f"{kind}{(units if kind in 'ir' else claims)[int(number)]}" if number else unit.work,
    )


def _coordinator(at: Coordinator, claims: Order, seats: Order) -> Coordinator:
    if not at.phase:
        return at
    return at._replace(claim=claims[at.claim], seat=seats[at.seat])


def _key(world: World) -> tuple[object, ...]:
    """Any total order of states will do that begins with the claims."""
    return (world.claims, world.units, world.coordinators, world.message, world.loose)


def _itself(world: World) -> World:
    return world
