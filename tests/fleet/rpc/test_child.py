"""Children end with their parent, are killed with all they started, and are never believed gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core.boot import kernel_boot_id
from fleet.core.processes import MARKER, WorkerIdentity, end, start_time
from fleet.rpc.child import DEVNULL, ChildProcess, Starter

SOURCE = Path(__file__).parents[3]
PATIENCE_S = 20.0
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
SLEEP = "print('up', flush=True); time.sleep(60)"
TIED = f"import time; from fleet.core.processes import tie; assert tie(); {SLEEP}"
WITH_ONE_OF_ITS_OWN = f"""
import subprocess, sys
{DEAF}
found = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], {{more}})
print(found.pid, flush=True)
time.sleep(60)
"""


def eventually(fact: Callable[[], bool]) -> bool:
    """Whether `fact` comes to hold."""
    deadline = time.monotonic() + PATIENCE_S
    while not fact() and time.monotonic() < deadline:
        time.sleep(0.01)
    return fact()


Start = Callable[..., ChildProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts children that run Python and are ended with the test."""
    made: list[ChildProcess] = []

    def child(code: str, **more: object) -> ChildProcess:
        given = {**os.environ, "PYTHONPATH": str(SOURCE)}
        command = [sys.executable, "-c", code]
        found = ChildProcess(command, environment=given, **more)  # type: ignore[arg-type] # by name
        made.append(found)
        return found

    yield child
    for one in made:
        one.kill(PATIENCE_S)
        one.close()


def first_line(child: ChildProcess) -> bytes:
    """The first thing it says."""
    (line,) = child.lines(PATIENCE_S)
    return line


def identity_of(pid: int) -> WorkerIdentity:
    """As it is journalled."""
    return WorkerIdentity(uuid.uuid4().hex, pid, start_time(pid) or 0, kernel_boot_id())


def test_a_tied_child_ends_with_its_parent() -> None:
    """DESIGN 5: a child does not outlive the service, also not one that is killed with -9."""
    parent = f"""
import sys, time
from fleet.rpc.child import ChildProcess
child = ChildProcess([sys.executable, "-c", {TIED!r}])
assert child.lines({PATIENCE_S}) == [b"up"]
print(child.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", parent],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    ) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        assert start_time(pid) is not None
        running.kill()
    assert eventually(lambda: start_time(pid) is None)


def test_a_tied_child_ends_with_the_thread_that_started_it(start: Start) -> None:
    """B44: the kernel's signal follows the thread, so one that lives long starts them all."""
    starter = Starter("test")
    made = starter.ask(lambda: start(TIED))
    assert made is not None
    child = made.result()
    assert first_line(child) == b"up"
    starter.close()
    assert child.wait(PATIENCE_S)
    assert child.code == -signal.SIGKILL
    assert starter.ask(lambda: None) is None


def test_a_parent_that_died_before_the_signal_was_armed_is_noticed() -> None:
    """A child whose parent is another one than it was told is an orphan, and leaves."""
    code = "import sys; from fleet.core.processes import tie; print(tie(int(sys.argv[1])))"
    for parent, told in ((os.getpid(), b"True"), (os.getpid() + 1, b"False")):
        child = ChildProcess(
            [sys.executable, "-c", code, str(parent)],
            environment={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        assert first_line(child) == told
        child.end(PATIENCE_S)
        child.close()


def test_a_leader_that_ignores_sigterm_is_killed_with_its_own_children(start: Start) -> None:
    """A program is killed as a group: what it started may act on the device as well."""
    child = start(WITH_ONE_OF_ITS_OWN.format(more=""), leads=True)
    grandchild = int(first_line(child))
    assert child.left() == tuple(sorted((child.pid, grandchild)))
    os.kill(child.pid, signal.SIGTERM)
    assert not child.wait(0.2)
    assert child.kill(PATIENCE_S) == ()
    assert start_time(grandchild) is None
    assert start_time(os.getpid()) is not None, "the group is its own, not ours"


def test_what_left_the_group_is_found_by_its_mark(start: Start) -> None:
    """B29: a child is gone only when nothing lives that it started, wherever that went."""
    mark = uuid.uuid4().hex
    code = WITH_ONE_OF_ITS_OWN.format(more="start_new_session=True")
    child = start(code, leads=True, mark=(MARKER, mark))
    grandchild = int(first_line(child))
    assert child.kill(0.3) == (grandchild,)
    os.kill(grandchild, signal.SIGKILL)
    assert eventually(lambda: child.left() == ())


def test_a_child_that_only_listens_to_kill_ends_in_three_steps(start: Start) -> None:
    """The end of its input, then SIGTERM, then kill -9, each after its time."""
    child = start(f"{DEAF}; {SLEEP}")
    assert first_line(child) == b"up"
    began = time.monotonic()
    child.end(0.2)
    assert 0.4 <= time.monotonic() - began < PATIENCE_S
    assert child.code == -signal.SIGKILL


def test_a_child_that_hears_the_end_of_its_input_is_not_killed(start: Start) -> None:
    """Who ends by himself in his time gets no signal."""
    child = start("import sys; sys.stdin.read(); sys.exit(7)")
    child.end(PATIENCE_S)
    assert child.code == 7


def test_b44_a_pid_that_was_given_to_somebody_else_is_not_the_child(start: Start) -> None:
    """B44: pid, start time and boot name a child; another process of that number is left alone."""
    child = start(f"import time; {SLEEP}")
    assert first_line(child) == b"up"
    mine = identity_of(child.pid)
    assert end(replace(mine, start_time=mine.start_time - 1), 0.0)
    assert end(replace(mine, boot_id="another"), 0.0)
    assert child.code is None
    assert end(mine, PATIENCE_S)
    assert child.wait(PATIENCE_S)


def test_a_word_is_waited_for_no_longer_than_its_time(start: Start) -> None:
    """A child that hangs keeps nobody, and a line that has no end is none."""
    child = start("import time; print('half', end='', flush=True); time.sleep(60)", stderr=DEVNULL)
    assert eventually(lambda: child.lines(0.1) == [] and child.unfinished == b"half")
    began = time.monotonic()
    assert child.lines(0.2) == []
    assert 0.2 <= time.monotonic() - began < PATIENCE_S
    assert not child.silent
    assert not child.wait(0.0)


def test_all_that_a_child_said_before_its_end_is_heard(start: Start) -> None:
    """A report is read to its end also when its writer is gone."""
    child = start("print('\\n'.join(['x' * 900] * 60), flush=True)")
    assert child.wait(PATIENCE_S)
    assert child.lines() == [b"x" * 900] * 60
    assert child.lines() == []
    assert child.silent
    assert not child.tell(b"anybody there?\n")
