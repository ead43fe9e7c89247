"""The cache of one kind: what is known is what the server holds, whatever order it was told in."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from fleet.control.binding.object_cache import QUIET_MAX_S, Cached
from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.kube.base import (
    CLAIMS,
    Change,
    Event,
    Listing,
    Name,
    Object,
    PatchKind,
    version_of,
)
from tests.lab.apiserver.cluster import MemoryCluster


def claim(name: str) -> dict[str, Any]:
    """A small claim."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}},
    }


def thing(uid: str, version: int | str, **more: object) -> Object:
    """An object as a watch tells it."""
    return {"metadata": {"uid": uid, "name": uid, "resourceVersion": str(version)}, **more}


class Scripted(MemoryCluster):
    """A server that tells exactly what a test has written down."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[Sequence[Event]] = []
        self.listing = Listing((), "1")
        self.during: Callable[[], None] = lambda: None

    def watch(self, *_: object, **__: object) -> Iterator[Event]:
        """The next script."""
        yield from self.scripts.pop(0)

    def list(self, *_: object, **__: object) -> Listing:
        """The listing, after `during` was called."""
        self.during()
        return self.listing


def added(*found: Object) -> list[Event]:
    """A list as a watch tells it."""
    return [*(Event(Change.ADDED, one) for one in found), Event(Change.SYNCED)]


def versions(cached: Cached) -> Mapping[str, str]:
    """What is known: version by UID."""
    return {uid: version_of(found) for uid, found in cached.items.items()}


def eventually(true: Callable[[], bool], *, within_s: float = 10.0) -> bool:
    """Whether something becomes true in time."""
    deadline = time.monotonic() + within_s
    tick = iter(lambda: time.monotonic() < deadline, False)
    return any(true() for _ in tick) or true()


@pytest.fixture
def server() -> Scripted:
    """A scripted server."""
    return Scripted()


def test_a_list_makes_the_cache_complete_and_a_later_one_shows_what_is_gone() -> None:
    """Poll mode needs no thread: each refresh is the server's word."""
    cluster = MemoryCluster()
    cached = Cached(cluster, CLAIMS)
    assert not cached.items
    assert cached.age_s == float("inf")
    uids = {
        name: cluster.create(CLAIMS, claim(name))["metadata"]["uid"] for name in ("a", "b", "c")
    }
    before_any = cached.synced
    cached.refresh()
    assert (before_any, cached.synced) == (False, True)
    assert cached.items.keys() == set(uids.values()) == cached.take()
    cluster.delete(CLAIMS, Name("a", "default"))
    labels = {"metadata": {"labels": {"x": "y"}}}
    cluster.patch(CLAIMS, Name("b", "default"), labels, kind=PatchKind.MERGE)
    before = cached.items
    cached.refresh()
    assert cached.take() == {uids["a"], uids["b"]}
    assert cached.items.keys() == {uids["b"], uids["c"]}
    assert before.keys() == set(uids.values()), "what was handed out does not change any more"
    cached.refresh()
    assert cached.take() == set()


def test_a_thread_follows_the_server_through_broken_watches() -> None:
    """B34: what was deleted while no watch stood is gone as soon as the next one is complete."""
    cluster = MemoryCluster()
    cached = Cached(cluster, CLAIMS, watch_s=30.0)
    first = cluster.create(CLAIMS, claim("a"))["metadata"]["uid"]
    cached.start()
    assert eventually(lambda: cached.items.keys() == {first})
    second = cluster.create(CLAIMS, claim("b"))["metadata"]["uid"]
    assert eventually(lambda: cached.items.keys() == {first, second})
    with cluster.engine.changed:
        cluster.break_watches()
    cluster.delete(CLAIMS, Name("b", "default"))
    third = cluster.create(CLAIMS, claim("c"))["metadata"]["uid"]
    assert eventually(lambda: cached.items.keys() == {first, third})
    cached.stop()
    cluster.break_watches()


def test_a_server_that_is_away_is_told_and_found_again() -> None:
    """The thread never dies; what is known stays known meanwhile and says how old it is."""
    cluster = MemoryCluster()
    uid = cluster.create(CLAIMS, claim("a"))["metadata"]["uid"]
    cached = Cached(cluster, CLAIMS, watch_s=0.05)
    cached.refresh()
    cluster.faults.offline = True
    cached.start()
    assert eventually(lambda: bool(cached.trouble))
    assert cached.items.keys() == {uid}
    cluster.faults.offline = False
    assert eventually(lambda: not cached.trouble)
    cached.stop()


