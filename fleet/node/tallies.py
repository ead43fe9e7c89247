"""Adding up a node's wipes. Pure.

The sums are durable, in the node's journal, so that a restart of any process leaves them as they
are. They begin anew only with the journal.
"""

from __future__ import annotations

from fleet.core.messages import ByteFigures, Outcome, Tally

BOUNDS_S = (5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""Upper bounds, s, of the time from dirty to clean: from a small simulated device to one that had
to wait for all others of its node."""
OUTCOMES = (
    Outcome.CERTIFIED,
    Outcome.QUARANTINED,
    Outcome.FAILED,
    Outcome.INTERRUPTED,
    Outcome.REFUSED,
)
"""How a wipe that has begun to write can end."""


def ended(tally: Tally, outcome: Outcome) -> Tally:
    """The tally with one wipe more that ended like this."""
    wipes = {**tally.wipes, outcome: tally.wipes.get(outcome, 0) + 1}
    return tally.model_copy(update={"wipes": wipes})


def certified(
    tally: Tally, figures: ByteFigures, *, seconds: float, dirty_s: float | None
) -> Tally:
    """The tally with one certified wipe more.

    `seconds`: how long it took; `dirty_s`: time, s, the device took from dirty to clean, or None
    where it was not dirty before.
    """
    before = ended(tally, Outcome.CERTIFIED)
    added = before.model_copy(
        update={
            "covered_bytes": tally.covered_bytes + figures.covered,
            "wanted_bytes": tally.wanted_bytes + figures.total - figures.reserved,
            "seconds": tally.seconds + seconds,
        }
    )
    if dirty_s is None:
        return added
    counts = list(tally.cleaned or (0,) * (len(BOUNDS_S) + 1))
    counts[next((i for i, bound in enumerate(BOUNDS_S) if dirty_s <= bound), len(BOUNDS_S))] += 1
    return added.model_copy(
        update={
            "cleaned": tuple(counts),
            "cleaned_seconds": tally.cleaned_seconds + max(0.0, dirty_s),
        }
    )
