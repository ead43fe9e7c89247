"""What users do in a story: pods and claims come and go, owners replace, administrators meddle."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from fleet.core import errors
from fleet.kube.base import CLAIMS, PODS, Name
from tests.twin.world import World

Act = Callable[[random.Random], object]


@dataclass(frozen=True, slots=True)
class Move:
    """One thing that may happen in a story, how often, and what kind of trouble it is."""

    kind: str
    act: Act
    weight: float


class Users:
    """Users of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._named: list[Name] = []
        self._spaces = ["t"]

    def moves(self) -> Sequence[Move]:
        """What they may do."""
        return (
            Move("pod", self.pod, 14),
            Move("delete", self._delete, 6),
            Move("force-delete", self._force, 2),
            Move("finish", self._finish, 2),
            Move("named-claim", self._named_claim, 1),
            Move("delete-named", self._delete_named, 0.5),
            Move("replace-pod", self._replace_pod, 3),
            Move("claim-deleted", self._delete_claim, 0.3),
            Move("device-stolen", self._steal, 0.7),
            Move("allocation-cleared", self._clear_allocation, 0.2),
            Move("namespace-deleted", self._namespace, 0.2),
        )

    def pod(self, rng: random.Random) -> None:
        """A pod, unless there are many."""
        world, plan = self.world, self.world.plan
        if len(world.sight.all(PODS)) >= plan.nodes * plan.devices + 2:
            return
        if self._named and rng.random() < 0.3:
            claim = rng.choice(self._named)
            world.pod(claim=claim.name, space=claim.namespace)
            return
        tolerant = rng.random() < 0.1
        count = rng.choice((1, 1, 1, min(2, plan.devices)))
        claims = 2 if count == 1 and plan.devices > 1 and rng.random() < 0.15 else 1
        space = rng.choice(self._spaces)
        world.pod(count=count, claims=claims, space=space, tolerant=tolerant)

    def some(self, rng: random.Random, *, running: bool = False) -> Name | None:
        """A pod by chance."""
        names = sorted(
            (
                name
                for name, pod in self.world.sight.all(PODS).items()
                if not running or pod.get("status", {}).get("phase") == "Running"
            ),
            key=str,
        )
        return rng.choice(names) if names else None

    def leave(self) -> None:
        """Users are done: what they made by name is deleted too."""
        for name in self._named:
            self.world.delete_claim(name)
        for space in self._spaces:
            self.world.delete_namespace(space)

    def _delete(self, rng: random.Random) -> None:
        if name := self.some(rng):
            self.world.delete(name)

    def _force(self, rng: random.Random) -> None:
        if name := self.some(rng):
            self.world.delete(name, force=True)

    def _replace_pod(self, rng: random.Random) -> None:
        """A pod goes and its owner makes another at once."""
        if name := self.some(rng):
            self.world.delete(name, force=rng.random() < 0.5)
            self.pod(rng)

    def _claim(self, rng: random.Random) -> Name | None:
        names = sorted(self.world.sight.all(CLAIMS), key=str)
        return rng.choice(names) if names else None

    def _delete_claim(self, rng: random.Random) -> None:
        if name := self._claim(rng):
            self.world.delete_claim(name)

    def _clear_allocation(self, rng: random.Random) -> None:
        if name := self._claim(rng):
            with suppress(errors.FleetError):
                self.world.clear_allocation(name)

    def _steal(self, rng: random.Random) -> None:
        """Another allocator, blind to what is taken."""
        claim, victim = self._claim(rng), self._claim(rng)
        if claim and victim and claim != victim:
            with suppress(errors.FleetError):
                self.world.steal(claim, victim)

    def _finish(self, rng: random.Random) -> None:
        if name := self.some(rng, running=True):
            self.world.finish(name)

    def _named_claim(self, rng: random.Random) -> None:
        if len(self._named) < 2:
            space, text = rng.choice(self._spaces), f"c{rng.randrange(10**6)}"
            self._named.append(self.world.named_claim(text, space=space))

    def _delete_named(self, rng: random.Random) -> None:
        if self._named:
            self.world.delete_claim(self._named.pop(rng.randrange(len(self._named))))

    def _namespace(self, rng: random.Random) -> None:
        """A namespace goes with all that is in it, and another takes its place."""
        gone = self._spaces.pop()
        self._spaces.append(f"t{rng.randrange(10**6)}")
        self._named = [name for name in self._named if name.namespace != gone]
        self.world.delete_namespace(gone)
