"""Opening a journal so that trouble never stops the service and is never taken for "all free".

Corrupt, truncated, foreign, restored or swapped: the file is kept under a new name, a new
journal starts, and the reasons are returned for the service to show. A missing journal is
the same as a damaged one: the new journal holds every unit until it is proven free. Where single
rows are damaged, what they were for is held and the rest stands. Trouble that is not the file's own
(full disk, a lock) is raised: a good journal is never put away for it. So is a newer version's: it
is whole, and whoever goes forward again needs all that it says (F43). And who only looks decides
nothing: any trouble is told to him, and the files stay as they are.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fleet.core import errors, sqlite
from fleet.core.disk import read_regular
from fleet.core.model import NodeName
from fleet.node.journal import mirror, schema, witness
from fleet.node.journal.journal import Journal
from fleet.node.journal.repair import repair

TIMEOUT_S = 10.0
PAGE_BYTES = 4096
"""Page size of every file `fleet.core.sqlite` makes (the library's default)."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node's journal lives and whose it is."""

    path: Path
    witness: Path
    node: NodeName
    machine_id: str

    @property
    def mirror(self) -> Path:
        """The copy of quarantine reasons."""
        return self.path.with_name("quarantine.json")


@dataclass(frozen=True, slots=True)
class Opened:
    """An open journal; `troubles` says why it is new or degraded, `fresh` whether it is new."""

    journal: Journal
    fresh: bool
    troubles: tuple[str, ...] = ()


def open_or_set_aside(place: Place, *, now: float, looks: bool = False) -> Opened:
    """Open the journal of `place`. Raises `sqlite.Unreadable`, `sqlite.Locked`, `sqlite.Newer`.

    `looks`: nothing is set aside or repaired: trouble is `JournalUnreadable` instead.
    """
    seen = witness.read(place.witness)
    missing = not place.path.exists() or place.path.stat().st_size == 0
    if missing and looks and seen is not None and seen.machine_id == place.machine_id:
        raise _untouched(f"the journal is missing; commit {seen.sequence} of it was witnessed")
    try:
        journal = _open(place)
        trouble = "" if missing else _contradiction(journal, place, seen)
        if missing and seen is not None and seen.machine_id == place.machine_id:
            trouble = f"the journal is missing; commit {seen.sequence} of it was witnessed"
    except sqlite.Newer as error:
        raise sqlite.Newer(
            error.detail,
            remedy="run the version that wrote it, or a later one; it holds what runs on this node,"
            " and was not touched",
            path=str(place.path),
        ) from error
    except (sqlite.Corrupt, sqlite.Foreign, sqlite.Unreadable) as error:
        if isinstance(error, sqlite.Unreadable) and _is_readable(place.path):
            raise
        trouble, journal = error.detail, None
    if journal is not None and (missing or not trouble):
        troubles = (trouble,) if trouble else ()
        try:
            return Opened(
                journal, missing, (*troubles, *_repaired(journal, place, now=now, looks=looks))
            )
        except BaseException:
            journal.close()
            raise
    if journal is not None:
        journal.close()
    if looks:
        raise _untouched(trouble)
    kept = _set_aside(place.path, now=now)
    return Opened(
        _open(place), fresh=True, troubles=(f"{trouble}; the journal was set aside as {kept}",)
    )


def _repaired(journal: Journal, place: Place, *, now: float, looks: bool) -> tuple[str, ...]:
    if not journal.damage:
        return ()
    if looks:
        raise _untouched("; ".join(damage.why for damage in journal.damage))
    with suppress(errors.FleetError):  # for inquiry only
        _copy_aside(place.path, now=now)
    return repair(journal, mirror.read(place.mirror).reasons, now=now)


def _untouched(trouble: str) -> errors.JournalUnreadable:
    return errors.JournalUnreadable(
        f"{trouble}; looking changes nothing",
        remedy="start the node's service: it keeps the file, and holds what is not known any more",
    )


def _open(place: Place) -> Journal:
    _check_whole_pages(place.path)
    database = sqlite.open_database(place.path, schema=schema.SCHEMA, timeout_s=TIMEOUT_S)
    try:
        database.integrity()
        journal = Journal(database)
        if not journal.id:
            _require_new(journal)
            with journal.commit() as commit:
                commit.set_meta("journal_id", uuid.uuid4().hex)
                commit.set_meta("node", place.node)
                commit.set_meta("machine_id", place.machine_id)
    except BaseException:
        database.close()
        raise
    return journal


def _require_new(journal: Journal) -> None:
    """Only one that holds nothing may be given an identity."""
    if journal.units or journal.claims or journal.sequence:
        raise sqlite.Corrupt(f"{journal.path} has lost its identity", path=str(journal.path))


def _check_whole_pages(path: Path) -> None:
    """SQLite reads a last page that was cut short as if zeros followed; we do not."""
    log = path.with_name(path.name + "-wal")
    if not path.is_file() or (log.exists() and log.stat().st_size):
        return
    size = path.stat().st_size
    if size % PAGE_BYTES:
        raise sqlite.Corrupt(f"{path} ends in the middle of a page ({size} B)", path=str(path))


def _contradiction(journal: Journal, place: Place, seen: witness.Witness | None) -> str:
    if journal.meta.get("node") != place.node:
        return f"the journal is of node {journal.meta.get('node')!r}, this is {place.node!r}"
    if journal.meta.get("machine_id") != place.machine_id:
        return "the journal was written on another machine"
    if seen is None:
        return ""
    return witness.contradicts(
        seen,
        journal_id=journal.id,
        sequence=journal.sequence,
        machine_id=place.machine_id,
    )


def _is_readable(path: Path) -> bool:
    """Whether the file itself can be read: then the trouble is elsewhere (full disk, locks)."""
    try:
        read_regular(path, most_bytes=path.stat().st_size, length=1, follow_links=True)
    except OSError:
        return False
    return True


def _copy_aside(path: Path, *, now: float) -> None:
    """Keep the file as it is, for inquiry, before rows of it are dropped."""
    database = sqlite.open_database(path, schema=schema.SCHEMA, timeout_s=TIMEOUT_S)
    try:
        database.backup(_aside(path, now=now))
    finally:
        database.close()


def _set_aside(path: Path, *, now: float) -> Path:
    """Rename the file and its companions, never onto an existing name."""
    kept = _aside(path, now=now)
    for suffix in ("-wal", "-shm"):
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            companion.rename(kept.with_name(kept.name + suffix))
    path.rename(kept)
    return kept


def _aside(path: Path, *, now: float) -> Path:
    """A name that nothing has yet."""
    number = 0
    while (kept := path.with_name(f"{path.name}.aside-{int(now)}-{number}")).exists():
        number += 1
    return kept
