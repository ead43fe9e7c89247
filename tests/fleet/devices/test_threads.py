"""Threads that have what their process does not show, on real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.devices import threads
from tests.fleet.devices.hiding import DEAD_LEADER, OWN_TABLE, PLAIN, WAYS, hiding

PROC = Path("/proc")


def has(view: Path, path: Path) -> bool:
    """Whether a view has the file open."""
    return any(os.path.realpath(link) == str(path) for link in (view / "fd").iterdir())


@pytest.mark.parametrize("comparable", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_no_table_of_descriptors_is_left_out(tmp_path: Path, way: str, *, comparable: bool) -> None:
    """gpus-8.17: whichever thread has the descriptor, one of the tables shows it."""
    path = tmp_path / "node"
    path.touch()
    with hiding(path, way) as pid:
        views = threads.views(PROC / str(pid))
        found = list(threads.tables(views, comparable=comparable))
        assert len(views) == 2
        assert [has(view, path) for view in found].count(True) >= 1
        assert has(views[0], path) is (way == PLAIN), "it was not hidden: this proves nothing"
        if not comparable:
            assert found == list(views)


def test_threads_with_one_table_are_looked_at_once(tmp_path: Path) -> None:
    """gpus-8.17: the look stays fast where the kernel compares for us; in doubt it is complete."""
    with hiding(Path("/dev/full"), PLAIN) as pid:
        views = threads.views(PROC / str(pid))
        may = threads._share(pid, pid)
        expected = views[:1] if may else views
        assert tuple(threads.tables(views, comparable=True)) == expected
        assert threads.views(tmp_path / "7") == (tmp_path / "7",), "gone, or without threads"


@pytest.mark.parametrize("way", [PLAIN, OWN_TABLE, DEAD_LEADER])
def test_what_living_threads_share_is_read_from_one_that_lives(way: str) -> None:
    """gpus-8.17: a dead first thread has neither command line nor memory."""
    with hiding(Path("/dev/full"), way) as pid:
        views = threads.views(PROC / str(pid))
        for name in ("maps", "cmdline"):
            place, content = threads.living(views, name)
            assert content
            assert (place == PROC / str(pid)) is (way != DEAD_LEADER)
            assert (place / name).read_bytes(), "also found below proc itself"
    assert threads.living((PROC / "4194305",), "maps")[1] == b""


def test_ids_are_compared_only_where_they_are_ours(tmp_path: Path) -> None:
    """gpus-8.17: below another proc a pid names somebody else, of whom the kernel is not asked."""
    assert threads.are_ours(PROC)
    assert not threads.are_ours(tmp_path)
    (tmp_path / "self").mkdir()
    for told in (f"NSpid:\t900\t{os.getpid()}\n", f"NSpid:\t{os.getpid() + 1}\n", ""):
        (tmp_path / "self/status").write_text(told)
        assert not threads.are_ours(tmp_path)


_SEVERAL = """
import ctypes, os, sys, threading
libc = ctypes.CDLL(None)
def stay(apart):
    if apart:
        assert libc.unshare(0x400) == 0
    os.write(1, b".")
    threading.Event().wait()
for apart in (True, False, False):
    threading.Thread(target=stay, args=(apart,)).start()
threading.Event().wait()
"""


def test_two_tables_in_one_look_are_looked_at_once_each() -> None:
    """gpus-8.17: of four threads one of which left the common table, two views show everything:
    whichever table was seen last, the one before it is still known.
    """
    with subprocess.Popen(
        (sys.executable, "-S", "-c", _SEVERAL), stdout=subprocess.PIPE
    ) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.read(3) == b"..."
            views = threads.views(PROC / str(started.pid))
            assert len(views) == 4
            own = next(
                view for view in views[1:] if not threads._share(started.pid, int(view.name))
            )
            may = threads._share(started.pid, started.pid)
            expected = (views[0], own) if may else views
            assert tuple(threads.tables(views, comparable=True)) == expected
        finally:
            started.kill()
