"""The node service in the model: prepare, unprepare, orphan sweep, outbox, start after a crash."""

from __future__ import annotations

from fleet import lifecycle
from fleet.claims import ClaimEvent, ClaimFact
from fleet.lifecycle import Event, Fact
from tests.simulation import checker, rules, store, wiping
from tests.simulation.rules import Model
from tests.simulation.world import NOBODY, Claim, Moves, Unit, World

LIVE = frozenset({ClaimFact.LIVE_CONSUMER})
JOINED = frozenset({ClaimFact.PREPARE_JOINED})
READY = frozenset({ClaimFact.UNITS_IN_USE, ClaimFact.SPEC_WRITTEN})
TENANT_GONE = frozenset({Fact.TENANT_GONE, Fact.SPEC_GONE})
RESTING = ("CLEAN", "QUARANTINED", "HELD")
NOT_JOINED: frozenset[ClaimFact] = frozenset()


def moves(model: Model, world: World) -> Moves:
    """Everything a running node can do next."""
    yield from wiping.work(model, world)
    yield from wiping.house(model, world)
    for index, claim in enumerate(world.claims):
        if claim.kubelet == "prepare" and not claim.op:
            yield from _prepare(model, world, index, claim)
        if claim.kubelet == "unprepare" and claim.op[:1] != "u":
            yield from _unprepare(model, world, index, claim)
        if claim.op[:1] != "u":
            yield from _sweep(model, world, index, claim)
        if claim.op:
            yield from STEPS[claim.op](model, world, index, claim)
        if claim.outbox:
            yield f"node drains the outbox of c{index}", False, _drained(model, world, index)
    yield from _loose(world)


