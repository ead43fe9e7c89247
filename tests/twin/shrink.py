"""The smallest story that still ends badly: strikes and moves are left out, one half at a time.

What is left out stays named in the story's draw; what happens in its place may differ, so each try
is judged by its end alone: the same kind of trouble.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tests.twin.runs import Teller, Verdict, run_seed
from tests.twin.story import Story

TRIES_MAX = 250


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A minimal story, and how many were played to find it."""

    verdict: Verdict
    drawn: int
    """How many moves and strikes the story had before."""
    tries: int

    @property
    def told(self) -> str:
        """Everything that has to happen, and what follows."""
        kept = "\n".join(f"  {name}" for name in self.verdict.struck)
        head = f"of {self.drawn} moves and strikes these are enough ({self.tries} tries):"
        return f"{head}\n{kept}\n{self.verdict.told}"


def kind_of(trouble: str) -> str:
    """What two ends must have in common: the promise broken, or what is not settled."""
    if trouble.startswith("failed"):
        return trouble.strip().rpartition("\n")[2].partition(":")[0]
    return re.sub(r"\S*[-/]\S*", "#", trouble.partition(";")[0])[:48]


def shrink(verdict: Verdict, *, tell: Teller = Story, tries_max: int = TRIES_MAX) -> Shrunk:
    """Play the story of a failing verdict again and again with less trouble."""
    wanted, tries = kind_of(verdict.trouble), 0
    best = verdict

    def fails(kept: Sequence[str]) -> bool:
        nonlocal tries, best
        tries += 1
        found = run_seed(verdict.seed, only=frozenset(kept), tell=tell)
        if not found.trouble or kind_of(found.trouble) != wanted:
            return False
        best = found
        return True

    kept, parts = list(verdict.struck), 2
    while len(kept) > 1 and tries < tries_max:
        size = -(-len(kept) // parts)
        chunks = [kept[i : i + size] for i in range(0, len(kept), size)]
        for index in range(len(chunks)):
            left = [name for i, chunk in enumerate(chunks) if i != index for name in chunk]
            if tries < tries_max and fails(left):
                happened = set(best.struck)
                kept, parts = [name for name in left if name in happened], max(parts - 1, 2)
                break
        else:
            if parts >= len(kept):
                break
            parts = min(len(kept), parts * 2)
    return Shrunk(best, len(verdict.struck), tries)
