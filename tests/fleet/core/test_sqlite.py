"""The home of SQLite: durable, versioned, never `locked`."""

from __future__ import annotations

import pickle
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from fleet.core import errors, sqlite
from fleet.core.sqlite import Database, Schema, open_database

FIRST = "CREATE TABLE word (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE) STRICT;"
SECOND = """
-- a comment; with a semicolon
ALTER TABLE word ADD COLUMN length INTEGER NOT NULL DEFAULT 0;
CREATE TABLE log (id INTEGER PRIMARY KEY, text TEXT) STRICT;
CREATE TRIGGER noted AFTER INSERT ON word BEGIN
  INSERT INTO log (text) VALUES (new.text);
  UPDATE word SET length = length(new.text) WHERE id = new.id;
END;
UPDATE word SET length = length(text);
"""
V1 = Schema(application_id=0x77777777, steps=(FIRST,))
V2 = Schema(application_id=0x77777777, steps=(FIRST, SECOND))
OTHER = Schema(application_id=0x11111111, steps=(FIRST,))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "words.db"


def opened(path: Path, schema: Schema = V1, timeout_s: float = 5.0) -> Database:
    return open_database(path, schema=schema, timeout_s=timeout_s)


def words(database: Database) -> list[str]:
    return [row["text"] for row in database.query("SELECT text FROM word ORDER BY id")]


def add(database: Database, text: str) -> int:
    return database.execute("INSERT INTO word (text) VALUES (?)", (text,))


def test_a_new_file_is_durable_and_private(path: Path) -> None:
    """E5: WAL, synchronous FULL, foreign keys, mode 0600; and it knows that it is new."""
    with closing(opened(path)) as database:
        assert database.created
        assert database.query("PRAGMA journal_mode")[0][0] == "wal"
        assert database.query("PRAGMA synchronous")[0][0] == 2
        assert database.query("PRAGMA foreign_keys")[0][0] == 1
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.with_name("words.db-wal").stat().st_mode & 0o777 == 0o600
    with closing(opened(path)) as again:
        assert not again.created


def test_a_transaction_is_whole_or_nothing(path: Path) -> None:
    """E5: an error inside a transaction leaves nothing of it, and the next one works."""
    with closing(opened(path)) as database:
        with pytest.raises(sqlite.StatementFailed), database.transaction():
            database.execute_many("INSERT INTO word (text) VALUES (?)", [("a",), ("b",), ("a",)])
        with database.transaction():
            add(database, "kept")
            add(database, "too")
        assert words(database) == ["kept", "too"]


def test_transactions_do_not_nest(path: Path) -> None:
    """B22: an inner block that seemed to commit would be undone with the outer one."""
    with closing(opened(path)) as database:
        outer, inner = database.transaction(), database.transaction()
        with pytest.raises(sqlite.StatementFailed, match="already"), outer, inner:
            add(database, "inner")
        assert words(database) == []


def test_a_broken_constraint_is_our_error(path: Path) -> None:
    """DESIGN 8: errors of the library never cross the module, whatever goes wrong."""
    with closing(opened(path)) as database:
        add(database, "one")
        for act in (
            lambda: add(database, "one"),
            lambda: database.query("SELECT * FROM nothing"),
            lambda: database.execute("SELECT ?", (1, 2)),
            lambda: database.execute("SELECT ?", (2**64,)),
        ):
            with pytest.raises(sqlite.StatementFailed):
                act()
    with pytest.raises(sqlite.StatementFailed):
        words(database)
    with pytest.raises(sqlite.StatementFailed), database.transaction():
        pass
    database.close()


def test_writes_say_how_many_rows_they_changed(path: Path) -> None:
    """B22: a conditional update that matches nothing is visible to its caller."""
    with closing(opened(path)) as database:
        assert add(database, "one") == 1
        assert database.execute("UPDATE word SET text = 'x' WHERE id = 99") == 0
        with database.transaction():
            many = [("two",), ("three",)]
            assert database.execute_many("INSERT INTO word (text) VALUES (?)", many) == 2


