"""Coordinators, the campaign and messages still under way, in the model."""

from __future__ import annotations

from fleet.core.claim_states import ClaimEvent
from tests.simulation import binding, rules, store, wiping
from tests.simulation.binding import BUSY, IDLE
from tests.simulation.rules import Model
from tests.simulation.world import CAMPAIGN, Coordinator, Moves, World


def moves(model: Model, world: World) -> Moves:
    """Everything a coordinator, the campaign or the network can do next."""
    done: set[Coordinator] = set()
    phases = binding.PHASES if model.scenario.seats else PHASES
    for index, coordinator in enumerate(world.coordinators):
        if coordinator not in done:
            done.add(coordinator)
            yield from phases[coordinator.phase](model, world, index, coordinator)
    yield from _campaign(model, world)
    yield from _delivered(model, world)


def _idle(model: Model, world: World, who: int, _: Coordinator) -> Moves:
    """Pick up a claim with conditions pending, or one whose pod is gone."""
    for index, claim in enumerate(world.claims):
        pending = claim.pod == "live" and claim.allocated and claim.condition == ""
        if model.scenario.profile == "strict" and pending:
            leased, token = store.acquire(world, model.rules, index, model.device(index))
            if token:
                after = leased.coordinator(who, "leased", index, token)
                yield f"coordinator leases c{index}", False, after
        if claim.pod == "gone" and model.keeps("reconcile"):
            token = _held(model, world, index)
            if (token or claim.hold) and claim.record == "ABSENT" and not claim.away:
                after = world.coordinator(who, "abandon", index, token)
                yield f"coordinator finds c{index} without a pod", False, after


def _held(model: Model, world: World, index: int) -> int:
    return max(
        (
            world.units[unit].lease
            for unit in model.device(index)
            if world.units[unit].holder == index
        ),
        default=0,
    )


def prebind(model: Model, world: World, index: int, token: int) -> World | None:
    """The node's side of a pre-bind wipe; None when refused, and then nothing has changed."""
    units = model.device(index)
    claim = world.claims[index]
    in_use = model.keeps("records refuse wipes") and (
        claim.record != "ABSENT" or _others(model, world, index)
    )
    if in_use or not wiping.fenced(model, world, units, token):
        return None
    begun = wiping.begin(model, world, units, f"b{index}", token)
    return None if begun is None else wiping.accepted(begun, units, token)


def _others(model: Model, world: World, index: int) -> bool:
    return any(world.claims[other].record != "ABSENT" for other in model.scenario.overlaps[index])


def _certified(model: Model, world: World, index: int, token: int) -> bool:
    units = [world.units[unit] for unit in model.device(index)]
    return all(unit.state == "CLEAN" and unit.token == token for unit in units)


def _leased(model: Model, world: World, who: int, at: Coordinator) -> Moves:
    index, token = at.claim, at.token
    if world.node != "up":
        yield from _give_up(model, world, who, at)
        return
    if _certified(model, world, index, token):
        yield from _bind(world, who, at)
        yield from _give_up(model, world, who, at)
        return
    begun = prebind(model, world, index, token)
    if begun is not None:
        asked = begun.coordinator(who, "waiting", index, token)
        yield f"coordinator has c{index} wiped", False, asked
        if model.suffers("duplicate", world) and not world.message[0]:
            twice = asked.spend()._replace(message=("wipe", index, token))
            yield f"coordinator has c{index} wiped, a duplicate is under way", True, twice
    elif not wiping.fenced(model, world, model.device(index), token):
        again = world.coordinator(who, "")
        if not model.keeps("floor rises with acts only"):
            again = wiping.accepted(again, model.device(index), token)
        yield f"coordinator finds the token of c{index} closed", False, again
    elif not model.keeps("floor rises with acts only"):
        refused = wiping.accepted(world, model.device(index), token)
        if refused != world:
            yield f"the refused wipe of c{index} raises the floor", False, refused
    yield from _give_up(model, world, who, at)


def _waiting(model: Model, world: World, who: int, at: Coordinator) -> Moves:
    if _certified(model, world, at.claim, at.token):
        yield from _bind(world, who, at)
    yield from _give_up(model, world, who, at)


def _bind(world: World, who: int, at: Coordinator) -> Moves:
    """Hold and conditions in one apply, guarded by uid and resourceVersion."""
    claim = world.claims[at.claim]
    if claim.pod == "live" and claim.allocated and claim.condition == "":
        bound = world.claim(at.claim, condition="true", hold=True).coordinator(who, "")
        yield f"coordinator sets the conditions of c{at.claim}", False, bound


def _give_up(model: Model, world: World, who: int, at: Coordinator) -> Moves:
    """Failure, time-out, or a pod that went away: quarantine first, condition, then roll back."""
    index = at.claim
    claim = world.claims[index]
    units = [world.units[unit] for unit in model.device(index)]
    unfit = any(unit.state in ("QUARANTINED", "HELD") for unit in units)
    silent = any(unit.state == "QUARANTINED" and unit.published != 2 for unit in units)
    late = model.suffers("timeout", world)
    if claim.condition != "" or claim.pod != "live" or not claim.allocated:
        yield (
            f"coordinator drops c{index}, the claim has changed",
            False,
            world.coordinator(who, ""),
        )
        return
    if (unfit or late) and not silent:
        after = world if unfit else world.spend()
        after = after.claim(index, condition="failed").coordinator(who, "abandon", index, at.token)
        yield f"coordinator fails c{index}", not unfit, after


