"""The node's journal and what lies beside it: damaged files are recovered from, never "free"."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.core.claim_states import Claim, ClaimState
from fleet.core.model import (
    BootId,
    ClaimUid,
    NodeName,
    OperationId,
    Reason,
    Source,
    State,
    Token,
    Unit,
    UnitId,
    Uuid,
)
from fleet.node.journal import mirror, witness
from fleet.node.journal.journal import Journal, OperationRow, WorkerRow
from fleet.node.journal.startup import Opened, Place, open_or_set_aside
from tests.fuzz.mutations import DEPTH, damaged, documents, spelled, texts
from tests.fuzz.running import bounded, fuzzed

REASON = Reason(
    "ecc", Source.HEALTH, liftable=True, detail="2 errors", remedy="replace it", since=9
)
UNITS = (
    Unit(UnitId("GPU-1/a"), State.QUARANTINED, frozenset({REASON}), floor=Token(1, 4)),
    Unit(
        UnitId("GPU-2/a"), State.IN_USE, floor=Token(1, 5), token=Token(1, 5), claim=ClaimUid("c1")
    ),
    Unit(UnitId("GPU-3/a"), State.DIRTY, boot_id=BootId("b")),
)
CLAIM = Claim(
    ClaimUid("c1"), ClaimState.PREPARED, (Uuid("GPU-2"),), (UnitId("GPU-2/a"),), Token(1, 5),
    BootId("b"), namespace="n", name="c",
)  # fmt: skip
WORKER = WorkerRow("w1", Uuid("GPU-3"), (UnitId("GPU-3/a"),), {"pid": 77, "started": 5}, 9.0)


@dataclass(frozen=True, slots=True)
class _Said:
    """Everything a journal says."""

    units: Any
    claims: Any
    meta: Any
    workers: Any
    unfinished: Any
    outbox: Any
    acts: Any
    tombstone: Any


def said(journal: Journal) -> _Said:
    """What a node reads of its journal when it starts."""
    return _Said(
        dict(journal.units),
        dict(journal.claims),
        dict(journal.meta),
        journal.workers(),
        journal.unfinished(),
        journal.outbox(),
        journal.acts(),
        journal.tombstone(ClaimUid("c0")),
    )


def place_in(directory: Path) -> Place:
    """Where a journal is."""
    return Place(directory / "journal.db", directory / "run" / "w", NodeName("n1"), "machine")


def written(directory: Path) -> _Said:
    """A journal with something in each table, closed and whole in one file."""
    where = place_in(directory)
    journal = open_or_set_aside(where, now=0.0).journal
    with journal.commit() as commit:
        for unit in UNITS:
            commit.put_unit(unit)
        commit.put_claim(CLAIM)
        commit.bury_claim(ClaimUid("c0"), Token(1, 3), 8.0)
        commit.put_worker(WORKER)
        commit.put_operation(OperationRow(OperationId("o1"), "scrub", "GPU-3", {"a": 1}, None, 7.0))
        commit.put_operation(OperationRow(OperationId("o2"), "scrub", "GPU-3", {"a": 1}, None, 7.0))
        commit.finish_operation(OperationId("o2"), {"ok": True}, 8.0)
        commit.enqueue("release", {"uid": "c0", "token": "1.3"}, 8.0)
        commit.record_act("adopt", "GPU-1", operator="o", detail="d", now=8.0)
        commit.set_meta("epoch", "1")
    found = said(journal)
    seen = witness.Witness(journal.id, journal.sequence, "machine", "", "boot")
    witness.write(where.witness, seen)
    journal.close()
    return found


@cache
def _good(place: Path) -> tuple[bytes, bytes, _Said]:
    directory = place / "good"
    directory.mkdir()
    kept = written(directory)
    where = place_in(directory)
    return where.path.read_bytes(), where.witness.read_bytes(), kept


def _fresh(place: Path, content: bytes) -> Place:
    directory = place / "tried"
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "run").mkdir(parents=True)
    where = place_in(directory)
    where.path.write_bytes(content)
    where.witness.write_bytes(_good(place)[1])
    return where


def _judge(where: Place, content: bytes, kept: _Said) -> None:
    """What was opened says what was written, or is new, with the damaged file beside it."""
    with bounded():
        opened = open_or_set_aside(where, now=5.0)
    try:
        if not opened.fresh:
            with bounded():
                found = said(opened.journal)
            assert (found, opened.troubles) == (kept, ())
            return
        _is_new(opened, where, content)
    finally:
        opened.journal.close()


def _is_new(opened: Opened, where: Place, content: bytes) -> None:
    """Nothing is known any more, that is said, and what there was is kept byte for byte."""
    assert not opened.journal.units
    assert len(opened.troubles) == 1
    assert opened.troubles[0].strip()
    if content:
        assert where.path.name in opened.troubles[0]
        aside = [p for p in where.path.parent.glob("journal.db.aside-5-*") if p.suffix[:1] != ".-"]
        assert content in [path.read_bytes() for path in aside]


@fuzzed(60)
@given(change=st.data())
def test_a_damaged_journal_says_what_was_written_or_is_set_aside(
    place: Path, change: st.DataObject
) -> None:
    """B07, promise 5: flipped bits, cuts and noise never lose a record without saying so."""
    good, _, kept = _good(place)
    content = change.draw(st.one_of(damaged(good, most=2), damaged(good), st.binary(max_size=5000)))
    _judge(_fresh(place, content), content, kept)


TABLES = {
    "meta": ("key", "value"),
    "units": ("id", "body", "digest"),
    "claims": ("uid", "body", "digest"),
    "workers": ("worker_id", "accelerator", "units", "identity", "at"),
    "operations": ("id", "kind", "target", "request", "result", "created_at"),
    "outbox": ("kind", "body", "attempts", "next_at"),
    "tombstones": ("uid", "token", "at"),
}
VALUES: tuple[Any, ...] = (
    "", "x", "{}", "[]", "null", "NaN", "-1", "9" * 5000, "[" * DEPTH, "\x00", b"", b"\xff\xfe",
    0, -1, 2**62, 1.5, float("inf"),
)  # fmt: skip


@fuzzed(60)
@given(table=st.sampled_from(sorted(TABLES)), value=st.sampled_from(VALUES), rest=st.data())
def test_a_changed_row_is_noticed_or_changes_nothing_else(
    place: Path, table: str, value: Any, rest: st.DataObject
) -> None:
    """B07, B20: a row of any other content is refused when the journal is opened, not at work."""
    good, _, kept = _good(place)
    where = _fresh(place, good)
    column = rest.draw(st.sampled_from(TABLES[table]))
    connection = sqlite3.connect(where.path, isolation_level=None)
    connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", (value,))  # noqa: S608 - our own names
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with bounded():
        opened = open_or_set_aside(where, now=5.0)
    try:
        if opened.fresh:
            assert opened.troubles
            assert not opened.journal.units
        else:
            with bounded():
                found = said(opened.journal)
            if not opened.troubles:
                assert (found.units, found.claims) == (kept.units, kept.claims)
            # What a damaged row was for is held, and nothing else is taken along (B72).
            assert found.units.keys() == kept.units.keys()
            changed = [name for name, unit in found.units.items() if unit != kept.units[name]]
            assert {found.units[name].state for name in changed} <= {State.HELD, State.QUARANTINED}
            for uid, claim in kept.claims.items():
                if found.claims.get(uid) != claim:
                    states = {found.units[unit].state for unit in claim.units}
                    assert states <= {State.HELD, State.QUARANTINED}
            opened.journal.epoch.bit_length()
    finally:
        opened.journal.close()


@fuzzed(60)
@given(content=texts(json.loads(json.dumps({
    "journal_id": "a", "sequence": 2, "machine_id": "machine", "node_uid": "", "boot_id": "b",
}))))  # fmt: skip
def test_a_damaged_witness_never_stops_the_node(place: Path, content: bytes) -> None:
    """B07: the witness only ever takes trust away; one that cannot be read takes none."""
    good, seen, _ = _good(place)
    where = _fresh(place, good)
    where.witness.write_bytes(content)
    with bounded():
        opened = open_or_set_aside(where, now=5.0)
        opened.journal.close()
    assert opened.fresh == bool(opened.troubles)
    if content == seen:
        assert not opened.fresh


@fuzzed(60)
@given(change=st.data())
def test_a_damaged_copy_of_reasons_is_told(place: Path, change: st.DataObject) -> None:
    """B07: the copy of quarantine reasons says them, or that it cannot be read; never "none"."""
    path = place / "quarantine.json"
    mirror.write(path, {UNITS[0].id: frozenset({REASON})})
    valid = json.loads(path.read_bytes())
    content = change.draw(st.one_of(texts(valid), documents(valid).map(spelled)))
    path.write_bytes(content)
    with bounded():
        found = mirror.read(path)
    if not found.trouble:
        for unit, reasons in found.reasons.items():
            mirror.write(path, {unit: reasons})  # they can be kept again
            assert mirror.read(path).reasons == ({unit: reasons} if reasons else {})
    else:
        assert str(path) in found.trouble


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _directory(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path)


def test_what_is_no_file_is_set_aside_and_told(tmp_path: Path) -> None:
    """B07, B20: a pipe, a directory or a loop in the journal's place is set aside and told."""
    kinds: tuple[Callable[[Path], None], ...] = (_pipe, _directory, _loop)
    for number, make in enumerate(kinds):
        directory = tmp_path / str(number)
        (directory / "run").mkdir(parents=True)
        where = place_in(directory)
        make(where.path)
        opened = open_or_set_aside(where, now=5.0)
        opened.journal.close()
        assert opened.fresh
        assert str(where.path) in opened.troubles[0]
        (aside,) = directory.glob("journal.db.aside-5-*")
        assert os.path.lexists(aside)
        make(where.witness)
        assert witness.read(where.witness) is None
        make(where.mirror)
        assert mirror.read(where.mirror).trouble