def test_threads_never_see_an_open_transaction(path: Path) -> None:
    """B22: one connection serves all threads; a reader waits for the writer's end."""
    with closing(opened(path)) as database, ThreadPoolExecutor(1) as pool:
        with database.transaction():
            add(database, "one")
            asked = threading.Event()

            def read() -> list[str]:
                asked.set()
                return words(database)

            reader = pool.submit(read)
            asked.wait(5)
            add(database, "two")
            assert not reader.done()
        assert reader.result(5) == ["one", "two"]


def test_read_then_write_by_many_threads_and_connections_loses_nothing(path: Path) -> None:
    """B22: read, then write in one transaction never conflicts and never loses an update."""
    databases = [opened(path, timeout_s=30.0) for _ in range(4)]
    databases[0].execute("INSERT INTO word (id, text) VALUES (1, '0')")

    def bump(number: int) -> None:
        database = databases[number % 4]
        with database.transaction():
            value = int(database.query("SELECT text FROM word")[0][0])
            database.execute("UPDATE word SET text = ?", (str(value + 1),))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(bump, range(80)))
    assert words(databases[0]) == ["80"]
    for database in databases:
        database.close()


def test_a_lock_held_too_long_is_said_so(path: Path) -> None:
    """B22: after the time allowed the caller gets a retryable error of the store, not `locked`."""
    with closing(opened(path)) as holder, closing(opened(path, timeout_s=0.05)) as waiter:
        with holder.transaction():
            with pytest.raises(errors.StoreUnavailable) as caught, waiter.transaction():
                add(waiter, "never")
            assert words(waiter) == []
        assert isinstance(pickle.loads(pickle.dumps(caught.value)), sqlite.Locked)  # noqa: S301
        with waiter.transaction():
            add(waiter, "now")


def test_a_killed_writer_leaves_no_lock(path: Path) -> None:
    """B22: kill -9 inside a transaction undoes it and blocks nobody."""
    opened(path).close()
    script = (
        "import sys; from pathlib import Path\n"
        "from tests.fleet.core.test_sqlite import opened, add\n"
        "database = opened(Path(sys.argv[1]))\n"
        "with database.transaction():\n"
        "    add(database, 'ghost'); print('in', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        process.kill()
    with closing(opened(path)) as database:
        with database.transaction():
            add(database, "real")
        assert words(database) == ["real"]
        database.integrity()


def test_an_upgrade_keeps_the_content_and_a_copy(path: Path) -> None:
    """Issue 2: upgrades are explicit steps, one transaction, after a copy of the file."""
    with closing(opened(path)) as database:
        add(database, "four")
    with closing(opened(path, V2)) as database:
        assert not database.created
        add(database, "seventh")
        assert [row["length"] for row in database.query("SELECT length FROM word")] == [4, 7]
        assert database.query("SELECT text FROM log")[0][0] == "seventh"
    copy = path.with_name("words.db.v1.bak")
    with closing(opened(copy)) as database:
        assert words(database) == ["four"]
    assert sorted(one.name for one in path.parent.glob(".*")) == []


def test_a_failing_upgrade_changes_nothing(path: Path) -> None:
    """Issue 2: an upgrade happens whole or not at all."""
    with closing(opened(path)) as database:
        add(database, "one")
    broken = Schema(V1.application_id, (FIRST, f"{SECOND} DROP TABLE nowhere;"))
    with pytest.raises(sqlite.StatementFailed):
        opened(path, broken)
    with closing(opened(path)) as database:
        assert words(database) == ["one"]
        assert database.query("SELECT count(*) FROM sqlite_master WHERE name='log'")[0][0] == 0


def test_many_openers_make_one_schema(path: Path) -> None:
    """E5: processes that start together find one file, made once."""
    with ThreadPoolExecutor(6) as pool:
        databases = list(pool.map(lambda _: opened(path, V2, 30.0), range(6)))
    assert sum(database.created for database in databases) == 1
    for database in databases:
        database.close()


def _newer(path: Path) -> None:
    opened(path, V2).close()


def _foreign(path: Path) -> None:
    opened(path, OTHER).close()


def _unmarked(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")


def _text(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("this is no database, but long enough to be looked at as one\n" * 100)


def _truncated(path: Path) -> None:
    with closing(opened(path)) as database:
        for number in range(500):
            add(database, f"word {number}")
    path.write_bytes(path.read_bytes()[:4096])


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (_newer, sqlite.Newer),
        (_foreign, sqlite.Foreign),
        (_unmarked, sqlite.Foreign),
        (_text, sqlite.Corrupt),
        (_truncated, sqlite.Corrupt),
    ],
)
def test_a_file_that_is_not_ours_is_left_as_it_is(
    path: Path, make: Callable[[Path], None], kind: type[errors.FleetError]
) -> None:
    """Issue 2: newer, foreign and damaged files are told apart, and not one byte is changed."""
    make(path)
    before = path.read_bytes()
    with pytest.raises(kind, match=str(path)), closing(opened(path)) as database:
        database.integrity()
    assert path.read_bytes() == before


def test_damage_inside_is_found(path: Path) -> None:
    """Issue 2: a changed page is reported by the integrity check with what was found."""
    with closing(opened(path)) as database, database.transaction():
        for number in range(2000):
            add(database, f"word {number}")
    raw = bytearray(path.read_bytes())
    raw[3 * 4096 : 3 * 4096 + 400] = b"\xff" * 400
    path.write_bytes(raw)
    with closing(opened(path)) as database, pytest.raises(sqlite.Corrupt):
        database.integrity()


def test_what_cannot_be_opened_is_unreadable(tmp_path: Path) -> None:
    """Issue 2: a directory, or a path through a file, is an access problem, not damage."""
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "words.db"):
        with pytest.raises(sqlite.Unreadable):
            opened(path)