def _prepare(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """Kubelet calls (or calls again): the claim's table decides what happens."""
    facts = LIVE if claim.pod == "live" else NOT_JOINED
    state = model.rules.claim(claim.record, ClaimEvent.PREPARE, facts)
    if state is None or (model.scenario.profile == "strict" and claim.condition != "true"):
        return
    if claim.record == "PREPARED":
        step = "p.answer"
        world = world.claim(index, spec=True)
    elif claim.record == "PREPARING" and _in_use(model, world, index):
        step = "p.spec"
    else:
        step = "p.lease"
    yield f"kubelet calls prepare c{index}", False, world.claim(index, op=step)


def _in_use(model: Model, world: World, index: int) -> bool:
    units = [world.units[unit] for unit in model.device(index)]
    return all(unit.state == "IN_USE" and unit.claim == index for unit in units)


def _lease(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """Same holder, same token, unless this node closed it; an answer lost here costs nothing."""
    if claim.record == "PREPARING":
        closed = not wiping.fenced(model, world, model.device(index), claim.token)
        if not closed:
            again = world.claim(index, op="p.commit", op_token=claim.token)
            yield f"prepare c{index} finds its lease in the journal", False, again
            return
    leased, token = store.acquire(world, model.rules, index, model.device(index))
    if token:
        after = leased.claim(index, op="p.commit", op_token=token)
        yield f"prepare c{index} has its lease from the store", False, after


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


def _commit(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """Read the claim, refuse a device of another uid, commit {PREPARING}."""
    units, token = model.device(index), claim.op_token
    refused = claim.pod != "live" or _busy(model, world, index)
    if refused or not wiping.fenced(model, world, units, token):
        answered = world.claim(index, op="", op_token=0)
        yield f"prepare c{index} is refused", False, answered
        return
    record = model.rules.claim(claim.record, ClaimEvent.PREPARE, LIVE)
    if record is None:
        return
    after = wiping.accepted(world, units, token).each(units, claim=index)
    for unit in units:
        if after.units[unit].acted < token:
            after = after.unit(unit, acted=token)
    hold = claim.hold or model.scenario.profile == "fast"
    after = after.claim(index, record=record, token=token, op="p.work", op_token=0, hold=hold)
    yield f"prepare c{index} commits PREPARING", False, after


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
    """What prepare finds out right before it exposes."""
    units = [world.units[unit] for unit in model.device(index)]
    facts = {Fact.SAME_BOOT}
    if wiping.fenced(model, world, model.device(index), claim.token):
        facts.add(Fact.LEASE_OF_CLAIM)
    lab = model.scenario.profile == "lab"
    if all(unit.certificate and (lab or unit.token == claim.token) for unit in units):
        facts.add(Fact.CERTIFICATE_ACCEPTED)
    if all(unit.worker == "" for unit in units):
        facts.add(Fact.NO_SURVIVOR)
    if all(unit.memory != "intruder" for unit in units):
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


def _begin_teardown(model: Model, world: World, index: int, event: ClaimEvent) -> World | None:
    """Cancel and join a running prepare, then commit UNPREPARING."""
    claim = world.claims[index]
    running = claim.op[:1] == "p"
    joined = JOINED if model.keeps("serial") or not running else NOT_JOINED
    state = model.rules.claim(claim.record, event, joined)
    if state is None:
        return None
    if not joined and claim.op == "p.spec":
        world = world._replace(loose=("p.spec", index))
    world = wiping.stop(model, world, f"p{index}")
    return world.claim(index, record=state, op="u.spec", op_token=0)


def _unprepare(model: Model, world: World, index: int, claim: Claim) -> Moves:
    if claim.record == "ABSENT":
        if model.rules.claim(claim.record, ClaimEvent.UNPREPARE) is not None:
            done = world.claim(index, op="", op_token=0, kubelet="done")
            yield f"unprepare c{index}: nothing on record, success", False, done
        return
    begun = _begin_teardown(model, world, index, ClaimEvent.UNPREPARE)
    if begun is not None:
        yield f"kubelet calls unprepare c{index}: UNPREPARING", False, begun


def _sweep(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """Orphans: not allocated here, or nobody in reservedFor but us. A teardown cut off goes on."""
    if claim.record == "ABSENT":
        return
    if claim.record == "UNPREPARING":
        yield f"teardown of c{index} goes on", False, world.claim(index, op="u.spec")
        return
    orphan = claim.pod == "gone"
    if not model.keeps("orphan by consumer"):
        orphan = orphan and not claim.allocated and not claim.hold
    if not (orphan and model.keeps("orphan sweep")):
        return
    begun = _begin_teardown(model, world, index, ClaimEvent.ORPHANED)
    if begun is not None:
        yield f"c{index} is found orphaned: UNPREPARING", False, begun


def _unspec(model: Model, world: World, index: int, claim: Claim) -> Moves:
    after = world.claim(index, spec=False, op="u.gone")
    yield f"teardown c{index} removes the spec", False, after
    if not model.keeps("spec gone first"):
        yield f"teardown c{index} leaves the spec for later", False, world.claim(index, op="u.gone")


def _gone(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """Wait until the tenant is proven gone, then release the units."""
    facts = set(TENANT_GONE)
    if claim.box and model.keeps("tenant proven gone"):
        facts.discard(Fact.TENANT_GONE)
    if claim.spec:
        facts.discard(Fact.SPEC_GONE)
    units = _reach(model, index)
    mine = [unit for unit in units if world.units[unit].state == "IN_USE"]
    after = model.advance(world, mine, Event.RELEASED, frozenset(facts))
    if after is not None:
        if not mine and claim.box:
            return
        if any(unit not in model.device(index) for unit in mine):
            after = after._replace(breach=checker.NEIGHBOUR)
        if not model.keeps("lease kept until the tombstone"):
            after = store.release(after, model.rules, index, claim.token, units)
        yield f"teardown c{index}: tenant proven gone", False, after.claim(index, op="u.work")
    elif mine and model.suffers("tenant stays", world):
        failed = model.advance(world.spend(), mine, Event.TEARDOWN_FAILED, add="X")
        if failed is not None:
            text = f"teardown c{index}: tenant stays past the deadline"
            yield text, True, failed.claim(index, op="u.work")


def _reach(model: Model, index: int) -> tuple[int, ...]:
    if model.keeps("own units only"):
        return model.device(index)
    return tuple(sorted({unit for device in model.scenario.devices for unit in device}))


def _wipe(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """Wipe under the record: never refused for its token, whatever came in between."""
    units = model.device(index)
    states = [world.units[unit].state for unit in units]
    unread = any(
        world.units[unit].state == "QUARANTINED" and world.units[unit].published != 2
        for unit in units
    )
    if all(state in RESTING for state in states):
        if unread and model.keeps("quarantine read back"):
            return
        after = wiping.closed(model, world, index)
        if after is not None:
            breach = checker.RELEASED_UNREAD if unread else ""
            after = after._replace(breach=breach)
            yield f"teardown c{index} commits the tombstone", False, after
        return
    dirty = tuple(unit for unit in units if world.units[unit].state == "DIRTY")
    if dirty and not any(world.units[unit].work for unit in units):
        allowed = model.keeps("teardown unfenced") or wiping.fenced(
            model, world, dirty, claim.token
        )
        begun = wiping.begin(model, world, dirty, f"t{index}", claim.token)
        if allowed and begun is not None:
            yield f"teardown c{index} starts its wipe", False, begun


def _answer_teardown(model: Model, world: World, index: int, claim: Claim) -> Moves:
    asked = claim.kubelet == "unprepare"
    after = world.claim(index, op="", kubelet="done" if asked else claim.kubelet)
    yield f"teardown c{index} is done, success", False, after
    if asked and model.suffers("lost answer", world):
        lost = world.spend().claim(index, op="")
        yield f"the answer of unprepare c{index} is lost", True, lost


def _drained(model: Model, world: World, index: int) -> World:
    claim = world.claims[index]
    world = store.release(world, model.rules, index, claim.outbox, model.device(index))
    stays = claim.pod in ("live", "dying")
    return world.claim(
        index,
        outbox=0,
        hold=claim.hold and stays,
        allocated=claim.allocated and stays,
    )


def _loose(world: World) -> Moves:
    """A thread nobody joined finishes what it was about to do."""
    step, index = world.loose
    if step:
        after = world.claim(index, spec=True)._replace(loose=("", 0))
        yield f"an old thread of c{index} writes the spec", False, after


STEPS = {
    "p.lease": _lease,
    "p.commit": _commit,
    "p.work": _work,
    "p.spec": _spec,
    "p.prepared": _prepared,
    "p.answer": _answer,
    "u.spec": _unspec,
    "u.gone": _gone,
    "u.work": _wipe,
    "u.answer": _answer_teardown,
}


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
    """HELD, orphan specs gone, floors and quarantine adopted, before any act is accepted."""
    adopts = model.keeps("floors adopted")
    for index, unit in enumerate(world.units):
        record = lifecycle.fresh(rules.record_of(unit))
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
        world = world.claim(index, record="ABSENT", token=0, outbox=0, spec=spec)
    return world._replace(node="up")


def _older(world: World) -> World:
    """What a restored journal believes: the last certificate, and no claim."""
    for index, unit in enumerate(world.units):
        known = unit.certified >= 0
        state = "CLEAN" if known else "DIRTY"
        world = world.unit(index, state=state, certificate=known, claim=NOBODY, work="")
    for index in range(len(world.claims)):
        world = world.claim(index, record="ABSENT", token=0, outbox=0, spec=False)
    return world._replace(node="up")
