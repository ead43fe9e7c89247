"""The one home of SQLite: durable, versioned, shared between threads and processes.

The stores and the node's journal are such databases. What each of them needs is decided here:

1. WAL with ``synchronous=FULL``: a commit that returned survives a power cut.
2. Autocommit, and one explicit `Database.transaction` (BEGIN IMMEDIATE). A deferred one that reads
   first and writes later fails at once with BUSY_SNAPSHOT whatever the timeout (case B22).
3. One connection behind a lock: threads never see each other's open transaction.
4. A lock of another process is waited for with jitter up to ``timeout_s``, then `Locked` is raised.
5. A file of a newer version or of another program is refused before it is written to; an upgrade
   keeps a copy of the file beside it and happens whole or not at all.
6. No ``sqlite3`` exception leaves this module.
"""

from __future__ import annotations

import os
import random
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar
from urllib.parse import quote

from fleet.core import errors

Value: TypeAlias = str | int | float | bytes | None
Parameters: TypeAlias = Sequence[Value] | Mapping[str, Value]
Row: TypeAlias = sqlite3.Row
"""One row of an answer: by index, by column name, or unpacked."""
_T = TypeVar("_T")
_JITTER = random.SystemRandom()
_PAUSE_S = (0.001, 0.015)  # between two tries for a lock; a durable commit takes about as long


class Unusable(errors.Permanent):
    """The file cannot be used as it is. Field ``path``."""


class Corrupt(Unusable):
    """The file is damaged, truncated or no database at all."""

    default_remedy = "keep the file for inquiry, move it away, and restore or start anew"


class Foreign(Unusable):
    """The file is a database of another program; it was not touched."""

    default_remedy = "name the right file; this one was not touched"


class Newer(Unusable):
    """The file was written by a later version of this software; it was not touched."""

    default_remedy = "run the version that wrote it, or a later one; the file was not touched"


class Unreadable(Unusable):
    """The file cannot be opened, read or written (permission, I/O, replaced)."""

    default_remedy = "repair access to the file named; nothing was changed"


class StatementFailed(errors.Permanent):
    """A constraint was broken or the statement is wrong: this program is at fault, not the file."""

    default_remedy = "nothing was changed; report this as a defect"


class Locked(errors.StoreUnavailable):
    """Another process kept the database locked for the whole time allowed; nothing was changed."""

    default_remedy = "retry; if it persists, look for a stopped process that has the file open"


class Full(errors.StoreUnavailable):
    """The file system has no room: nothing was changed, and the file is whole. Field ``path``."""

    default_remedy = "free space on the file system of the file named; then the same call goes on"


@dataclass(frozen=True, slots=True)
class Schema:
    """What the file must be. `application_id`: a positive 31-bit number that marks our program."""

    application_id: int
    steps: tuple[str, ...]
    """``steps[i]`` is the SQL script from version i to i + 1; never edited once released."""

    @property
    def version(self) -> int:
        """Version of a file made by this program."""
        return len(self.steps)


