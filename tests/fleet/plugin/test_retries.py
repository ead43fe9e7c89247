"""What passes by itself is waited for inside kubelet's time; what does not is told soon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.messages import TeardownOrder
from fleet.plugin.retries import (
    FAIR_S,
    HOLDER_WAIT_S,
    PASSING,
    PAUSE_S,
    SLOW_PAUSE_S,
    Waiting,
    leaving,
)
from tests.fleet.plugin.benches import Bench


def waiting(clock: ManualClock, *, on_its_way: bool = False) -> Waiting:
    return Waiting(clock, clock.advance, lambda _: on_its_way)


def failing(*failures: Exception) -> Callable[[float], str]:
    """A call that fails with each of these, then succeeds."""
    left: Iterator[Exception] = iter(failures)

    def act(_: float) -> str:
        for failure in left:
            raise failure
        return "done"

    return act


@pytest.mark.parametrize("kind", PASSING)
def test_what_passes_is_tried_again(kind: type[errors.FleetError]) -> None:
    """A busy device, an owner or an API that is away: a pause, then again."""
    clock = ManualClock(0.0)
    assert waiting(clock).until(40.0, failing(kind("x"), kind("y"))) == "done"
    assert clock.monotonic() == pytest.approx(2 * PAUSE_S)


def test_a_busy_device_is_asked_for_less_and_less_often() -> None:
    """Promise 7: a tenant that lingers costs one try a second, one that leaves soon no second."""
    clock = ManualClock(0.0)
    tries: list[float] = []

    def act(_: float) -> None:
        tries.append(clock.monotonic())
        raise errors.DeviceBusy("pod x still runs")

    with pytest.raises(errors.DeviceBusy):
        waiting(clock).until(20.0, act, busy_pause_max_s=SLOW_PAUSE_S)
    pauses = [after - before for before, after in pairwise(tries)]
    assert pauses[:5] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0])
    assert pauses[5:] == pytest.approx([SLOW_PAUSE_S] * (len(pauses) - 5))
    assert 18.0 < tries[-1] < 20.0
    with pytest.raises(errors.DeviceBusy):
        waiting(clock).until(clock.monotonic() + 1.0, act)
    assert tries[-1] - tries[-2] == pytest.approx(PAUSE_S)


def test_what_waiting_cannot_change_is_told_at_once() -> None:
    """A quarantined device or a claim without an allocation is the pod's event, now."""
    clock = ManualClock(0.0)
    for kind in (errors.DeviceUnfit, errors.ClaimUnready, errors.DeviceUnknown, errors.TokenStale):
        with pytest.raises(kind):
            waiting(clock).until(40.0, failing(kind("x")))
    assert clock.monotonic() == 0.0


def test_no_call_outlives_its_deadline() -> None:
    """Invariant 16: each try is told what time is left, and none begins after the end."""
    clock = ManualClock(0.0)
    left: list[float] = []

    def act(left_s: float) -> None:
        left.append(left_s)
        raise errors.NotOwner("nobody")

    with pytest.raises(errors.NotOwner):
        waiting(clock).until(3.0, act)
    assert left[0] == 3.0
    assert left == sorted(left, reverse=True)
    assert left[-1] >= PAUSE_S / 2
    assert clock.monotonic() < 3.0


def test_a_holder_that_stays_is_told_soon() -> None:
    """B01: a holder that is not being torn down is waited for some seconds, not for all."""
    busy = errors.DeviceBusy("gpu-0 is held by claim a", holder="claim:a")
    clock = ManualClock(0.0)
    with pytest.raises(errors.DeviceBusy, match="held by claim a"):
        waiting(clock).until(40.0, failing(*[busy] * 999))
    assert HOLDER_WAIT_S <= clock.monotonic() < HOLDER_WAIT_S + 1.0


def test_a_holder_on_its_way_out_is_waited_for() -> None:
    """B01: its teardown may take longer than that, and ends."""
    busy = errors.DeviceBusy("gpu-0 is held by claim a", holder="claim:a")
    clock = ManualClock(0.0)
    assert waiting(clock, on_its_way=True).until(40.0, failing(*[busy] * 200)) == "done"
    assert clock.monotonic() > HOLDER_WAIT_S


def test_the_last_try_does_not_hide_the_reason() -> None:
    """A try with no time left says only that time is up; the pod's event names the obstacle."""
    clock = ManualClock(0.0)

    def act(left_s: float) -> None:
        why = "pod x still runs" if left_s >= FAIR_S else "takes longer than 0 s"
        raise errors.DeviceBusy(why)

    with pytest.raises(errors.DeviceBusy, match="pod x still runs"):
        waiting(clock).until(5.0, act)
    with pytest.raises(errors.DeviceBusy, match="takes longer"):
        waiting(clock).until(clock.monotonic() + 0.05, act)


def test_a_holder_leaves_when_its_record_says_so(site: Bench) -> None:
    """Only a claim in teardown is leaving; a silent owner is changing hands, which passes too."""
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    is_leaving = leaving(site.door)
    assert not is_leaving(f"claim:{asked.uid}")
    assert not is_leaving("pod:x")
    pod = site.pod("late")
    pod.run()
    site.remember({asked.uid: [pod.uid]})
    with pytest.raises(errors.DeviceBusy):
        site.node.unprepare(TeardownOrder(uid=asked.uid, consumers=(pod.uid,)), budget_s=5.0)
    assert is_leaving(f"claim:{asked.uid}")
    site.node.close()
    assert is_leaving("claim:another")
    pod.leave()
    site.open()
