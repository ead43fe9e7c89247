"""Kubelet's waits, and the same faster."""

from __future__ import annotations

from tests.lab.kubelet.timings import Timings


def test_the_defaults_are_kubelets() -> None:
    """Reference 1.1 to 1.7: deadlines and retries a plugin has to live with."""
    found = Timings()
    assert (found.greet_s, found.notify_s, found.call_s) == (1.0, 5.0, 45.0)
    assert (found.backoff_first_s, found.backoff_last_s) == (0.5, 122.0)
    assert 60 <= found.prepare_retry_s <= 90
    assert 10 <= found.unprepare_retry_s <= 15
    assert (found.health_reopen_s, found.absent_s, found.force_grace_s) == (5.0, 30.0, 2.0)


def test_scaling_shortens_waits_and_keeps_deadlines() -> None:
    """A fast story still gives a plugin the time a real kubelet gives it."""
    found = Timings().scaled(0.1)
    assert (found.prepare_retry_s, found.unprepare_retry_s) == (7.5, 1.2000000000000002)
    assert (found.greet_s, found.notify_s, found.call_s) == (1.0, 5.0, 45.0)
    assert found.poll_s == Timings().poll_s
