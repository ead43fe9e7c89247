"""How long a unit of memory may be in a state before somebody should ask why. Pure.

In use and clean have no target: a tenant may stay, and a spare may wait. The numbers are those of
the alerts and of nothing else: no device is ever treated by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fleet.core.model import State

TARGETS_S: Mapping[State, float] = MappingProxyType(
    {
        # An operator decides, so this is how long one may sleep over it.
        State.QUARANTINED: 86_400.0,
        # A new journal proves most nodes free by itself within its first minutes.
        State.HELD: 3_600.0,
        # What nobody holds is wiped at once; what waits this long is kept by something.
        State.DIRTY: 900.0,
        # Above every deadline of a wipe up to 170 GiB (settings wipe.deadline_*).
        State.WIPING: 3_600.0,
        State.RETESTING: 3_600.0,
        State.CHECKING: 300.0,
    }
)
"""Target, s, by state."""


def is_late(state: State, since: float, now: float) -> bool:
    """Whether a unit in `state` since `since` is above its target at `now`, s since the epoch."""
    target_s = TARGETS_S.get(state)
    return target_s is not None and now - since > target_s