def test_a_full_disk_passes_when_space_is_freed(path: Path) -> None:
    """Promise 5: no room is retryable, undoes the transaction, names the remedy, is no damage."""
    with closing(opened(path)) as database:
        add(database, "before")
        pages = database.query("PRAGMA page_count")[0][0]
        database.query(f"PRAGMA max_page_count={pages}")
        rows = [("undone",), ("x" * 20_000,)]
        with pytest.raises(sqlite.Full, match="free space") as caught, database.transaction():
            database.execute_many("INSERT INTO word (text) VALUES (?)", rows)
        assert isinstance(caught.value, errors.Retryable)
        assert not isinstance(caught.value, sqlite.Unusable)
        assert caught.value.path == str(path)
        assert words(database) == ["before"]
        database.query("PRAGMA max_page_count=1000000")
        add(database, "x" * 20_000)
        database.integrity()


def test_a_read_only_opening_makes_nothing(path: Path) -> None:
    """Issue 2: reading works beside a writer, writes and missing files are refused."""
    with pytest.raises(sqlite.Unreadable):
        open_database(path, schema=V1, timeout_s=1.0, read_only=True)
    assert not path.exists()
    with closing(opened(path)) as database:
        add(database, "one")
        with closing(open_database(path, schema=V2, timeout_s=1.0, read_only=True)) as reader:
            assert words(reader) == ["one"]
            with pytest.raises(sqlite.Unreadable):
                add(reader, "two")


def test_a_backup_has_what_a_plain_copy_misses(path: Path, tmp_path: Path) -> None:
    """B22: a copy taken through the database includes the write-ahead log."""
    with closing(opened(path)) as database:
        add(database, "one")
        database.backup(tmp_path / "copy.db")
        with closing(opened(tmp_path / "copy.db")) as copy:
            assert words(copy) == ["one"]


def test_a_removed_file_is_noticed(path: Path) -> None:
    """Promise 5: what would be written into a deleted file is not written at all."""
    with closing(opened(path)) as database:
        path.unlink()
        with pytest.raises(sqlite.Unreadable, match="removed"), database.transaction():
            add(database, "lost")


def test_nobody_spins_for_a_lock(path: Path) -> None:
    """Promise 7: who waited longer looks more often, and never without a pause: others commit."""
    busy = sqlite3.OperationalError("locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    looks = []

    def act() -> None:
        looks.append(1)
        raise busy

    with pytest.raises(sqlite.Locked):
        sqlite._patiently(act, path=path, timeout_s=0.2)
    assert 10 < len(looks) <= 201
