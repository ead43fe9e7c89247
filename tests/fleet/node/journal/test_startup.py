"""B07: damage never stops the service, and is never taken for "all free"."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.core import errors, sqlite
from fleet.core.model import NodeName, State, Unit, UnitId
from fleet.node.journal import witness
from fleet.node.journal.startup import Opened, Place, open_or_set_aside

UNIT = Unit(id=UnitId("GPU-1/all"))


def place(directory: Path) -> Place:
    return Place(directory / "journal.db", directory / "run" / "w", NodeName("n1"), "machine")


def written(directory: Path) -> Place:
    """A journal with one unit, closed, with its witness."""
    where = place(directory)
    opened = open_or_set_aside(where, now=0.0)
    with opened.journal.commit() as commit:
        commit.put_unit(UNIT)
    journal = opened.journal
    witness.write(
        where.witness, witness.Witness(journal.id, journal.sequence, "machine", "", "boot")
    )
    journal.close()
    return where


def kept_files(directory: Path) -> list[Path]:
    """Journals set aside, without their WAL companions."""
    found = [path for path in directory.iterdir() if ".aside-5-" in path.name]
    return [path for path in found if not path.name.endswith(("-wal", "-shm"))]


def closed(opened: Opened) -> Opened:
    opened.journal.close()
    return opened


def test_a_good_journal_opens_as_it_is(tmp_path: Path) -> None:
    """No trouble, nothing set aside, the units are there."""
    opened = closed(open_or_set_aside(written(tmp_path), now=1.0))
    assert (opened.fresh, opened.troubles) == (False, ())
    assert opened.journal.units == {UNIT.id: UNIT}


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _last_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _nul(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


def _flip_meta(path: Path) -> None:
    """One bit of what the journal says of itself, which no digest covers."""
    raw = bytearray(path.read_bytes())
    at = raw.index(b"machine_idmachine")
    raw[at + 12] ^= 1
    path.write_bytes(raw)


def _foreign(path: Path) -> None:
    path.unlink()
    schema = sqlite.Schema(application_id=77, steps=("CREATE TABLE t (x)",))
    sqlite.open_database(path, schema=schema, timeout_s=5).close()


def _newer(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[60:64] = (99).to_bytes(4, "big")
    path.write_bytes(raw)


def _text(path: Path) -> None:
    path.write_text("[]")


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "precious").write_text("x")


MUTATIONS = [_truncate, _last_byte, _nul, _flip_meta, _foreign, _text, _directory]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__.strip("_"))
def test_a_damaged_journal_is_kept_under_a_new_name(
    tmp_path: Path, mutate: Callable[[Path], None]
) -> None:
    """B07: the file is kept, a new empty journal starts, the trouble names the file kept."""
    where = written(tmp_path)
    mutate(where.path)
    opened = closed(open_or_set_aside(where, now=5.0))
    (kept,) = kept_files(tmp_path)
    assert opened.fresh
    assert opened.journal.units == {}
    assert str(kept) in opened.troubles[0]


def files(directory: Path) -> dict[str, bytes]:
    """Everything in a directory and below but the companions that SQLite makes for a reader."""
    found = [path for path in directory.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in found
        if not path.name.endswith(("-wal", "-shm"))
    }


@pytest.mark.parametrize("looks", [True, False])
def test_f43_a_newer_journal_is_refused_and_never_set_aside(tmp_path: Path, *, looks: bool) -> None:
    """F43, B26: a journal of a newer version is refused with exit 2 and what to do, by whoever
    opens it, and no file is changed: going forward again finds all of it."""
    where = written(tmp_path)
    _newer(where.path)
    before = files(tmp_path)
    with pytest.raises(sqlite.Newer) as caught:
        open_or_set_aside(where, now=5.0, looks=looks)
    assert caught.value.exit_code == 2
    assert "version that wrote it" in caught.value.remedy
    assert files(tmp_path) == before


def _flip_record(path: Path) -> None:
    """One bit of one stored record: the pages stay valid, the record does not."""
    raw = bytearray(path.read_bytes())
    at = raw.index(b'"state":"HELD"')
    raw[at + 10] ^= 1
    path.write_bytes(raw)


def _witnessed_away(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    "mutate",
    [*MUTATIONS, _flip_record, _witnessed_away],
    ids=lambda mutate: mutate.__name__.strip("_"),
)
def test_f43_who_only_looks_sets_nothing_aside(
    tmp_path: Path, mutate: Callable[[Path], None]
) -> None:
    """F43: whoever only looks is told what is wrong with a journal, and changes nothing of it."""
    where = written(tmp_path)
    mutate(where.path)
    before = files(tmp_path)
    with pytest.raises(errors.JournalUnreadable) as caught:
        open_or_set_aside(where, now=5.0, looks=True)
    assert "service" in caught.value.remedy
    assert files(tmp_path) == before


def test_a_restored_journal_is_set_aside(tmp_path: Path) -> None:
    """DESIGN 4: a journal older than its witness is treated like a lost one."""
    where = written(tmp_path)
    shutil.copy(where.path, tmp_path / "backup")
    journal = open_or_set_aside(where, now=1.0).journal
    for _ in range(3):
        with journal.commit() as commit:
            commit.put_unit(UNIT)
    seen = witness.Witness(journal.id, journal.sequence, "machine", "", "boot")
    journal.close()
    witness.write(where.witness, seen)
    for name in ("journal.db-wal", "journal.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup", where.path)
    opened = closed(open_or_set_aside(where, now=2.0))
    assert opened.fresh
    assert "witness has seen commit" in opened.troubles[0]


def test_a_missing_journal_that_was_witnessed_is_trouble(tmp_path: Path) -> None:
    """B07: a missing file is no first run when somebody has seen it before."""
    where = written(tmp_path)
    where.path.unlink()
    opened = closed(open_or_set_aside(where, now=2.0))
    assert opened.fresh
    assert "missing" in opened.troubles[0]


def test_a_first_run_is_no_trouble(tmp_path: Path) -> None:
    """D5: nothing there and nothing witnessed: a new journal, whose units will start HELD."""
    opened = closed(open_or_set_aside(place(tmp_path), now=0.0))
    assert (opened.fresh, opened.troubles) == (True, ())


def test_setting_aside_twice_keeps_both_files(tmp_path: Path) -> None:
    """A second damaged file in the same second never overwrites the first."""
    where = written(tmp_path)
    for _ in range(2):
        _text(where.path)
        closed(open_or_set_aside(where, now=5.0))
    assert len(kept_files(tmp_path)) == 2


def test_another_nodes_journal_is_not_believed(tmp_path: Path) -> None:
    """B54: a journal copied from another node says nothing about the devices here."""
    where = written(tmp_path)
    other = Place(where.path, where.witness, NodeName("n2"), "machine")
    assert closed(open_or_set_aside(other, now=1.0)).fresh


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE meta SET value = 'x' WHERE key = 'sequence'",
        "UPDATE meta SET key = 'journal_ie' WHERE key = 'journal_id'",
        "UPDATE meta SET value = CAST(x'ff' AS TEXT) WHERE key = 'epoch'",
        "INSERT INTO workers VALUES ('w', 'GPU-1', '[]', '[]', 1.0)",
        "INSERT INTO workers VALUES ('w', 'GPU-1', '[', '{}', 1.0)",
        "ALTER TABLE tombstones RENAME COLUMN at TO au",
    ],
)
def test_b07_what_one_bit_makes_of_a_table_is_found_at_the_start(
    tmp_path: Path, change: str
) -> None:
    """B07: what no single row can be blamed for sets the journal aside: it is never passed over,
    and never found in the middle of the work."""
    where = changed(tmp_path, change)
    opened = closed(open_or_set_aside(where, now=5.0))
    assert opened.fresh
    assert str(where.path) in opened.troubles[0]
    assert opened.journal.units == {}
    assert len(kept_files(tmp_path)) == 1


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE units SET body = CAST(body AS BLOB)",
        "UPDATE units SET digest = CAST(digest AS BLOB)",
        "UPDATE units SET id = 'GPU-1/alm'",
        "INSERT INTO outbox (kind, body, created_at) VALUES ('release', 'null', 1.0)",
        "INSERT INTO outbox (kind, body, created_at, next_at) VALUES ('x', '{}', 1.0, 'x')",
        "INSERT INTO tombstones VALUES ('c', 'x', 1.0)",
    ],
)
def test_b07_what_one_bit_makes_of_a_row_is_found_at_the_start(tmp_path: Path, change: str) -> None:
    """B07, B72: a row that cannot be read, or lost its name, is told at the start, and what it was
    for is held; a copy of the file as it was is kept."""
    where = changed(tmp_path, change)
    opened = closed(open_or_set_aside(where, now=5.0))
    assert not opened.fresh
    assert len(opened.troubles) == 1
    assert {unit.state for unit in opened.journal.units.values()} == {State.HELD}
    assert list(opened.journal.units) == [UNIT.id]
    assert len(kept_files(tmp_path)) == 1


def changed(directory: Path, change: str) -> Place:
    """A journal that follows an epoch, with a change that nobody made."""
    where = written(directory)
    connection = sqlite3.connect(where.path, isolation_level=None)
    connection.execute("UPDATE meta SET value = '1' WHERE key = 'epoch'")
    connection.execute("INSERT OR IGNORE INTO meta VALUES ('epoch', '1')")
    connection.execute(change)
    connection.close()
    where.witness.unlink()
    return where


def test_b07_a_pipe_in_the_journals_place_is_set_aside_at_once(tmp_path: Path) -> None:
    """B07: nobody waits for what nobody writes."""
    where = place(tmp_path)
    os.mkfifo(where.path)
    opened = closed(open_or_set_aside(where, now=5.0))
    assert opened.fresh
    assert "is no regular file" in opened.troubles[0]
