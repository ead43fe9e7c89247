"""The state machine of a watch: what it asks for, and what it makes of the answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.core import errors
from fleet.kube import watch
from fleet.kube.base import Change, Event, Listing, Object
from fleet.kube.watch import Act, Step, Watching


def named(name: str, version: int) -> Object:
    """An object of that name and version."""
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def line(kind: str, found: object) -> bytes:
    """One line of a stream."""
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def start(timeout_s: float = 1000.0) -> Watching:
    """A watch begun at 0 that has listed one object as of version 5."""
    found = Watching(what="watch", timeout_s=timeout_s, now=0.0)
    assert found.step(0.0, chance=0.0).act is Act.LIST
    events = list(found.listed(Listing((named("a", 3),), "5")))
    assert [event.change for event in events] == [Change.ADDED, Change.SYNCED]
    return found


def stream(found: Watching, now: float = 0.0) -> Step:
    """Open the stream that comes next."""
    step = found.step(now, chance=0.0)
    assert step.act is Act.STREAM
    found.opened(step, now)
    return step


def fed(found: Watching, chunk: bytes, now: float = 1.0) -> list[Event]:
    """The events of one piece of the stream."""
    return list(found.received(chunk, now))


GONE = {"kind": "Status", "code": 410, "reason": "Expired"}


def test_first_all_objects_then_a_stream_from_there() -> None:
    """The stream continues at the version of the list, for 300 s at most, without a pause; one in
    which not even a bookmark comes for 90 s hangs on a dead connection.
    """
    step = start().step(0.0, chance=0.9)
    assert step == Step(
        Act.STREAM,
        resource_version="5",
        server_timeout_s=watch.SEGMENT_S,
        read_timeout_s=watch.SILENCE_S,
    )


def test_the_last_stretch_ends_on_time() -> None:
    """A stream is never waited for beyond the end of the watch, and a second is the least asked."""
    step = start(0.4).step(0.1, chance=0.0)
    assert step.server_timeout_s == 1
    assert step.read_timeout_s == pytest.approx(0.3)


def test_a_line_may_be_cut_anywhere() -> None:
    """Events come out whole however the stream is cut into pieces."""
    text = line("ADDED", named("a", 6)) + b"\n" + line("DELETED", named("\u00e9" * 9, 7))
    for size in (1, 2, 7, len(text)):
        found = start()
        stream(found)
        got = [
            event for at in range(0, len(text), size) for event in fed(found, text[at : at + size])
        ]
        assert [event.change for event in got] == [Change.ADDED, Change.DELETED]
        assert got[1].object == named("\u00e9" * 9, 7)


def test_a_stream_that_ends_as_asked_goes_on_without_a_list() -> None:
    """At the server's time-out nothing is lost: the next stream starts at the last version."""
    found = start()
    stream(found)
    fed(
        found,
        line("MODIFIED", named("a", 8)) + line("BOOKMARK", {"metadata": {"resourceVersion": "12"}}),
    )
    found.closed(300.0)
    step = found.step(300.0, chance=0.0)
    assert (step.act, step.resource_version, step.delay_s) == (Act.STREAM, "12", 0.0)
    found.opened(step, 300.0)
    fed(found, line("DELETED", named("a", 13)), 301.0)
    found.closed(600.0)
    assert found.step(600.0, chance=0.0).resource_version == "13"


@pytest.mark.parametrize(
    "loss",
    [
        lambda found: found.closed(3.0),
        lambda found: (fed(found, b'{"type": "ADDED", "ob', 299.0), found.closed(300.0)),
        lambda found: found.failed(errors.ApiUnavailable("reset", status=0), 3.0),
        lambda found: fed(found, line("ERROR", GONE)),
        lambda found: fed(found, line("ERROR", {"code": 500})),
        lambda found: fed(found, b"x" * (watch.LINE_MAX + 1)),
    ],
    ids=["closed early", "cut line", "broken", "410", "500", "endless line"],
)
def test_every_other_end_is_a_loss(loss: Any) -> None:
    """Closed early, cut, broken, expired: all objects are listed again after a short pause."""
    found = start()
    stream(found)
    loss(found)
    assert not found.streaming
    step = found.step(300.0, chance=0.5)
    assert step.act is Act.LIST
    assert 0.0 < step.delay_s <= watch.PAUSE_FIRST_S
    assert [event.change for event in found.listed(Listing((), "9"))] == [Change.SYNCED]
    assert found.step(301.0, chance=0.5).delay_s == 0.0
    assert found.outcome() is None


