"""The budget of requests per second."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.kube.cluster import Pacer


def test_a_burst_passes_and_then_the_rate_holds() -> None:
    """After a quiet time `burst` requests go at once, the next ones at the rate."""
    pacer = Pacer(qps=10.0, burst=3.0)
    waits = [pacer.reserve(100.0, limit_s=9.0) for _ in range(5)]
    assert waits == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.2])


def test_a_turn_after_the_deadline_is_not_taken() -> None:
    """A request that would wait too long is told so and does not lengthen the queue."""
    pacer = Pacer(qps=1.0, burst=1.0)
    assert pacer.reserve(0.0, limit_s=0.5) == 0.0
    assert pacer.reserve(0.0, limit_s=0.5) is None
    assert pacer.reserve(0.6, limit_s=0.5) == pytest.approx(0.4)


@given(
    st.floats(0.5, 100.0),
    st.floats(1.0, 20.0),
    st.lists(st.floats(0.0, 3.0), min_size=1, max_size=60),
)
def test_no_window_lets_more_through(qps: float, burst: float, gaps: list[float]) -> None:
    """In any window of t seconds at most burst + qps * t requests are sent."""
    pacer, now, sent = Pacer(qps=qps, burst=burst), 0.0, []
    for gap in gaps:
        now += gap
        wait_s = pacer.reserve(now, limit_s=float("inf"))
        assert wait_s is not None
        sent.append(now + wait_s)
    for first, start in enumerate(sent):
        for last in range(first, len(sent)):
            allowed = burst + qps * (sent[last] - start)
            assert last - first + 1 <= allowed + 1e-6


@pytest.mark.parametrize(("qps", "burst"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0)])
def test_a_budget_of_nothing_is_refused(qps: float, burst: float) -> None:
    """A budget that lets no request pass is a programming error."""
    with pytest.raises(ValueError, match="lets none pass"):
        Pacer(qps=qps, burst=burst)
