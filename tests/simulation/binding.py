"""A coordinator that decides as the product does, between its look at a claim and its act.

Each coordinator may pause after every look, and between the two steps in which a lease is given
back, for as long as it likes; meanwhile others decide on the same claim.
"""

from __future__ import annotations

from fleet.core.claim_states import ClaimEvent, ClaimFact
from tests.simulation import checker, store, wiping
from tests.simulation.deciding import Situation, decided, situation
from tests.simulation.rules import Model, closed
from tests.simulation.world import NOBODY, Coordinator, Moves, World

IDLE = frozenset({ClaimFact.IDLE})
BUSY: frozenset[ClaimFact] = frozenset()
WRITES = frozenset({"bind", "fail", "let go", "unbind"})
"""Phases that end in a write to the claim, which carries the resourceVersion of the look."""


def looks(model: Model, world: World, who: int, _: Coordinator) -> Moves:
    """It looks at any claim, and the product decides; late only where a time-out may strike."""
    for index in range(len(world.claims)):
        now = situation(model, world, index)
        choices = {(found, False) for found in _choices(now)}
        if model.suffers("timeout", world):
            late = _choices(now._replace(late=True))
            choices |= {(found, True) for found in late if found[0] == "fail"} - {
                (found, True) for found, _ in choices
            }
        for (phase, token), late_one in sorted(choices):
            if phase == "undo" and not model.keeps("allocations taken back are undone"):
                continue
            seat = _about(world, index, token) if phase == "undo" else world.claims[index].seat
            left = world.spend() if late_one else world
            after = left.coordinator(who, phase, index, token, seat)
            yield f"coordinator looks at c{index}: {phase}", late_one, after


def _choices(now: Situation) -> set[tuple[str, int]]:
    """What is decided by one who knows who else has the device, and by one who has not yet been
    refused it by the store."""
    found = {decided(now), decided(now._replace(refused=NOBODY, taken=False))}
    return {decision for decision in found if decision is not None}


def _about(world: World, index: int, token: int) -> int:
    """The device of the lease that is to be given back."""
    held = ((u.holder, u.lease) == (index, token) for u in world.units)
    return next((seat for seat, mine in enumerate(held) if mine), world.claims[index].seat)


def _acquire(model: Model, world: World, who: int, at: Coordinator) -> Moves:
    units = model.place(at.claim, at.seat)
    leased, token = store.acquire(world, model.rules, at.claim, units)
    # Tokens were pulled together and coordinators sorted by them: this one, which has none, is
    # found by what it is.
    me = leased.coordinators.index(at) if token else who
    after = (leased if token else world).coordinator(me, "")
    yield f"coordinator asks for a lease for c{at.claim}", False, after


def _order(model: Model, world: World, who: int, at: Coordinator) -> Moves:
    """The node begins the wipe, or refuses; whoever asked looks again."""
    units, index = model.place(at.claim, at.seat), at.claim
    busy = world.claims[index].record != "ABSENT" or any(
        world.units[unit].claim != NOBODY for unit in units
    )
    refused = busy and model.keeps("records refuse wipes")
    done = world.coordinator(who, "")
    if world.node != "up" or refused or not wiping.fenced(model, world, units, at.token):
        yield f"coordinator has c{index} wiped: refused", False, done
        return
    begun = wiping.begin(model, done, units, f"b{index}", at.token)
    after = done if begun is None else wiping.accepted(begun, units, at.token)
    yield f"coordinator has c{index} wiped under token {at.token}", False, after


def _write(model: Model, world: World, who: int, at: Coordinator) -> Moves:
    """A write to the claim; with the guards it never meets another claim than was looked at."""
    index = _named(model, world, at)
    claim = world.claims[index]
    done = world.coordinator(who, "")
    if at.stale and model.keeps("claim writes carry resourceVersion"):
        yield f"coordinator's word on c{index} meets a newer version", False, done
        return
    if at.phase == "let go":
        if claim.pod in ("gone", "retry"):
            pod = "new" if claim.pod == "retry" else claim.pod
            gone = done.claim(index, hold=False, allocated=False, condition="", pod=pod)
        else:
            gone = done.claim(index, hold=False, allocated=False)
        yield f"coordinator lets c{index} go", False, gone
        return
    if at.phase == "fail" and _silent(model, world, at):
        return
    said = {"bind": "true", "fail": "failed", "unbind": ""}[at.phase]
    if not claim.allocated:  # the server refuses: no such device in the claim
        yield f"coordinator's word on c{index} is refused", False, done
        return
    told = done.claim(index, condition=said, hold=claim.hold or at.phase == "bind")
    if at.stale or index != at.claim:
        told = told._replace(breach=checker.UNEXAMINED)
    yield f"coordinator says c{index}: {at.phase}", False, told


