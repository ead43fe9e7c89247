"""A claim's teardown on the node in the model: spec gone, tenant gone, wiped, buried, released."""

from __future__ import annotations

from fleet.core.claim_states import ClaimEvent, ClaimFact
from fleet.core.unit_states import Event, Fact
from tests.simulation import checker, rules, store, wiping
from tests.simulation.rules import Model
from tests.simulation.world import NOBODY, Claim, Moves, World

JOINED = frozenset({ClaimFact.PREPARE_JOINED})
RELEASED = frozenset({ClaimFact.UNITS_RELEASED})
NOT_JOINED: frozenset[ClaimFact] = frozenset()
TENANT_GONE = frozenset({Fact.TENANT_GONE, Fact.SPEC_GONE})
RESTING = ("CLEAN", "QUARANTINED")
HELD = ("IN_USE", "HELD")


def _begin(model: Model, world: World, index: int, event: ClaimEvent) -> World | None:
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


def called(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """Kubelet calls unprepare: for a pod that has ended, or too early (its known defect)."""
    told = claim.record in ("ABSENT", "PREPARED") and model.keeps("running pods refuse teardown")
    if told and claim.kubelet == "early" and claim.box:
        refused = world.claim(index, kubelet="ready")
        yield f"unprepare c{index} is refused, its pod runs", False, refused
        return
    if claim.record == "ABSENT":
        if model.rules.claim(claim.record, ClaimEvent.UNPREPARE) is not None:
            done = world.claim(index, op="", op_token=0, kubelet=_satisfied(claim))
            yield f"unprepare c{index}: nothing on record, success", False, done
        return
    in_use = claim.kubelet == "early" and claim.box != "" and claim.record == "PREPARED"
    begun = _begin(model, world, index, ClaimEvent.UNPREPARE)
    if begun is not None:
        begun = begun._replace(breach=checker.TORN_DOWN) if in_use else begun
        yield f"kubelet calls unprepare c{index}: UNPREPARING", False, begun


def _satisfied(claim: Claim) -> str:
    """What kubelet wants after an unprepare: a pod that lives has to be prepared again."""
    again = claim.kubelet == "early" and claim.pod == "live"
    return "prepare" if again else "done"


def swept(model: Model, world: World, index: int, claim: Claim) -> Moves:
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
    begun = _begin(model, world, index, ClaimEvent.ORPHANED)
    if begun is not None:
        yield f"c{index} is found orphaned: UNPREPARING", False, begun


def _unspec(model: Model, world: World, index: int, claim: Claim) -> Moves:
    after = world.claim(index, spec=False, op="u.gone")
    yield f"teardown c{index} removes the spec", False, after
    if not model.keeps("spec gone first"):
        yield f"teardown c{index} leaves the spec for later", False, world.claim(index, op="u.gone")


def _gone(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """Wait until the tenant is proven gone, and whoever is attached, then release the units.

    A unit that was never exposed has no tenant: the guard of its wipe looks for one all the same.
    """
    units = _reach(model, index)
    mine = [unit for unit in units if world.units[unit].state in HELD]
    stays = claim.box != "" or model.watched(world, model.device(index))
    if not mine:
        if units or not stays or not model.keeps("tenant proven gone"):
            yield f"teardown c{index}: nothing exposed", False, world.claim(index, op="u.work")
        return
    facts = set(TENANT_GONE)
    if stays and model.keeps("tenant proven gone"):
        facts.discard(Fact.TENANT_GONE)
    if claim.spec:
        facts.discard(Fact.SPEC_GONE)
    after = _released(model, world, mine, frozenset(facts))
    if after is not None:
        if any(unit not in model.device(index) for unit in mine):
            after = after._replace(breach=checker.NEIGHBOUR)
        if not model.keeps("lease kept until the tombstone"):
            after = store.release(after, model.rules, index, claim.token, units)
        yield f"teardown c{index}: tenant proven gone", False, after.claim(index, op="u.work")
    elif model.suffers("tenant stays", world):
        exposed = [unit for unit in mine if world.units[unit].state == "IN_USE"]
        failed = model.advance(world.spend(), exposed, Event.TEARDOWN_FAILED, add="X")
        if failed is not None and exposed:
            text = f"teardown c{index}: tenant stays past the deadline"
            yield text, True, failed.claim(index, op="u.work")


def _released(model: Model, world: World, units: list[int], facts: frozenset[Fact]) -> World | None:
    """The world after IN_USE was released, and HELD (the journal was lost) proven free with it."""
    held = [unit for unit in units if world.units[unit].state == "HELD"]
    used = [unit for unit in units if unit not in held]
    if held and Fact.TENANT_GONE not in facts:
        return None
    freed = model.advance(world, held, Event.PROVEN_FREE)
    return None if freed is None else model.advance(freed, used, Event.RELEASED, facts)


def _reach(model: Model, index: int) -> tuple[int, ...]:
    if model.keeps("own units only"):
        return model.device(index)
    return tuple(sorted({unit for device in model.scenario.devices for unit in device}))


def _unread(model: Model, world: World, index: int) -> bool:
    """Whether a quarantine of the claim's device is, for all the node knows, not visible yet."""
    known = {rules.READ_BACK}
    if not model.keeps("visibility of this quarantine"):
        known.add(rules.OUTDATED)
    return any(
        world.units[unit].state == "QUARANTINED" and world.units[unit].published not in known
        for unit in model.device(index)
    )


def _wipe(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """Wipe under the record: never refused for its token, whatever came in between.

    The device as a whole; with one unit out of service the dirty ones go out of service too.
    """
    units = model.device(index)
    if all(world.units[unit].state in RESTING for unit in units):
        if not _unread(model, world, index) or not model.keeps("quarantine read back"):
            at_rest = world.claim(index, op="u.bury")
            if not model.scenario.coarse:
                yield f"teardown c{index}: all is clean or visibly quarantined", False, at_rest
            else:
                yield from _bury(model, at_rest, index, at_rest.claims[index])
        return
    states = {world.units[unit].state for unit in units}
    if {"DIRTY", "QUARANTINED"} <= states:
        if model.keeps("devices go out of service whole"):
            yield from _taken_out(model, world, index)
    elif "DIRTY" in states and not any(world.units[unit].work for unit in units):
        unfenced = model.keeps("teardown unfenced") or not claim.token
        allowed = unfenced or wiping.fenced(model, world, units, claim.token)
        begun = wiping.begin(model, world, units, f"t{index}", claim.token)
        if allowed and begun is not None:
            yield f"teardown c{index} starts its wipe", False, begun


def _taken_out(model: Model, world: World, index: int) -> Moves:
    units = model.device(index)
    why = {letter for unit in units for letter in world.units[unit].reasons}
    left = [u for u in units if world.units[u].state == "DIRTY" and not world.units[u].work]
    moved = model.advance(world, left, Event.FAULT_SEEN, wiping.GONE, add="".join(sorted(why)))
    if left and moved is not None:
        yield f"teardown c{index}: its device goes out of service as a whole", False, moved


def _bury(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """One commit: tombstone, units free, token closed, release queued. All is asked once more."""
    units = model.device(index)
    asked = model.keeps("visibility asked in the burial") and model.keeps("quarantine read back")
    if not all(world.units[unit].state in RESTING for unit in units) or (
        asked and _unread(model, world, index)
    ):
        yield f"teardown c{index} begins again", False, world.claim(index, op="u.spec")
        return
    after = _buried(model, world, index)
    if after is None:
        return
    unread = any(
        world.units[unit].state == "QUARANTINED" and world.units[unit].published != rules.READ_BACK
        for unit in units
    )
    after = after._replace(breach=checker.RELEASED_UNREAD) if unread else after
    yield f"teardown c{index} commits the tombstone", False, after


def _buried(model: Model, world: World, index: int) -> World | None:
    """The world with the claim's record a tombstone and its release in the outbox.

    The token is closed with it: a second pod of a named claim must not get it again from the store,
    or the release still in the outbox would end its lease. A record that never learned its token
    has whatever lease there is released by holder.
    """
    claim = world.claims[index]
    state = model.rules.claim(claim.record, ClaimEvent.UNPREPARED, RELEASED)
    if state is None:
        return None
    if model.keeps("teardown closes its token"):
        world = wiping.accepted(world, model.device(index), claim.token, closing=True)
    mine = [i for i, unit in enumerate(world.units) if unit.claim == index]
    seek = not claim.token and bool(model.device(index)) and model.keeps("release by holder")
    return world.each(mine, claim=NOBODY).claim(
        index,
        record=state,
        token=0,
        outbox=claim.token or claim.outbox,
        seek=claim.seek + seek,
        op="u.answer",
    )


def _answer(model: Model, world: World, index: int, claim: Claim) -> Moves:
    asked = claim.kubelet in ("unprepare", "early")
    after = world.claim(index, op="", kubelet=_satisfied(claim) if asked else claim.kubelet)
    yield f"teardown c{index} is done, success", False, after
    if asked and model.suffers("lost answer", world):
        lost = world.spend().claim(index, op="")
        yield f"the answer of unprepare c{index} is lost", True, lost


def drained(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """What a burial left to be told to the store."""
    if claim.outbox:
        after = store.release(world, model.rules, index, claim.outbox, model.device(index))
        yield f"node drains the outbox of c{index}", False, _let_go(after, index, outbox=0)
    if claim.giving:
        after = store.release(world, model.rules, index, claim.giving, model.device(index))
        after = _let_go(after, index, seek=claim.seek - 1, giving=0)
        yield f"node gives the lease found of c{index} back", False, after
    elif claim.seek:
        yield from _sought(model, world, index, claim)


def _sought(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """By holder: closed first, unless a record over these units exists again, then given back."""
    units = model.device(index)
    recorded = claim.record != "ABSENT"
    if not model.keeps("holder release looks at units"):
        recorded = recorded or claim.away
    tokens = {world.units[unit].lease for unit in units if world.units[unit].holder == index}
    if recorded and model.keeps("holder release asks for a record"):
        after = world.claim(index, seek=claim.seek - 1)
        yield f"node leaves the lease of c{index} to its new record", False, after
    elif tokens:
        token = max(tokens)
        after = wiping.accepted(world, units, token, closing=True).claim(index, giving=token)
        yield f"node finds a lease of c{index} and closes its token", False, after
    else:
        after = _let_go(world, index, seek=claim.seek - 1)
        yield f"node finds no lease of c{index}", False, after


def _let_go(world: World, index: int, *, outbox: int | None = None, **done: int) -> World:
    """The world with an outbox entry gone, and our hold with it unless the claim is still served.

    A pod that is dying has an entry of its own in reservedFor.
    """
    claim = world.claims[index]
    held = claim.pod == "live" or claim.record != "ABSENT"
    stays = claim.pod in ("live", "dying") or held
    return world.claim(
        index,
        outbox=claim.outbox if outbox is None else outbox,
        hold=claim.hold and held,
        allocated=claim.allocated and stays,
        **done,
    )


STEPS = {
    "u.spec": _unspec,
    "u.gone": _gone,
    "u.work": _wipe,
    "u.bury": _bury,
    "u.answer": _answer,
}
