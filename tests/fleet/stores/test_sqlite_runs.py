"""Runs in SQLite keep the contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.core.clock import ManualClock
from fleet.core.model import RunId
from fleet.stores.base import RUNS_KEPT, RunState
from fleet.stores.sqlite import Stores, open_stores
from fleet.stores.sqlite_runs import SqliteRunStore
from tests.contracts.run_store_contract import START, RunStoreContract, record, result


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def stores(tmp_path: Path, clock: ManualClock) -> Iterator[Stores]:
    opened = open_stores(tmp_path / "store.db", clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def runs(stores: Stores) -> SqliteRunStore:
    return stores.runs


class TestSqliteRunStore(RunStoreContract):
    """The run contract over SQLite."""


def test_forgotten_runs_take_their_results_along(stores: Stores) -> None:
    """E5: no result outlives its run, so the file stays bounded."""
    for number in range(RUNS_KEPT + 1):
        run = RunId(stores.runs.create(record(f"run-{number}", START + number)).id)
        stores.runs.append(run, [result("gpu-0")])
        stores.runs.finish(run, RunState.FINISHED, "complete")
    stores.runs.create(record("last", START + 10**6))
    rows = stores.database.query("SELECT count(*) FROM result")
    assert rows[0][0] == RUNS_KEPT
