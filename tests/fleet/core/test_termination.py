"""Services hear that they are to end, whatever mask of signals they began with."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from fleet.core import termination

DEAF_START = """
import signal, threading
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
from fleet.core import termination
stop = threading.Event()
termination.told(stop)
print("ready", flush=True)
stop.wait()
"""
WAITER = """
import signal
from fleet.core import termination
with termination.awaited() as wait:
    print("ready", flush=True)
    heard = wait()
print(heard.name, signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)
"""


def test_a_service_started_with_its_signals_blocked_hears_them() -> None:
    """Promise 7: SIGTERM ends a service in order; nobody has to kill it for a mask it inherited."""
    with subprocess.Popen([sys.executable, "-c", DEAF_START], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        assert process.wait(20) == 0


def test_who_waits_hears_it_and_leaves_the_mask_as_it_was() -> None:
    """What comes after the wait, and children, take signals as before."""
    with subprocess.Popen([sys.executable, "-c", WAITER], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        assert process.stdout.readline() == b"SIGTERM set()\n"
        assert process.wait(20) == 0


def test_a_start_that_fails_leaves_the_mask_as_it_was() -> None:
    """Children of whoever goes on after the failure can be ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(OSError, match="no such port"), termination.awaited():
        raise OSError("no such port")
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
