"""Stores of leases and runs that somebody else has changed: an error in words, and no grant."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import sqlite3
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind, Lease, RunId, Token, UnitId
from fleet.kube.base import CONFIGMAPS, Name, Object, Resource
from fleet.stores import dynamodb_sheet, kubernetes_state
from fleet.stores.kubernetes import NAME, KubernetesStores, open_kubernetes_stores
from fleet.stores.kubernetes_maps import Patience
from fleet.stores.sqlite import Stores, open_stores
from tests.contracts.lease_store_contract import START
from tests.contracts.run_store_contract import RUN, record, result
from tests.fuzz.mutations import damaged, documents, texts
from tests.fuzz.running import bounded, fuzzed, told
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine

HELD, OTHER = UnitId("GPU-1/all"), UnitId("GPU-2/all")
OWNER = Holder(HolderKind.CLAIM, "a")
THIEF = Holder(HolderKind.CLAIM, "thief")
SPACE = "default"


def _filled(stores: Stores | KubernetesStores) -> None:
    stores.leases.init()
    (granted,) = stores.leases.acquire([AcquireRequest(frozenset({HELD}), OWNER)])
    assert isinstance(granted, Lease)
    campaign = Holder(HolderKind.CAMPAIGN, "run-1")
    stores.leases.acquire([AcquireRequest(frozenset({OTHER}), campaign, ttl_s=60.0)])
    stores.runs.create(record())
    stores.runs.append(RUN, [result("gpu-0")])


def _asked(stores: Stores | KubernetesStores) -> list[object]:
    """Everything that is asked of a store; what is refused is refused in words."""
    leases, runs = stores.leases, stores.runs
    calls: tuple[Callable[[], object], ...] = (
        leases.newest,
        leases.suspended,
        leases.leases,
        lambda: leases.holder(HELD),
        lambda: leases.held_by([OWNER]),
        lambda: leases.history(10),
        lambda: leases.renew([]),
        lambda: leases.learn(Token(1, 1)),
        lambda: leases.acquire([AcquireRequest(frozenset({HELD}), THIEF)]),
        lambda: runs.get(RUN),
        lambda: runs.state(RUN),
        lambda: runs.runs(5),
        runs.unfinished,
        lambda: runs.append(RunId(RUN), [result("gpu-1")]),
    )
    answers: list[object] = []
    for call in calls:
        try:
            with bounded():
                answers.append(call())
        except errors.FleetError as error:
            answers.append(told(error))
    return answers


def _thief(answers: list[object]) -> object:
    """What was answered to who asked for the unit that is held."""
    found = answers[8]
    return found[0] if isinstance(found, list) else found


# --- SQLite ---------------------------------------------------------------------------------------

COLUMNS = {
    "head": ("epoch", "counter", "host", "adopted", "suspended"),
    "lease": ("holder", "epoch", "counter"),
    "history": ("event", "holder", "token", "units", "detail"),
    "run": ("state", "finished_at", "exit_reason", "body"),
    "result": ("device", "key", "body"),
}
VALUES: tuple[Any, ...] = (
    "", "x", "claim:", "tenant:x", "1.2", "9" * 5000, "{}", "[]", "[" * 3000, "null", "\x00",
    0, -1, 2**62, 1.5, float("inf"), None,
)  # fmt: skip


@cache
def _file(place: Path) -> bytes:
    path = place / "store.db"
    stores = open_stores(path, clock=ManualClock(START))
    _filled(stores)
    stores.close()
    return path.read_bytes()


def _opened(place: Path, content: bytes, change: str = "", value: object = None) -> Stores | None:
    directory = place / "store"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    path = directory / "store.db"
    path.write_bytes(content)
    if change:
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.execute(change, (value,))
        except sqlite3.IntegrityError:
            return None  # the table itself does not take it
        finally:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()
    try:
        with bounded():
            return open_stores(path, clock=ManualClock(START + 1))
    except errors.FleetError as error:
        told(error, "store.db")
    assert change or path.read_bytes() == content
    return None


@fuzzed(60)
@given(table=st.sampled_from(sorted(COLUMNS)), value=st.sampled_from(VALUES), rest=st.data())
def test_a_changed_row_of_the_file_grants_nothing(
    place: Path, table: str, value: Any, rest: st.DataObject
) -> None:
    """Promise 2, B20: whatever a row says now, the unit it stands for is not given to another."""
    column = rest.draw(st.sampled_from(COLUMNS[table]))
    change = f"UPDATE {table} SET {column} = ?"  # noqa: S608 - our own names
    stores = _opened(place, _file(place), change, value)
    if stores is not None:
        answers = _asked(stores)
        stores.close()
        assert not isinstance(_thief(answers), Lease), (table, column, value)


@fuzzed(40)
@given(change=st.data())
def test_a_damaged_file_is_refused_or_answers(place: Path, change: st.DataObject) -> None:
    """B20: flipped bits, cuts and noise in the store's file are errors of ours that name it."""
    good = _file(place)
    content = change.draw(st.one_of(damaged(good), st.binary(max_size=3000)))
    stores = _opened(place, content)
    if stores is not None and content:
        _asked(stores)
    if stores is not None:
        stores.close()


# --- objects of the API server --------------------------------------------------------------------


