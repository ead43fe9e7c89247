"""Where a fleet follows a store already, no store is made in passing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from fleet.evidence import layout
from fleet.stores.sqlite import store_path
from fleet.wiring import adapters, membership


def plan_of(state: Path) -> adapters.FleetPlan:
    """A simulated fleet of one node."""
    return adapters.plan_fleet(state, simulate="1x1", memory_bytes=8 << 20)


def test_a_fresh_directory_has_no_fleet(tmp_path: Path) -> None:
    """E5: the first use makes the store, whoever comes first: nothing is there to be lost."""
    plan = plan_of(tmp_path)
    assert not membership.is_founded(tmp_path)
    with closing(adapters.open_node(plan.nodes[0])):
        assert store_path(tmp_path).is_file()


def test_each_trace_of_a_fleet_tells(tmp_path: Path) -> None:
    """Promise 7: a node that follows an epoch is enough, also without any certificate; so are
    countersignatures, and so is a journal that cannot be read."""
    served, signed, broken = (tmp_path / name for name in ("served", "signed", "broken"))
    adapters.open_node(plan_of(served).nodes[0]).close()
    assert not membership.has_certificates(served)
    assert membership.is_founded(served)
    adapters.begin(plan_of(signed).coordinator)
    assert membership.is_founded(signed)
    node = layout.node_directory(broken, plan_of(broken).nodes[0].node)
    node.mkdir(parents=True)
    (node / membership.JOURNAL).touch()
    assert not membership.is_founded(broken), "an empty file is made before the store is"
    (node / membership.JOURNAL).write_text("no database")
    assert membership.is_founded(broken)


def test_certificates_tell_without_their_journal(tmp_path: Path) -> None:
    """Promise 7: the evidence outlives journal and store."""
    ledger = layout.ledger_directory(tmp_path, "n1")
    ledger.mkdir(parents=True)
    (ledger / "000000000001.jsonl").touch()
    assert not membership.is_founded(tmp_path)
    (ledger / "000000000001.jsonl").write_text("{}")
    assert membership.is_founded(tmp_path)


def test_a_journal_that_is_just_being_made_follows_no_store(tmp_path: Path) -> None:
    """A first start, where node and coordinator begin at once, is not taken for a lost store."""
    place = layout.node_directory(tmp_path, "node-01") / membership.JOURNAL
    place.parent.mkdir(parents=True)
    database = sqlite3.connect(place)
    database.execute("PRAGMA journal_mode=WAL")
    database.close()
    assert place.stat().st_size
    assert membership.is_founded(tmp_path) is False
