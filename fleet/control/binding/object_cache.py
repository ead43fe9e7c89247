"""What the coordinator knows of the API: one kind of object, kept current by a watch or by lists.

Objects are the server's JSON and are never changed here. What arrives twice, late or in another
order than it happened does no harm:

1. Of one UID the higher resourceVersion is the newer (both are compared as integers where they
   are; upstream calls them opaque, but every server counts). An equal one is a repetition.
2. What was deleted stays deleted for everything that is not newer than the deletion; what the
   server itself did not say anew (the late answer to a write) revives nothing at all.
3. A list is believed against everything known before it was asked for, also about versions: after
   a restore of etcd they go back. Against what was learnt meanwhile the rules above decide.

A watch says SYNCED after each loss, without saying where the loss was: what was told before it
cannot be told from what the new list holds. So a second SYNCED ends the watch, and a new one begins
whose first list is known to be later than everything known.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fleet.core import errors
from fleet.core.clock import Clock, SystemClock
from fleet.kube.base import (
    Change,
    Cluster,
    Event,
    Object,
    Resource,
    Selection,
    uid_of,
    version_of,
)

LOG = logging.getLogger(__name__)

EVERYTHING = Selection()
WATCH_S = 300.0
"""Length, s, of one watch. Each begins with a list, so this is also the period of the resync."""
QUIET_MAX_S = 120.0
"""Silence, s, above which the server counts as not heard: a bookmark comes every minute."""
STEADY_S = 5.0
"""A watch that lasted this long, s, is followed by the next one at once."""
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 10.0
GRAVES_MAX = 20_000
"""Deletions remembered: far above what can be on its way at one time."""


@dataclass(slots=True)
class _Entry:
    found: Object
    learnt: int
    """Round in which this version was learnt."""
    seen: int
    """Round in which the object was last told by the server."""


@dataclass(frozen=True, slots=True)
class _Grave:
    version: str
    dug: int
    """Round in which the deletion was learnt."""


class Cached:
    """All objects of one kind that a selection sees. Safe for threads.

    Either `start` keeps it current in a thread of its own, or each `refresh` makes one list.
    """

    def __init__(
        self,
        cluster: Cluster,
        resource: Resource,
        selection: Selection = EVERYTHING,
        *,
        clock: Clock | None = None,
        watch_s: float = WATCH_S,
    ) -> None:
        """`watch_s`: length of one watch, s. Nothing is asked of the server yet.

        What is kept of each object, wherever it comes from, is what ``selection.trim`` leaves.
        """
        self.resource = resource
        self._cluster = cluster
        self._selection = selection
        self._clock = clock or SystemClock()
        self._watch_s = watch_s
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._graves: OrderedDict[str, _Grave] = OrderedDict()
        self._newest = 0
        self._changed: set[str] = set()
        self._snapshot: Mapping[str, Object] | None = None
        self._round = 0
        self._heard_at: float | None = None
        self._synced = False
        self._trouble = ""
        self._refused = ""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def items(self) -> Mapping[str, Object]:
        """The objects by UID, as of now: what is returned does not change any more."""
        with self._lock:
            if self._snapshot is None:
                known = {uid: entry.found for uid, entry in self._entries.items()}
                self._snapshot = MappingProxyType(known)
            return self._snapshot

    @property
    def synced(self) -> bool:
        """Whether everything there is was told at least once."""
        with self._lock:
            return self._synced

    @property
    def age_s(self) -> float:
        """Time, s, since the server last told anything; infinite before that.

        Events, bookmarks and lists count; while nothing is wrong, a watch says at least every
        minute that it is alive.
        """
        with self._lock:
            return self._age_s()

    @property
    def trouble(self) -> str:
        """Why the server cannot be heard, as last seen; "" while it can."""
        with self._lock:
            known, age_s = self._heard_at is not None, self._age_s()
            trouble = self._refused or self._trouble
            if not trouble and known and age_s > QUIET_MAX_S:
                return f"nothing was heard of {self.resource.plural} for {QUIET_MAX_S:.0f} s"
            return trouble

    def get(self, uid: str) -> Object | None:
        """One object; None: not known, or gone."""
        with self._lock:
            entry = self._entries.get(uid)
        return None if entry is None else entry.found

    def take(self) -> set[str]:
        """UIDs changed, added or removed since the last call."""
        with self._lock:
            taken, self._changed = self._changed, set()
        return taken

    def learn(self, found: Object) -> None:
        """Take the answer to a write or a live GET, if it is newer than what is known.

        It counts as a change like one that a watch tells.
        """
        with self._lock:
            if uid_of(found) not in self._graves:
                self._told(found, seen=False)

    def gone(self, uid: str) -> None:
        """Take a live answer that says the object is not there any more."""
        with self._lock:
            self._bury(uid, "")

    def refresh(self) -> None:
        """One list. Raises what `Cluster.list` raises; what is known stays as it was then."""
        with self._lock:
            self._round += 1
            began = self._round
        listing = self._cluster.list(self.resource, self._selection)
        with self._lock:
            self._hear()
            for found in listing.items:
                self._told(found, listed=began)
            self._complete(began, listing.resource_version)

    def start(self) -> None:
        """Keep the objects current in a daemon thread. Called again it changes nothing."""
        if self._thread is None:
            name = f"watch-{self.resource.plural}"
            self._thread = threading.Thread(target=self._follow, name=name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Start no further watch. The one that stands ends with the next event or its time."""
        self._stopped.set()

    # --- the loop --------------------------------------------------------------------------------

    def _follow(self) -> None:
        pause_s = PAUSE_FIRST_S
        while not self._stopped.is_set():
            began = self._clock.monotonic()
            try:
                self.watch_once()
            except errors.ApiForbidden as error:
                self._note(str(error), refused=True)
            except errors.FleetError as error:
                self._note(str(error))
            except Exception as error:
                LOG.exception("watch of %s failed", self.resource.plural)
                self._note(f"{type(error).__name__}: {error}")
            if self._clock.monotonic() - began >= STEADY_S:
                pause_s = PAUSE_FIRST_S
            self._stopped.wait(pause_s)
            pause_s = min(PAUSE_MAX_S, pause_s * 2)

    def watch_once(self) -> None:
        """One watch, until its time is over or a loss shows. Raises what `Cluster.watch` raises."""
        with self._lock:
            self._round += 1
            began = self._round
        complete = False
        watch = self._cluster.watch(
            self.resource, self._selection, timeout_s=self._watch_s, alive=True
        )
        for event in watch:
            if event.change is Change.SYNCED and complete:
                return
            with self._lock:
                self._refused = "" if complete else self._refused
                self._take_in(event, began, listing=not complete)
            complete = complete or event.change is Change.SYNCED
            if self._stopped.is_set():
                return
        with self._lock:
            self._refused = ""

    def _note(self, trouble: str, *, refused: bool = False) -> None:
        """`refused`: a right is missing. The list that goes before a watch does not end that."""
        with self._lock:
            news = trouble not in (self._trouble, self._refused)
            self._trouble = trouble
            self._refused = trouble if refused else self._refused
        if news:
            LOG.warning("watch of %s: %s", self.resource.plural, trouble)

    # --- what arrives; the lock is held ----------------------------------------------------------

    def _take_in(self, event: Event, began: int, *, listing: bool) -> None:
        self._hear()
        if event.change is Change.ALIVE:
            return
        if event.change is Change.SYNCED:
            self._complete(began, "")
        elif event.change is Change.DELETED:
            self._deleted(event.object)
        else:
            self._told(event.object, listed=began if listing else 0)

    def _hear(self) -> None:
        self._heard_at = self._clock.monotonic()
        self._trouble = ""

    def _age_s(self) -> float:
        return float("inf") if self._heard_at is None else self._clock.monotonic() - self._heard_at

    def _complete(self, began: int, version: str) -> None:
        """Everything there is was told since round `began`: the rest is gone. `version`: of the
        list, if it is known: nothing that is gone was there later.
        """
        for uid in [uid for uid, entry in self._entries.items() if entry.seen < began]:
            self._bury(uid, version)
        self._synced = True

    def _told(self, found: Object, *, listed: int = 0, seen: bool = True) -> None:
        """`listed`: the round of the list that says so; it outweighs what earlier rounds learnt."""
        uid, version = uid_of(found), version_of(found)
        if not uid:
            return
        if version.isdecimal():
            self._newest = max(self._newest, int(version))
        entry = self._entries.get(uid)
        if entry is None:
            self._appeared(uid, found, listed)
            return
        if seen:
            entry.seen = self._round
        known = version_of(entry.found)
        if version != known and (_newer(version, known) or entry.learnt < listed):
            entry.found, entry.learnt = self._kept(found), self._round
            self._touch(uid)

    def _appeared(self, uid: str, found: Object, listed: int) -> None:
        grave = self._graves.get(uid)
        if grave and not _newer(version_of(found), grave.version) and grave.dug >= listed:
            return
        self._graves.pop(uid, None)
        self._entries[uid] = _Entry(self._kept(found), self._round, self._round)
        self._touch(uid)

    def _kept(self, found: Object) -> Object:
        return self._selection.trim(found) if self._selection.trim else found

    def _deleted(self, found: Object) -> None:
        uid, version = uid_of(found), version_of(found)
        entry = self._entries.get(uid)
        late = entry is not None and _counts_above(version_of(entry.found), version)
        if uid and not late:
            self._bury(uid, version)

    def _bury(self, uid: str, version: str) -> None:
        """`version`: of the deletion; "" where it is only known to lie behind us."""
        grave = self._graves.pop(uid, None)
        if grave is None or not _counts_above(grave.version, version):
            grave = _Grave(version or str(self._newest), self._round)
        self._graves[uid] = grave
        while len(self._graves) > GRAVES_MAX:
            self._graves.popitem(last=False)
        if self._entries.pop(uid, None) is not None:
            self._touch(uid)

    def _touch(self, uid: str) -> None:
        self._changed.add(uid)
        self._snapshot = None


def _counts_above(one: str, other: str) -> bool:
    """Whether version `one` is later than `other` by counting; False where they do not count."""
    return one.isdecimal() and other.isdecimal() and int(one) > int(other)


def _newer(one: str, other: str) -> bool:
    """Whether version `one` is the later; versions that do not count are taken as they come."""
    if one.isdecimal() and other.isdecimal():
        return int(one) > int(other)
    return one != other
