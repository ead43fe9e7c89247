"""Seeded stories 0 to 59: promises hold after every event, nothing is left (issue 4, 3).

Two files, so that two processes share the work. A failing seed is played again by
``python -m tests.twin --seeds 1 --first SEED``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.twin.runs import run_seed

BATCH = 20


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Trouble is what these worlds are made of: its warnings tell nothing."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, 60, BATCH))
def test_stories_end_well(first: int) -> None:
    """Promises 1 to 7: lost answers, conflicts, crashes, silence, two coordinators, thieves."""
    for seed in range(first, first + BATCH):
        verdict = run_seed(seed)
        assert not verdict.trouble, verdict.told
