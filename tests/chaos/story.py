"""What happens in one chaos case, drawn from its seed alone: fleet, faults, lives, strikes. Pure.

A case is a sequence of lives of one fleet process over the same state directory. Every life but the
last ones is struck; those are left alone and must bring the fleet to rest.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum


class Victim(StrEnum):
    """Who is killed."""

    SERVICE = "service"
    """The whole process: node services, coordinator and the campaign's driver."""
    WORKER = "worker"
    """One wipe worker; the service lives on."""


class Point(StrEnum):
    """What is counted up to the strike. All are exact moments but `TIME`."""

    JOURNAL = "commit of the journal"
    STORE = "commit of the store"
    STATEMENT = "statement of any database"
    FILE = "change of a file"
    LEDGER = "append to the ledger"
    SPAWN = "start of a worker"
    PROGRESS = "share of a wipe"
    TIME = "time"
    REQUEST = "request to the API server"
    DOOR = "call to the owner"


class Side(StrEnum):
    """On which side of the act the strike falls."""

    BEFORE = "before"
    AFTER = "after"
    TORN = "in the middle of"
    """Half of a ledger's line is on disk, as after a power cut."""


OF_PLUGIN = frozenset({Point.REQUEST, Point.DOOR})
"""What only the node plugin does; see `tests.chaos.kubelet`."""
COUNTS = {
    Point.JOURNAL: 12,
    Point.STORE: 8,
    Point.STATEMENT: 240,
    Point.FILE: 36,
    Point.LEDGER: 1,
    Point.SPAWN: 1,
}
"""Largest count drawn for each device: about what it comes to in an undisturbed first life."""
LATER = 0.6
"""Share of that in a later life, which finds much of the work done."""
TIME_MAX_S = 0.8
"""Latest time, s, of a strike by the clock: about one undisturbed life."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One kill: at the `count`-th of `point`, or at `at` (s, or share of a wipe from 0 to 1)."""

    victim: Victim
    point: Point
    side: Side = Side.BEFORE
    count: int = 0
    at: float = 0.0

    def __str__(self) -> str:
        if self.point is Point.TIME:
            return f"{self.victim} after {self.at:.3f} s"
        if self.point is Point.PROGRESS:
            return f"{self.victim} at {self.at:.2f} of a wipe"
        return f"{self.victim} {self.side} {self.point} {self.count}"


@dataclass(frozen=True, slots=True)
class Life:
    """One life of the process. Without strikes it must come to its end."""

    strikes: tuple[Strike, ...] = ()
    resume: bool = False
    """Go on with the run that the last life left, if there is one; otherwise a new run."""
    reboot: bool = False
    """The node boots before this life, and a tenant writes before anybody looks."""

    def __str__(self) -> str:
        told = "; ".join(map(str, self.strikes)) or "left alone"
        begun = ("reboot, " if self.reboot else "") + ("resume" if self.resume else "new run")
        return f"{begun}: {told}"


@dataclass(frozen=True, slots=True)
class Broken:
    """A fault set on one device before the first life."""

    node: int
    device: int
    name: str
    times: int
    parameters: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.name} x{self.times} on node {self.node + 1} gpu-{self.device}"


@dataclass(frozen=True, slots=True)
class Story:
    """One case."""

    seed: int
    shape: str
    slow: bool
    """Memory does 8 MB/s, so that strikes fall into the passes."""
    idle_delay_s: float
    faults: tuple[Broken, ...]
    lives: tuple[Life, ...]

    @property
    def hangs(self) -> bool:
        """Whether a fault of this story ends only at a deadline."""
        return any(fault.name in ("hang", "wedge") for fault in self.faults)

    def fault_on(self, node: int, device: int) -> Broken | None:
        """The fault of one device, if it has one."""
        return next((f for f in self.faults if (f.node, f.device) == (node, device)), None)

    def worker_deaths(self) -> int:
        """Workers that may die unasked in the whole story."""
        strikes = sum(s.victim is Victim.WORKER for life in self.lives for s in life.strikes)
        return strikes + sum(f.times for f in self.faults if f.name == "worker-crash")

    def told(self) -> list[str]:
        """The story in lines."""
        faults = ", ".join(map(str, self.faults)) or "none"
        slow = ", slow memory" if self.slow else ""
        first = f"fleet {self.shape}{slow}, idle delay {self.idle_delay_s:g} s, faults: {faults}"
        return [first, *(f"life {n}: {life}" for n, life in enumerate(self.lives, 1))]


def draw(seed: int) -> Story:
    """The story of a seed."""
    chance = random.Random(f"chaos/{seed}")
    shape = chance.choices(["1x1", "1x2", "1x2p1", "2x1"], [4, 4, 1, 2])[0]
    nodes, devices = int(shape[0]), int(shape[2])
    places = [(node, device) for node in range(nodes) for device in range(devices)]
    faults: tuple[Broken, ...] = ()
    if chance.random() < 0.3:
        faults = (_fault(chance, *chance.choice(places)),)
    struck = chance.choices([1, 2, 3], [6, 3, 1])[0]
    lives = [
        Life(
            strikes=_strikes(chance, len(places) * (LATER if number else 1.0)),
            resume=chance.random() < 0.5,
            reboot=number > 0 and chance.random() < 0.15,
        )
        for number in range(struck)
    ]
    last = Life(resume=chance.random() < 0.6, reboot=chance.random() < 0.15)
    return Story(
        seed=seed,
        shape=shape,
        slow=not faults and chance.random() < 0.25,
        idle_delay_s=chance.choice([0.0, 0.2, 2.0]),
        faults=faults,
        lives=(*lives, last),
    )


def _fault(chance: random.Random, node: int, device: int) -> Broken:
    name = chance.choices(
        ["dirty-word", "dirty-zero", "worker-crash", "hang", "wedge", "device-lost"],
        [4, 2, 4, 1, 1, 2],
    )[0]
    times = {"dirty-word": 0, "dirty-zero": 0, "worker-crash": chance.randint(1, 3)}.get(name, 1)
    parameters = {"wedge": (("seconds", str(chance.choice([1, 4, 12]))),)}.get(name, ())
    return Broken(node, device, name, times, parameters)


def _strikes(chance: random.Random, size: float) -> tuple[Strike, ...]:
    """Some deaths of workers, then mostly the death of the service; `size`: see `COUNTS`."""
    found = [_strike(chance, Victim.WORKER, size)] if chance.random() < 0.25 else []
    if not found or chance.random() < 0.7:
        found.append(_strike(chance, Victim.SERVICE, size))
    return tuple(found)


def _strike(chance: random.Random, victim: Victim, size: float) -> Strike:
    weights = {
        Point.JOURNAL: 6,
        Point.STORE: 4,
        Point.STATEMENT: 3,
        Point.FILE: 3,
        Point.LEDGER: 4,
        Point.SPAWN: 1,
        Point.PROGRESS: 2,
        Point.TIME: 3,
    }
    point = chance.choices(list(weights), list(weights.values()))[0]
    if point is Point.TIME:
        return Strike(victim, point, at=round(chance.uniform(0.0, TIME_MAX_S), 3))
    if point is Point.PROGRESS:
        return Strike(victim, point, at=round(chance.uniform(0.0, 0.95), 2))
    sides = [Side.BEFORE] if point is Point.STATEMENT else [Side.BEFORE, Side.AFTER]
    if point is Point.LEDGER and victim is Victim.SERVICE:
        sides.append(Side.TORN)
    most = max(1, round(COUNTS[point] * size))
    return Strike(victim, point, chance.choice(sides), count=chance.randint(1, most))
