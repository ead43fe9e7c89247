"""Who a worker is, and proof that nothing of it is alive."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.core.boot import kernel_boot_id
from fleet.core.processes import MARKER, WorkerIdentity, end, marked, start_time, survivors
from tests.fleet.devices.wipe.orders import eventually

STRANGE = "strange driver, all"
SLEEP = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    """A process of somebody, marked as a worker."""
    marked = {**os.environ, MARKER: uuid.uuid4().hex}
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE, text=True, env=marked) as started:
        assert started.stdout is not None
        started.stdout.readline()
        yield started
        started.kill()


def identity_of(pid: int, *, worker_id: str = "0" * 32, later: int = 0) -> WorkerIdentity:
    """The identity of a living process, or of an earlier one that had its pid."""
    started = start_time(pid)
    assert started is not None
    return WorkerIdentity(worker_id, pid, started + later, kernel_boot_id())


def test_an_identity_survives_json() -> None:
    """What the journal keeps is enough to recognise the process again."""
    identity = identity_of(os.getpid())
    assert WorkerIdentity.from_json(json.loads(json.dumps(identity.as_json()))) == identity


def test_a_zombie_is_gone(process: subprocess.Popen[str]) -> None:
    """A killed process that nobody has reaped yet holds nothing."""
    identity = identity_of(process.pid)
    assert survivors(identity) == (process.pid,)
    os.kill(process.pid, 9)
    assert eventually(lambda: survivors(identity) == ())
    assert process.returncode is None, "it was reaped: this would prove nothing"


def test_b44_only_the_recorded_process_is_killed(process: subprocess.Popen[str]) -> None:
    """B44: a pid that was given to somebody else is neither killed nor taken for the worker."""
    assert end(identity_of(process.pid, later=-1), 0.1)
    assert process.poll() is None
    assert end(identity_of(process.pid), 5.0)
    assert process.wait(5.0) == -9


def test_b29_what_a_worker_started_counts_as_the_worker(process: subprocess.Popen[str]) -> None:
    """B29: a process that carries the worker's marker survives it, and is looked at, not killed."""
    environment = Path(f"/proc/{process.pid}/environ").read_bytes()
    marker = next(x for x in environment.split(b"\0") if x.startswith(MARKER.encode()))
    identity = WorkerIdentity(marker.decode().partition("=")[2], 2**22 - 1, 1, kernel_boot_id())
    assert survivors(identity) == (process.pid,)
    assert not end(identity, 0.05)
    assert process.poll() is None


def test_a_mark_of_a_strangers_is_nothing(tmp_path: Path) -> None:
    """Promise 9: anybody can write our mark into his environment, and what hangs of him stops
    nothing of ours; a worker whose start was recorded counts whatever it has become."""
    program = Path(shutil.copy("/bin/cat", tmp_path / "worker"))
    environment = {MARKER: STRANGE}
    for mode in (0o755, 0o4755):
        program.chmod(mode)
        with subprocess.Popen([program], stdin=subprocess.PIPE, env=environment) as started:
            told = Path(f"/proc/{started.pid}/environ")  # empty for a moment after the exec
            assert eventually(lambda told=told: told.read_bytes() != b"")  # type: ignore[misc]
            identity = identity_of(started.pid, worker_id=STRANGE)
            another = WorkerIdentity(STRANGE, 2**22 - 1, 1, kernel_boot_id())
            ours = (started.pid,) if mode == 0o755 else ()
            assert marked(STRANGE) == ours
            assert survivors(another) == ours
            assert survivors(identity) == (started.pid,)


def test_an_earlier_boot_left_nothing() -> None:
    """After a reboot every earlier worker is proven gone, whoever has its pid now."""
    identity = WorkerIdentity("0" * 32, os.getpid(), start_time(os.getpid()) or 0, "another-boot")
    assert survivors(identity) == ()
    assert end(identity, 0.0)


def test_a_pid_that_never_lived_has_no_start_time() -> None:
    """No process, no start time, no error."""
    assert start_time(2**22 + 5) is None


@pytest.mark.parametrize("name", [b"\xff\xfe evil", b") Z 1 2 (", b"", b"a\nb", b"((("])
def test_a_process_is_known_whatever_it_calls_itself(name: bytes) -> None:
    """B44: a name is the process's own choice; neither bytes nor parentheses hide a start time."""
    code = (
        f"import ctypes; ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0); input(print(flush=True))"
    )
    garbage = {b"\xff": b"\xfe", os.fsencode(MARKER): b"\xff\xfe"}
    with subprocess.Popen(
        (sys.executable, "-S", "-c", code, b"\xff\xfe"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=garbage,
    ) as started:
        assert started.stdout is not None
        started.stdout.readline()
        before = start_time(os.getpid())
        found = start_time(started.pid)
        assert found is not None
        assert before is not None
        assert found >= before
        assert survivors(identity_of(started.pid)) == (started.pid,)
        assert survivors(WorkerIdentity("1" * 32, started.pid, found - 1, kernel_boot_id())) == ()
        started.kill()
