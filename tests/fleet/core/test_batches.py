"""Rules of calls that share one commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from fleet.core import errors
from fleet.core.batches import Batches

WAIT_S = 20.0


@dataclass
class Desk:
    """Doubles numbers, batch by batch; the first batch waits until it is let go on."""

    batches: list[tuple[int, ...]] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def act(self, asked: Sequence[int]) -> Sequence[int]:
        """Twice each; raises what the numbers stand for."""
        first = not self.batches
        self.batches.append(tuple(asked))
        if first:
            self.begun.set()
            assert self.go_on.wait(WAIT_S)
        elif 13 in asked:
            raise errors.Unforeseen("thirteen breaks the statement")
        elif 99 in asked:
            raise errors.StoreUnavailable("the store is away")
        return [2 * number for number in asked]


@contextmanager
def queued(
    batches: Batches[int, int], desk: Desk, *asked: tuple[int, ...], alike: Sequence[object] = ()
) -> Iterator[list[Future[Sequence[int]]]]:
    """A call at work, and behind it the others, in this order; at the end all go on."""
    with ThreadPoolExecutor(len(asked) + 1) as pool:
        calls = [pool.submit(batches.ask, [1], desk.act)]
        assert desk.begun.wait(WAIT_S)
        for place, numbers in enumerate(asked):
            kind = alike[place] if alike else None
            calls.append(pool.submit(batches.ask, list(numbers), desk.act, alike=kind))
            _until(lambda place=place: batches.waiting == place + 1)  # type: ignore[misc]
        desk.go_on.set()
        yield calls


def _until(fact: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(2000):
        if fact():
            return
        pause.wait(0.005)
    raise AssertionError("the call never queued")


def test_what_waits_is_carried_out_in_one() -> None:
    """Issue 8 (leases): calls that wait for a commit share the next one, each with its answers."""
    desk = Desk()
    with queued(Batches(), desk, (2,), (3, 4), (5,)) as calls:
        assert [list(call.result(WAIT_S)) for call in calls] == [[2], [4], [6, 8], [10]]
    assert desk.batches == [(1,), (2, 3, 4, 5)]


def test_a_lone_call_waits_for_nobody() -> None:
    """Issue 8 (leases): without others a call is carried out at once, and alone."""
    batches, desk = Batches[int, int](), Desk()
    desk.go_on.set()
    assert [list(batches.ask([n], desk.act)) for n in (1, 2)] == [[2], [4]]
    assert desk.batches == [(1,), (2,)]
    assert batches.waiting == 0


def test_only_calls_that_are_alike_are_joined_in_the_order_they_came() -> None:
    """B50: calls under other limits are decided by themselves; nobody is overtaken."""
    desk = Desk()
    asked = ((2,), (3,), (4,), (5,))
    with queued(Batches(), desk, *asked, alike=("a", "a", "b", "a")) as calls:
        assert [list(call.result(WAIT_S)) for call in calls[1:]] == [[4], [6], [8], [10]]
    assert desk.batches == [(1,), (2, 3), (4,), (5,)]


def test_a_batch_is_bounded() -> None:
    """Issue 8 (leases): a large call is carried out alone, and keeps no other waiting for more."""
    desk = Desk()
    with queued(Batches(most=3), desk, (2, 3), (4,), (5,), (6, 7, 8, 9)) as calls:
        assert all(len(call.result(WAIT_S)) for call in calls)
    assert desk.batches == [(1,), (2, 3, 4), (5,), (6, 7, 8, 9)]


def test_one_bad_call_never_takes_its_neighbours_down() -> None:
    """Promise 9, B60: what can never be carried out fails the call it came with, no other."""
    desk = Desk()
    with queued(Batches(), desk, (2,), (13,), (4,)) as calls:
        assert list(calls[1].result(WAIT_S)) == [4]
        assert list(calls[3].result(WAIT_S)) == [8]
        with pytest.raises(errors.Unforeseen):
            calls[2].result(WAIT_S)


def test_a_store_that_is_away_is_asked_once_for_all() -> None:
    """B6: who waits together hears together, not one time-out after the other."""
    desk = Desk()
    with queued(Batches(), desk, (2,), (99,), (4,)) as calls:
        for call in calls[1:]:
            with pytest.raises(errors.StoreUnavailable):
                call.result(WAIT_S)
    assert desk.batches == [(1,), (2, 99, 4)]


def test_what_ends_a_thread_leaves_nobody_waiting() -> None:
    """B60: a leader that is ended answers those it took, and the next call leads again."""
    batches = Batches[int, int]()

    def ended(_asked: Sequence[int]) -> Sequence[int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        batches.ask([1], ended)
    assert list(batches.ask([2], lambda asked: asked)) == [2]


def test_the_turn_is_held_while_calls_are_carried_out() -> None:
    """B08: what else must not go on meanwhile waits."""
    turn = threading.Lock()
    seen: list[bool] = []

    def act(asked: Sequence[int]) -> Sequence[int]:
        seen.append(turn.locked())
        return asked

    Batches[int, int](turn=turn).ask([1], act)
    assert seen == [True]
    assert not turn.locked()
