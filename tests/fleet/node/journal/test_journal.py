"""The journal: one transaction a commit, memory follows disk, bounded, upgradable."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core import sqlite
from fleet.core.claim_states import Claim, ClaimState
from fleet.core.model import (
    BootId,
    ClaimUid,
    OperationId,
    Reason,
    Source,
    State,
    Token,
    Unit,
    UnitId,
    Uuid,
)
from fleet.node.journal import records, schema
from fleet.node.journal.journal import Journal, OperationRow, WorkerRow

FIXTURES = Path(__file__).parent / "fixtures"
UNIT = Unit(
    id=UnitId("GPU-1/all"),
    state=State.QUARANTINED,
    reasons=frozenset({Reason("xid", Source.KERNEL, liftable=True, detail="79", since=5.0)}),
    floor=Token(7, 3),
    closed=True,
    boot_id=BootId("boot"),
    since=9.0,
)
CLAIM = Claim(
    uid=ClaimUid("c1"),
    state=ClaimState.PREPARED,
    devices=(Uuid("GPU-1"),),
    units=(UnitId("GPU-1/all"),),
    token=Token(7, 3),
    boot_id=BootId("boot"),
    consumers=("pod-1",),
    attributes={"pci": "0000:01:00.0"},
)


def cut_commit(journal: Journal) -> None:
    with journal.commit() as commit:
        commit.put_unit(replace(UNIT, state=State.CLEAN))
        commit.put_claim(CLAIM)
        raise RuntimeError("the process is cut here")


def opened(path: Path) -> Journal:
    return Journal(sqlite.open_database(path, schema=schema.SCHEMA, timeout_s=5))


def test_what_was_committed_is_read_back_after_a_restart(tmp_path: Path) -> None:
    """E5: units, claims, workers, operations and outbox survive the process."""
    journal = opened(tmp_path / "j.db")
    worker = WorkerRow("w1", Uuid("GPU-1"), (UNIT.id,), {"pid": 4}, 1.0)
    operation = OperationRow(OperationId("op"), "scrub", "GPU-1", {"a": 1}, None, 2.0)
    with journal.commit() as commit:
        commit.put_unit(UNIT)
        commit.put_claim(CLAIM)
        commit.put_worker(worker)
        commit.put_operation(operation)
        commit.enqueue("release", {"token": "7.3"}, 3.0)
    journal.close()
    again = opened(tmp_path / "j.db")
    assert again.units == {UNIT.id: UNIT}
    assert again.claims == {CLAIM.uid: CLAIM}
    assert again.workers() == [worker]
    assert again.unfinished() == [operation]
    assert [row.body for row in again.outbox()] == [{"token": "7.3"}]
    assert again.sequence == 1
    again.close()


def test_a_failed_commit_changes_neither_disk_nor_memory(tmp_path: Path) -> None:
    """Promise 7: an exception inside a commit undoes all of it."""
    journal = opened(tmp_path / "j.db")
    with journal.commit() as commit:
        commit.put_unit(UNIT)
    with pytest.raises(RuntimeError, match="cut here"):
        cut_commit(journal)
    assert journal.units == {UNIT.id: UNIT}
    assert journal.claims == {}
    journal.close()
    assert opened(tmp_path / "j.db").units == {UNIT.id: UNIT}


def test_an_operation_is_answered_once(tmp_path: Path) -> None:
    """B43: a replay finds the recorded answer; a second answer never replaces the first."""
    journal = opened(tmp_path / "j.db")
    row = OperationRow(OperationId("op"), "scrub", "GPU-1", {}, None, 0.0)
    with journal.commit() as commit:
        commit.put_operation(row)
        commit.finish_operation(row.id, {"outcome": "certified"}, 1.0)
    with journal.commit() as commit:
        commit.put_operation(row)
        commit.finish_operation(row.id, {"outcome": "failed"}, 2.0)
    found = journal.operation(row.id)
    assert found is not None
    assert found.result == {"outcome": "certified"}


def test_tombstones_are_bounded(tmp_path: Path) -> None:
    """A3: nothing of a claim is kept beyond a bounded tombstone."""
    journal = opened(tmp_path / "j.db")
    with journal.commit() as commit:
        for number in range(schema.TOMBSTONES_MAX + 5):
            commit.bury_claim(ClaimUid(f"c{number}"), Token(1, number), float(number))
    assert journal.tombstone(ClaimUid("c4")) is None
    assert journal.tombstone(ClaimUid("c5")) == Token(1, 5)


def test_answers_kept_are_bounded(tmp_path: Path) -> None:
    """The journal does not grow for ever: old answers go, unfinished operations stay."""
    journal = opened(tmp_path / "j.db")
    with journal.commit() as commit:
        commit.put_operation(OperationRow(OperationId("open"), "scrub", "d", {}, None, 0.0))
        for number in range(schema.OPERATIONS_MAX + 3):
            op = OperationId(f"op{number}")
            commit.put_operation(OperationRow(op, "scrub", "d", {}, None, 0.0))
        for number in range(schema.OPERATIONS_MAX + 3):
            commit.finish_operation(OperationId(f"op{number}"), {}, float(number))
    assert journal.operation(OperationId("op2")) is None
    assert journal.operation(OperationId("op3")) is not None
    assert [row.id for row in journal.unfinished()] == ["open"]


def test_fields_of_a_newer_version_survive_a_write(tmp_path: Path) -> None:
    """B26: an unknown field inside a record is still there after this version wrote the record."""
    path = tmp_path / "j.db"
    journal = opened(path)
    with journal.commit() as commit:
        commit.put_unit(UNIT)
    journal.close()
    database = sqlite.open_database(path, schema=schema.SCHEMA, timeout_s=5)
    (row,) = database.query("SELECT body FROM units")
    text = row["body"][:-1] + ', "of_tomorrow": [1, 2]}'
    database.execute("UPDATE units SET body = ?, digest = ?", (text, records.digest(text)))
    database.close()
    journal = opened(path)
    with journal.commit() as commit:
        commit.put_unit(replace(UNIT, state=State.DIRTY))
    journal.close()
    database = sqlite.open_database(path, schema=schema.SCHEMA, timeout_s=5)
    assert '"of_tomorrow":[1,2]' in database.query("SELECT body FROM units")[0]["body"]
    database.close()


@pytest.mark.parametrize("version", [1, 2])
def test_every_released_version_opens(version: int, tmp_path: Path) -> None:
    """B26: a frozen journal of each version opens with its content, upgraded where it is older."""
    path = tmp_path / "journal.db"
    shutil.copy(FIXTURES / f"journal-v{version}.db", path)
    journal = opened(path)
    assert journal.units == {UNIT.id: UNIT}
    assert journal.claims == {CLAIM.uid: CLAIM}
    assert journal.acts() == []
    journal.close()
    kept = path.with_name(f"journal.db.v{version}.bak")
    assert kept.exists() == (version < schema.SCHEMA.version)
