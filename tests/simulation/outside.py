"""What happens around us in the model: scheduler, pods, kubelet, containers, faults, operators."""

from __future__ import annotations

from fleet.core.unit_states import Event
from tests.simulation import checker, scheduling, store, wiping
from tests.simulation.rules import Model
from tests.simulation.world import Claim, Moves, World


def moves(model: Model, world: World) -> Moves:
    """Everything that happens without being asked for, faults included."""
    for index, claim in enumerate(world.claims):
        yield from _pod(model, world, index, claim)
        yield from _kubelet(model, world, index, claim)
        if claim.box == "running":
            yield from _attached(model, world, index)
        if claim.away:
            back = world.claim(index, away=False)
            yield f"the other device of c{index} is torn down and its lease returned", False, back
    if world.restored:
        adopted = store.adopt(world, model.rules, model.scenario.devices)
        yield "operator: fleet store adopt", False, adopted
    for index, unit in enumerate(world.units):
        if unit.memory == "intruder" and unit.state == "CLEAN" and world.node == "up":
            for text, _, noticed in _noticed(model, world, index, Event.TRUST_LOST, ""):
                yield text, False, noticed
    if world.budget:
        yield from _node_faults(model, world)
        yield from _unit_faults(model, world)
        yield from _other_faults(model, world)