def test_repetitions_and_older_versions_change_nothing(server: Scripted) -> None:
    """Versions count: 9 is older than 10, though not as a text; a repetition is no change."""
    cached = Cached(server, CLAIMS)
    server.scripts = [added(thing("a", 9))]
    cached.watch_once()
    assert cached.take() == {"a"}
    repeated = [Event(Change.MODIFIED, thing("a", 9)), Event(Change.ADDED, thing("a", 8))]
    server.scripts = [[*added(thing("a", 9)), *repeated]]
    cached.watch_once()
    assert cached.take() == set()
    server.scripts = [[*added(thing("a", 10)), Event(Change.MODIFIED, thing("a", 9))]]
    cached.watch_once()
    assert versions(cached) == {"a": "10"}


def test_a_deletion_is_final_for_what_is_not_newer(server: Scripted) -> None:
    """A late change revives nothing; an object that enters the selection again is known again."""
    cached = Cached(server, CLAIMS)
    gone = Event(Change.DELETED, thing("a", 12))
    late = Event(Change.MODIFIED, thing("a", 11))
    server.scripts = [[*added(thing("a", 10)), gone, late, gone, late]]
    cached.watch_once()
    assert versions(cached) == {}
    server.scripts = [[*added(), late, Event(Change.ADDED, thing("a", 13)), gone]]
    cached.watch_once()
    assert versions(cached) == {"a": "13"}


def test_a_deletion_is_believed_before_the_object_was_ever_seen(server: Scripted) -> None:
    """Events may change places altogether: DELETED first, then ADDED."""
    cached = Cached(server, CLAIMS)
    server.scripts = [
        [*added(), Event(Change.DELETED, thing("a", 5)), Event(Change.ADDED, thing("a", 4))]
    ]
    cached.watch_once()
    assert versions(cached) == {}


def test_a_second_list_inside_a_watch_ends_it(server: Scripted) -> None:
    """An object made, then deleted in a gap, is not kept because it was told before the gap."""
    cached = Cached(server, CLAIMS)
    server.scripts = [
        [*added(thing("a", 1)), Event(Change.ADDED, thing("b", 2)), *added(thing("a", 1))],
        added(thing("a", 1)),
    ]
    cached.watch_once()
    cached.watch_once()
    assert versions(cached) == {"a": "1"}
    late = [*added(thing("a", 1)), Event(Change.MODIFIED, thing("b", 2))]
    server.scripts = [late]
    cached.watch_once()
    assert versions(cached) == {"a": "1"}, "what was known when it was missed is no news"


def test_a_restored_server_is_believed_although_it_counts_lower(server: Scripted) -> None:
    """After a restore of etcd versions go back and deleted objects are there again."""
    cached = Cached(server, CLAIMS)
    server.scripts = [
        [*added(thing("a", 100), thing("b", 90)), Event(Change.DELETED, thing("b", 101))],
        added(thing("a", 50), thing("b", 40)),
    ]
    cached.watch_once()
    cached.watch_once()
    assert versions(cached) == {"a": "50", "b": "40"}


def test_what_was_learnt_while_a_list_was_under_way_is_not_undone_by_it(server: Scripted) -> None:
    """The answer to a write is newer than a list asked for before it."""
    cached = Cached(server, CLAIMS)
    server.scripts = [added(thing("a", 1), thing("c", 1))]
    cached.watch_once()
    server.listing = Listing((thing("a", 1), thing("c", 1)), "1")

    def meanwhile() -> None:
        cached.learn(thing("a", 3))
        cached.learn(thing("b", 4))
        cached.gone("c")

    server.during = meanwhile
    cached.refresh()
    assert versions(cached) == {"a": "3", "b": "4"}
    server.during = lambda: None
    cached.refresh()
    assert versions(cached) == {"a": "1", "c": "1"}


