"""Calls that wait for one another are carried out together: one transaction instead of many.

A durable commit costs the same for one request as for a hundred. Whoever finds nobody at work
leads: it carries out what waits by then, its own call first, and answers everybody it took along.
The longest waiting of the others leads next. So nobody waits for more to come, an answer is given
after the commit that holds it, and calls are carried out in the order in which they came.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

from fleet.core import errors

MOST = 1_000
"""Requests carried out together: about 0.1 s of work in SQLite, so that nobody waits long."""

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


class _Call(Generic[Asked, Answered]):
    """One caller's requests, until it is answered or has to lead."""

    def __init__(self, asked: Sequence[Asked], alike: Hashable) -> None:
        self.asked = asked
        self.alike = alike
        self.answers: Sequence[Answered] | None = None
        self.error: BaseException | None = None
        self.woken = threading.Event()

    @property
    def answered(self) -> bool:
        return self.answers is not None or self.error is not None

    def result(self) -> Sequence[Answered]:
        if self.error is not None:
            raise self.error
        assert self.answers is not None  # noqa: S101  the leader answers all it took
        return self.answers


class Batches(Generic[Asked, Answered]):
    """Carries out calls of one kind. Safe for threads; meant to be called from many at once."""

    def __init__(
        self, *, turn: AbstractContextManager[object] | None = None, most: int = MOST
    ) -> None:
        """`turn` is held while calls are carried out, against what else must not go on then.

        `most`: requests taken together; a single call of more is carried out alone.
        """
        self._turn = turn if turn is not None else nullcontext()
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[_Call[Asked, Answered]] = deque()
        self._led = False

    @property
    def waiting(self) -> int:
        """Calls that nobody carries out yet."""
        with self._lock:
            return len(self._waiting)

    def ask(
        self,
        asked: Sequence[Asked],
        act: Callable[[Sequence[Asked]], Sequence[Answered]],
        *,
        alike: Hashable = None,
    ) -> Sequence[Answered]:
        """The answers of `act` to `asked`, which it may get among those of other calls.

        `act` answers each request by itself, in order, and is the same for all calls that are
        `alike`; only those are carried out together. Raises what `act` raises: what may pass by
        itself for all that were taken together; anything else only for the call that causes it.
        """
        mine: _Call[Asked, Answered] = _Call(asked, alike)
        with self._lock:
            self._waiting.append(mine)
            follows, self._led = self._led, True
        if follows:
            mine.woken.wait()
        if not mine.answered:
            self._lead(act)
        return mine.result()

    def _lead(self, act: Callable[[Sequence[Asked]], Sequence[Answered]]) -> None:
        """Carry out what waits, then let those go who were answered and the next one lead."""
        taken: list[_Call[Asked, Answered]] = []
        try:
            with self._turn:
                taken += self._taken()
                _carry_out(taken, act)
        except BaseException as error:
            for call in taken:
                if not call.answered:
                    call.error = error
            raise
        finally:
            with self._lock:
                following = self._waiting[0] if self._waiting else None
                self._led = following is not None
            for call in taken if following is None else (*taken, following):
                call.woken.set()

    def _taken(self) -> list[_Call[Asked, Answered]]:
        """The first that waits, with those behind it that fit."""
        with self._lock:
            taken = [self._waiting.popleft()]
            size = len(taken[0].asked)
            while self._waiting:
                following = self._waiting[0]
                size += len(following.asked)
                if following.alike != taken[0].alike or size > self._most:
                    break
                taken.append(self._waiting.popleft())
            return taken


def _carry_out(
    calls: Sequence[_Call[Asked, Answered]], act: Callable[[Sequence[Asked]], Sequence[Answered]]
) -> None:
    """All in one; where that is refused for good, one by one, since one of them is the cause."""
    try:
        answers = act([request for call in calls for request in call.asked])
    except errors.Retryable as error:
        for call in calls:
            call.error = error
        return
    except Exception as error:  # noqa: BLE001  handed to the caller whose requests cause it
        if len(calls) == 1:
            calls[0].error = error
            return
        for call in calls:
            _carry_out([call], act)
        return
    place = 0
    for call in calls:
        call.answers = answers[place : place + len(call.asked)]
        place += len(call.asked)