class Database:
    """An open database; made by `open_database`. Safe to use from several threads.

    `execute` and `query` outside a transaction are each one transaction of their own.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, *, timeout_s: float) -> None:
        self.path = path
        self.created = False
        """Whether this opening found no file, or an empty one, and made the schema."""
        self._connection = connection
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._inode = _inode(path)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All statements inside commit together or not at all; other writers wait meanwhile.

        Raises `Locked` when the turn did not come within ``timeout_s``. When COMMIT itself fails
        with `Unreadable` the outcome is unknown until the file is opened again.
        """
        with self._exclusive():
            if self._is_open():
                raise StatementFailed(f"{self.path}: this thread has a transaction open already")
            self.check_place()
            self.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.execute("COMMIT")
            finally:
                if self._is_open():
                    with suppress(sqlite3.Error):
                        self._connection.execute("ROLLBACK")

    def check_place(self) -> None:
        """Raises `Unreadable`, field ``replaced``, unless the open file is the one at its path."""
        if _inode(self.path) != self._inode:
            detail = f"{self.path} was removed or replaced while it was open"
            remedy = "restart the service, so that it reads the file that is there now"
            raise Unreadable(detail, remedy=remedy, path=str(self.path), replaced=True)

    def execute(self, statement: str, parameters: Parameters = ()) -> int:
        """Run one statement; returns the rows changed, which conditional writes must check."""
        with self._exclusive():
            return self._run(lambda: self._connection.execute(statement, parameters)).rowcount

    def execute_many(self, statement: str, rows: Iterable[Parameters]) -> int:
        """Run one statement for each row, inside a transaction; returns the rows changed."""
        listed = list(rows)
        with self._exclusive():
            return self._run(lambda: self._connection.executemany(statement, listed)).rowcount

    def query(self, statement: str, parameters: Parameters = ()) -> list[Row]:
        """All rows of one statement."""
        with self._exclusive():
            return self._run(lambda: self._connection.execute(statement, parameters).fetchall())

    def integrity(self) -> None:
        """Read all pages. Raises `Corrupt` with the first findings."""
        findings = [str(row[0]) for row in self.query("PRAGMA quick_check(5)")]
        if findings != ["ok"]:
            raise Corrupt(f"{self.path} is damaged: {'; '.join(findings)}", path=str(self.path))

    def backup(self, target: Path) -> None:
        """Write a consistent copy to `target`, fsynced. A plain copy would miss the WAL."""
        with self._exclusive():
            self._run(lambda: _copy(self.path, target))

    def close(self) -> None:
        """Close the file; later use raises `StatementFailed`. Closing twice is harmless."""
        with self._lock:
            self._connection.close()

    def _is_open(self) -> bool:
        return self._run(lambda: self._connection.in_transaction)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=self._timeout_s):
            raise Locked(f"another thread kept {self.path} for {self._timeout_s} s")
        try:
            yield
        finally:
            self._lock.release()

    def _run(self, act: Callable[[], _T]) -> _T:
        return _patiently(act, path=self.path, timeout_s=self._timeout_s)


def open_database(
    path: Path, *, schema: Schema, timeout_s: float, read_only: bool = False
) -> Database:
    """Open, and make or upgrade, the database at `path`.

    `timeout_s` is how long a statement waits for other processes. With `read_only` nothing is made
    or upgraded, and an older version is read as it is. Raises `Corrupt`, `Foreign`, `Newer`,
    `Unreadable`, `Full` or `Locked`; in the first three cases the file is unchanged.
    """
    if _has_content(path):
        _probe(path, schema, timeout_s)
    elif read_only:
        raise Unreadable(f"{path} does not exist or is empty", path=str(path))
    else:
        _make_file(path)
    database = Database(_connect(path, read_only=read_only), path, timeout_s=timeout_s)
    try:
        if not read_only:
            _set_durable(database)
            database.created = _upgrade(database, schema)
        database.execute("PRAGMA foreign_keys=ON")
        _check_identity(path, schema, database.query(_IDENTITY)[0])
    except BaseException:
        database.close()
        raise
    return database


def _set_durable(database: Database) -> None:
    mode = database.query("PRAGMA journal_mode=WAL")[0][0]
    if mode != "wal":
        raise Unreadable(
            f"the file system of {database.path} cannot share memory between processes",
            remedy="put the state directory on a local file system",
            path=str(database.path),
        )
    database.execute("PRAGMA synchronous=FULL")


def _upgrade(database: Database, schema: Schema) -> bool:
    """Bring the file to the schema's version; whether it was made from nothing."""
    if int(database.query("PRAGMA user_version")[0][0]) >= schema.version:
        return False
    with database.transaction():
        # Another process may have upgraded while this one waited for its turn.
        version = int(database.query("PRAGMA user_version")[0][0])
        if version >= schema.version:
            return False
        if version > 0:
            database.backup(database.path.with_name(f"{database.path.name}.v{version}.bak"))
        for step in schema.steps[version:]:
            for statement in _statements(step):
                database.execute(statement)
        database.execute(f"PRAGMA user_version={schema.version}")
        database.execute(f"PRAGMA application_id={schema.application_id}")
    return version == 0


def _statements(script: str) -> Iterator[str]:
    # `executescript` would commit the open transaction first.
    statement = ""
    for piece in script.split(";"):
        statement += piece + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _probe(path: Path, schema: Schema, timeout_s: float) -> None:
    """Judge an existing file through a read-only connection, which never checkpoints into it."""
    with closing(_connect(path, read_only=True)) as connection:
        try:
            row = _patiently(
                lambda: connection.execute(_IDENTITY).fetchone(), path=path, timeout_s=timeout_s
            )
        except _HotJournal:
            return  # Crashed while being made; the real opening rolls it back, then checks.
    _check_identity(path, schema, row)


