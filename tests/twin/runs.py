"""Seeded runs: a world, two minutes of use and trouble, then rest; promises checked all along.

One seed is one story, always the same. `run_seed` is what CI and `make simulate` call.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from tests.twin.promises import Broken
from tests.twin.story import Story

TAIL = 60


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a story ended. `trouble` "": every promise held and nothing was left."""

    seed: int
    trouble: str
    trace: tuple[str, ...]
    exposures: int
    events: int
    virtual_s: float
    writes: int

    @property
    def told(self) -> str:
        """For a failing seed: what, and how it came to that."""
        tail = "\n".join(self.trace[-TAIL:])
        return f"seed {self.seed}: {self.trouble}\n{tail}"


def run_seed(seed: int) -> Verdict:
    """Play one story. Raises nothing that a story can cause."""
    story = Story(seed)
    world = story.world
    try:
        left = story.play()
        trouble = "; ".join(left[:6])
        if left:
            trouble = f"not settled: {trouble}"
    except Broken as broken:
        trouble = f"broken: {broken}"
    except Exception:  # noqa: BLE001 - whatever goes wrong is the story's end, with its seed
        trouble = f"failed:\n{traceback.format_exc()}"
    writes = sum(
        count
        for chief in world.chiefs
        for what, count in chief.means.cluster.counts.items()  # type: ignore[attr-defined]
        if " " in what
    )
    return Verdict(
        seed,
        trouble,
        tuple(world.trace),
        world.checker.exposures,
        world.timeline.happened,
        world.timeline.monotonic(),
        writes,
    )
