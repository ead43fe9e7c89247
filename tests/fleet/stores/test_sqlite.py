"""The SQLite stores keep the contracts, and what only a file can break."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fleet.core import errors, sqlite
from fleet.core.clock import Clock, ManualClock, SystemClock
from fleet.core.model import NO_TOKEN, Lease, Token, UnitId
from fleet.stores.base import HISTORY_KEPT, Release
from fleet.stores.sqlite import (
    SCHEMA,
    SqliteLeaseStore,
    Stores,
    open_stores,
    store_path,
)
from tests.contracts.lease_store_contract import (
    START,
    TTL_S,
    LeaseStoreContract,
    ObservedLeaseContract,
    Reopen,
    ask,
    campaign,
    claim,
    granted,
    refused,
)
from tests.contracts.reinstating_contract import ReinstatingContract
from tests.contracts.run_store_contract import RUN, record, result


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return store_path(tmp_path)


@pytest.fixture
def stores(path: Path, clock: ManualClock) -> Iterator[Stores]:
    opened = open_stores(path, clock=clock)
    opened.leases.init()
    yield opened
    opened.close()


@pytest.fixture
def store(stores: Stores) -> SqliteLeaseStore:
    return stores.leases


class TestSqliteLeaseStore(LeaseStoreContract, ReinstatingContract, ObservedLeaseContract):
    """The lease contract over SQLite."""

    @pytest.fixture
    def reopen(self, stores: Stores, path: Path) -> Iterator[Reopen]:
        with ExitStack() as opened:

            def again(clock: Clock) -> SqliteLeaseStore:
                found = open_stores(path, clock=clock)
                opened.callback(found.close)
                return found.leases

            assert stores.initialised
            yield again


def test_b49_processes_of_one_boot_share_what_was_seen(stores: Stores, path: Path) -> None:
    """B49: on one host a command that has just started counts from the write that gave the lease,
    by the monotonic clock that they share; after a reboot it counts anew."""
    clock = ManualClock(START)
    with ExitStack() as opened:

        def again(boot: str) -> SqliteLeaseStore:
            found = open_stores(path, clock=clock, boot=boot)
            opened.callback(found.close)
            return found.leases

        assert stores.initialised
        granted(again("boot-1"), ask(campaign("r"), "u1"))
        clock.advance(TTL_S - 1)
        assert len(again("boot-1").leases()) == 1
        clock.advance(1)
        assert again("boot-1").leases() == []
        assert len(again("boot-2").leases()) == 1


def test_everything_survives_reopening(stores: Stores, path: Path, clock: ManualClock) -> None:
    """E5, B42: leases, counter, suspension and runs are there after a restart."""
    lease = granted(stores.leases, ask(claim("a"), "u1", "u2"))
    stores.runs.create(record())
    stores.runs.append(RUN, [result("gpu-0")])
    floor = Token(lease.token.epoch, 99)
    with pytest.raises(errors.StoreBehind):
        stores.leases.learn(floor)
    history = stores.leases.history(10)
    stores.close()
    again = open_stores(path, clock=clock)
    assert again.leases.leases() == [lease]
    assert again.leases.newest() == lease.token
    assert again.leases.suspended() == floor
    assert again.leases.history(10) == history
    assert again.runs.unfinished() == [
        record().model_copy(update={"results": {"gpu-0": result("gpu-0")}})
    ]
    again.close()


def test_an_uninitialised_file_grants_nothing(path: Path, clock: ManualClock) -> None:
    """DESIGN 4: without an epoch there are no tokens."""
    stores = open_stores(path, clock=clock)
    assert not stores.initialised
    for act in (
        stores.leases.newest,
        stores.leases.leases,
        lambda: stores.leases.acquire([ask(claim("a"), "u1")]),
        lambda: stores.leases.adopt(NO_TOKEN, "somebody"),
    ):
        with pytest.raises(errors.SettingsInvalid, match="store init"):
            act()
    stores.close()


def test_another_host_is_refused_until_it_adopts(
    stores: Stores, path: Path, clock: ManualClock
) -> None:
    """DESIGN 4: SQLite is for one host; a store moved on purpose is adopted."""
    lease = granted(stores.leases, ask(claim("a"), "u1"))
    other = open_stores(path, clock=clock, host="other-machine")
    for act in (
        other.leases.init,
        other.leases.newest,
        lambda: other.leases.acquire([ask(claim("b"), "u2")]),
        lambda: other.leases.release([Release(claim("a"), lease.token)]),
        lambda: other.runs.create(record()),
    ):
        with pytest.raises(errors.SettingsInvalid, match="store adopt"):
            act()
    other.leases.adopt(NO_TOKEN, "somebody")
    assert isinstance(other.leases.acquire([ask(claim("b"), "u2")])[0], Lease)
    with pytest.raises(errors.SettingsInvalid, match="other-machine"):
        stores.leases.newest()
    other.close()


def test_a_restored_older_file_grants_nothing_until_adopted(
    stores: Stores, path: Path, clock: ManualClock, tmp_path: Path
) -> None:
    """Issue 2: a restored backup is noticed by the nodes' floors and suspended, restart or not."""
    granted(stores.leases, ask(claim("a"), "u1"))
    backup = tmp_path / "backup.db"
    stores.database.backup(backup)
    floor = granted(stores.leases, ask(claim("b"), "u2")).token
    stores.close()
    for left in path.parent.glob(f"{path.name}*"):
        left.unlink()
    shutil.copy(backup, path)
    restored = open_stores(path, clock=clock)
    (answer,) = restored.leases.acquire([ask(claim("c"), "u2", min_token=floor)])
    refused(answer, errors.StoreBehind)
    restored.close()
    again = open_stores(path, clock=clock)
    refused(again.leases.acquire([ask(claim("c"), "u3")])[0], errors.StoreBehind)
    again.leases.adopt(NO_TOKEN, "somebody")
    assert granted(again.leases, ask(claim("c"), "u2", min_token=floor)).token > floor
    again.close()


