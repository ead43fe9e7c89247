"""One owner at a time, by a lock that ends with its process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fleet import errors
from fleet.journal.lock import OwnerLock

HOLD = """
import sys
from pathlib import Path
from fleet.journal.lock import OwnerLock
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
