"""Who has a memory file open is the kernel's answer, not anybody's word."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleet.core.errors import BackendFailed
from fleet.core.model import ProcessKind
from fleet.devices.simulated.openers import openers
from tests.fleet.devices.hiding import WAYS, hiding
from tests.fleet.devices.wipe.orders import eventually

OPEN = "file = open(path, mode)"
MAP = (
    "import mmap; file = open(path, mode); kept = mmap.mmap(file.fileno(), 0, **how); file.close()"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A memory file."""
    made = tmp_path / "memory.bin"
    made.write_bytes(bytes(65536))
    return made


@contextmanager
def process(path: Path, act: str, mode: str = "r+b", *, isolated: bool = False) -> Iterator[int]:
    """A real process that does `act` and stays; `isolated`: in a mount namespace of its own."""
    how = "{}" if "+" in mode else "{'prot': mmap.PROT_READ}"
    how = how if act == MAP else "{}"
    before = "import ctypes; assert ctypes.CDLL(None).unshare(0x20000) == 0\n" if isolated else ""
    code = (
        f"import sys\nif {act == MAP!r}: import mmap\n{before}"
        f"path, mode, how = sys.argv[1], {mode!r}, {how}\n{act}\n"
        "print('there', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        (sys.executable, "-S", "-c", code, str(path)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"there\n"
        try:
            yield started.pid
        finally:
            started.kill()


@pytest.mark.parametrize("act", [OPEN, MAP], ids=["open", "mapped"])
def test_whoever_may_write_is_named(path: Path, act: str) -> None:
    """Promise 4: an open descriptor and a mapping without one both hold the memory."""
    assert openers([path]) == ()
    with process(path, act) as pid:
        (found,) = openers([path])
        assert (found.pid, found.kind) == (pid, ProcessKind.FOREIGN)
        assert found.name.startswith("python")
        assert openers([path], known=[pid]) == ()
    assert eventually(lambda: openers([path]) == ())


@pytest.mark.parametrize("act", ["open", "mapped"])
@pytest.mark.parametrize("way", WAYS)
def test_a_thread_hides_nobody(path: Path, way: str, act: str) -> None:
    """Promise 4: a descriptor of one thread alone, and memory whose first thread has ended, are
    the process's, also beside an opener that is known."""
    with process(path, OPEN) as known, hiding(path, way, act) as pid:
        assert [found.pid for found in openers([path], known=[known])] == [pid]


def test_a_link_or_mount_of_the_file_is_the_file(path: Path) -> None:
    """A container has the file under another name: the inode counts."""
    other = path.with_name("elsewhere")
    other.hardlink_to(path)
    with process(other, MAP) as pid:
        assert [found.pid for found in openers([path])] == [pid]


@pytest.mark.parametrize("act", [OPEN, MAP], ids=["open", "mapped"])
def test_a_reader_of_the_host_is_a_look_from_outside(path: Path, act: str) -> None:
    """`fleet sim search` beside a sweep costs no trust; nobody is made up for it either."""
    with process(path, act, "rb"):
        assert openers([path]) == ()


def may_isolate() -> bool:
    """Whether a mount namespace can be made here."""
    code = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x20000) != 0)"
    return subprocess.run((sys.executable, "-S", "-c", code), check=False).returncode == 0


def test_a_reader_in_another_mount_namespace_is_a_tenant(path: Path) -> None:
    """Promise 4: in a container reading is holding; without the right to make one: no holder."""
    isolated = may_isolate()
    with process(path, MAP, "rb", isolated=isolated) as pid:
        assert [found.pid for found in openers([path])] == ([pid] if isolated else [])


NAMED = "import ctypes; ctypes.CDLL(None).prctl(15, {}, 0, 0, 0); " + OPEN


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"\xff\xfe evil", "\ufffd\ufffd evil"),
        (b") R 1 (\n", ") R 1 ("),
        (b"a\x1b[2J\nb", "a\ufffd[2J\ufffdb"),
        (b"", ""),
    ],
)
def test_a_holder_is_named_whatever_it_calls_itself(path: Path, name: bytes, shown: str) -> None:
    """Promise 4: a name that is no text hides nobody and breaks no answer about neighbours."""
    with process(path, NAMED.format(name)) as pid:
        (found,) = openers([path])
    assert (found.pid, found.name, found.kind) == (pid, shown, ProcessKind.FOREIGN)


def test_a_holder_of_a_replaced_file_holds_nothing(path: Path) -> None:
    """Promise 9: after a wipe the name leads to a new inode; an old one is nobody's memory."""
    with process(path, OPEN) as pid:
        assert [found.pid for found in openers([path])] == [pid]
        new = path.with_name("new")
        new.write_bytes(bytes(65536))
        new.replace(path)
        assert openers([path]) == ()
        with process(path, MAP) as other:
            assert [found.pid for found in openers([path])] == [other]


def test_other_files_and_ourselves_do_not_count(path: Path, tmp_path: Path) -> None:
    """Promise 9: a neighbour's file is not this one, and our own mapping is not a holder."""
    other = tmp_path / "other.bin"
    other.write_bytes(bytes(65536))
    with process(other, MAP), path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert openers([path]) == ()
        assert len(openers([path, other])) == 1


def test_a_file_that_is_gone_is_no_answer(path: Path) -> None:
    """Promise 5: unknown is not nobody."""
    path.unlink()
    with pytest.raises(BackendFailed):
        openers([path])


def test_asking_leaves_no_trace(path: Path) -> None:
    """No lease, no descriptor and no changed signal stays behind."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only counted
    handler = signal.getsignal(signal.SIGURG)
    for _ in range(100):
        openers([path])
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - only counted
    assert signal.getsignal(signal.SIGURG) is handler
    with path.open("r+b") as file:
        assert fcntl.fcntl(file, fcntl.F_GETLEASE) == fcntl.F_UNLCK


def test_those_who_only_ask_do_not_hold(path: Path) -> None:
    """Two of our processes asking at the same time never take each other for a tenant."""
    code = (
        "import sys; from pathlib import Path\n"
        "from fleet.devices.simulated.openers import openers\n"
        "print('there', flush=True)\n"
        "while True: assert openers([Path(sys.argv[1])]) == ()\n"
    )
    command = (sys.executable, "-P", "-c", code, str(path))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"there\n"
        until = time.monotonic() + 1.0
        try:
            while time.monotonic() < until:
                assert openers([path]) == ()
            assert other.poll() is None
        finally:
            other.kill()


def test_nobody_is_told_at_once(path: Path) -> None:
    """The prepare path asks about a device nobody has open: that costs no walk over processes."""
    openers([path])
    started = time.process_time()
    for _ in range(200):
        openers([path])
    assert time.process_time() - started < 0.5