def _pod(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """The scheduler obeys the API's own allocations only: our taints are not what safety needs."""
    if model.scenario.seats:
        yield from scheduling.moves(model, world, index, claim)
        yield from _ends(world, index, claim)
        return
    taken = any(world.claims[other].allocated for other in model.scenario.overlaps[index])
    if claim.pod == "new" and not taken:
        scheduled = world.claim(index, pod="live", allocated=True)
        yield f"a pod for c{index} is scheduled", False, scheduled
    if claim.condition == "failed" and claim.op == "" and claim.record == "ABSENT":
        again = world.claim(index, condition="", allocated=claim.pod == "live" and not taken)
        if claim.pod != "live" or not taken:
            yield f"the scheduler starts c{index} over", False, again
    yield from _ends(world, index, claim)
    yield from _second(model, world, index, claim)


def _ends(world: World, index: int, claim: Claim) -> Moves:
    if claim.pod == "live":
        yield f"the pod of c{index} is deleted", False, world.claim(index, pod="dying")
    if claim.pod == "dying" and claim.kubelet == "done":
        yield f"the pod of c{index} is gone", False, _gone(world, index)


def _gone(world: World, index: int) -> World:
    """The claim keeps its allocation as long as somebody, at least we, is in reservedFor."""
    claim = world.claims[index]
    return world.claim(index, pod="gone", bound=False, allocated=claim.allocated and claim.hold)


def _second(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """A second pod names the claim."""
    taken = any(world.claims[other].allocated for other in model.scenario.overlaps[index])
    free = claim.spare and claim.pod == "gone" and claim.kubelet == "done"
    if free and model.scenario.elsewhere and not claim.allocated:
        moved = world.claim(index, spare=False, away=True)
        yield f"a second pod names c{index}, which gets another device", False, moved
    elif free:
        # With the claim still allocated the scheduler asks nobody; otherwise it obeys the taint.
        clean = all(world.units[unit].state == "CLEAN" for unit in model.device(index))
        if claim.allocated or (clean and not taken):
            second = world.claim(
                index,
                pod="live",
                spare=False,
                kubelet="",
                allocated=True,
                condition=claim.condition if claim.allocated else "",
            )
            yield f"a second pod names c{index}", False, second


def _kubelet(model: Model, world: World, index: int, claim: Claim) -> Moves:
    if world.node == "rebooted":
        return
    ready = claim.condition == "true" or model.scenario.profile != "strict"
    if model.scenario.seats:
        ready = claim.bound
    if claim.kubelet == "" and claim.pod == "live" and claim.allocated and ready:
        yield f"kubelet wants c{index}", False, world.claim(index, kubelet="prepare")
    if claim.kubelet in ("ready", "early"):
        if claim.box == "" and claim.spec:
            created = world.claim(index, box="created")
            if model.scenario.coarse:
                created = _started(model, created, index)
            yield f"container of c{index} created", False, created
        if claim.box == "created":
            yield f"tenant of c{index} starts and writes", False, _started(model, world, index)
    if claim.pod in ("dying", "gone"):
        if claim.kubelet in ("prepare", "ready", "early"):
            ended = world.claim(index, kubelet="unprepare", box="")
            yield f"kubelet stops c{index}", False, ended
        if claim.kubelet == "":
            yield f"kubelet never had c{index}", False, world.claim(index, kubelet="done")
        if claim.kubelet == "done" and claim.box == "created":
            yield f"tenant of c{index} starts and writes", False, _started(model, world, index)
        if claim.kubelet == "done" and claim.box:
            yield f"the runtime ends the container of c{index}", False, world.claim(index, box="")


def _attached(model: Model, world: World, index: int) -> Moves:
    """Whoever is attached to memory writes to it when it likes.

    Not modelled while a claim holds it: that one lets itself be looked at, by adminAccess's nature.
    """
    for unit in model.scenario.attached[index]:
        now = world.units[unit]
        held = now.claim >= 0 or any(
            claim.box and unit in model.device(c) for c, claim in enumerate(world.claims)
        )
        if not held and now.memory != str(index):
            written = world.unit(unit, memory=str(index))
            yield f"c{index}, attached to unit {unit}, writes to it", False, written


def _started(model: Model, world: World, index: int) -> World:
    units = model.device(index)
    clean = checker.may_start((world.units[unit].memory for unit in units), str(index))
    running = world.each(units, memory=str(index)).claim(index, box="running")
    return running if clean else running._replace(breach=checker.FOREIGN_MEMORY)


def _node_faults(model: Model, world: World) -> Moves:
    """Crashes: threads vanish; workers die with the service or outlive it. Then what is lost."""
    if world.node != "up":
        return
    working = any(unit.worker == "own" for unit in world.units)
    if model.suffers("crash", world):
        yield "node service is killed", True, _dead(world, "down", "")
        if working:
            yield "node service is killed, its workers live on", True, _dead(world, "down", "ghost")
    if model.suffers("take-over", world):
        yield "standby takes the journal over", True, _taken_over(model, world)
    if model.suffers("reboot", world):
        yield "node reboots", True, _rebooted(world)
    if model.suffers("journal lost", world):
        yield "node service is killed, journal lost", True, _dead(world, "lost", "")
    if model.suffers("journal restored", world):
        yield "node service is killed, journal restored", True, _dead(world, "older", "")


def _dead(world: World, node: str, workers: str) -> World:
    units = tuple(
        unit._replace(work="", worker=workers if unit.worker == "own" else unit.worker)
        for unit in world.units
    )
    claims = tuple(claim._replace(op="", op_token=0, giving=0) for claim in world.claims)
    return world.spend()._replace(units=units, claims=claims, node=node)


def _taken_over(model: Model, world: World) -> World:
    """The next owner starts: a hand-over, or the standby after a silent owner was killed.

    Neither is more than a crash and a start. Who hands over cancels and joins its flights, ends its
    workers and then unlocks: what it leaves is what a kill without survivors leaves. Who is killed
    may leave workers, as any crash. An owner that only pauses keeps the lock, and nobody starts
    beside it; without the lock its thread goes on under the next owner.
    """
    dead = _dead(world, "down", "")
    if model.keeps("journal lock"):
        return dead
    for index, claim in enumerate(world.claims):
        if claim.op == "p.spec":
            return dead._replace(loose=("p.spec", index))
    return dead


def _rebooted(world: World) -> World:
    dead = _dead(world, "rebooted", "")
    dead = dead.each(range(len(dead.units)), memory="foreign", worker="")
    claims = tuple(
        claim._replace(
            box="",
            kubelet="prepare" if claim.kubelet in ("ready", "early") else claim.kubelet,
        )
        for claim in dead.claims
    )
    return dead._replace(claims=claims, loose=("", 0))


def _unit_faults(model: Model, world: World) -> Moves:
    if world.node != "up":
        return
    spent = world.spend()
    for index, unit in enumerate(world.units):
        if model.suffers("fault", world):
            for letter in "LX":
                yield from _noticed(model, spent, index, Event.FAULT_SEEN, letter)
        if model.suffers("driver reload", world):
            reason = "X" if unit.state == "IN_USE" else ""
            yield from _noticed(model, spent, index, Event.TRUST_LOST, reason)
        if model.suffers("intruder", world) and unit.state == "CLEAN":
            entered = spent.unit(index, memory="intruder")
            yield f"a foreign process enters unit {index}, unseen", True, entered
        if model.suffers("clear", world) and unit.reasons and unit.state == "QUARANTINED":
            for letter in unit.reasons:
                cleared = model.advance(spent, (index,), Event.CLEARED, clear=letter)
                if cleared is not None:
                    yield f"operator clears {letter} of unit {index}", True, cleared
        if model.suffers("adopt", world) and unit.state == "HELD":
            adopted = model.advance(spent, (index,), Event.PROVEN_FREE)
            if adopted is not None:
                yield f"operator adopts unit {index}", True, adopted


def _noticed(model: Model, world: World, index: int, event: Event, reason: str) -> Moves:
    """The node sees it: a running worker is killed and joined first, its other units cancelled."""
    unit = world.units[index]
    if unit.worker == "own" and event is Event.TRUST_LOST:
        wedged = model.advance(world, (index,), event, wiping.NOTHING, add="X")
        if wedged is not None:
            wedged = wedged.unit(index, work="", worker="ghost", memory="foreign")
            wedged = wiping.stop(model, wedged, unit.work)
            yield f"{event} at unit {index}, its worker survives the kill", True, wedged
    seen = model.advance(world, (index,), event, wiping.GONE, add=reason)
    if seen is None:
        return
    boxed = any(claim.box and index in model.device(c) for c, claim in enumerate(world.claims))
    # Under an exposed device a reload puts nobody's secrets there; it only raises a reason.
    spoilt = event is Event.TRUST_LOST and unit.state != "IN_USE" and not boxed
    memory = "foreign" if spoilt else unit.memory
    seen = seen.unit(index, memory=memory)
    if unit.work:
        seen = wiping.ended(seen.unit(index, work=""), (index,))
        seen = wiping.stop(model, seen, unit.work)
    yield f"{event} {reason} at unit {index}", True, seen


def _called_early(claim: Claim) -> bool:
    """A pod that never got its reference to a shared claim ends: kubelet's defect (1.36)."""
    return claim.pod == "live" and claim.kubelet == "ready"


def _restarted(world: World, index: int, claim: Claim) -> Moves:
    """Kubelet starts again: what it had done it asks for once more; containers run on."""
    again = {"ready": "prepare", "early": "prepare", "done": "unprepare"}.get(claim.kubelet)
    if again == "prepare" or (again and claim.pod != "new" and claim.box == ""):
        text = f"kubelet restarts and asks for c{index} again: {again}"
        yield text, True, world.claim(index, kubelet=again)


def _other_faults(model: Model, world: World) -> Moves:
    spent = world.spend()
    for index, claim in enumerate(world.claims):
        if model.suffers("kubelet restart", world) and claim.box in ("", "running"):
            yield from _restarted(spent, index, claim)
        if model.suffers("force delete", world) and claim.pod in ("live", "dying"):
            gone = _gone(spent, index)
            yield f"the pod of c{index} is force deleted", True, gone
            if claim.kubelet:
                forgot = gone.claim(index, kubelet="done")
                yield f"c{index}: force deleted, and kubelet forgets it", True, forgot
        if model.suffers("early unprepare", world) and _called_early(claim):
            early = spent.claim(index, kubelet="early")
            yield f"kubelet wants c{index} unprepared while its pod lives", True, early
    if model.suffers("store restored", world):
        for age, copy in store.restored(spent):
            yield f"a copy of the store is restored, {age}", True, copy
    if model.suffers("coordinator crash", world):
        for who, at in enumerate(world.coordinators):
            if at.phase:
                lost = spent.coordinator(who, "")
                yield f"the coordinator dies in '{at.phase}' of c{at.claim}", True, lost
    if model.suffers("older write", world) and not world.message[0]:
        for index, unit in enumerate(world.units):
            if unit.published == 0 and unit.state == "CLEAN":
                late = spent._replace(message=("untaint", index, 0))
                yield f"a slice write for unit {index} is under way", True, late
