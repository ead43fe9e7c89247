"""One damaged row of a journal is one matter held; its neighbours keep their record (B72)."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core.claim_states import Claim, ClaimState
from fleet.core.model import (
    BootId,
    ClaimUid,
    Digest,
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
from fleet.node.journal import mirror
from fleet.node.journal.journal import OperationRow
from fleet.node.journal.startup import Opened, Place, open_or_set_aside

BOOT = BootId("boot-1")
CERTIFICATE = Digest("sha256:" + "1" * 64)
REASON = Reason("operator", Source.OPERATOR, False, "put out by ada")
NAMES = ("a", "b", "c")


def unit(name: str, claim: str = "") -> Unit:
    """In use by a claim, or CLEAN."""
    return Unit(
        UnitId(f"GPU-{name}/all"),
        state=State.IN_USE if claim else State.CLEAN,
        floor=Token(1, 7),
        token=Token(1, 7),
        certificate=CERTIFICATE,
        head=CERTIFICATE,
        claim=ClaimUid(claim) if claim else None,
        boot_id=BOOT,
    )


def claim(name: str) -> Claim:
    """A pod runs with one device."""
    return Claim(
        uid=ClaimUid(f"claim-{name}"),
        state=ClaimState.PREPARED,
        devices=(Uuid(f"GPU-{name}"),),
        units=(UnitId(f"GPU-{name}/all"),),
        token=Token(1, 7),
        boot_id=BOOT,
        consumers=(f"pod-{name}",),
    )


def written(directory: Path) -> Place:
    """A journal of three claims in use and one CLEAN unit, closed."""
    where = Place(directory / "journal.db", directory / "w", NodeName("n1"), "machine")
    opened = open_or_set_aside(where, now=0.0)
    with opened.journal.commit() as commit:
        commit.set_meta("boot_id", BOOT)
        for name in NAMES:
            commit.put_unit(unit(name, f"claim-{name}"))
            commit.put_claim(claim(name))
        commit.put_unit(unit("free"))
        commit.enqueue("release", {"holder": "claim:old"}, 0.0)
        commit.put_operation(OperationRow(OperationId("op"), "scrub", "GPU-a", {}, None, 0.0))
    opened.journal.close()
    return where


def damage(where: Place, statement: str, *values: object) -> None:
    """Change a row behind everybody's back."""
    with closing(sqlite3.connect(where.path)) as raw:
        raw.execute(statement, values)
        raw.commit()


def opened(where: Place) -> Opened:
    """Open it, and again: what was repaired stays repaired, without a word."""
    first = open_or_set_aside(where, now=5.0)
    first.journal.close()
    second = open_or_set_aside(where, now=6.0)
    assert second.troubles == ()
    assert second.journal.units == first.journal.units
    assert second.journal.claims == first.journal.claims
    second.journal.close()
    return first


BODIES: Sequence[tuple[str, object]] = (
    ("truncated", '{"uid":"claim-a"'),
    ("another record", '{"uid":"claim-z"}'),
    ("bytes", b"\x00\xff"),
    ("null", ""),
)


@pytest.mark.parametrize(("what", "body"), BODIES, ids=[what for what, _ in BODIES])
def test_b72_a_damaged_claim_is_held_alone(tmp_path: Path, what: str, body: object) -> None:
    """B72: one damaged record of a claim holds that claim and its units, and no other: the rest of
    the journal stands as it was, its file in its place."""
    where = written(tmp_path)
    damage(where, "UPDATE claims SET body = ? WHERE uid = 'claim-a'", body)
    found = opened(where)
    assert not found.fresh, what
    (trouble,) = found.troubles
    assert "claim-a" in trouble
    held = found.journal.claims[ClaimUid("claim-a")]
    assert (held.state, held.units) == (ClaimState.PREPARING, (UnitId("GPU-a/all"),))
    mine = found.journal.units[UnitId("GPU-a/all")]
    assert (mine.state, mine.claim, mine.certificate) == (State.HELD, "claim-a", None)
    assert (mine.floor, mine.head) == (Token(1, 7), CERTIFICATE)
    for name in ("b", "c"):
        assert found.journal.claims[ClaimUid(f"claim-{name}")] == claim(name)
        assert found.journal.units[UnitId(f"GPU-{name}/all")] == unit(name, f"claim-{name}")
    assert found.journal.units[UnitId("GPU-free/all")] == unit("free")
    assert list(tmp_path.glob("journal.db.aside-*"))


def test_b72_a_claim_whose_key_is_damaged_is_held_by_its_units(tmp_path: Path) -> None:
    """B72: where not even the name of a claim can be read, its units tell it."""
    where = written(tmp_path)
    damage(where, "UPDATE claims SET uid = 'claim-?' WHERE uid = 'claim-a'")
    found = opened(where)
    held = found.journal.claims[ClaimUid("claim-a")]
    assert held.units == (UnitId("GPU-a/all"),)
    assert found.journal.units[UnitId("GPU-a/all")].state is State.HELD
    assert found.journal.claims[ClaimUid("claim-b")] == claim("b")


def test_b72_a_damaged_unit_is_held_alone_with_its_reasons(tmp_path: Path) -> None:
    """B72, B15: one damaged unit has an unknown holder, the claim that names it, and the reasons
    that the copy beside the journal kept; all else stands."""
    where = written(tmp_path)
    mirror.write(where.mirror, {UnitId("GPU-free/all"): frozenset({REASON})})
    damage(where, "UPDATE units SET body = 'x' WHERE id IN ('GPU-a/all', 'GPU-free/all')")
    found = opened(where)
    assert not found.fresh
    mine = found.journal.units[UnitId("GPU-a/all")]
    assert (mine.state, mine.claim, mine.floor) == (State.HELD, "claim-a", Token(1, 7))
    free = found.journal.units[UnitId("GPU-free/all")]
    assert (free.state, free.claim, free.reasons) == (State.HELD, None, frozenset({REASON}))
    assert found.journal.claims[ClaimUid("claim-a")] == claim("a")
    assert found.journal.units[UnitId("GPU-b/all")] == unit("b", "claim-b")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE outbox SET body = 'x'",
        "UPDATE operations SET request = 'x'",
        "UPDATE units SET id = x'00ff' WHERE id = 'GPU-free/all'",
    ],
)
def test_b72_another_damaged_row_sets_no_journal_aside(tmp_path: Path, statement: str) -> None:
    """B72: a row that says nothing any more is dropped and told; no claim in use loses its
    record by it."""
    where = written(tmp_path)
    damage(where, statement)
    found = opened(where)
    assert not found.fresh
    assert len(found.troubles) == 1
    assert found.journal.claims == {ClaimUid(f"claim-{n}"): claim(n) for n in NAMES}
    for name in NAMES:
        assert found.journal.units[UnitId(f"GPU-{name}/all")] == unit(name, f"claim-{name}")


def test_b72_a_repaired_claim_is_written_over_its_damaged_row(tmp_path: Path) -> None:
    """B72, B26: what a damaged row said is not merged into the record that takes its place."""
    where = written(tmp_path)
    damage(where, 'UPDATE claims SET body = \'{"uid":"claim-a","more":1}\' WHERE uid = \'claim-a\'')
    found = open_or_set_aside(where, now=5.0)
    with found.journal.commit() as commit:
        commit.put_claim(replace(found.journal.claims[ClaimUid("claim-a")], name="again"))
    found.journal.close()
    with closing(sqlite3.connect(where.path)) as raw:
        (body,) = raw.execute("SELECT body FROM claims WHERE uid = 'claim-a'").fetchone()
    assert '"more"' not in body
