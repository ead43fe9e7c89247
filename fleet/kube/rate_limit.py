"""How often the API server is asked: a budget of requests per second with bursts. Pure.

A request is never dropped for the budget, it waits its turn; one whose turn comes later than its
own deadline is told so instead of joining the queue.
"""

from __future__ import annotations


class Pacer:
    """`qps` requests per second on average, `burst` at once after a quiet time.

    Not safe for threads: the caller holds a lock around `reserve` and waits outside it.
    """

    def __init__(self, *, qps: float, burst: float) -> None:
        """`qps` > 0; `burst` >= 1 requests."""
        if qps <= 0 or burst < 1:
            raise ValueError(f"a budget of {qps} requests/s with bursts of {burst} lets none pass")
        self._spacing_s = 1.0 / qps
        self._slack_s = (burst - 1.0) / qps
        self._turn = float("-inf")

    def reserve(self, now: float, *, limit_s: float) -> float | None:
        """Seconds this request has to wait from `now` (monotonic); its turn is taken.

        None, and nothing taken, when that would be more than `limit_s`.
        """
        turn = max(self._turn, now)
        wait_s = max(0.0, turn - self._slack_s - now)
        if wait_s > limit_s:
            return None
        self._turn = turn + self._spacing_s
        return wait_s
