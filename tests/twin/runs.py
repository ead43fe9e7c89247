"""Seeded runs: a world, two minutes of use and trouble, then rest; promises checked all along.

One seed is one story, always the same. `run_seed` is what CI and `make simulate` call.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.twin.coverage import Coverage
from tests.twin.promises import Broken
from tests.twin.story import Story

TAIL = 60
Teller = Callable[[int, frozenset[str] | None], Story]
"""Makes the story of a seed, of which only some strikes happen."""


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
    struck: tuple[str, ...]
    """All that was drawn and happened: moves and strikes, by name."""
    coverage: Coverage = field(default_factory=Coverage)

    @property
    def told(self) -> str:
        """For a failing seed: what, and how it came to that."""
        tail = "\n".join(self.trace[-TAIL:])
        return f"seed {self.seed}: {self.trouble}\n{tail}"


def run_seed(seed: int, *, only: frozenset[str] | None = None, tell: Teller = Story) -> Verdict:
    """Play one story. Raises nothing that a story can cause."""
    story = tell(seed, only)
    world = story.world
    with world.coverage.watching(world.weather):
        try:
            left = story.play()
            trouble = f"not settled: {'; '.join(left[:6])}" if left else ""
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
        tuple(world.dice.struck),
        world.coverage,
    )
