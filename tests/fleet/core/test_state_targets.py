"""Rules of the target times."""

from __future__ import annotations

from fleet.core.model import State
from fleet.core.state_targets import TARGETS_S, is_late


def test_late_is_longer_than_the_target() -> None:
    """E4: a unit is late from the target on, and never where a state has none."""
    target_s = TARGETS_S[State.DIRTY]
    assert not is_late(State.DIRTY, 0.0, target_s)
    assert is_late(State.DIRTY, 0.0, target_s + 1)
    assert not is_late(State.IN_USE, 0.0, 1e9)


def test_every_state_that_waits_for_us_has_a_target() -> None:
    """Only a tenant's use and a clean device may last for ever."""
    assert set(State) - set(TARGETS_S) == {State.CLEAN, State.IN_USE}