def _named(model: Model, world: World, at: Coordinator) -> int:
    """The claim a write meets: without its UID, whoever has got its name meanwhile."""
    claim = world.claims[at.claim]
    if model.keeps("claim writes name the uid") or claim.pod != "gone" or claim.allocated:
        return at.claim
    named = (i for i, other in enumerate(world.claims) if other.pod == "live" and i != at.claim)
    return next(named, at.claim)


def _silent(model: Model, world: World, at: Coordinator) -> bool:
    """Whether a quarantine is not to be seen by the scheduler yet: it would choose it again."""
    return any(
        world.units[unit].state == "QUARANTINED" and world.units[unit].published != 2
        for unit in model.place(at.claim, at.seat)
    )


def _undo(model: Model, world: World, who: int, at: Coordinator) -> Moves:
    """First half: the node closes the token, or refuses because it serves the claim."""
    if not model.keeps("abandon"):
        blind = world.coordinator(who, "release", at.claim, at.token, at.seat)
        yield f"coordinator goes on to release c{at.claim} without the node", False, blind
        return
    if world.node != "up":
        return
    claim, units = world.claims[at.claim], model.place(at.claim, at.seat)
    free = claim.op == "" and claim.kubelet not in ("ready", "unprepare")
    if model.rules.claim(claim.record, ClaimEvent.ABANDON, IDLE if free else BUSY) is None:
        yield f"node refuses to abandon c{at.claim}", False, world.coordinator(who, "")
        return
    stopped = wiping.stop(model, world, f"b{at.claim}")
    if model.keeps("closing"):
        stopped = wiping.accepted(stopped, units, at.token, closing=True)
    after = stopped.coordinator(who, "release", at.claim, at.token, at.seat)
    yield f"node abandons c{at.claim}, token {at.token} is closed", False, after


def _release(model: Model, world: World, who: int, at: Coordinator) -> Moves:
    """Second half: once a quarantine is seen, the store lets the lease of that token go."""
    if _silent(model, world, at):
        return
    after = world.coordinator(who, "")
    if not model.keeps("abandon") or closed(at.claim, at.token, at.token):
        units = model.place(at.claim, at.seat)
        after = store.release(after, model.rules, at.claim, at.token, units)
    yield f"coordinator releases the lease of c{at.claim}", False, after


def outdated(model: Model, before: World, after: World, *, at_once: bool = True) -> World:
    """The world in which the writes that would meet a changed claim are known to be outdated.

    Such a write is refused and forgotten; nothing else happens to its author in between, so that
    with `at_once` both are taken as one step with the change.
    """
    if before.claims == after.claims or not any(at.phase in WRITES for at in after.coordinators):
        return after
    gone = at_once and model.keeps("claim writes carry resourceVersion")
    found = list(after.coordinators)
    for who, at in enumerate(found):
        if at.phase in WRITES and _read(before, at.claim) != _read(after, at.claim):
            found[who] = Coordinator() if gone else at._replace(stale=True)
    return after._replace(coordinators=tuple(sorted(found)))


def _read(world: World, index: int) -> tuple[object, ...]:
    """What of a claim is in its object at the API."""
    claim = world.claims[index]
    pod = {"dying": "live", "new": "retry"}.get(claim.pod, claim.pod)
    return (pod, claim.seat, claim.allocated, claim.hold, claim.condition)


PHASES = {
    "": looks,
    "acquire": _acquire,
    "order": _order,
    "bind": _write,
    "fail": _write,
    "let go": _write,
    "unbind": _write,
    "undo": _undo,
    "release": _release,
}