def test_bookmarks_are_told_to_those_who_ask() -> None:
    """A quiet watch that lives is told from one whose connection hangs; others hear of changes."""
    mark = line("BOOKMARK", {"metadata": {"resourceVersion": "12"}})
    for alive in (False, True):
        found = Watching(what="watch", timeout_s=1000.0, now=0.0, alive=alive)
        found.step(0.0, chance=0.0)
        list(found.listed(Listing((), "5")))
        stream(found)
        assert [event.change for event in fed(found, mark)] == [Change.ALIVE] * alive


def test_a_silent_stream_is_a_loss() -> None:
    """A half-open connection blinds for 90 s at most: then everything is listed again."""
    found = start()
    assert stream(found).read_timeout_s == watch.SILENCE_S
    found.failed(errors.ApiUnavailable("read timed out", status=0), watch.SILENCE_S)
    assert found.step(watch.SILENCE_S, chance=0.0).act is Act.LIST
    assert found.outcome() is None


def test_a_refused_opening_with_410_lists_again() -> None:
    """410 as an HTTP status means the same as in the stream, and is no lack of a server."""
    found = start()
    found.step(0.0, chance=0.0)
    found.failed(errors.ApiUnavailable("gone", status=410), 0.0)
    assert found.step(0.0, chance=0.0).act is Act.LIST
    assert found.outcome() is None


def test_what_follows_an_error_in_the_stream_is_not_read() -> None:
    """After an ERROR the stream is over, also when more came in the same piece."""
    found = start()
    stream(found)
    assert fed(found, line("ERROR", GONE) + line("ADDED", named("b", 9))) == []


@pytest.mark.parametrize(
    "bad",
    [
        b"null\n",
        b"[]\n",
        b"3\n",
        b"{oops\n",
        b"\xff\xfe\n",
        line("ADDED", None),
        line("ADDED", [1]),
        line("ADDED", {"metadata": None}),
        line("ADDED", {"metadata": {"name": None}}),
        line("BOOKMARK", {}),
        line("NEWKIND", {"metadata": {"name": "a"}}),
        b'{"object": {"metadata": {"name": "a"}}}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_an_entry_that_is_no_object_is_skipped_and_counted(bad: bytes) -> None:
    """B19: null items, non-objects and unknown kinds never end the watch."""
    found = start()
    stream(found)
    got = fed(found, bad + line("ADDED", named("b", 9)))
    assert [event.object for event in got] == [named("b", 9)]
    assert found.skipped == 1
    assert found.streaming


def test_pauses_grow_and_are_spread() -> None:
    """Repeated failures wait longer and longer, up to a limit, each watcher in its own rhythm."""
    found = Watching(what="watch", timeout_s=10_000.0, now=0.0)
    pauses = []
    for _ in range(12):
        found.failed(errors.ApiUnavailable("down", status=0), 0.0)
        pauses.append(found.step(0.0, chance=0.999).delay_s)
    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(watch.PAUSE_FIRST_S, rel=0.01)
    assert pauses[-1] == pytest.approx(watch.PAUSE_MAX_S, rel=0.01)
    found.failed(errors.ApiUnavailable("down", status=0), 0.0)
    assert found.step(0.0, chance=0.0).delay_s == pytest.approx(watch.PAUSE_MAX_S / 2)


def test_the_servers_own_wish_is_followed() -> None:
    """Retry-After lengthens the pause, up to our limit."""
    found = Watching(what="watch", timeout_s=1000.0, now=0.0)
    found.failed(errors.ApiUnavailable("busy", status=429, retry_after_s=3.0), 0.0)
    assert found.step(0.0, chance=0.0).delay_s == 3.0
    found.failed(errors.ApiUnavailable("busy", status=429, retry_after_s=60.0), 0.0)
    assert found.step(0.0, chance=0.0).delay_s == watch.PAUSE_MAX_S


def test_something_received_ends_the_row_of_losses() -> None:
    """After an event the next loss counts as the first again."""
    found = start()
    for _ in range(6):
        found.failed(errors.ApiUnavailable("down", status=0), 0.0)
    list(found.listed(Listing((), "9")))
    found.step(0.0, chance=0.0)
    stream(found)
    fed(found, line("BOOKMARK", {"metadata": {"resourceVersion": "10"}}))
    found.closed(2.0)
    assert found.step(2.0, chance=0.999).delay_s <= watch.PAUSE_FIRST_S


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.ApiUnavailable("down", status=0), errors.ApiUnavailable),
        (errors.ApiForbidden("no credential", status=401, causes=[]), errors.ApiForbidden),
        (errors.ApiNotFound("not served"), errors.ApiUnavailable),
        (errors.ApiFailed("500", status=500), errors.ApiUnavailable),
    ],
)
def test_an_error_is_told_only_at_the_end(
    error: errors.FleetError, kind: type[errors.FleetError]
) -> None:
    """Failures are waited out until the time is over; the last one is told if nothing came back."""
    found = start(5.0)
    found.failed(error, 1.0)
    assert found.step(1.0, chance=0.0).act is Act.LIST
    assert type(found.outcome()) is kind
    list(found.listed(Listing((), "9")))
    assert found.outcome() is None
    found.failed(error, 4.0)
    assert found.step(6.0, chance=0.0).act is Act.END
    assert type(found.outcome()) is kind


