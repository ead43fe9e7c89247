"""B6: driver calls that may never return are bounded in time and number (B29)."""

from __future__ import annotations

import threading
import time

import pytest

from fleet.core import errors
from fleet.node.bounded import BoundedCalls
from tests import threads


def threads_for(key: str) -> int:
    return sum(thread.name == f"driver-call {key}" for thread in threading.enumerate())


def test_the_value_and_the_error_of_a_call_reach_the_caller() -> None:
    """A call that returns in time is as if made directly."""
    calls = BoundedCalls()
    assert calls.run("gpu", lambda: 7, timeout_s=5.0) == 7

    def lost() -> None:
        raise errors.DeviceLost("gone")

    with pytest.raises(errors.DeviceLost, match="gone"):
        calls.run("gpu", lost, timeout_s=5.0)


def test_a_stuck_call_blocks_its_own_key_only_and_no_second_thread_piles_up() -> None:
    """B29: at most one stuck thread per device, refused at once; other devices go on."""
    calls, release = BoundedCalls(), threading.Event()
    with pytest.raises(errors.BackendFailed, match="no answer"):
        calls.run("stuck", release.wait, timeout_s=0.05)
    started = time.monotonic()
    for _ in range(5):
        with pytest.raises(errors.BackendFailed, match="earlier call"):
            calls.run("stuck", release.wait, timeout_s=5.0)
    assert time.monotonic() - started < 2.0
    assert threads_for("stuck") == 1
    assert calls.run("other", lambda: "seen", timeout_s=5.0) == "seen"
    release.set()
    deadline = time.monotonic() + 5.0
    while threads_for("stuck"):
        assert time.monotonic() < deadline
    assert calls.run("stuck", lambda: "back", timeout_s=5.0) == "back"


def test_callers_of_one_key_take_turns() -> None:
    """One call per key at a time: a driver is never entered twice for one device."""
    calls, inside, seen = BoundedCalls(), threading.Lock(), []

    def act() -> None:
        seen.append(inside.acquire(blocking=False))
        inside.release()

    threads = [
        threading.Thread(target=lambda: calls.run("gpu", act, timeout_s=5.0)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 8


def test_calls_one_after_another_share_a_thread_that_ends_when_idle() -> None:
    """A sweep starts no thread for each call, and none stays for a node that is closed."""
    calls, used = BoundedCalls(), set()
    for place in range(20):
        used.add(calls.run(f"gpu-{place}", threading.current_thread, timeout_s=5.0))
    assert len(used) == 1
    for thread in used:
        thread.join(5.0)
        assert not thread.is_alive()
    assert calls.run("gpu-0", lambda: "again", timeout_s=5.0) == "again"


def test_calls_at_one_time_have_threads_of_their_own() -> None:
    """A call that hangs never has another device's call behind it."""
    calls, both = BoundedCalls(), threading.Barrier(3)
    waiting = [
        threading.Thread(target=lambda key=key: calls.run(key, both.wait, timeout_s=5.0))
        for key in ("first", "second")
    ]
    for thread in waiting:
        thread.start()
    both.wait(5.0)
    for thread in waiting:
        thread.join()


def test_f79_without_a_thread_to_be_had_the_call_fails_and_no_key_is_blocked() -> None:
    """F79, B29, promise 9: the host's limit of processes is no fault of a device, whatever the
    host's kernel promises of memory that it does not have."""
    calls = BoundedCalls()
    with threads.none_to_be_had(), pytest.raises(errors.DriverBusy, match="cannot be asked"):
        calls.run("gpu", lambda: 7, timeout_s=5.0)
    assert calls.run("gpu", lambda: 7, timeout_s=5.0) == 7
