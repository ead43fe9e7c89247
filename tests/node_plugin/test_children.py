"""Children are kept running, learn of our end, and are ended when we end."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node_plugin.children import PAUSE_FIRST_S, PAUSE_MAX_S, Child
from tests.node_plugin.standins import PATIENCE_S

UNTIL_EOF = "import sys; sys.stdin.buffer.read()"
"""What a well-behaved child does: it ends with its standard input."""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
"""A child that hears neither of the end of its input nor SIGTERM."""


def eventually(fact: Callable[[], bool]) -> None:
    """Return once `fact` holds; fail when it does not in time."""
    deadline = time.monotonic() + PATIENCE_S
    pause = time.sleep
    while not fact():
        assert time.monotonic() < deadline, "the fact waited for never held"
        pause(0.01)


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def make() -> Iterator[Callable[..., Child]]:
    """Makes children that are ended with the test."""
    made: list[Child] = []

    def child(code: str, **more: object) -> Child:
        found = Child("x", [sys.executable, "-c", code], **more)  # type: ignore[arg-type] # by name
        made.append(found)
        return found

    yield child
    for one in made:
        one.farewell_s = 0.2
        one.stop()


def test_a_child_that_ends_is_started_again(make: Callable[..., Child]) -> None:
    """DESIGN 5, Ray: a bridge may die any time; pauses grow, so that a broken one costs little."""
    child = make("raise SystemExit(3)", pauses_s=(0.02, 0.2))
    begun = time.monotonic()
    child.start()
    eventually(lambda: child.starts >= 4)
    assert time.monotonic() - begun >= 0.02 + 0.04 + 0.08
    assert (PAUSE_FIRST_S, PAUSE_MAX_S) == (1.0, 30.0)


def test_a_killed_child_comes_back_as_another_process(make: Callable[..., Child]) -> None:
    """Kill -9 of a child is nothing the plugin has to be told."""
    child = make(UNTIL_EOF, pauses_s=(0.02, 0.2))
    child.start()
    eventually(lambda: child.pid is not None)
    first = child.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    eventually(lambda: child.starts == 2 and child.pid is not None)
    assert child.pid != first


def test_a_program_that_is_not_there_is_tried_again(
    make: Callable[..., Child], caplog: pytest.LogCaptureFixture
) -> None:
    """An image without the program is a line in the log, not the plugin's end."""
    child = make("", pauses_s=(0.02, 0.02))
    child.command = ["/nonexistent/program"]
    with caplog.at_level(logging.WARNING):
        child.start()
        eventually(lambda: caplog.text.count("No such file") >= 2)
    assert (child.pid, child.starts) == (None, 0)


def test_a_stop_closes_the_input_first(make: Callable[..., Child], tmp_path: Path) -> None:
    """The child has its time to give the journal up: no signal is sent while it uses it."""
    said = tmp_path / "said"
    code = f"import sys; sys.stdin.buffer.read(); open({str(said)!r}, 'w').write('bye')"
    child = make(code)
    child.start()
    eventually(lambda: child.pid is not None)
    child.stop()
    assert said.read_text() == "bye"
    assert child.pid is None
    assert child.starts == 1


def test_a_stop_goes_on_to_terminate_and_kill(make: Callable[..., Child]) -> None:
    """A child that hears nothing does not outlive us."""
    child = make(DEAF, farewell_s=0.3)
    child.start()
    eventually(lambda: child.pid is not None)
    pid = child.pid
    assert pid is not None
    eventually(lambda: _ignores(pid, signal.SIGTERM))
    begun = time.monotonic()
    child.stop()
    assert not alive(pid)
    assert time.monotonic() - begun >= 0.6


def _ignores(pid: int, number: int) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigIgn:"):
            return bool(int(line.split()[1], 16) & 1 << (number - 1))
    return False


def test_a_stopped_child_stays_stopped(make: Callable[..., Child]) -> None:
    """Neither during its pause nor before its first start does it come back; twice is harmless."""
    child = make("raise SystemExit(3)", pauses_s=(30.0, 30.0))
    child.start()
    eventually(lambda: child.starts == 1 and child.pid is None)
    child.stop()
    child.stop()
    assert child.starts == 1
    never = make(UNTIL_EOF)
    never.stop()
    assert never.starts == 0


def test_a_child_learns_of_our_end_after_kill_9(tmp_path: Path) -> None:
    """Its standard input ends with us whatever way we end: no journal stays owned by an orphan."""
    told = tmp_path / "pid"
    code = textwrap.dedent(f"""
        import sys, time
        from node_plugin.children import Child
        child = Child("x", [sys.executable, "-c", {UNTIL_EOF!r}])
        child.start()
        while child.pid is None:
            time.sleep(0.01)
        open({str(told)!r}, "w").write(str(child.pid))
        time.sleep(600)
    """)
    parent = subprocess.Popen([sys.executable, "-c", code])
    eventually(lambda: told.exists() and told.read_text().isdigit())
    pid = int(told.read_text())
    assert alive(pid)
    parent.kill()
    parent.wait()
    eventually(lambda: not alive(pid))


def test_a_child_inherits_no_descriptor_of_ours(make: Callable[..., Child], tmp_path: Path) -> None:
    """B81: sockets and locks of the plugin stay in the plugin."""
    listing = tmp_path / "listing"
    code = f"import os; open({str(listing)!r}, 'w').write(str(len(os.listdir('/proc/self/fd'))))"
    with (tmp_path / "held").open("w") as held:
        child = make(code, pauses_s=(30.0, 30.0))
        child.start()
        eventually(lambda: listing.exists() and listing.read_text() != "")
        assert held.fileno() > 2
    assert int(listing.read_text()) <= 5


def test_a_child_that_is_killed_is_started_again(make: Callable[..., Child]) -> None:
    """A standby that hangs is killed by us; its successor is another process."""
    child = make(DEAF, pauses_s=(0.01, 0.01))
    child.start()
    eventually(lambda: child.pid is not None)
    first = child.pid
    child.kill()
    eventually(lambda: child.pid not in (None, first))
    assert first is not None
    assert not alive(first)
