"""The lease store of the model: grant, release, restore, adopt.

Tokens only matter by order, so after each new grant all tokens of the world are pulled together
(gaps of one and of more than one stay different: "the next token" and "never issued here" differ).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.simulation import checker, rules
from tests.simulation.rules import Rules
from tests.simulation.world import CAMPAIGN, NOBODY, World


def acquire(world: World, ruleset: Rules, wanted: int, units: Iterable[int]) -> tuple[World, int]:
    """The world after `wanted` asked for `units`, and the token; 0 when refused."""
    indexes = tuple(units)
    involved = [world.units[index] for index in indexes]
    asks = ruleset.keeps("store floor")
    floors = tuple((unit.floor, unit.closed) for unit in involved) if asks else ()
    leases = tuple((unit.holder, unit.lease) for unit in involved)
    if not ruleset.keeps("leases exclude"):
        leases = tuple(held if held[0] == wanted else (NOBODY, 0) for held in leases)
    token = rules.grant(wanted, leases, world.newest, floors)
    if token is None:
        return world, 0
    if token > world.newest:
        behind = token <= max(unit.acted for unit in involved)
        world = world.each(indexes, holder=wanted, lease=token)._replace(
            newest=token, breach=checker.GRANT_BELOW if behind else ""
        )
        return compact(world, token)
    return world.each(indexes, holder=wanted, lease=token), token


def release(world: World, ruleset: Rules, wanted: int, token: int, units: Iterable[int]) -> World:
    """The world after a release: only the lease of that holder under that token goes."""
    by_token = ruleset.keeps("release by token")
    gone = [
        index
        for index in units
        if (unit := world.units[index]).holder != NOBODY
        and (not by_token or (unit.holder == wanted and unit.lease == token))
    ]
    return world.each(gone, holder=NOBODY, lease=0) if gone else world


def leased(world: World, wanted: int, token: int, units: Iterable[int]) -> bool:
    """Whether `wanted` has the lease of all units under exactly this token."""
    return all((world.units[u].holder, world.units[u].lease) == (wanted, token) for u in units)


def restored(world: World) -> Iterator[tuple[str, World]]:
    """The world with an old copy of the store, for each age it can have.

    Empty; without what was granted after a lease that is still there; or with a lease, long given
    back, of a claim that is gone by now (its token is the floor its node has closed).
    """
    units = range(len(world.units))
    emptied = world.each(units, holder=NOBODY, lease=0)._replace(newest=0, restored=True)
    yield "empty", emptied
    for newest in sorted({unit.lease for unit in world.units} - {0, world.newest}):
        later = [index for index in units if world.units[index].lease > newest]
        cut = world.each(later, holder=NOBODY, lease=0)
        yield f"of token {newest}", cut._replace(newest=newest, restored=True)
    for index, unit in enumerate(world.units):
        if not unit.closed or not unit.floor:
            continue
        for gone, claim in enumerate(world.claims):
            if claim.pod == "gone" and claim.record == "ABSENT":
                old = emptied.unit(index, holder=gone, lease=unit.floor)
                text = f"in which c{gone} still has unit {index}"
                yield text, old._replace(newest=unit.floor)


def adopt(world: World, ruleset: Rules, devices: tuple[tuple[int, ...], ...]) -> World:
    """`fleet store adopt`: take over what the nodes have on record, void every other token.

    The copy cannot know what was granted after it was made and not yet acted under, so adoption
    begins a new epoch: above all that was ever issued, whoever issued it.
    """
    newest = max(world.newest, *(max(unit.floor, unit.acted) for unit in world.units))
    if ruleset.keeps("adoption begins an epoch"):
        newest = max(tokens(world))
    recorded: set[int] = set()
    for index, claim in enumerate(world.claims):
        if claim.record != "ABSENT" and claim.token:
            world = world.each(devices[index], holder=index, lease=claim.token)
            recorded.update(devices[index])
    free = [index for index in range(len(world.units)) if index not in recorded]
    world = world.each(free, floor=newest, closed=True)
    return world._replace(newest=newest, restored=False)


def tokens(world: World) -> set[int]:
    """Every token anybody holds, remembers or has on the way."""
    used = {0, world.newest, world.campaign_token, world.message[2]}
    for unit in world.units:
        used.update((unit.floor, unit.token, unit.acted, unit.lease, max(unit.certified, 0)))
    for claim in world.claims:
        used.update((claim.token, claim.op_token, claim.outbox, claim.giving))
    used.update(coordinator.token for coordinator in world.coordinators)
    return used


def compact(world: World, token: int) -> tuple[World, int]:
    """The world with its tokens pulled together, and what `token` is called then."""
    names: dict[int, int] = {}
    last, name = 0, 0
    for value in sorted(tokens(world)):
        name += min(value - last, 2)
        names[value], last = name, value
    if all(old == new for old, new in names.items()):
        return world, token
    return _renamed(world, names), names[token]


def _renamed(world: World, names: dict[int, int]) -> World:
    what, whom, token = world.message
    return world._replace(
        units=tuple(
            unit._replace(
                floor=names[unit.floor],
                token=names[unit.token],
                acted=names[unit.acted],
                lease=names[unit.lease],
                certified=names[unit.certified] if unit.certified > 0 else unit.certified,
            )
            for unit in world.units
        ),
        claims=tuple(
            claim._replace(
                token=names[claim.token],
                op_token=names[claim.op_token],
                outbox=names[claim.outbox],
                giving=names[claim.giving],
            )
            for claim in world.claims
        ),
        coordinators=tuple(sorted(c._replace(token=names[c.token]) for c in world.coordinators)),
        newest=names[world.newest],
        campaign_token=names[world.campaign_token],
        message=(what, whom, names[token]),
    )


def expired(world: World) -> World:
    """The world after the campaign's lease ran out."""
    return world.each(
        (index for index, unit in enumerate(world.units) if unit.holder == CAMPAIGN),
        holder=NOBODY,
        lease=0,
    )
