"""What happens in one case around kubelet's calls, drawn from its seed alone. Pure.

A few pods come and go on two devices; each of kubelet's calls may be struck. Counts begin with the
call, so that a blow falls into what the call does.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from fleet.core.profiles import Profile
from tests.chaos.story import Point, Side, Strike, Victim

DEVICES = 2
WORKER_DEATHS_MAX = 2
"""A third one in a row quarantines a device, and the claim that wants it never gets it."""
TIME_MAX_S = 0.6
"""Latest time, s, of a strike by the clock: a little more than a call takes."""


class Act(StrEnum):
    """A call of kubelet."""

    PREPARE = "prepare"
    UNPREPARE = "unprepare"


class Who(StrEnum):
    """In which process a blow falls."""

    OWNER = "owner"
    """Who owns the node's journal."""
    PLUGIN = "plugin"


COUNTS: dict[tuple[Who, Act], dict[Point, int]] = {
    (Who.OWNER, Act.PREPARE): {
        Point.JOURNAL: 8,
        Point.STATEMENT: 70,
        Point.STORE: 2,
        Point.FILE: 10,
        Point.LEDGER: 1,
        Point.SPAWN: 1,
    },
    (Who.OWNER, Act.UNPREPARE): {
        Point.JOURNAL: 8,
        Point.STATEMENT: 60,
        Point.STORE: 1,
        Point.FILE: 8,
        Point.LEDGER: 1,
        Point.SPAWN: 1,
    },
    (Who.PLUGIN, Act.PREPARE): {Point.REQUEST: 3, Point.DOOR: 1},
    (Who.PLUGIN, Act.UNPREPARE): {Point.REQUEST: 2, Point.DOOR: 1},
}
"""Largest count drawn: about what it comes to in an undisturbed call with a wipe."""


@dataclass(frozen=True, slots=True)
class Blow:
    """A strike in one process, counted from the beginning of a call."""

    who: Who
    strike: Strike

    def __str__(self) -> str:
        return f"{self.who}: {self.strike}"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of kubelet, repeated until it succeeds. `pod` counts from 0."""

    pod: int
    act: Act
    blows: tuple[Blow, ...] = ()

    def __str__(self) -> str:
        told = f", struck in {'; '.join(map(str, self.blows))}" if self.blows else ""
        return f"{self.act} of pod {self.pod}{told}"


@dataclass(frozen=True, slots=True)
class Story:
    """One case. `devices` has the device of each pod."""

    seed: int
    profile: Profile
    patient: bool
    """The first pod comes only once every device is on offer."""
    devices: tuple[int, ...]
    early: frozenset[int]
    """Pods for which kubelet asks for a teardown while they run (reference 1.5 a)."""
    calls: tuple[Call, ...]

    def told(self) -> list[str]:
        """The story in lines."""
        when = "once all is on offer" if self.patient else "at once"
        early = f", asked early for {sorted(self.early)}" if self.early else ""
        return [f"profile {self.profile}, {when}{early}", *map(str, self.calls)]

    def worker_deaths(self) -> int:
        """Workers that may die unasked."""
        return sum(
            blow.strike.victim is Victim.WORKER for call in self.calls for blow in call.blows
        )


def draw(seed: int) -> Story:
    """The story of a seed."""
    chance = random.Random(f"kubelet/{seed}")
    devices, plain = _course(chance, chance.choice([2, 2, 3]))
    struck = set(chance.sample(range(len(plain)), chance.choice([1, 2, 2, 3])))
    deaths = WORKER_DEATHS_MAX
    calls = []
    for number, (pod, act) in enumerate(plain):
        blows: tuple[Blow, ...] = ()
        if number in struck:
            blows = _blows(chance, act, workers=deaths > 0)
            deaths -= sum(blow.strike.victim is Victim.WORKER for blow in blows)
        calls.append(Call(pod, act, blows))
    return Story(
        seed=seed,
        profile=chance.choice([Profile.FAST, Profile.FAST, Profile.STRICT]),
        patient=chance.random() < 0.5,
        devices=devices,
        early=frozenset(pod for pod in range(len(devices)) if chance.random() < 0.15),
        calls=tuple(calls),
    )


def _course(chance: random.Random, pods: int) -> tuple[tuple[int, ...], list[tuple[int, Act]]]:
    """Devices of pods, and calls in an order in which no two pods have one device at a time."""
    devices: list[int] = []
    calls: list[tuple[int, Act]] = []
    running: dict[int, int] = {}
    while len(devices) < pods or running:
        free = [device for device in range(DEVICES) if device not in running]
        if len(devices) < pods and free and (not running or chance.random() < 0.5):
            device = chance.choice(free)
            running[device] = len(devices)
            calls.append((len(devices), Act.PREPARE))
            devices.append(device)
        else:
            pod = running.pop(chance.choice(sorted(running)))
            calls.append((pod, Act.UNPREPARE))
    return tuple(devices), calls


def _blows(chance: random.Random, act: Act, *, workers: bool) -> tuple[Blow, ...]:
    """Mostly one process dies; sometimes both do, or the owner twice."""
    first = chance.choices([Who.OWNER, Who.PLUGIN], [3, 2])[0]
    if workers and chance.random() < 0.15:
        point = chance.choice([Point.SPAWN, Point.TIME])
        return (Blow(Who.OWNER, _strike(chance, Victim.WORKER, point, {})),)
    found = [_blow(chance, first, act)]
    if chance.random() < 0.25:
        other = Who.PLUGIN if first is Who.OWNER else Who.OWNER
        found.append(_blow(chance, other, act))
    return tuple(found)


def _blow(chance: random.Random, who: Who, act: Act) -> Blow:
    counts = COUNTS[who, act]
    weights = dict.fromkeys(counts, 3) | {Point.TIME: 2}
    if who is Who.OWNER:
        weights |= {Point.JOURNAL: 6, Point.LEDGER: 9, Point.FILE: 5}
    point = chance.choices(list(weights), list(weights.values()))[0]
    return Blow(who, _strike(chance, Victim.SERVICE, point, counts))


def _strike(
    chance: random.Random, victim: Victim, point: Point, counts: dict[Point, int]
) -> Strike:
    if point is Point.TIME:
        return Strike(victim, point, at=round(chance.uniform(0.0, TIME_MAX_S), 3))
    sides = [Side.BEFORE] if point is Point.STATEMENT else [Side.BEFORE, Side.AFTER]
    if point is Point.LEDGER and victim is Victim.SERVICE:
        sides.append(Side.TORN)
    return Strike(victim, point, chance.choice(sides), chance.randint(1, counts.get(point, 1)))
