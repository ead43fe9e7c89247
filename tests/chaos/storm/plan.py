"""Which faults fall in a storm, when and on whom, drawn from the seed alone. Pure.

Faults are dealt like cards of a deck that is shuffled again when it is used up, so that a storm of
two minutes has nearly every kind and a long one has all of them about equally often. A frozen node
actor comes with the second deck: its standby takes half a minute to be sure.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What is done."""

    KILL = "kill -9"
    STOP = "SIGSTOP, then SIGCONT"
    FREEZE = "SIGSTOP for longer than a standby waits"
    CUT = "all connections reset"
    UNLINK = "socket file removed"
    FULL = "disk full"


class Target(StrEnum):
    """To whom."""

    WORKER = "wipe worker"
    ACTOR = "node actor"
    COORDINATOR = "coordinator actor"
    PLUGIN = "node plugin"
    STANDBY = "standby"
    BRIDGE = "bridge"
    RAYLET = "raylet"
    HEAD = "head of Ray"
    CAMPAIGN = "campaign's job"
    CLOUD = "moto's server"
    """It keeps everything in memory: it is stopped, never killed."""
    CLOUD_FRONT = "address of moto's server"
    """Killed: nobody listens. Stopped: connections are taken and nothing is answered."""
    API_FRONT = "address of the API server"
    DOOR = "door of the node's owner"
    DRA = "kubelet's socket of the plugin"
    DISK = "disk of the node"


SHARED = frozenset(
    {
        Target.COORDINATOR,
        Target.HEAD,
        Target.CAMPAIGN,
        Target.CLOUD,
        Target.CLOUD_FRONT,
        Target.API_FRONT,
    }
)
"""Targets of which there is one."""
DECK: tuple[tuple[Kind, Target, int], ...] = (
    (Kind.KILL, Target.WORKER, 3),
    (Kind.KILL, Target.ACTOR, 2),
    (Kind.KILL, Target.COORDINATOR, 1),
    (Kind.KILL, Target.PLUGIN, 2),
    (Kind.KILL, Target.STANDBY, 1),
    (Kind.KILL, Target.BRIDGE, 1),
    (Kind.KILL, Target.RAYLET, 1),
    (Kind.KILL, Target.CAMPAIGN, 1),
    (Kind.KILL, Target.CLOUD_FRONT, 1),
    (Kind.KILL, Target.API_FRONT, 1),
    (Kind.STOP, Target.WORKER, 1),
    (Kind.STOP, Target.ACTOR, 1),
    (Kind.STOP, Target.COORDINATOR, 1),
    (Kind.STOP, Target.PLUGIN, 1),
    (Kind.STOP, Target.STANDBY, 1),
    (Kind.STOP, Target.BRIDGE, 1),
    (Kind.STOP, Target.RAYLET, 1),
    (Kind.STOP, Target.HEAD, 1),
    (Kind.STOP, Target.CLOUD, 1),
    (Kind.STOP, Target.CLOUD_FRONT, 1),
    (Kind.STOP, Target.API_FRONT, 1),
    (Kind.CUT, Target.CLOUD_FRONT, 1),
    (Kind.CUT, Target.API_FRONT, 1),
    (Kind.UNLINK, Target.DOOR, 1),
    (Kind.UNLINK, Target.DRA, 1),
    (Kind.FULL, Target.DISK, 2),
)
"""What a storm deals, and how many cards of each."""
FREEZE_S = 40.0
HEAD_EVERY = 4
"""The head of Ray is killed once in so many decks, in the first one too: all of Ray goes with it.
"""
LASTS_S = (2.0, 8.0)
"""Shortest and longest time, s, of what lasts: a stop, an address without a listener, a full disk.
"""


@dataclass(frozen=True, slots=True)
class Blow:
    """One fault."""

    number: int
    at_s: float
    """When, s after the storm began."""
    kind: Kind
    target: Target
    node: int
    """Index of the node whose part is struck; of no meaning for a target of which there is one."""
    lasts_s: float
    chance: float
    """Between 0 and 1: whom of several it hits."""


def draw(seed: int, *, seconds: float, nodes: int, gap_s: float) -> list[Blow]:
    """The faults of a storm of `seconds`, on average `gap_s` apart, on `nodes` nodes."""
    chance = random.Random(f"storm/{seed}")
    cards = _cards(chance)
    blows: list[Blow] = []
    at_s = chance.uniform(0.5, 1.5) * gap_s
    while at_s < seconds:
        kind, target = next(cards)
        blows.append(
            Blow(
                number=len(blows) + 1,
                at_s=round(at_s, 2),
                kind=kind,
                target=target,
                node=chance.randrange(nodes),
                lasts_s=round(chance.uniform(*LASTS_S), 2) if kind is not Kind.FREEZE else FREEZE_S,
                chance=chance.random(),
            )
        )
        at_s += chance.uniform(0.3, 1.7) * gap_s
    return blows


def _cards(chance: random.Random) -> Iterator[tuple[Kind, Target]]:
    deck = 0
    while True:
        cards = [(kind, target) for kind, target, count in DECK for _ in range(count)]
        if deck % HEAD_EVERY == 0:
            cards.append((Kind.KILL, Target.HEAD))
        if deck:
            cards.append((Kind.FREEZE, Target.ACTOR))
        chance.shuffle(cards)
        yield from cards
        deck += 1
