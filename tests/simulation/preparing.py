"""A claim's prepare on the node in the model: the record first, then lease, wipe, exposure, spec.

Kubelet gives no token: the record is committed without one, so that a teardown knows of every lease
there may be. An order with a token (`Scenario.ordered`) has its lease confirmed before that.
"""

from __future__ import annotations

from fleet.core.claim_states import ClaimEvent, ClaimFact
from fleet.core.unit_states import Event, Fact
from tests.simulation import store, wiping
from tests.simulation.rules import Model
from tests.simulation.world import NOBODY, Claim, Moves, World

LIVE = frozenset({ClaimFact.LIVE_CONSUMER})
READY = frozenset({ClaimFact.UNITS_IN_USE, ClaimFact.SPEC_WRITTEN})
WORKING = ("WIPING", "CHECKING", "RETESTING")
OUT_OF_SERVICE = frozenset({"QUARANTINED", "HELD", "RETESTING"})
NOTHING: frozenset[ClaimFact] = frozenset()


def called(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """Kubelet calls (or calls again): the claim's table decides what happens."""
    facts = LIVE if claim.pod == "live" else NOTHING
    state = model.rules.claim(claim.record, ClaimEvent.PREPARE, facts)
    gated = model.scenario.profile == "strict" and not model.scenario.seats
    if state is None or (gated and claim.condition != "true"):
        return
    if claim.record == "PREPARED":
        again = world.claim(index, op="p.answer", spec=True)
        yield f"kubelet calls prepare c{index}", False, again
    elif claim.record == "PREPARING":
        yield f"kubelet calls prepare c{index}", False, world.claim(index, op="p.secure")
    elif model.scenario.ordered or not model.keeps("record before lease"):
        yield f"kubelet calls prepare c{index}", False, world.claim(index, op="p.lease")
    else:
        yield from _admitted(model, world, index, claim)


def _busy(model: Model, world: World, index: int) -> bool:
    """Whether another claim stands in the way: a record on the same unit, or a unit marked."""
    if not model.keeps("node exclusivity"):
        return False
    others = model.scenario.overlaps[index]
    if not model.keeps("overlap by unit"):
        others = tuple(c for c in others if model.device(c) == model.device(index))
        return any(world.claims[other].record != "ABSENT" for other in others)
    if any(world.claims[other].record != "ABSENT" for other in others):
        return True
    return any(world.units[unit].claim not in (NOBODY, index) for unit in model.device(index))


def _attached(model: Model, world: World, index: int) -> World | None:
    """The world with what the claim looks into dirty; None while somebody works on it."""
    looks = model.scenario.attached[index]
    units = [world.units[unit] for unit in looks]
    if model.keeps("attaching waits for work") and any(
        unit.work or unit.worker or unit.state in WORKING for unit in units
    ):
        return None
    if not model.keeps("attaching dirties"):
        return world
    clean = [unit for unit in looks if world.units[unit].state == "CLEAN"]
    return model.advance(world, clean, Event.TRUST_LOST, wiping.GONE)


def _admitted(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """Read the claim, refuse a device of another uid or unfit, commit {PREPARING}, no token yet.

    A refusal changes nothing; kubelet calls again.
    """
    units = model.device(index)
    unfit = any(world.units[unit].state in OUT_OF_SERVICE for unit in units)
    record = model.rules.claim(claim.record, ClaimEvent.PREPARE, LIVE)
    after = _attached(model, world, index)
    if claim.pod != "live" or unfit or _busy(model, world, index) or None in (record, after):
        return
    assert after is not None
    after = after.each(units, claim=index).claim(index, record=record, op="p.secure")
    yield f"prepare c{index} commits PREPARING", False, after


def _lease(model: Model, world: World, index: int, _: Claim) -> Moves:
    """What a coordinator does before it orders: same holder, same token unless closed."""
    leased, token = store.acquire(world, model.rules, index, model.device(index))
    if token:
        after = leased.claim(index, op="p.commit", op_token=token)
        yield f"c{index} gets its lease before its record", False, after


def _commit(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """Admit an order with a token: its lease confirmed, then the record under it."""
    units, token = model.device(index), claim.op_token
    confirmed = store.leased(world, index, token, units)
    if confirmed and wiping.fenced(model, world, units, token):
        for text, fault, admitted in _admitted(model, world, index, claim):
            yield text, fault, under(model, admitted, index, token)
    yield f"prepare c{index} is refused", False, world.claim(index, op="", op_token=0)


def under(model: Model, world: World, index: int, token: int) -> World:
    """The world with the claim's record, and the floors of its units, under `token`.

    In `fast` our hold is written with it.
    """
    units = model.device(index)
    after = wiping.accepted(world, units, token)
    for unit in units:
        if after.units[unit].acted < token:
            after = after.unit(unit, acted=token)
    hold = after.claims[index].hold or model.scenario.profile == "fast"
    return after.claim(index, token=token, op_token=0, hold=hold)


def _in_use(model: Model, world: World, index: int) -> bool:
    units = [world.units[unit] for unit in model.device(index)]
    return all(unit.state == "IN_USE" and unit.claim == index for unit in units)


def _secure(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """Exposed already, or the lease of the record confirmed, or one asked for.

    A record whose token was closed or whose lease has gone forgets it first.
    """
    units = model.device(index)
    if _in_use(model, world, index):
        yield f"prepare c{index} is exposed already", False, world.claim(index, op="p.spec")
        return
    if claim.token:
        known = wiping.fenced(model, world, units, claim.token)
        if known and store.leased(world, index, claim.token, units):
            yield f"prepare c{index} has its lease still", False, world.claim(index, op="p.work")
        else:
            yield f"prepare c{index} forgets its lost lease", False, world.claim(index, token=0)
        return
    leased, token = store.acquire(world, model.rules, index, units)
    if not token:
        return
    after = leased.claim(index, op="p.token", op_token=token)
    yield f"prepare c{index} has its lease from the store", False, after
    if model.suffers("lost answer", world):
        lost = leased.spend().claim(index, op="")
        yield f"the store's answer to prepare c{index} is lost", True, lost


def _token(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """Token and floors, one commit; closed meanwhile by an earlier life's release: asked again."""
    if wiping.fenced(model, world, model.device(index), claim.op_token):
        after = under(model, world, index, claim.op_token).claim(index, op="p.work")
        yield f"prepare c{index} commits its token", False, after
    else:
        closed = world.claim(index, op="", op_token=0)
        yield f"prepare c{index} finds its new token closed", False, closed


def _work(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """Wipe as far as the profile asks, then expose; or wait for who is wiping now; or fail."""
    units = model.device(index)
    states = {world.units[unit].state for unit in units}
    if states & {"QUARANTINED", "HELD"}:
        record = model.rules.claim(claim.record, ClaimEvent.PREPARE_FAILED)
        failed = world.claim(index, op="", record=record or claim.record)
        yield f"prepare c{index} fails, its device is out of service", False, failed
        return
    exposed = model.advance(
        world,
        units,
        Event.EXPOSED,
        exposure_facts(model, world, index, claim),
        claim.token,
        claim=index,
    )
    if exposed is not None:
        yield f"prepare c{index} commits IN_USE", False, exposed.claim(index, op="p.spec")
        return
    if states <= {"CLEAN", "DIRTY"}:
        begun = wiping.begin(model, world, units, f"p{index}", claim.token)
        if begun is not None:
            yield f"prepare c{index} starts a wipe", False, begun


def exposure_facts(model: Model, world: World, index: int, claim: Claim) -> frozenset[Fact]:
    """What prepare finds out right before it exposes; its lease was confirmed before the wipe."""
    units = [world.units[unit] for unit in model.device(index)]
    facts = {Fact.SAME_BOOT, Fact.LEASE_OF_CLAIM}
    lab = model.scenario.profile == "lab"
    if all(unit.certificate and (lab or unit.token == claim.token) for unit in units):
        facts.add(Fact.CERTIFICATE_ACCEPTED)
    if all(unit.worker == "" for unit in units):
        facts.add(Fact.NO_SURVIVOR)
    if all(unit.memory != "intruder" for unit in units) and not model.watched(
        world, model.device(index)
    ):
        facts.add(Fact.HOLDERS_REREAD)
    return frozenset(facts)


def _spec(model: Model, world: World, index: int, claim: Claim) -> Moves:
    after = world.claim(index, spec=True, op="p.prepared")
    if not model.scenario.coarse:
        yield f"prepare c{index} writes its spec", False, after
        return
    for _, _, prepared in _prepared(model, after, index, after.claims[index]):
        for _, fault, answered in _answer(model, prepared, index, prepared.claims[index]):
            yield f"prepare c{index} writes its spec and answers", fault, answered


def _prepared(model: Model, world: World, index: int, claim: Claim) -> Moves:
    state = model.rules.claim(claim.record, ClaimEvent.PREPARED, READY)
    if state is not None:
        after = world.claim(index, record=state, op="p.answer")
        yield f"prepare c{index} commits PREPARED", False, after


def _answer(model: Model, world: World, index: int, claim: Claim) -> Moves:
    wants = "ready" if claim.kubelet == "prepare" else claim.kubelet
    yield f"prepare c{index} answers", False, world.claim(index, op="", kubelet=wants)
    if model.suffers("lost answer", world):
        lost = world.spend().claim(index, op="")
        yield f"the answer of prepare c{index} is lost", True, lost


STEPS = {
    "p.lease": _lease,
    "p.commit": _commit,
    "p.secure": _secure,
    "p.token": _token,
    "p.work": _work,
    "p.spec": _spec,
    "p.prepared": _prepared,
    "p.answer": _answer,
}
