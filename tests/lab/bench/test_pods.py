"""The benchmark of pods on a real cluster: what it makes of times that were measured."""

from __future__ import annotations

from tests.lab.bench import pods
from tests.lab.bench.pods import Times


def test_the_wipe_is_no_part_of_what_a_pod_may_take_longer_to_be_gone() -> None:
    """Ours beside the idle plugin's of the same run, each against what is wanted of it."""
    yardstick = Times(bound=[0.1], ready=[0.6], gone=[1.2])
    ours = Times(bound=[0.1], ready=[0.8], gone=[2.5], wiped=[0.5])
    told = list(pods.shown("fast", ours, yardstick))
    assert "more: +0.20 s" in told[1]
    assert told[3].endswith("+0.20 s, wanted at most +0.30 s: met")
    assert told[4].endswith("without its wipe of 0.50 s: +0.80 s, wanted at most +1.00 s: met")
    late = list(pods.shown("strict", Times([5.5], [6.5], [3.0], [0.5], late=1), yardstick))
    assert late[3].endswith("wanted at most +5.70 s: MISSED")
    assert late[4].endswith("+1.30 s, wanted at most +1.00 s: MISSED")
    assert late[5].endswith("1 of ours, 0 of the idle plugin")


def test_the_95th_percentile_is_the_nearest_rank() -> None:
    """Of ten the largest, of twenty the last but one."""
    assert pods.p95([float(number) for number in range(10)]) == 9.0
    assert pods.p95([float(number) for number in range(20)]) == 18.0
