"""Appending: durability, crash recovery, one writer, never into a file that is gone."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.core.errors import LedgerUnavailable, NotOwner
from fleet.evidence.dsse import canonical
from fleet.evidence.segments import segment_paths
from fleet.evidence.writer import Writer
from tests.fleet.evidence.logs import DISPLACED, FIRST, fill, read


@pytest.mark.parametrize("segment_bytes", [1 << 20, 1])
def test_crash_at_every_byte_of_an_append(tmp_path: Path, segment_bytes: int) -> None:
    """B07: wherever an append is cut, earlier entries stay and the tail is set aside."""
    whole = tmp_path / "whole"
    fill(whole, 3, segment_bytes=segment_bytes)
    last = segment_paths(whole)[-1]
    content = last.read_bytes()
    start = content.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(start, len(content)):
        directory = tmp_path / f"cut-{cut}"
        directory.mkdir()
        for path in segment_paths(whole):
            (directory / path.name).write_bytes(path.read_bytes())
        (directory / last.name).write_bytes(content[:cut])
        fill(directory, 1, segment_bytes=segment_bytes, start=7)
        kept = [canonical({"n": n}) for n in (0, 1, 7)]
        assert read(directory) == (kept, [])
        torn = [path.read_bytes() for path in directory.glob("*.torn")]
        assert torn == ([content[start:cut]] if cut > start else [])


_HOLD = """
import sys
from collections.abc import Callable
from pathlib import Path
from fleet.evidence.writer import Writer
writer = Writer(Path(sys.argv[1]))
sys.stdout.write("held\\n")
sys.stdout.flush()
sys.stdin.read()
"""


def test_one_process_writes(tmp_path: Path) -> None:
    """A second writer is refused while the first lives, and served once it was killed."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(NotOwner, match="another process writes"):
            Writer(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
    fill(tmp_path, 1)
    assert len(read(tmp_path)[0]) == 1


def test_full_disk_stores_nothing(tmp_path: Path) -> None:
    """An append that does not fit raises a retryable error and leaves no half-written line."""
    fill(tmp_path, 2)
    size = (tmp_path / FIRST).stat().st_size
    writer = Writer(tmp_path)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))
    try:
        with pytest.raises(LedgerUnavailable, match=os.strerror(errno.EFBIG)):
            writer.append(canonical({"n": 2}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
        writer.close()
    assert (tmp_path / FIRST).stat().st_size == size
    fill(tmp_path, 1, start=2)
    assert read(tmp_path) == ([canonical({"n": n}) for n in range(3)], [])


def test_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    """A ledger below a file is an error of ours with a remedy, not a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerUnavailable):
        Writer(tmp_path / "file" / "ledger")


@pytest.mark.parametrize("kind", DISPLACED)
def test_displaced_log_takes_no_entry(tmp_path: Path, kind: str) -> None:
    """Promise 8: an entry is never acknowledged that went into a removed or renamed file."""
    directory = tmp_path / "log"
    writer = Writer(directory)
    try:
        writer.append(canonical({"n": 0}))
        DISPLACED[kind](directory)
        with pytest.raises(LedgerUnavailable, match="entry 2 cannot be written"):
            writer.append(canonical({"n": 1}))
    finally:
        writer.close()
    for path in tmp_path.rglob("*.jsonl"):
        assert b'"n":1' not in path.read_bytes()
