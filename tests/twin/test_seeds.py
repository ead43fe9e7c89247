"""Seeded stories 0 to 39: promises hold after every event, nothing is left (issue 8, 1).

`make simulate` tells thousands. A failing seed is played again, and made small, by
``python -m tests.twin --seeds 1 --first SEED``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.twin.coverage import Coverage
from tests.twin.runs import run_seed

ROWS_MIN = 50
"""Rows of the tables these stories take at least; 2,000 seeds have to take all."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Trouble is what these worlds are made of: its warnings tell nothing."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_stories_end_well() -> None:
    """Promises 1 to 10: crashes at commits, reboots, messages, clocks, disks, restores, owners.

    Every kind of trouble strikes in them, and most rows of the tables are taken.
    """
    seen = Coverage()
    for seed in range(40):
        verdict = run_seed(seed)
        assert not verdict.trouble, verdict.told
        seen.add(verdict.coverage)
    assert seen.unstruck() == []
    assert seen.impossible() == []
    assert sum(1 for taken in seen.rows.values() if taken) >= ROWS_MIN
