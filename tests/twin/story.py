"""What users and misfortune do in one world, drawn by seed, and which pods are stuck after it."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

from fleet import errors
from fleet.kube.base import CLAIMS, NODES, PODS, Name, Object, name_of, uid_of
from tests.twin import objects
from tests.twin.world import Plan, World

RATES = {
    "read": 0.01,
    "conflict": 0.04,
    "before": 0.02,
    "failed": 0.005,
    "invalid": 0.005,
    "late": 0.02,
    "lost": 0.03,
    "call": 0.02,
    "answer": 0.02,
    "store": 0.01,
    "store-lost": 0.01,
    "break": 0.02,
    "delay": 0.05,
    "reorder": 0.1,
    "duplicate": 0.1,
}
"""A bad day: about one write in eight goes wrong in some way."""
STORY_S = 110.0
QUIET_S = 900.0
"""A scheduler's timeout of 600 s, a retest after 300 s: what only time heals has healed."""
SETTLE_S = 900.0
PROFILES = ("strict", "strict", "strict", "fast", "lab")


class Story:
    """What users and misfortune do in one world."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"{seed}/story")
        calm = self.rng.random() < 0.2
        scale = 0.0 if calm else self.rng.choice((0.3, 1.0, 2.0, 4.0))
        self.plan = Plan(
            seed=seed,
            nodes=self.rng.choice((1, 2, 2, 3)),
            devices=self.rng.choice((1, 2, 3)),
            profile=self.rng.choice(PROFILES),
            rates={kind: rate * scale for kind, rate in RATES.items()},
            trouble=self.rng.choice((0.0, 0.05, 0.2)),
            slow=self.rng.choice((0.0, 0.0, 0.1, 0.3)),
            grace_s=self.rng.choice(((0.1, 2.0), (0.1, 2.0), (1.0, 25.0))),
            delay_s=self.rng.choice(((0.02, 0.4), (0.02, 0.4), (0.5, 5.0))),
            timeout_s=self.rng.choice((60.0, 90.0, 600.0)),
        )
        self.pace = self.rng.choice(((0.05, 0.5, 2.0, 5.0), (0.05, 0.5, 1.0), (0.2, 3.0, 8.0)))
        self.world = World(self.plan)
        self._named: list[Name] = []
        self._spaces = ["t"]

    def play(self) -> list[str]:
        """The story, then rest; what is left."""
        world, rng = self.world, self.rng
        world.note(f"seed {self.seed}: {self.plan}")
        world.run(15.0)
        end = world.timeline.now() + STORY_S
        while world.timeline.now() < end:
            world.run(rng.choice(self.pace) * rng.random() * 2)
            rng.choices([act for act, _ in self._acts()], [weight for _, weight in self._acts()])[
                0
            ]()
        self._peace()
        world.run(8.0)
        world.run(QUIET_S, lambda: not stuck(world))
        if waiting := stuck(world):
            return [f"stuck: {one}" for one in waiting]
        self._end_everything()
        return world.settle(SETTLE_S)

    def _peace(self) -> None:
        """No more misfortune: every pod that can run is to run by itself."""
        self.world.recover()
        for name in self.world.kubelets:
            self.world.kubelets[name].patience_s = (1.0, 3.0)

    def _acts(self) -> list[tuple[Callable[[], object], float]]:
        return [
            (self._pod, 14),
            (self._delete, 6),
            (self._force, 2),
            (self._finish, 2),
            (self._named_claim, 1),
            (self._delete_named, 0.5),
            (self._replace_pod, 3),
            (self._delete_claim, 0.3),
            (self._steal, 0.7),
            (self._clear_allocation, 0.2),
            (self._break, 1),
            (self._clear, 1),
            (self._kill_chief, 1),
            (self._second_chief, 0.5),
            (self._crash, 1),
            (self._silence, 1),
            (self._power, 0.5),
            (self._restart_plugin, 0.7),
            (self._restart_kubelet, 0.5),
            (self._restart_scheduler, 0.3),
            (self._namespace, 0.2),
            (self._lose_trust, 0.3),
            (self._deafen, 0.5),
            (self._outage, 0.3),
            (self._slices, 0.3),
            (self._node_object, 0.2),
        ]

    # --- users -----------------------------------------------------------------------------------

    def _pod(self) -> None:
        world, rng = self.world, self.rng
        if len(world.sight.all(PODS)) >= self.plan.nodes * self.plan.devices + 2:
            return
        if self._named and rng.random() < 0.3:
            claim = rng.choice(self._named)
            world.pod(claim=claim.name, space=claim.namespace)
            return
        tolerant = rng.random() < 0.1
        count = rng.choice((1, 1, 1, min(2, self.plan.devices)))
        claims = 2 if count == 1 and self.plan.devices > 1 and rng.random() < 0.15 else 1
        space = rng.choice(self._spaces)
        world.pod(count=count, claims=claims, space=space, tolerant=tolerant)

    def _some(self, *, running: bool = False) -> Name | None:
        pods = self.world.sight.all(PODS)
        names = sorted(
            (
                name
                for name, pod in pods.items()
                if not running or pod.get("status", {}).get("phase") == "Running"
            ),
            key=str,
        )
        return self.rng.choice(names) if names else None

    def _delete(self) -> None:
        if name := self._some():
            self.world.delete(name)

    def _force(self) -> None:
        if name := self._some():
            self.world.delete(name, force=True)

    def _replace_pod(self) -> None:
        """A pod goes and its owner makes another at once."""
        if name := self._some():
            self.world.delete(name, force=self.rng.random() < 0.5)
            self._pod()

    def _claim(self) -> Name | None:
        names = sorted(self.world.sight.all(CLAIMS), key=str)
        return self.rng.choice(names) if names else None

    def _delete_claim(self) -> None:
        if name := self._claim():
            self.world.delete_claim(name)

    def _clear_allocation(self) -> None:
        if name := self._claim():
            with suppress(errors.FleetError):
                self.world.clear_allocation(name)

    def _steal(self) -> None:
        """Another allocator, blind to what is taken."""
        claim, victim = self._claim(), self._claim()
        if claim and victim and claim != victim:
            with suppress(errors.FleetError):
                self.world.steal(claim, victim)

    def _finish(self) -> None:
        if name := self._some(running=True):
            self.world.finish(name)

    def _named_claim(self) -> None:
        if len(self._named) < 2:
            space = self.rng.choice(self._spaces)
            self._named.append(self.world.named_claim(f"c{self.rng.randrange(10**6)}", space=space))

    def _delete_named(self) -> None:
        if self._named:
            name = self._named.pop(self.rng.randrange(len(self._named)))
            self.world.delete_claim(name)

    def _namespace(self) -> None:
        """A namespace goes with all that is in it, and another takes its place."""
        gone = self._spaces.pop()
        self._spaces.append(f"t{self.rng.randrange(10**6)}")
        self._named = [name for name in self._named if name.namespace != gone]
        self.world.delete_namespace(gone)

    # --- misfortune ------------------------------------------------------------------------------

    def _node(self) -> str:
        return self.rng.choice(sorted(self.world.nodes))

    def _later(self, low: float, high: float, act: Callable[[], object]) -> None:
        self.world.timeline.after(self.rng.uniform(low, high), act, "trouble ends")

    def _break(self) -> None:
        name, index = self._node(), self.rng.randrange(self.plan.devices)
        self.world.note(f"fault on {name} gpu-{index}")
        self.world.nodes[name].break_device(index)

    def _clear(self) -> None:
        node = self.world.nodes[self._node()]
        bad = [d.name for d in node.hardware.devices.values() if _bad(node, d.name)]
        if bad and node.alive:
            self.world.note(f"cleared {node.name} {bad[0]}")
            node.quarantine_clear(bad[0])

    def _kill_chief(self) -> None:
        if self.world.chiefs:
            self.world.kill_coordinator(self.rng.randrange(len(self.world.chiefs)))
        if not self.world.chiefs:
            self._later(0.5, 15.0, self._replace_chief)

    def _replace_chief(self) -> None:
        if not self.world.chiefs:
            self.world.start_coordinator()

    def _second_chief(self) -> None:
        if len(self.world.chiefs) < 2:
            self.world.start_coordinator()

    def _crash(self) -> None:
        name = self._node()
        if self.world.nodes[name].alive:
            self.world.crash_node(name)
            self._later(0.5, 20.0, lambda: self._up(name))

    def _up(self, name: str) -> None:
        if not self.world.kubelets[name].down:
            self.world.start_node(name)

    def _silence(self) -> None:
        name = self._node()
        node = self.world.nodes[name]
        self.world.note(f"{name} is silent")
        node.silent = True

        def heard() -> None:
            node.silent = False

        self._later(1.0, 60.0, heard)

    def _power(self) -> None:
        name = self._node()
        if not self.world.kubelets[name].down:
            self.world.power_off(name)
            self._later(5.0, 40.0, lambda: self.world.power_on(name))

    def _restart_plugin(self) -> None:
        name = self._node()
        if not self.world.kubelets[name].down:
            self.world.restart_plugin(name)

    def _restart_kubelet(self) -> None:
        kubelet = self.world.kubelets[self._node()]
        if not kubelet.down:
            self.world.note(f"kubelet of {kubelet.node.name} restarts")
            kubelet.restart()

    def _restart_scheduler(self) -> None:
        self.world.restart_scheduler()

    def _lose_trust(self) -> None:
        node = self.world.nodes[self._node()]
        if node.alive:
            node.lose_trust(self.rng.choice(sorted(node.hardware.devices)))

    def _deafen(self) -> None:
        """A coordinator's watch hangs: it acts on what was."""
        if self.world.chiefs:
            wire = self.rng.choice(self.world.chiefs).wire
            self.world.note("a coordinator is deaf")
            wire.deaf = True

            def hear() -> None:
                wire.deaf = False

            self._later(5.0, 60.0, hear)

    def _outage(self) -> None:
        self.world.note("the API server is away")
        self.world.dice.outage = True

        def back() -> None:
            self.world.dice.outage = False

        self._later(2.0, 30.0, back)

    def _slices(self) -> None:
        self.world.wipe_slices(self._node())

    def _node_object(self) -> None:
        name = self._node()
        if Name(name) in self.world.sight.all(NODES):
            self.world.forget_node(name)
            self._later(2.0, 60.0, lambda: self.world.register_node(name))

    def _end_everything(self) -> None:
        """Users are done: what they made by name is deleted too."""
        for name in self._named:
            self.world.delete_claim(name)
        for space in self._spaces:
            self.world.delete_namespace(space)


def _bad(node: object, device: str) -> bool:
    views = node.view().devices if node.alive else ()  # type: ignore[attr-defined]
    return any(view.name == device and view.reasons for view in views)


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
        if objects.node_name(pod) or allocated:
            found.append(f"{name} on {objects.node_name(pod) or 'no node'}")
        elif world.scheduler.could_place(there):
            found.append(f"{name} has no node")
    return found


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
