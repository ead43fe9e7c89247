"""What users and misfortune do in one world, drawn by seed, and which pods are stuck after it."""

from __future__ import annotations

import random
from dataclasses import replace

from fleet.core.model import State
from fleet.kube.base import CLAIMS, PODS, Object, name_of, uid_of
from tests.twin import objects
from tests.twin.kinds import RATES
from tests.twin.misfortune import Misfortune
from tests.twin.users import Users
from tests.twin.world import Plan, World

STORY_S = 110.0
QUIET_S = 900.0
"""A scheduler's timeout of 600 s, a retest after 300 s: what only time heals has healed."""
SETTLE_S = 900.0
PROFILES = ("strict", "strict", "strict", "fast", "lab")


def planned(seed: int, only: frozenset[str] | None = None) -> Plan:
    """The world of a seed; `only`: the strikes that happen, None as drawn."""
    rng = random.Random(f"{seed}/story")
    scale = 0.0 if rng.random() < 0.2 else rng.choice((0.3, 1.0, 2.0, 4.0))
    return Plan(
        seed=seed,
        nodes=rng.choice((1, 2, 2, 3)),
        devices=rng.choice((1, 2, 3)),
        profile=rng.choice(PROFILES),
        rates={kind: rate * scale for kind, rate in RATES.items()},
        trouble=rng.choice((0.0, 0.05, 0.2, 0.4)),
        slow=rng.choice((0.0, 0.0, 0.1, 0.3)),
        grace_s=rng.choice(((0.1, 2.0), (0.1, 2.0), (1.0, 25.0))),
        delay_s=rng.choice(((0.02, 0.4), (0.02, 0.4), (0.5, 5.0))),
        timeout_s=rng.choice((60.0, 90.0, 600.0)),
        deadline_s=rng.choice((5.0, 30.0, 600.0)),
        retest_s=rng.choice((15.0, 60.0, 300.0)),
        period_s=1.0,
        only=only,
    )


class Story:
    """What users and misfortune do in one world."""

    def __init__(self, seed: int, only: frozenset[str] | None = None) -> None:
        self.seed = seed
        self.plan = planned(seed, only)
        paces = ((0.05, 0.5, 2.0, 5.0), (0.05, 0.5, 1.0), (0.2, 3.0, 8.0))
        self.pace = random.Random(f"{seed}/pace").choice(paces)
        self.world = self.make(self.plan)
        self.users = Users(self.world)
        self.misfortune = Misfortune(self.world, self.users)

    def make(self, plan: Plan) -> World:
        """The world it happens in."""
        return World(plan)

    def play(self) -> list[str]:
        """The story, then rest; what is left."""
        world = self.world
        world.note(f"seed {self.seed}: {replace(self.plan, rates={}, only=None)}")
        world.run(15.0)
        world.back_up()
        end, number = world.timeline.now() + STORY_S, 0
        while world.timeline.now() < end:
            number += 1
            rng = random.Random(f"{self.seed}/move/{number}")
            world.run(rng.choice(self.pace) * rng.random() * 2)
            self._move(number, rng)
        self._peace()
        world.run(8.0)
        world.run(QUIET_S, lambda: not stuck(world))
        if waiting := stuck(world):
            return [f"stuck: {one}" for one in waiting]
        self.users.leave()
        return world.settle(SETTLE_S)

    def _move(self, number: int, rng: random.Random) -> None:
        """One move, drawn by its number alone: without others it is still the same."""
        moves = (*self.users.moves(), *self.misfortune.moves())
        (move,) = rng.choices(moves, [one.weight for one in moves])
        if self.world.dice.moves(move.kind, number):
            move.act(rng)

    def _peace(self) -> None:
        """No more misfortune: every pod that can run is to run by itself."""
        self.world.recover()
        for kubelet in self.world.kubelets.values():
            kubelet.patience_s = (1.0, 3.0)


def stuck(world: World) -> list[str]:
    """Pods that wait though nothing keeps them from running, with what they wait in."""
    found = []
    for name, pod in sorted(world.sight.all(PODS).items(), key=lambda item: str(item[0])):
        if objects.ended(pod) or objects.deleting(pod) or world.phase(name) == "Running":
            continue
        names = list(objects.claim_names(pod).values())
        claims = [world.sight.all(CLAIMS).get(one) if one else None for one in names]
        there = [one for one in claims if one is not None and not objects.deleting(one)]
        if len(there) < len(claims) or any(map(_tolerant, there)):
            continue  # a claim that somebody deleted under it, or that runs into every bad device
        allocated = [one for one in there if objects.allocation(one) is not None]
        if any(uid_of(one) in world.checker.excused for one in there):
            continue  # a bound pod whose allocation was taken from it is never given another
        if any(name_of(one) in world.stolen or _doubled(world, one) for one in there):
            continue  # bound to a device that its holder may keep for ever
        if any(_held(world, one) for one in there):
            continue  # its node has lost its journal: whoever uses a device is to be deleted first
        if objects.node_name(pod) or len(allocated) == len(there):
            found.append(f"{name} on {objects.node_name(pod) or 'no node'}")
        elif world.scheduler.could_place(there):
            found.append(f"{name} has no node")
    return found


def _held(world: World, claim: Object) -> bool:
    """Whether a device the claim has, or had on a node of it, is kept for a holder that its node
    does not know any more."""
    for one in objects.results(claim):
        registry = world.nodes[one["pool"]].registry
        for device in registry.devices.values():
            held = [unit for unit in registry.units(device) if unit.state is State.HELD]
            if held and (device.name == one["device"] or held[0].claim == uid_of(claim)):
                return True
    return False


def _doubled(world: World, claim: Object) -> bool:
    """Whether a device of the claim is another's as well, after an administrator's deeds, where no
    condition can tell the scheduler."""
    if world.plan.profile == "strict":
        return False
    places = [(one["pool"], one["device"]) for one in objects.results(claim)]
    return any(
        (one["pool"], one["device"]) in places
        for other in world.sight.all(CLAIMS).values()
        if name_of(other) != name_of(claim)
        for one in objects.results(other)
    )


def _tolerant(claim: Object) -> bool:
    requests = claim["spec"]["devices"]["requests"]
    return any("tolerations" in request["exactly"] for request in requests)
