"""Rows of the SQLite store: what makes no sense is an error that names it; nothing is granted."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.core import sqlite
from fleet.core.clock import ManualClock
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind, UnitId
from fleet.stores.sqlite import Stores, open_stores
from tests.contracts.lease_store_contract import START
from tests.contracts.run_store_contract import RUN, record, result

HELD = frozenset({UnitId("GPU-1/all")})


def thief(stores: Stores) -> object:
    """Somebody else asks for the unit that is held."""
    asked = AcquireRequest(HELD, Holder(HolderKind.CLAIM, "thief"))
    return stores.leases.acquire([asked])


@pytest.mark.parametrize(
    ("change", "ask"),
    [
        ("UPDATE lease SET holder = 'tenant:x'", thief),
        ("UPDATE lease SET holder = 'claim:'", thief),
        ("UPDATE lease SET epoch = -1", thief),
        ("UPDATE lease SET holder = ''", lambda stores: stores.leases.leases()),
        ("UPDATE head SET suspended = 'x'", thief),
        ("UPDATE head SET counter = -9", thief),
        ("UPDATE head SET adopted = -1", lambda stores: stores.leases.newest()),
        ("UPDATE history SET event = 'x'", lambda stores: stores.leases.history(5)),
        ("UPDATE history SET units = '['", lambda stores: stores.leases.history(5)),
        ("UPDATE history SET token = 'x'", lambda stores: stores.leases.history(5)),
        ("UPDATE run SET state = 'x'", lambda stores: stores.runs.state(RUN)),
        ("UPDATE run SET body = '{}'", lambda stores: stores.runs.get(RUN)),
        ("UPDATE result SET body = '[]'", lambda stores: stores.runs.get(RUN)),
    ],
)
def test_b20_a_row_that_makes_no_sense_names_itself_and_grants_nothing(
    tmp_path: Path, change: str, ask: Callable[[Stores], object]
) -> None:
    """Promise 2, B20: a row that somebody changed is `Corrupt`; what it stood for is not free."""
    path = tmp_path / "store.db"
    stores = open_stores(path, clock=ManualClock(START))
    stores.leases.init()
    stores.leases.acquire([AcquireRequest(HELD, Holder(HolderKind.CLAIM, "a"))])
    stores.runs.create(record())
    stores.runs.append(RUN, [result("gpu-0")])
    stores.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(change)
    connection.close()
    stores = open_stores(path, clock=ManualClock(START))
    with pytest.raises(sqlite.Corrupt) as caught:
        ask(stores)
    stores.close()
    assert str(path) in caught.value.detail
    assert "fleet store" in caught.value.remedy