_IDENTITY = (
    "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)"
    " FROM pragma_application_id, pragma_user_version"
)


def _check_identity(path: Path, schema: Schema, row: Row) -> None:
    application, version, tables = row
    if (application, version, tables) == (0, 0, 0):
        return
    if application != schema.application_id:
        detail = f"application id {application:#x}, expected {schema.application_id:#x}"
        raise Foreign(f"{path} belongs to another program ({detail})", path=str(path))
    if version > schema.version:
        raise Newer(f"{path} has version {version}, we know up to {schema.version}", path=str(path))
    if version == 0:
        raise Corrupt(f"{path} is marked as ours but has no version", path=str(path))


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?mode={'ro' if read_only else 'rw'}"
    try:
        connection = sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, timeout=0.0
        )
    except sqlite3.Error as error:
        raise _converted(error, path) from error
    connection.row_factory = sqlite3.Row
    return connection


def _has_content(path: Path) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Unreadable(f"cannot look at {path}: {error}", path=str(path)) from error
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable(f"{path} is no regular file", path=str(path))
    return status.st_size > 0


def _make_file(path: Path) -> None:
    """An empty private file (the WAL inherits its mode), whose name survives a power cut."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        _sync(path.parent)
    except OSError as error:
        raise Unreadable(f"cannot make {path}: {error}", path=str(path)) from error


def _copy(source: Path, target: Path) -> None:
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        # A reader of its own: it sees the last commit also while our transaction is open.
        with closing(_connect(source, read_only=True)) as reader:
            draft.unlink(missing_ok=True)
            with closing(sqlite3.connect(draft)) as writer:
                reader.backup(writer)
        draft.chmod(0o600)
        _sync(draft)
        draft.replace(target)
        _sync(target.parent)
    except OSError as error:
        raise Unreadable(f"cannot write the copy {target}: {error}", path=str(target)) from error
    finally:
        draft.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _inode(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        return (status := path.stat()).st_dev, status.st_ino
    return None


class _HotJournal(Unreadable):
    """A read-only opening met a rollback journal that only a writer may apply."""


def _patiently(act: Callable[[], _T], *, path: Path, timeout_s: float) -> _T:
    """Run `act`, again while another process holds the lock, for `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return act()
        except sqlite3.Error as error:
            if _code(error) & 0xFF not in _WAITING or time.monotonic() >= deadline:
                raise _converted(error, path) from error
        except OverflowError as error:
            raise StatementFailed(f"a number is too large for {path}: {error}") from error
        except UnicodeDecodeError as error:  # in SQLite's own message, of a name that is no text
            raise Corrupt(f"{path} is damaged: {error}", path=str(path)) from error
        left = max(deadline - time.monotonic(), 0.0) / timeout_s
        time.sleep(max(_PAUSE_S[0], _JITTER.uniform(*_PAUSE_S) * left**4))  # in vain: more often


_WAITING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR_SHORT_READ)
_SAID = ("Could not decode to UTF-8", "unsupported file format")  # damage, with no code of its own
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
_OURS = (0, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISUSE)  # 0: no code


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0) or 0)


def _converted(error: sqlite3.Error, path: Path) -> errors.FleetError:
    code, primary = _code(error), _code(error) & 0xFF
    if primary in _WAITING:
        return Locked(f"{path} stayed locked by another process", path=str(path))
    if primary in _DAMAGED or code in _DAMAGED or str(error).startswith(_SAID):
        return Corrupt(f"{path} is damaged or no database: {error}", path=str(path))
    if code in _NO_ROOM:
        return Full(f"there is no room for {path}: {error}", path=str(path))
    if primary in _OURS:
        return StatementFailed(f"statement failed on {path}: {error}", path=str(path))
    if code == sqlite3.SQLITE_READONLY_ROLLBACK:
        return _HotJournal(f"{path} has an unfinished transaction", path=str(path))
    return Unreadable(f"cannot use {path}: {error}", path=str(path))
