"""Rules of the sums over a node's wipes."""

from __future__ import annotations

from fleet.core.messages import ByteFigures, Outcome, Tally
from fleet.node.tallies import BOUNDS_S, certified, ended

FIGURES = ByteFigures(total=100, reserved=10, covered=89, residual=1)


def test_only_certified_wipes_count_as_memory_wiped() -> None:
    """E4: bytes, seconds and coverage are those of wipes that have a certificate."""
    tally = ended(Tally(), Outcome.QUARANTINED)
    assert (tally.wipes, tally.covered_bytes) == ({Outcome.QUARANTINED: 1}, 0)
    tally = certified(tally, FIGURES, seconds=2.0, dirty_s=None)
    assert tally.wipes == {Outcome.QUARANTINED: 1, Outcome.CERTIFIED: 1}
    assert (tally.covered_bytes, tally.wanted_bytes, tally.seconds) == (89, 90, 2.0)
    assert tally.cleaned == (), "it was not dirty before"


def test_the_time_to_clean_falls_into_one_bucket() -> None:
    """The first bound that it keeps; what keeps none has a place as well."""
    tally = Tally()
    for dirty_s in (BOUNDS_S[0], BOUNDS_S[0] + 0.5, BOUNDS_S[-1] + 1):
        tally = certified(tally, FIGURES, seconds=2.0, dirty_s=dirty_s)
    assert (tally.cleaned[0], tally.cleaned[1], tally.cleaned[-1]) == (1, 1, 1)
    assert len(tally.cleaned) == len(BOUNDS_S) + 1
    assert tally.cleaned_seconds == 2 * BOUNDS_S[0] + 0.5 + BOUNDS_S[-1] + 1
    assert Tally.model_validate_json(tally.model_dump_json()) == tally