@pytest.mark.parametrize("told", ["list", "watch", "answer"])
def test_a_late_answer_revives_nothing(server: Scripted, told: str) -> None:
    """A write is answered, and before its thread tells us the object is gone: it stays gone, though
    the answer is newer than all we were told; what the server says of it later counts."""
    cached = Cached(server, CLAIMS)
    server.scripts = [added(thing("a", 1)), added()]
    cached.watch_once()
    server.listing = Listing((), "9")
    goes: Mapping[str, Callable[[], None]] = {
        "list": cached.refresh,
        "watch": cached.watch_once,
        "answer": lambda: cached.gone("a"),
    }
    goes[told]()
    cached.learn(thing("a", 7))
    assert versions(cached) == {}
    server.scripts = [[*added(), Event(Change.ADDED, thing("a", 12))]]
    cached.watch_once()
    assert versions(cached) == {"a": "12"}


def test_a_silent_server_is_trouble_and_a_bookmark_is_none(server: Scripted) -> None:
    """A watch of a quiet kind says that it is alive; one whose other end is gone says nothing."""
    clock = ManualClock(0.0)
    cached = Cached(server, CLAIMS, clock=clock)
    assert cached.trouble == ""
    server.scripts = [added(thing("a", 1)), [*added(thing("a", 1)), Event(Change.ALIVE)]]
    cached.watch_once()
    clock.advance(QUIET_MAX_S + 1.0)
    assert "nothing was heard of resourceclaims" in cached.trouble
    cached.watch_once()
    assert (cached.trouble, cached.age_s) == ("", 0.0)


def test_a_quiet_watch_is_heard() -> None:
    """Every server says that it is there, so that silence means something."""
    for event in MemoryCluster().watch(CLAIMS, timeout_s=20.0, alive=True):
        if event.change is Change.ALIVE:
            break
    else:
        raise AssertionError("nothing was heard")


def test_a_list_that_fails_changes_nothing() -> None:
    """A server that is away is no reason to forget what it said."""
    cluster = MemoryCluster()
    uid = cluster.create(CLAIMS, claim("a"))["metadata"]["uid"]
    clock = ManualClock(0.0)
    cached = Cached(cluster, CLAIMS, clock=clock)
    cached.refresh()
    cached.take()
    cluster.faults.offline = True
    clock.advance(7.0)
    with pytest.raises(errors.ApiUnavailable):
        cached.refresh()
    assert cached.items.keys() == {uid}
    assert cached.get(uid) is cached.items[uid]
    assert cached.get("other") is None
    assert (cached.take(), cached.age_s) == (set(), 7.0)


def test_objects_without_uid_are_passed_over(server: Scripted) -> None:
    """B19: what is no object of the server's is not kept under an empty name."""
    cached = Cached(server, CLAIMS)
    server.scripts = [[*added({"metadata": {}}), Event(Change.DELETED, {})]]
    cached.watch_once()
    assert versions(cached) == {}


def test_versions_that_do_not_count_are_taken_as_they_come(server: Scripted) -> None:
    """The API calls them opaque: without numbers the order of arrival is all there is."""
    cached = Cached(server, CLAIMS)
    server.scripts = [[*added(thing("a", "x9")), Event(Change.MODIFIED, thing("a", "x8"))]]
    cached.watch_once()
    assert versions(cached) == {"a": "x8"}
    server.scripts = [[*added(thing("a", "x8")), Event(Change.DELETED, thing("a", "x9"))]]
    cached.watch_once()
    assert versions(cached) == {}


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_events_comes_to_the_same(server: Scripted, seed: int) -> None:
    """Duplicated and shuffled events of many objects end where the server's own order ends."""
    chance = random.Random(seed)
    alive: dict[str, str] = {}
    story: list[Event] = []
    for version in range(1, 60):
        uid = chance.choice("abcde")
        if uid in alive and chance.random() < 0.3:
            story.append(Event(Change.DELETED, thing(uid, version)))
            del alive[uid]
        else:
            change = Change.MODIFIED if uid in alive else Change.ADDED
            story.append(Event(change, thing(uid, version)))
            alive[uid] = str(version)
    told = story + chance.sample(story, 20)
    chance.shuffle(told)
    cached = Cached(server, CLAIMS)
    server.scripts = [[Event(Change.SYNCED), *told]]
    cached.watch_once()
    assert versions(cached) == alive