class _Changed(MemoryCluster):
    """A server whose ConfigMaps somebody else has written to."""

    changed: dict[str, Object]

    def get(self, resource: Resource, name: Name) -> Object:
        """As it is now."""
        if resource is CONFIGMAPS and name.name in self.changed:
            return deepcopy(self.changed[name.name])
        return super().get(resource, name)


def _maps() -> tuple[Engine, dict[str, Object]]:
    clock = ManualClock(START)
    engine = Engine(clock=clock)
    cluster = MemoryCluster(engine)
    _filled(_kubernetes(cluster, clock))
    found = cluster.list(CONFIGMAPS).items
    return engine, {one["metadata"]["name"]: one for one in found}


def _kubernetes(cluster: MemoryCluster, clock: ManualClock) -> KubernetesStores:
    patience = Patience(1.0, clock=clock, pause=clock.advance)
    return open_kubernetes_stores(cluster, SPACE, clock=clock, patience=patience)


@st.composite
def maps(draw: st.DrawFn, good: Object) -> Object:
    """A ConfigMap with one of its texts changed, packed, doubled or gone."""
    found = deepcopy(good)
    key = draw(st.sampled_from(sorted(found["data"])))
    text = found["data"][key]
    lines = text.splitlines()
    kind = draw(st.integers(0, 3))
    if kind == 0:
        whole = json.loads(text) if key.endswith(".json") else json.loads(lines[0])
        changed = draw(texts(whole)).decode("utf-8", "replace")
    elif kind == 1:
        changed = draw(damaged(text.encode())).decode("utf-8", "replace")
    elif kind == 2:
        del found["data"][key]
        packed = draw(st.sampled_from([b"", b"x", gzip.compress(b"x"), BOMB]))
        found["binaryData"] = {f"{key}.gz": base64.b64encode(packed).decode()}
        return found
    else:
        del found["data"][key]
        return found
    found["data"][key] = changed
    return found


BOMB = gzip.compress(bytes(80 * 1024 * 1024), compresslevel=1)
"""A few KB that unpack to 80 MiB."""


@fuzzed(60)
@given(change=st.data())
def test_a_changed_configmap_grants_nothing(change: st.DataObject) -> None:
    """Promise 2, B20: texts of the store's object that make no sense are never "nothing held"."""
    engine, good = _maps()
    clock = ManualClock(START + 1)
    cluster = _Changed(engine)
    name = change.draw(st.sampled_from(sorted(good)))
    cluster.changed = {name: change.draw(maps(good[name]))}
    answers = _asked(_kubernetes(cluster, clock))
    stolen = _thief(answers)
    if isinstance(stolen, Lease):
        assert name == NAME
        lines = cluster.changed[NAME]["data"].get(kubernetes_state.LEASES, "")
        assert HELD not in lines, lines  # whoever takes the line out, or writes another unit in it


# --- items of DynamoDB ----------------------------------------------------------------------------

_LEASE = Lease(frozenset({HELD}), OWNER, Token(5, 7))
ITEMS: tuple[tuple[Callable[[Any], object], Object], ...] = (
    (
        dynamodb_sheet.read_head,
        {
            "pk": {"S": "store"}, "sk": {"S": "head"}, "format": {"N": "1"}, "epoch": {"N": "5"},
            "counter": {"N": "7"}, "adopted": {"N": "0"}, "home": {"S": "t"}, "write": {"S": "w"},
            "suspended": {"S": "5.9"},
        },
    ),
    (
        dynamodb_sheet.read_lease,
        {
            "pk": {"S": "lease"}, "sk": {"S": dynamodb_sheet.lease_key(OWNER, Token(5, 7))},
            "holder": {"S": str(OWNER)}, "token": {"S": "5.7"}, "units": {"SS": [HELD, OTHER]},
            "expires_at": {"N": "1700000000.5"}, "lasts_s": {"N": "60"}, "given": {"S": "w"},
            "write": {"S": "w"},
        },
    ),
    (
        dynamodb_sheet.read_unit,
        {"pk": {"S": "unit"}, "sk": {"S": HELD}, "lease": {"S": "k"}, "floor": {"S": "5.7"}},
    ),
    (
        dynamodb_sheet.read_story,
        {
            "pk": {"S": "history"}, "sk": {"S": "1"},
            "entries": {"S": json.dumps([{
                "at": 1.0, "event": "granted", "holder": "claim:a", "token": "5.7",
                "units": [HELD], "detail": "",
            }])},
        },
    ),
)  # fmt: skip


@fuzzed(150)
@given(read=st.sampled_from(ITEMS), change=st.data())
def test_a_changed_item_is_read_or_refused(
    read: tuple[Callable[[Any], object], Object], change: st.DataObject
) -> None:
    """Promise 2, B20: an item that makes no sense names itself; it is never "nothing held"."""
    parse, good = read
    item = change.draw(documents(good))
    if not isinstance(item, dict):
        return  # the service answers with items only
    try:
        with bounded():
            found = parse(item)
    except errors.SettingsInvalid as error:
        told(error)
    else:
        if isinstance(found, dynamodb_sheet.StoredLease):
            units = item["units"]["SS"]
            assert isinstance(units, list)
            assert found.lease.units == set(units)