def _abandon(model: Model, world: World, who: int, at: Coordinator) -> Moves:
    """Ask the node to close the token; with a record or a call in work it refuses."""
    index, token = at.claim, at.token
    if not model.keeps("abandon"):
        yield (
            f"coordinator goes on to release c{index} without the node",
            False,
            world.coordinator(who, "release", index, token),
        )
        return
    if world.node != "up":
        return
    claim = world.claims[index]
    free = claim.op == "" and claim.kubelet not in ("ready", "unprepare")
    state = model.rules.claim(claim.record, ClaimEvent.ABANDON, IDLE if free else BUSY)
    if state is None or claim.away:
        left = world.coordinator(who, "")
        yield f"node refuses to abandon c{index}: left to teardown", False, left
        return
    stopped = wiping.stop(model, world, f"b{index}")
    if token and model.keeps("closing"):
        stopped = wiping.accepted(stopped, model.device(index), token, closing=True)
    after = stopped.coordinator(who, "release", index, token)
    yield f"node abandons c{index}, token {token} is closed", False, after


def _release(model: Model, world: World, who: int, at: Coordinator) -> Moves:
    after = released(model, world, at.claim, at.token).coordinator(who, "")
    yield f"coordinator releases the lease of c{at.claim}", False, after
    if model.suffers("duplicate", world) and not world.message[0]:
        twice = after.spend()._replace(message=("release", at.claim, at.token))
        yield f"coordinator releases c{at.claim}, a duplicate is under way", True, twice


def released(model: Model, world: World, index: int, token: int) -> World:
    """The second step: the store lets the lease go, then our entry and the finalizer."""
    closure = token if model.keeps("abandon") else None
    if token and (not model.keeps("abandon") or rules.closed(index, token, closure)):
        world = store.release(world, model.rules, index, token, model.device(index))
    claim = world.claims[index]
    if claim.pod == "gone" and claim.record == "ABSENT":
        return world.claim(index, hold=False, allocated=False)
    return world


def _campaign(model: Model, world: World) -> Moves:
    """One run over all units: lease, wipe, release; its lease may run out at any time."""
    units = tuple(range(len(world.units)))
    token = world.campaign_token
    if world.campaign == "ready":
        leased, token = store.acquire(world, model.rules, CAMPAIGN, units)
        if token:
            after = leased._replace(campaign="leased", campaign_token=token)
            yield "campaign leases everything", False, after
    if any(unit.holder == CAMPAIGN for unit in world.units):
        yield "the campaign's lease runs out", False, store.expired(world)
    if world.campaign == "leased":
        if world.node == "up":
            yield from _campaign_asks(model, world, units, token)
        yield "campaign skips the node", False, world._replace(campaign="asked")
    if world.campaign == "asked":
        over = store.release(world, model.rules, CAMPAIGN, token, units)
        yield "campaign releases", False, over._replace(campaign="done", campaign_token=0)


def _campaign_asks(model: Model, world: World, units: tuple[int, ...], token: int) -> Moves:
    begun = _campaign_wipe(model, world, units, token)
    if begun is not None:
        asked = begun._replace(campaign="asked")
        yield "campaign has the node wipe", False, asked
    elif not model.keeps("floor rises with acts only"):
        raised = wiping.accepted(world, units, token)._replace(campaign="asked")
        yield "campaign is refused, the floor rises all the same", False, raised
    if model.suffers("duplicate", world) and not world.message[0]:
        late = world.spend()._replace(campaign="asked", message=("scrub", 0, token))
        yield "the campaign's request is under way", True, late


def _campaign_wipe(model: Model, world: World, units: tuple[int, ...], token: int) -> World | None:
    records = any(claim.record != "ABSENT" for claim in world.claims)
    if records and model.keeps("records refuse wipes"):
        return None
    if not wiping.fenced(model, world, units, token):
        return None
    begun = wiping.begin(model, world, units, "c", token)
    return None if begun is None else wiping.accepted(begun, units, token)


def _delivered(model: Model, world: World) -> Moves:
    """The duplicate arrives, whenever it likes."""
    kind, index, token = world.message
    if not kind:
        return
    empty = world._replace(message=("", 0, 0))
    if kind == "release":
        yield f"the late release of c{index} arrives", False, released(model, empty, index, token)
    elif kind == "untaint":
        unit = world.units[index]
        lost = unit.published == 2 and not model.keeps("resourceVersion on slices")
        after = empty.unit(index, published=3) if lost else empty
        yield f"an older slice write for unit {index} arrives", False, after
    elif world.node == "up":
        if kind == "wipe":
            begun = prebind(model, empty, index, token)
        else:
            units = tuple(range(len(world.units)))
            begun = _campaign_wipe(model, empty, units, token)
        yield f"the late {kind} request under token {token} arrives", False, begun or empty


PHASES = {
    "": _idle,
    "leased": _leased,
    "waiting": _waiting,
    "abandon": _abandon,
    "release": _release,
}
