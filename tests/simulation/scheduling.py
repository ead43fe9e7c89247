"""The scheduler in the model: it chooses a device, waits for conditions, binds, or takes it back.

It knows the slices as late as it likes: no taint keeps it from a device (a superset of every lag).
That two allocations name one device is a fault (its cache is late, or there are two schedulers).
"""

from __future__ import annotations

from tests.simulation.rules import Model
from tests.simulation.world import Claim, Moves, World


def moves(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """What the scheduler may do with the claim's pod next."""
    if claim.pod == "new":
        yield from _allocates(model, world, index)
    elif claim.pod == "live" and not claim.bound:
        yield from _waits(model, world, index, claim)
    elif claim.pod == "retry":
        yield from _retries(world, index, claim)


def _allocates(model: Model, world: World, index: int) -> Moves:
    """Allocation and reservation in one write, before the pod has a node."""
    for seat, units in enumerate(model.scenario.seats):
        taken = any(
            claim.allocated and not set(units).isdisjoint(model.device(other))
            for other, claim in enumerate(world.claims)
            if other != index
        )
        given = world.claim(index, pod="live", allocated=True, seat=seat, condition="")
        if not taken:
            yield f"the scheduler gives c{index} device {seat}", False, given
        elif model.suffers("stale allocation", world):
            text = f"the scheduler, its cache late, gives c{index} device {seat} as well"
            yield text, True, given.spend()


def _waits(model: Model, world: World, index: int, claim: Claim) -> Moves:
    """It binds once the conditions are True; after a failure or its time-out only the reservation
    goes, the allocation stays until the next try."""
    retried = world.claim(index, pod="retry")
    if claim.condition == "true" or model.scenario.profile != "strict":
        yield f"the scheduler binds the pod of c{index}", False, world.claim(index, bound=True)
    if claim.condition == "failed":
        yield f"the scheduler sees that c{index} failed", False, retried
    if model.suffers("binding timeout", world):
        yield f"the scheduler waits for c{index} no longer", True, retried.spend()


def _retries(world: World, index: int, claim: Claim) -> Moves:
    """Reserved again, or taken back: only while nobody else, and no hold, is in reservedFor."""
    if claim.condition != "failed":
        yield f"the scheduler tries c{index} again", False, world.claim(index, pod="live")
    if not claim.hold:
        back = world.claim(index, pod="new", allocated=False, condition="")
        yield f"the scheduler takes the allocation of c{index} back", False, back
    gone = world.claim(
        index, pod="gone", kubelet="done", allocated=claim.hold, condition="", bound=False
    )
    yield f"the pod of c{index} is deleted before it has a node", False, gone
