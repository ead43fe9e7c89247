"""The append-only files: order, durability, crash recovery, one writer."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.errors import LedgerUnavailable, NotOwner
from fleet.evidence.dsse import canonical
from fleet.evidence.segments import (
    Damage,
    Entry,
    Place,
    Reader,
    Writer,
    segment_paths,
)

FIRST = "000000000001.jsonl"


def fill(directory: Path, count: int, *, segment_bytes: int = 1 << 20, start: int = 0) -> None:
    """Append some entries."""
    writer = Writer(directory, segment_bytes=segment_bytes)
    try:
        for number in range(start, start + count):
            writer.append(canonical({"n": number}))
    finally:
        writer.close()


def read(directory: Path) -> tuple[list[bytes | None], list[str]]:
    """Envelopes that are sound, and the codes of all damages."""
    reader = Reader(directory)
    found = list(reader.poll())
    tail = reader.tail()
    entries = [one.envelope for one in found if isinstance(one, Entry) and one.sound]
    codes = [one.code for one in found if isinstance(one, Damage)]
    return entries, codes + ([tail.code] if tail else [])


def test_entries_come_back_in_order_across_segments(tmp_path: Path) -> None:
    """Segments are bounded, named after their first entry, and read as one log."""
    fill(tmp_path, 10, segment_bytes=400)
    names = [path.name for path in segment_paths(tmp_path)]
    assert names[0] == FIRST
    assert len(names) > 3
    assert all(path.stat().st_size <= 400 for path in segment_paths(tmp_path))
    assert read(tmp_path) == ([canonical({"n": n}) for n in range(10)], [])


def test_stored_lines_are_golden(tmp_path: Path) -> None:
    """The format on disk is JSON lines with number and chain value; it must never drift."""
    fill(tmp_path, 2)
    assert (tmp_path / FIRST).read_text() == (
        '{"chain":"e1866d8b9ec3fc64c40e74beccccc2ed50c0da0e323ab0acaa3b2753be6de42c",'
        '"entry":{"n":0},"number":1}\n'
        '{"chain":"6e73012c02000dc89240f0aa3cf2af7666734a3c4fd9e9a154b20dba7817c6f5",'
        '"entry":{"n":1},"number":2}\n'
    )


def test_reader_follows_a_growing_log(tmp_path: Path) -> None:
    """A second poll returns only what was added since, also in a new segment."""
    fill(tmp_path, 3, segment_bytes=200)
    reader = Reader(tmp_path)
    assert len(list(reader.poll())) == 3
    assert list(reader.poll()) == []
    fill(tmp_path, 3, segment_bytes=200, start=3)
    assert [one.number for one in reader.poll() if isinstance(one, Entry)] == [4, 5, 6]


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


def test_unfinished_tail_is_reported_and_not_touched_by_readers(tmp_path: Path) -> None:
    """A reader tells of an unfinished line and leaves it for the writer to set aside."""
    fill(tmp_path, 2)
    path = tmp_path / FIRST
    path.write_bytes(path.read_bytes()[:-5])
    size = path.stat().st_size
    assert read(tmp_path) == ([canonical({"n": 0})], ["truncated"])
    assert path.stat().st_size == size


def test_finished_line_that_is_wrong_stays(tmp_path: Path) -> None:
    """A wrong finished line is never set aside: it is reported for ever, and the log goes on."""
    fill(tmp_path, 2)
    path = tmp_path / FIRST
    path.write_bytes(path.read_bytes() + b"garbage\n")
    fill(tmp_path, 1, start=9)
    entries, codes = read(tmp_path)
    assert entries == [canonical({"n": n}) for n in (0, 1, 9)]
    assert codes == ["unreadable-entry"]
    assert not list(tmp_path.glob("*.torn"))


def test_place_names_file_offset_entry_and_unit() -> None:
    """A place reads as one phrase."""
    assert str(Place("f", 7, 2, "u")) == "f, byte 7, entry 2, unit u"
    assert str(Place("f")) == "f, byte 0"


_HOLD = """
import sys
from pathlib import Path
from fleet.evidence.segments import Writer
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
