"""What a watch of every `Cluster` does: the twin in memory, and the client against the stand-in."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fleet.core import errors
from fleet.kube.base import CLAIMS, SLICES, Change, Event, Name, PatchKind, Selection, name_of
from tests.contracts.cluster_benches import Bench, claim, slice_of
from tests.lab.apiserver.engine import Target

LONG_S = 20.0
"""Longer than any test here takes; watches are closed when a test has seen enough."""


def told(event: Event) -> tuple[Change, str]:
    """What an event says, without the object."""
    return event.change, name_of(event.object).name


def until_synced(events: Iterator[Event]) -> list[str]:
    """The names delivered up to the next SYNCED."""
    found: list[str] = []
    for event in events:
        if event.change is Change.SYNCED:
            return found
        assert event.change is Change.ADDED
        found.append(name_of(event.object).name)
    raise AssertionError("the watch ended without SYNCED")


def following(bench: Bench) -> Iterator[Event]:
    """A watch of a and b that has delivered a change: its connection is open."""
    events = bench.cluster.watch(CLAIMS, timeout_s=LONG_S)
    assert until_synced(events) == ["a", "b"]
    body = {"metadata": {"labels": {"x": "y"}}}
    bench.cluster.patch(CLAIMS, Name("b", "default"), body, kind=PatchKind.MERGE)
    assert told(next(events)) == (Change.MODIFIED, "b")
    return events


def closing(events: Iterator[Event]) -> None:
    """Close a watch."""
    close = getattr(events, "close", None)
    assert close is not None
    close()


def test_a_watch_tells_what_there_is_and_what_changes(bench: Bench) -> None:
    """First the objects and SYNCED, then each change once, in order."""
    bench.cluster.create(CLAIMS, claim("a"))
    events = bench.cluster.watch(CLAIMS, timeout_s=LONG_S)
    assert until_synced(events) == ["a"]
    bench.cluster.create(CLAIMS, claim("b"))
    body = {"metadata": {"labels": {"x": "y"}}}
    bench.cluster.patch(CLAIMS, Name("b", "default"), body, kind=PatchKind.MERGE)
    bench.cluster.delete(CLAIMS, Name("b", "default"))
    seen = [next(events) for _ in range(3)]
    assert [told(event) for event in seen] == [
        (Change.ADDED, "b"),
        (Change.MODIFIED, "b"),
        (Change.DELETED, "b"),
    ]
    assert seen[1].object["metadata"]["labels"] == {"x": "y"}
    assert seen[1].object["kind"] == "ResourceClaim"
    closing(events)


def test_a_watch_sees_only_what_it_selects(bench: Bench) -> None:
    """An object that leaves the selection is DELETED for it, one that enters is ADDED."""
    selection = Selection("default", labels="watched=yes")
    events = bench.cluster.watch(CLAIMS, selection, timeout_s=LONG_S)
    assert until_synced(events) == []
    bench.cluster.create(CLAIMS, claim("other"))
    bench.cluster.create(CLAIMS, claim("a", labels={"watched": "yes"}))
    for value in ("no", "yes"):
        body = {"metadata": {"labels": {"watched": value}}}
        bench.cluster.patch(CLAIMS, Name("a", "default"), body, kind=PatchKind.MERGE)
    assert [told(next(events)) for _ in range(3)] == [
        (Change.ADDED, "a"),
        (Change.DELETED, "a"),
        (Change.ADDED, "a"),
    ]
    closing(events)


def test_a_watch_of_a_nodes_slices_sees_kubelet_delete_them(bench: Bench) -> None:
    """B34: deletecollection by node and driver is told slice by slice."""
    made = [name_of(bench.cluster.create(SLICES, slice_of("node-1"))).name for _ in range(2)]
    bench.cluster.create(SLICES, slice_of("node-2"))
    selection = Selection(fields="spec.nodeName=node-1,spec.driver=gpu.example.com")
    events = bench.cluster.watch(SLICES, selection, timeout_s=LONG_S)
    assert until_synced(events) == sorted(made)
    bench.engine.delete_collection(SLICES, selection)
    assert sorted(told(next(events)) for _ in range(2)) == [
        (Change.DELETED, name) for name in sorted(made)
    ]
    closing(events)


def test_a_broken_watch_tells_everything_again(bench: Bench) -> None:
    """After a lost connection all objects come again with SYNCED: what is missing is gone."""
    for name in ("a", "b"):
        bench.cluster.create(CLAIMS, claim(name))
    events = following(bench)
    bench.break_watches()
    bench.engine.forget_history()
    assert until_synced(events) == ["a", "b"]
    bench.cluster.delete(CLAIMS, Name("a", "default"))
    assert told(next(events)) == (Change.DELETED, "a")
    closing(events)


def test_a_deletion_during_a_gap_is_told_by_absence(bench: Bench) -> None:
    """B34: a delete that history no longer knows (410) shows in what SYNCED leaves out."""
    for name in ("a", "b"):
        bench.cluster.create(CLAIMS, claim(name))
    events = following(bench)
    target = Target(CLAIMS, Name("a", "default"))
    with bench.engine.changed:
        # Under the server's lock no watch can deliver the deletion before it is forgotten.
        bench.engine.delete(target)
        bench.break_watches()
        bench.engine.forget_history()
    assert until_synced(events) == ["b"]
    closing(events)


def test_a_watch_ends_when_its_time_is_over(bench: Bench) -> None:
    """After timeout_s the iterator ends by itself, without an error."""
    bench.cluster.create(CLAIMS, claim("a"))
    began = time.monotonic()
    seen = [told(event) for event in bench.cluster.watch(CLAIMS, timeout_s=0.4)]
    assert seen[0] == (Change.ADDED, "a")
    assert 0.3 < time.monotonic() - began < 5.0


def test_a_server_that_stays_away_is_told_at_the_end(bench: Bench) -> None:
    """ApiUnavailable only when the server was out of reach for the rest of the time."""
    bench.cluster.create(CLAIMS, claim("a"))
    bench.go_offline()
    began = time.monotonic()
    with pytest.raises(errors.ApiUnavailable):
        list(bench.cluster.watch(CLAIMS, timeout_s=0.5))
    assert time.monotonic() - began > 0.3


def test_f77_a_missing_right_to_watch_is_told_at_once(bench: Bench) -> None:
    """F77: ApiForbidden, not an empty watch, and before its time is over."""
    with pytest.raises(errors.ApiForbidden):
        list(bench.stranger().watch(CLAIMS, timeout_s=600.0))
