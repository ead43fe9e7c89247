"""Compare-and-swap on ConfigMaps: what is sent, what is sent again, what it is taken for."""

from __future__ import annotations

import base64
import gzip

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.kube.base import CONFIGMAPS, Name, Object
from fleet.stores.kubernetes_maps import (
    LIMIT_BYTES,
    PLAIN_BYTES,
    UNPACKED_BYTES,
    WRITES,
    WRITES_KEPT,
    ConfigMaps,
    Patience,
    check_size,
    parts_of,
    size_of,
    with_parts,
)
from tests.lab.apiserver.cluster import MemoryCluster


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(0.0)


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture
def maps(cluster: MemoryCluster, clock: ManualClock) -> ConfigMaps:
    return ConfigMaps(cluster, "default", Patience(5.0, clock=clock, pause=clock.advance))


def counted(found: Object | None) -> tuple[Object, int]:
    """Count one up."""
    number = int(parts_of(found or {}).get("n", "0")) + 1
    return with_parts(found, {"n": [str(number)]}), number


def test_each_swap_is_made_once(maps: ConfigMaps, cluster: MemoryCluster) -> None:
    """B43: lost answers, lost requests and conflicts in any order: a counter counts each once."""
    verbs = ("create", "replace", "get")
    conflict = errors.ApiConflict("modified", reason="Conflict")
    for number in range(1, WRITES_KEPT + 8):
        verb = verbs[number % 3]
        if number % 2:
            cluster.faults.lose_answer_next(verb)
        if number % 5 == 0:
            cluster.faults.fail_next("replace", conflict, times=2)
        if number % 7 == 0:
            cluster.faults.fail_next("replace", errors.ApiUnavailable("reset"))
        assert maps.swap("x", counted).value == number
    marks = cluster.get(CONFIGMAPS, Name("x", "default"))["metadata"]["annotations"][WRITES]
    assert len(marks.split()) == WRITES_KEPT


def test_a_conflict_that_hides_a_success_is_one(maps: ConfigMaps, cluster: MemoryCluster) -> None:
    """B43: a request repeated below us meets its own first success: 409, and yet it was done."""
    maps.swap("x", counted)
    twin = MemoryCluster(cluster.engine)
    cluster.faults.before_next(
        "replace", lambda: twin.replace(CONFIGMAPS, cluster.writes()[-1].body)
    )
    assert maps.swap("x", counted).value == 2
    assert maps.swap("x", counted).value == 3


def test_what_is_not_to_be_written_is_not(maps: ConfigMaps, cluster: MemoryCluster) -> None:
    """A change of nothing is a read."""
    assert maps.swap("x", lambda found: (None, found is None)).value is True
    assert cluster.writes() == []


def test_a_stated_wait_is_kept(
    maps: ConfigMaps, cluster: MemoryCluster, clock: ManualClock
) -> None:
    """A server that says when to come back is not asked before."""
    cluster.faults.fail_next("get", errors.ApiUnavailable("busy", status=429, retry_after_s=3.0))
    maps.get("x")
    assert clock.now() == pytest.approx(3.0)


def test_what_is_in_doubt_is_waited_for_longer(
    maps: ConfigMaps, cluster: MemoryCluster, clock: ManualClock
) -> None:
    """B6, B43: a server that is away is not waited for; one that may have written is, and asked."""
    cluster.faults.offline = True
    with pytest.raises(errors.StoreUnavailable, match="within 2 s"):
        maps.swap("x", counted)
    assert clock.now() < 3.0
    began = clock.now()
    cluster.faults.clear()
    cluster.faults.lose_answer_next("create")
    cluster.faults.before_next("get", lambda: None)
    cluster.faults.before_next("get", lambda: setattr(cluster.faults, "offline", True))
    with pytest.raises(errors.StoreUnavailable, match="within 5 s") as told:
        maps.swap("x", counted)
    assert 5.0 <= clock.now() - began < 6.0
    assert "may have been carried out" in told.value.remedy