def test_f77_a_request_that_is_refused_is_told_at_once() -> None:
    """F77: neither a malformed selector nor a missing right is tried until the time is over."""
    with pytest.raises(errors.ApiInvalid):
        start().failed(errors.ApiInvalid("bad selector"), 1.0)
    with pytest.raises(errors.ApiForbidden):
        start().failed(errors.ApiForbidden("no right", status=403, causes=[]), 1.0)


def test_silence_at_the_end_of_the_time_is_no_error() -> None:
    """A quiet stream that is cut by our own deadline ends the watch in good order."""
    found = start(5.0)
    stream(found)
    found.failed(errors.ApiUnavailable("read timed out", status=0), 5.0)
    assert found.step(5.0, chance=0.0).act is Act.END
    assert found.outcome() is None


def test_a_busy_stream_ends_on_time_too() -> None:
    """Events that keep coming do not prolong the watch."""
    found = start(5.0)
    stream(found)
    assert len(fed(found, line("ADDED", named("b", 9)), now=5.0)) == 1
    assert not found.streaming


def test_a_list_without_a_version_is_not_watched_from() -> None:
    """A list that names no version cannot be continued: it is asked for again, after a pause."""
    found = Watching(what="watch", timeout_s=10.0, now=0.0)
    list(found.listed(Listing((), "")))
    step = found.step(0.0, chance=0.0)
    assert step.act is Act.LIST
    assert step.delay_s > 0.0


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc")),
        st.tuples(st.just("drop"), st.sampled_from("abc")),
        st.tuples(
            st.sampled_from(["deliver", "close", "break", "expire", "null", "late"]), st.just("")
        ),
    ),
    max_size=40,
)


@given(OPERATIONS)
@settings(max_examples=150, deadline=None)
def test_a_watcher_ends_up_with_what_the_server_has(operations: list[tuple[str, str]]) -> None:
    """Whatever is lost on the way, following the events leads to the server's own state."""
    server, version = {"a": 1}, 1
    log: list[tuple[int, bytes]] = []
    known: dict[str, int] = {}
    seen: set[str] = set()
    found = Watching(what="watch", timeout_s=1e6, now=0.0)
    now = sent = 0.0

    def follow(events: list[Event]) -> None:
        nonlocal seen
        for event in events:
            if event.change is Change.SYNCED:
                for gone in set(known) - seen:
                    del known[gone]
                continue
            name = event.object["metadata"]["name"]
            if event.change is Change.DELETED:
                known.pop(name, None)
            else:
                known[name] = int(event.object["metadata"]["resourceVersion"])
                seen.add(name)

    def catch_up() -> None:
        nonlocal seen, sent
        while not found.streaming:
            step = found.step(now, chance=0.5)
            if step.act is Act.LIST:
                seen = set()
                items = tuple(named(name, at) for name, at in server.items())
                follow(list(found.listed(Listing(items, str(version)))))
            else:
                sent = float(step.resource_version)
                found.opened(step, now)
        for at, chunk in log:
            if at > sent:
                follow(list(found.received(chunk, now)))
                sent = at

    for what, name in [*operations, ("deliver", "")]:
        now += 1.0
        if what == "put":
            version += 1
            server[name] = version
            log.append((version, line("MODIFIED", named(name, version))))
        elif what == "drop" and name in server:
            version += 1
            del server[name]
            log.append((version, line("DELETED", named(name, version))))
        elif what == "deliver":
            catch_up()
        elif found.streaming:
            _disturb(found, what, now)
    assert known == server


def _disturb(found: Watching, what: str, now: float) -> None:
    if what == "close":
        found.closed(now)
    elif what == "late":
        found.closed(now + watch.SEGMENT_S)
    elif what == "break":
        found.failed(errors.ApiUnavailable("reset", status=0), now)
    elif what == "expire":
        fed(found, line("ERROR", GONE), now)
    elif what == "null":
        fed(found, b"null\n", now)
