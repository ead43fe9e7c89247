"""One owner at a time, by a lock that ends with its process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from fleet.core import errors
from fleet.core.processes import start_time
from fleet.node.journal.lock import Owner, OwnerLock, read_owner

HOLD = """
import sys
from pathlib import Path
from fleet.node.journal.lock import OwnerLock
OwnerLock(Path(sys.argv[1])).acquire(owner="first")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_owner_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    """Promise 2: two owners of one journal are impossible; the refusal names the owner."""
    first, second = OwnerLock(tmp_path / "lock"), OwnerLock(tmp_path / "lock")
    first.acquire(owner="node service of n1")
    with pytest.raises(errors.NotOwner, match=r"node service of n1 \(pid \d+\)"):
        second.acquire(owner="other")
    assert not second.held
    first.release()
    second.acquire(owner="other")
    second.release()


def test_a_killed_owner_leaves_no_lock(tmp_path: Path) -> None:
    """Promise 7: after kill -9 the next owner gets the lock at once."""
    path = tmp_path / "lock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(errors.NotOwner):
        OwnerLock(path).acquire(owner="second")
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    lock = OwnerLock(path)
    lock.acquire(owner="second")
    assert lock.held
    lock.release()


def test_a_child_process_does_not_inherit_ownership(tmp_path: Path) -> None:
    """The lock is close-on-exec: a worker that outlives us never keeps the journal."""
    path = tmp_path / "lock"
    lock = OwnerLock(path)
    lock.acquire(owner="first")
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        close_fds=False,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    lock.release()
    OwnerLock(path).acquire(owner="second")
    child.communicate()
    assert child.returncode == 0


def test_removing_the_lock_file_lets_nobody_in(tmp_path: Path) -> None:
    """Promise 2: an operator who removes the lock file of a living owner gets no second one."""
    path = tmp_path / "lock"
    first, second = OwnerLock(path), OwnerLock(path)
    first.acquire(owner="first")
    path.unlink()
    with pytest.raises(errors.NotOwner, match="owned by another process"):
        second.acquire(owner="second")
    path.write_text("")
    with pytest.raises(errors.NotOwner):
        second.acquire(owner="second")
    first.release()
    second.acquire(owner="second")
    second.release()


def test_a_replaced_directory_with_the_old_lock_file_lets_nobody_in(tmp_path: Path) -> None:
    """Promise 2: the file's own lock holds where the directory is another one."""
    path = tmp_path / "node" / "lock"
    first, second = OwnerLock(path), OwnerLock(path)
    first.acquire(owner="first")
    path.parent.rename(tmp_path / "moved")
    path.parent.mkdir()
    (tmp_path / "moved" / "lock").rename(path)
    with pytest.raises(errors.NotOwner, match=r"first \(pid \d+\)"):
        second.acquire(owner="second")
    first.release()


def test_the_owner_is_named_so_that_nobody_else_can_be_meant(tmp_path: Path) -> None:
    """DESIGN 5: pid, start time and boot of the owner; this process, alive."""
    path = tmp_path / "lock"
    lock = OwnerLock(path)
    lock.acquire(owner="node actor of n1")
    found = read_owner(path)
    assert found is not None
    assert found == replace(Owner.current("node actor of n1"), since=found.since)
    assert (found.pid, found.alive()) == (os.getpid(), True)
    assert found.start_time > 0
    lock.release()


@pytest.mark.parametrize(
    "change", [{"start_time": 1}, {"start_time": 0}, {"boot_id": "another"}, {"boot_id": ""}]
)
def test_a_recycled_pid_is_not_the_owner(change: dict[str, Any]) -> None:
    """B44: the pid alone proves nothing: same pid, other start or other boot is somebody else."""
    assert not replace(Owner.current("me"), **change).alive()


def test_a_stopped_owner_is_alive_and_a_dead_one_is_not() -> None:
    """SIGSTOP does not end ownership; a zombie, which holds no lock, is gone."""
    child = subprocess.Popen(
        [sys.executable, "-c", "print('up', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    started = start_time(child.pid)
    assert started is not None
    named = replace(Owner.current("child"), pid=child.pid, start_time=started)
    os.kill(child.pid, signal.SIGSTOP)
    assert named.alive()
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not named.alive()
    child.wait()
    assert not named.alive()
    child.stdin.close()
    child.stdout.close()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", '{"pid": "x", "owner": "o"}', '{"pid": 1}', '{"pid": null, "owner": 1}'],
)
def test_a_lock_file_that_names_nobody_is_nobody(tmp_path: Path, text: str) -> None:
    """Torn between truncating and writing, or of another hand: an owner is never guessed."""
    path = tmp_path / "lock"
    assert read_owner(path) is None
    path.write_text(text)
    assert read_owner(path) is None
    lock = OwnerLock(path)
    lock.acquire(owner="next")
    named = read_owner(path)
    assert named is not None
    assert (named.pid, named.owner) == (os.getpid(), "next")
    lock.release()


def test_the_owner_says_since_when(tmp_path: Path) -> None:
    """DESIGN 5: one process that takes the lock twice is two owners, each with its moment."""
    lock, seen = OwnerLock(tmp_path / "lock"), []
    for _ in range(2):
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        lock.acquire(owner="node actor of n1")
        found = read_owner(tmp_path / "lock")
        assert found is not None
        assert before <= found.since <= time.clock_gettime(time.CLOCK_BOOTTIME)
        assert found.alive()
        seen.append(found)
        lock.release()
    assert seen[0] != seen[1]
    assert seen[0] == replace(seen[1], since=seen[0].since)


def test_an_owner_that_does_not_say_since_when_is_still_named(tmp_path: Path) -> None:
    """B68: a record written before owners said since when names its owner as before."""
    path = tmp_path / "lock"
    old = replace(Owner.current("node actor of n1"), since=0.0)
    path.write_text(json.dumps({k: v for k, v in asdict(old).items() if k != "since"}))
    found = read_owner(path)
    assert found == old
    assert found.alive()


def test_a_lock_file_of_an_earlier_version_names_an_owner_nobody_may_kill(tmp_path: Path) -> None:
    """B68: without a start time the owner is told in words, and never counts as alive."""
    path = tmp_path / "lock"
    path.write_text(json.dumps({"pid": os.getpid(), "owner": "node service of n1"}))
    found = read_owner(path)
    assert found == Owner(os.getpid(), "node service of n1")
    assert not found.alive()


def test_many_processes_at_once_are_one_owner(tmp_path: Path) -> None:
    """Promise 2: threads of one process or several processes, one of them gets it."""
    locks = [OwnerLock(tmp_path / "lock") for _ in range(8)]

    def acquire(lock: OwnerLock) -> bool:
        try:
            lock.acquire(owner="one")
        except errors.NotOwner:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            # Each may see the other in between and give way: at most one, and the next try gets it.
            won = list(pool.map(acquire, locks))
            assert won.count(True) <= 1
            assert any(lock.held for lock in locks) == any(won)
            for lock in locks:
                lock.release()
            assert acquire(locks[0])
            locks[0].release()
