"""What keeps a node from preparing anything, found before a pod meets it.

Cgroups that are not mounted, a full disk, a lease store that is away, a directory of specs that
cannot be written: each fails every prepare of the node and none of them is a device's fault. So
they are looked for by time, told in the view (readiness and the pool gate go by it) and logged once
when they begin, change and end. What is found wrong is looked at again until it is right: with all
devices tainted nobody else would try.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fleet.core import errors, sqlite
from fleet.core.messages import PLUGIN_LACKS, Right
from fleet.node.container_runtime import Handover
from fleet.node.parts import Parts

LOG = logging.getLogger(__name__)

TOLD_S = 30.0
"""Time, s, for which a word of the plugin counts; it comes every second."""
LOOK_PERIOD_S = 10.0
"""Time, s, between two looks: also the longest a trouble that is over stays told."""
_PROBE = ".fleetscrub-probe"
"""File written to prove that a directory takes files; no runtime reads a name like this."""
_PROBE_BYTES = bytes(65536)


class Condition:
    """The trouble of one node as a whole. `step` on one thread, reading on any."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.unadopted = ""
        """Why the store could not be asked when the journal was to follow it."""
        self._state = ""
        self._tenants = ""
        self._store = ""
        self._specs = ""
        self._handover = Handover()
        self._doubted = False
        """Whether a spec could not be written: then a look from outside is not enough."""
        self._looked_at = float("-inf")
        self._missing: tuple[Right, ...] = ()
        self._missing_at = float("-inf")
        self._said: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    # --- reading ---

    def blocked(self) -> tuple[str, ...]:
        """Why nothing can be prepared on this node now, each with what to do; empty: it can."""
        registry, store = self._parts.registry, self._store
        if not registry.journal.epoch:
            store = f"no lease store was reachable yet, no order is accepted: {self.unadopted}"
        hindrance = registry.hindrance
        hindered = str(hindrance) if hindrance is not None else ""
        found = (hindered, registry.commit_trouble, self._state, store, self._tenants, self._specs)
        preflight = self._parts.preflight
        handover = preflight.found if preflight is not None and preflight.taints else ()
        return (*(text for text in found if text), *self._parts.lacks.blocking, *handover)

    def degraded(self) -> tuple[str, ...]:
        """Why the node serves in a degraded way: what blocks it, and what does not."""
        return (*self.blocked(), *self._lesser())

    def lacks(self, missing: tuple[Right, ...]) -> None:
        """What the node's plugin says every second: rights at the API server that it lacks."""
        self._missing, self._missing_at = missing, time.monotonic()

    def _plugin_lacks(self, *, lesser: bool) -> list[str]:
        if time.monotonic() - self._missing_at > TOLD_S:
            return []
        found = [one for one in self._missing if one.lesser is lesser]
        return [f"{PLUGIN_LACKS}{one}; grant it, deploy/ has the roles" for one in found]

    def _lesser(self) -> tuple[str, ...]:
        parts = self._parts
        lost = parts.sweep.validator.losses.trouble
        found = [*parts.troubles, *parts.recovery.troubles, *parts.recovery.found]
        found += [lost] if lost else []
        found += [self._handover.trouble] if self._handover.trouble else []
        if parts.preflight is not None and not parts.preflight.taints:
            found += parts.preflight.found
        if parts.lingering is not None:
            found += parts.lingering.found
        found += [f"{one.detail}; {one.remedy}" for one in parts.sweep.unfit]
        found += self._plugin_lacks(lesser=False)
        copies = parts.registry.copies
        found.extend(text for text in (copies.witness_trouble, copies.reasons_trouble) if text)
        return tuple(found)

    def notes(self) -> tuple[str, ...]:
        """What cannot be told on this node, what is left over, and faults of no device of it."""
        parts = self._parts
        validator = parts.sweep.validator
        found = [*validator.partitions.troubles, *parts.sweep.strays]
        found += [validator.losses.note] if validator.losses.note else []
        found += [f"not known: {self._handover.unknown}"] if self._handover.unknown else []
        if parts.preflight is not None and parts.preflight.unknown:
            found.append(f"not known: {parts.preflight.unknown}")
        lingering = parts.lingering.notes if parts.lingering else ()
        return (*parts.lacks.off, *lingering, *found, *self._plugin_lacks(lesser=True))

    # --- looking ---

    def step(self, now: float) -> None:
        """Look when it is time, and log what has changed. Raises nothing. `now` in seconds."""
        if not 0 <= now - self._looked_at < LOOK_PERIOD_S:
            self._looked_at = now
            self._look()
        self._log()

    def unwritten(self) -> None:
        """A spec could not be written: look now whether the directory takes any."""
        self._doubted = True
        self._specs = self._directory()

    def _look(self) -> None:
        registry = self._parts.registry
        self._state = self._room()
        if registry.commit_trouble and not self._state:
            with suppress(errors.FleetError), registry.commit():
                pass  # a commit of nothing but its number; one that succeeds clears the trouble
        self._tenants = self._parts.tenants.trouble()
        runtime = self._parts.runtime
        self._handover = runtime.look() if runtime is not None else Handover()
        if self._parts.preflight is not None:
            self._parts.preflight.look()
        self._store = self._asked()
        self._specs = self._directory()

    def _asked(self) -> str:
        ours = self._parts.registry.journal.epoch
        if not ours:
            return ""
        store = self._parts.store
        try:
            with suppress(errors.StoreUnavailable):
                store.release(())  # who only reads goes on with a file that was moved away
            theirs = store.newest().epoch
            if theirs != ours:
                raise errors.EpochForeign(
                    f"the node follows epoch {ours}, the lease store issues epoch {theirs}",
                    ours=ours,
                    theirs=theirs,
                )
        except errors.FleetError as error:
            return str(error)
        return ""

    def _room(self) -> str:
        """The journal's directory: a commit of nothing may still fit where no real one does."""
        directory = self._parts.registry.place.path.parent
        try:
            _inspect(directory)
            if self._parts.registry.commit_trouble:
                _try(directory)
        except OSError as error:
            refused = sqlite.Full(
                f"the node's state cannot be kept in {directory}: {error.strerror or error}",
                remedy="free space on its file system, or repair access to it",
            )
            return str(refused)
        return ""

    def _directory(self) -> str:
        directory = self._parts.recovery.specs.directory
        try:
            _inspect(directory)
            if self._doubted:
                _try(directory)
        except OSError as error:
            refused = errors.SpecUnavailable(
                f"no spec can be written to {directory}: {error.strerror or error}"
            )
            return str(refused)
        self._doubted = False
        return ""

    # --- telling ---

    def _log(self) -> None:
        found = (self.blocked(), self._lesser())
        node = self._parts.registry.place.node
        titles = ("nothing can be prepared on node %s: %s", "node %s serves degraded: %s")
        ends = ("node %s can prepare claims again", "node %s serves undegraded again")
        for title, end, now, before in zip(titles, ends, found, self._said, strict=True):
            if now and now != before:
                LOG.warning(title, node, "; ".join(now))
            elif before and not now:
                LOG.warning(end, node)
        self._said = found


def _inspect(directory: Path) -> None:
    """Raises OSError where a file cannot be made; writes nothing, so that no watch wakes for it."""
    try:
        room = os.statvfs(directory)
    except FileNotFoundError:
        return  # the first spec makes it
    if not directory.is_dir():
        raise NotADirectoryError("it is no directory")
    for trouble in _shortage(room):
        raise OSError(trouble)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError("it must not be written")


def _shortage(room: os.statvfs_result) -> Iterator[str]:
    """What the file system has none of. One that counts nothing has no limit."""
    if room.f_flag & os.ST_RDONLY:
        yield "its file system is read-only"
    if room.f_blocks and not room.f_bfree:
        yield "its file system is full"
    if room.f_files and not room.f_ffree:
        yield "its file system has no room for another file"


def _try(directory: Path) -> None:
    """Write a file and take it away. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / _PROBE
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        if os.write(descriptor, _PROBE_BYTES) < len(_PROBE_BYTES):
            raise OSError("its file system is full")
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)
