"""The append-only files: order, framing, reading on behind damages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleet.core.errors import LedgerUnavailable
from fleet.evidence.dsse import canonical
from fleet.evidence.segments import Damage, Entry, Place, Reader, segment_paths
from fleet.evidence.writer import Writer
from tests.crowding import exhausted
from tests.fleet.evidence.logs import DISPLACED, FIRST, fill, read


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


@pytest.mark.parametrize("kind", sorted(DISPLACED.keys() - {"segment replaced by a copy"}))
def test_reader_notices_what_is_gone(tmp_path: Path, kind: str) -> None:
    """Promise 8: a reader knows when what it remembers is not on disk any more."""
    directory = tmp_path / "log"
    fill(directory, 2)
    reader = Reader(directory)
    assert len(list(reader.poll())) == 2
    assert not reader.lost()
    DISPLACED[kind](directory)
    assert reader.lost() == (kind != "lock removed")


def test_strange_segment_is_a_damage_only_for_verification(tmp_path: Path) -> None:
    """A segment that cannot be read stops the writer, and is reported by a lenient reader."""
    fill(tmp_path, 2)
    (tmp_path / "000000000002.jsonl").mkdir()
    os.mkfifo(tmp_path / "000000000003.jsonl")
    (tmp_path / "000000000004.jsonl").symlink_to("/dev/zero")
    with (tmp_path / "000000000005.jsonl").open("wb") as file:
        file.truncate(1 << 40)
    found = list(Reader(tmp_path, lenient=True).poll())
    assert [one.code for one in found if isinstance(one, Damage)] == ["unreadable-file"] * 4
    assert len([one for one in found if isinstance(one, Entry)]) == 2
    with pytest.raises(LedgerUnavailable):
        list(Reader(tmp_path).poll())
    with pytest.raises(LedgerUnavailable):
        Writer(tmp_path)


def test_a_directory_that_cannot_be_listed_is_not_an_empty_one(tmp_path: Path) -> None:
    """E3: a writer that took it for one would begin the ledger anew behind what is there."""
    fill(tmp_path / "log", 2)
    with exhausted(), pytest.raises(LedgerUnavailable, match="cannot be read"):
        segment_paths(tmp_path / "log")
    assert len(segment_paths(tmp_path / "log")) == 1
    assert segment_paths(tmp_path / "none") == []
