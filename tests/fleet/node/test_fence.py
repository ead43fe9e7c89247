"""Rules of the gate for tokens."""

from __future__ import annotations

import pytest

from fleet.core import errors
from fleet.core.model import Token, Unit, UnitId
from fleet.metrics.of_node import REFUSALS
from fleet.node.registry import Fence


def test_refusals_are_counted_and_raised_all_the_same() -> None:
    """B4, E4: an old token and a foreign epoch are told apart; what passes counts nothing."""
    fence, unit = Fence(), Unit(UnitId("u/0"), floor=Token(1, 5))
    fence.check([unit], Token(1, 5), 1)
    assert fence.refused() == {}
    for _ in range(2):
        with pytest.raises(errors.TokenStale):
            fence.check([unit], Token(1, 4), 1)
    with pytest.raises(errors.EpochForeign):
        fence.check([unit], Token(2, 1), 1)
    assert fence.refused() == {"TokenStale": 2, "EpochForeign": 1}
    assert set(fence.refused()) == set(REFUSALS), "the catalogue knows them all"
