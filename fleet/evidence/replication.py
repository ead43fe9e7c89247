"""Copies of evidence in an archive: when they are made, and what is still to be copied.

The local ledger comes first and waits for nobody: a feed names what it has that the archive may not
have yet, and is copied from in the background, for days if it has to be. What was copied is written
down behind the copying: after a crash some is put again, which changes nothing in an archive.

What is written down is believed of one archive only, which is asked for its identity when it is
opened and every hour: another one of the same name has nothing of what the first one has.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.core.messages import Replication
from fleet.evidence.archive import Archive, Opener

BACKOFF_MAX_S = 300.0
"""Longest pause, s, between two tries while the archive is away."""
REFUSED_S = 1800.0
"""Longest pause, s, after a refusal that no later try changes; a process that starts tries at
once."""
AGAIN_S = 3600.0
"""Time, s, after which what the archive would not take is offered to it again."""
UNNAMED = (
    "these settings name no archive, and what is written down here does: whoever works with the"
    " settings that name it (`--policy FILE`) copies it; evidence.policy = local gives it up"
)
_CHANCE = random.SystemRandom()
SAVE_EVERY = 16
"""Copies after which it is written down how far they are: as many are made again after a crash."""


class Item(Protocol):
    """One thing to be copied."""

    @property
    def name(self) -> str:
        """How it is called when it cannot be."""
        ...


class Feed(Protocol):
    """What is to be copied, in order, and how. Safe for threads."""

    def opened(self, archive: Archive) -> None:
        """This is what is copied to: ask it which archive it is, and offer what others need first.

        What was copied to another is offered again. Raises as the archive does.
        """
        ...

    def next(self) -> Item | None:
        """The next one that is neither copied nor set aside."""
        ...

    def send(self, archive: Archive, item: Item) -> None:
        """Copy it, in whole. Raises as the archive does, or `EvidenceInvalid`."""
        ...

    def done(self, item: Item, refused: str = "") -> None:
        """It is copied; or, with the reason, set aside: the archive will not take it as it is."""
        ...

    def again(self) -> None:
        """What was set aside is to be tried once more."""
        ...

    def waiting(self) -> tuple[int, float]:
        """How many are not copied, those set aside included, and of when the oldest is (0.0)."""
        ...

    def aside(self) -> Sequence[str]:
        """Why each one was set aside."""
        ...

    def save(self) -> None:
        """Write down how far it is. Raises `LedgerUnavailable`."""
        ...


class Replicator:
    """Copies one feed. `step` on one thread, reading on any."""

    def __init__(
        self,
        feed: Feed,
        opener: Opener | None,
        *,
        clock: Clock,
        required: bool = True,
        chance: Callable[[], float] = _CHANCE.random,
        place: str = "",
    ) -> None:
        """`required`: whether a node may only go once all is copied. Asks the archive nothing.

        Without an `opener` nothing is copied, and what is not in the archive is told all the same.
        """
        self.feed = feed
        self._opener = opener
        self._clock = clock
        self._required = required
        self._chance = chance
        self._archive: Archive | None = None
        self._thread: threading.Thread | None = None
        self._turn = threading.Lock()
        self._stop = threading.Event()
        self._attempts = 0
        self._next_at = float("-inf")
        self._again_at = clock.now() + AGAIN_S
        self._error = ""
        self._refused = False
        self._place = place
        self._unsure = False
        """Whether the archive may be another one by now."""

    def view(self) -> Replication:
        """How far it is."""
        try:
            count, oldest_at = self.feed.waiting()
        except errors.FleetError as error:  # what is read cannot be: the node is still shown
            return Replication(
                archive=self._place, required=self._required, backlog=None, error=str(error)
            )
        return Replication(
            archive=self._place,
            required=self._required,
            backlog=count,
            oldest_at=oldest_at,
            error=UNNAMED if count and self._opener is None else self._error,
            refused=self._refused,
            aside=tuple(self.feed.aside()),
        )

    def step(self, now: float) -> None:
        """Begin to copy when something is due at `now`, seconds since the epoch; never waits."""
        if self._opener is None or self._stop.is_set():
            return
        if self._thread is not None and self._thread.is_alive():
            return
        if 0 < self._next_at - now <= REFUSED_S:
            return
        if not 0 < self._again_at - now <= AGAIN_S:
            self._again_at = now + AGAIN_S
            self._unsure = True
            self.feed.again()
        if self._archive is not None and not self._unsure and not self._is_due():
            return
        self._thread = threading.Thread(target=self.drain, name="archive", daemon=True)
        self._thread.start()

    def drain(self) -> bool:
        """Copy all there is; whether all of it is copied. Whoever comes second leaves it."""
        if not self._turn.acquire(blocking=False):
            return False
        longest_s = min(BACKOFF_MAX_S, 2.0 ** min(self._attempts, 10))
        self._attempts += 1
        # Before, for whatever ends this thread: the next one must not begin at once.
        self._next_at = self._clock.now() + longest_s * (0.5 + 0.5 * self._chance())
        try:
            self._copy()
            self._attempts, self._error, self._next_at = 0, "", float("-inf")
            self._refused = False
            return not self.feed.waiting()[0]
        except errors.FleetError as error:
            self._error = str(error)
            self._refused = isinstance(error, errors.Permanent)
            if isinstance(error, errors.SettingsInvalid):
                self._archive = None  # it has to prove itself again
            if self._refused:
                self._next_at = self._clock.now() + REFUSED_S * (0.5 + 0.5 * self._chance())
            return False
        finally:
            self._turn.release()

    def _is_due(self) -> bool:
        try:
            return self.feed.next() is not None
        except errors.FleetError:
            return True  # told by the drain that fails of it

    def go_on(self, *, wait_s: float) -> None:
        """Copy until nothing is left, trying again for as long as it takes, in the background.

        An archive that answers is waited for `wait_s` seconds.
        """
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._persist, name="archive", daemon=True)
            self._thread.start()
        if not self._error:
            self._thread.join(wait_s)

    def _persist(self) -> None:
        while not self.drain():
            left_s = self._next_at - self._clock.now()
            if self._stop.wait(max(1.0, left_s) if self._error else AGAIN_S):
                return
            if not self._error:
                self._unsure = True
                self.feed.again()

    def close(self, *, wait_s: float = 0.0) -> None:
        """Stop; an archive that answers is waited for `wait_s` seconds, so that nothing is left."""
        if not self._error:
            self.step(self._clock.now())
            if self._thread is not None:
                self._thread.join(wait_s)
        self._stop.set()

    def _copy(self) -> None:
        archive = self._opened()
        copied = 0
        while not self._stop.is_set() and (item := self.feed.next()) is not None:
            try:
                self.feed.send(archive, item)
            except errors.EvidenceInvalid as error:  # this one only: its neighbours go on
                self.feed.done(item, f"{item.name}: {error}")
                copied = SAVE_EVERY
            else:
                self.feed.done(item)
                copied += 1
            if copied >= SAVE_EVERY:
                self._save()
                copied = 0
        if copied:
            self._save()

    def _save(self) -> None:
        """Whoever was told to stop writes nothing: the next owner may be at work already."""
        if not self._stop.is_set():
            self.feed.save()

    def _opened(self) -> Archive:
        if self._archive is None:
            if self._opener is None:
                raise errors.SettingsInvalid(UNNAMED, remedy="name the archive in the settings")
            archive = self._opener()
            self._place = archive.place
            self._save()  # that there is an archive is known from here on, also to other processes
            archive.prove()
            self.feed.opened(archive)
            self._archive = archive
        elif self._unsure:
            self.feed.opened(self._archive)
        self._unsure = False
        return self._archive