def test_a_file_replaced_while_open_is_not_written_to(
    stores: Stores, path: Path, tmp_path: Path
) -> None:
    """Promise 2: writes into a deleted file would be grants nobody remembers."""
    backup = tmp_path / "backup.db"
    stores.database.backup(backup)
    shutil.copy(backup, tmp_path / "copy.db")
    (tmp_path / "copy.db").replace(path)
    with pytest.raises(sqlite.Unreadable, match="replaced"):
        stores.leases.acquire([ask(claim("a"), "u1")])


def test_the_history_is_bounded(stores: Stores) -> None:
    """E5: the history never grows beyond its limit."""
    with stores.database.transaction():
        stores.database.execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " INSERT INTO history (at, event, holder, token, units, detail)"
            " SELECT i, 'granted', '', '1.1', '[]', '' FROM n",
            (HISTORY_KEPT + 50,),
        )
    granted(stores.leases, ask(campaign("r"), "u1"))
    entries = stores.leases.history(10 * HISTORY_KEPT)
    assert len(entries) == HISTORY_KEPT
    assert entries[0].holder == "campaign:r"


WORKER = """
import json, sys
from pathlib import Path
from fleet.core.clock import SystemClock
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind, Lease, UnitId
from fleet.stores.base import Release, Renewal
from fleet.stores.sqlite import open_stores

path, me, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
stores = open_stores(path, clock=SystemClock(), timeout_s=30.0)
holder = Holder(HolderKind.CAMPAIGN, me)
got = []
for number in range(rounds):
    unit = UnitId(f"u{number % 3}")
    (answer,) = stores.leases.acquire([AcquireRequest(frozenset({unit}), holder, 60.0)])
    if not isinstance(answer, Lease):
        continue
    (renewed,) = stores.leases.renew([Renewal(holder, answer.token, 60.0)])
    assert isinstance(renewed, Lease), renewed
    (gone,) = stores.leases.release([Release(holder, answer.token)])
    assert gone is True, gone
    got.append((unit, answer.token.counter))
stores.close()
json.dump(got, sys.stdout)
"""

VICTIM = """
import sys
from pathlib import Path
from fleet.core.clock import SystemClock
from fleet.stores.sqlite import open_stores

stores = open_stores(Path(sys.argv[1]), clock=SystemClock())
with stores.database.transaction():
    stores.database.execute("UPDATE head SET counter = counter + 1000000")
    sys.stdout.write("inside\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""


def test_many_processes_share_the_store(path: Path) -> None:
    """B22: 8 x 200 rounds on 3 units, one process killed inside a transaction: no token twice,
    strictly increasing per unit, nothing `locked`, no lock left behind."""
    stores = open_stores(path, clock=SystemClock())
    stores.leases.init()
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "inside\n"
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, str(path), f"run-{number}", "200"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(8)
        ]
        victim.kill()
    got: list[tuple[str, int]] = []
    for worker in workers:
        out, err = worker.communicate(timeout=60)
        assert worker.returncode == 0, err
        got += [(unit, counter) for unit, counter in json.loads(out)]
    counters = [counter for _, counter in got]
    assert len(counters) == len(set(counters))
    assert len(got) >= 200, "eight processes in each other's way still get leases"
    assert stores.leases.newest().counter == max(counters)
    by_unit: dict[UnitId, list[int]] = defaultdict(list)
    for entry in reversed(stores.leases.history(HISTORY_KEPT)):
        if entry.event == "granted":
            by_unit[entry.units[0]].append(entry.token.counter)
    assert set(by_unit) == {"u0", "u1", "u2"}
    assert all(seen == sorted(set(seen)) for seen in by_unit.values())
    kept = {counter for seen in by_unit.values() for counter in seen}
    assert kept <= set(counters), "the killed transaction left nothing"
    stores.database.integrity()
    stores.close()


def test_the_schema_of_version_1_is_frozen() -> None:
    """DESIGN 4: files in the field have this schema; a change is a new step, never an edit."""
    assert SCHEMA.application_id == 0x666C5354
    digest = hashlib.sha256(SCHEMA.steps[0].encode()).hexdigest()
    assert digest == "88e383311972afb472755d8dbb380aec89542f64cc8c5de5799f2e1e51e1d3b3"