def test_a_replaced_object_is_not_deleted(maps: ConfigMaps, cluster: MemoryCluster) -> None:
    """A delete is of the very object that was read."""
    maps.swap("x", counted)
    old = maps.get("x")
    assert old is not None
    maps.delete(old)
    assert maps.get("x") is None
    maps.swap("x", counted)
    maps.delete(old)
    assert maps.get("x") is not None


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (errors.ApiForbidden("no", status=403, causes=[]), errors.SettingsInvalid, "may not get"),
        (errors.ApiForbidden("no", status=401, causes=[]), errors.SettingsInvalid, "may not get"),
        (errors.ApiInvalid("bad", status=400, causes=[]), errors.StoreUnavailable, "refuses"),
        (errors.ApiInvalid("big", status=413, causes=[]), errors.StoreUnavailable, "full"),
        (
            errors.ApiInvalid("big", status=422, causes=[("FieldValueTooLong", "[]", "")]),
            errors.StoreUnavailable,
            "full",
        ),
        (errors.ApiUnavailable("away"), errors.StoreUnavailable, "within 2 s: away"),
        (errors.ApiFailed("HTTP 500"), errors.StoreUnavailable, "within 2 s: HTTP 500"),
    ],
)
def test_errors_are_those_of_a_store(
    maps: ConfigMaps, cluster: MemoryCluster, error: errors.FleetError, kind: type, words: str
) -> None:
    """E5: users of a store know nothing of API servers."""
    cluster.faults.fail_next("get", error, times=1000)
    for act in (lambda: maps.get("x"), lambda: maps.swap("x", counted)):
        with pytest.raises(kind, match=words):
            act()


def test_texts_are_packed_by_size_and_come_back() -> None:
    """E5: readable while small; packed above, with what others wrote left alone."""
    small = with_parts({"data": {"note": "theirs"}}, {"a.json": ["[", "]"], "b.json": ["{}"]})
    assert small["data"] == {"note": "theirs", "a.json": "[]", "b.json": "{}"}
    text = "x" * (PLAIN_BYTES + 1)
    large = with_parts(small, {"a.json": [text[:9], "", text[9:]], "b.json": ["{}"]})
    assert set(large["data"]) == {"note", "b.json"}
    assert parts_of(large) == {"note": "theirs", "a.json": text, "b.json": "{}"}
    again = with_parts(large, {"a.json": ["[]"], "b.json": ["{}"]})
    assert again["binaryData"] == {}
    assert parts_of(again) == parts_of(small)


@pytest.mark.parametrize("packed", ["?", "AAAA", base64.b64encode(b"\x1f\x8b\x08").decode()])
def test_what_cannot_be_unpacked_is_an_error(packed: str) -> None:
    """Promise 5: a damaged value is not an absent one."""
    with pytest.raises(ValueError, match="unpacked"):
        parts_of({"binaryData": {"a.json.gz": packed}})


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
def test_the_size_is_what_the_server_counts(count: int) -> None:
    """Values only, binary ones decoded, plain ones as UTF-8."""
    packed = base64.b64encode(b"x" * count).decode()
    assert size_of({"data": {"k": "é"}, "binaryData": {"b": packed}}) == count + 2
    check_size("x", {"data": {"k": "y" * LIMIT_BYTES}})
    with pytest.raises(errors.StoreUnavailable, match="full"):
        check_size("x", {"data": {"k": "y" * (LIMIT_BYTES + 1)}})


def test_b20_what_unpacks_to_more_than_any_state_is_refused() -> None:
    """B20: a few KB that somebody put into the object must not fill our memory."""
    packed = gzip.compress(bytes(UNPACKED_BYTES + 1), compresslevel=1)
    found = {"binaryData": {"leases.jsonl.gz": base64.b64encode(packed).decode()}}
    with pytest.raises(ValueError, match="unpacks to more than"):
        parts_of(found)
