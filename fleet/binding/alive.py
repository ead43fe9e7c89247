"""Whether a coordinator lives, as a file that it writes every few seconds where it runs.

Where several share the nodes each has a file of its own beside the others'.

Verbs read it: strict pods wait for a coordinator, and a product is not taken away under one. It
says nothing about coordinators of other hosts, so that its absence proves nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import Field, ValidationError

from fleet.binding.view import BindingView
from fleet.clock import Clock, SystemClock
from fleet.evidence import layout
from fleet.messages import Message, Moment
from fleet.wipe.identity import kernel_boot_id

LOG = logging.getLogger(__name__)
FILE = "alive.json"
PERIOD_S = 3.0
"""Period, s, in which it is written."""
LATE_S = 30.0
"""Silence, s, from which a coordinator counts as gone: three of its longest pauses."""
START = "start `fleet coordinate`, or see the log of the coordinator's actor"


class Alive(Message):
    """A coordinator of this host. `at`: seconds since the epoch."""

    pid: int
    at: Moment
    binding: BindingView
    boot: str = ""
    """The boot it was written in, by which `steady_s` means something; "": an older version."""
    steady_s: float = 0.0
    """The machine's monotonic clock then: what tells how long ago that was (B49)."""
    others: tuple[Alive, ...] = Field(default=(), exclude=True)
    """Those of other selections of nodes, where `read` found this one."""

    @property
    def of(self) -> str:
        """Whose claims it decides about, for a sentence; "" for all."""
        return f" of the nodes {self.binding.nodes}" if self.binding.nodes else ""

    def late_s(self, now: float) -> float:
        """How long it has not reported, s; 0.0 where that means nothing."""
        silent_s = now - self.at
        if self.boot and self.boot == kernel_boot_id():  # the clock on the wall may have been set
            silent_s = SystemClock().monotonic() - self.steady_s
        return silent_s if silent_s > LATE_S else 0.0


class Heartbeat:
    """Writes the file; for `fleet.binding.running.Loop`, which calls it after every step."""

    def __init__(
        self,
        state: Path,
        clock: Clock | None = None,
        *,
        selecting: str = "",
        asked: Sequence[str] = (),
    ) -> None:
        """Nothing is written where `state` is not a directory here. `selecting`: label selector of
        the coordinator's Nodes, "" for all. `asked`: of all coordinators that the settings ask for;
        who was asked for earlier, and has ended, is not missed."""
        self._path = _path(state, selecting)
        known = bool(asked) or not selecting
        self._kept = {_path(state, one) for one in (*asked, selecting)} if known else None
        self._clock = clock or SystemClock()
        self._written_at = float("-inf")
        self._trouble = ""

    def __call__(self, view: BindingView) -> None:
        """Report, not more often than is of use. Raises nothing."""
        now_s = self._clock.monotonic()
        if view.trouble == self._trouble and now_s - self._written_at < PERIOD_S:
            return
        if not self._path.parent.is_dir():
            return
        self._written_at, self._trouble = now_s, view.trouble
        told = Alive(pid=os.getpid(), at=self._clock.now(), binding=view)
        if isinstance(self._clock, SystemClock):
            steady = {"boot": kernel_boot_id(), "steady_s": now_s}
            told = told.model_copy(update=steady)
        temporary = self._path.with_name(f".{FILE}.{uuid.uuid4().hex}.tmp")
        try:
            temporary.write_text(told.model_dump_json())
            temporary.replace(self._path)
        except OSError as error:
            LOG.debug("the sign of life is not written: %s", error)
        self._drop_former(told.at)

    def end(self) -> None:
        """A coordinator that ends in good order is not missed."""
        found = _read(self._path)
        if found is not None and found.pid == os.getpid():
            self._path.unlink(missing_ok=True)

    def _drop_former(self, now: float) -> None:
        """Whoever ends an actor does not ask it to take its sign away."""
        if self._kept is None:
            return
        for path in {*self._path.parent.glob("alive*.json")} - self._kept:
            found = _read(path)
            if found is None or found.late_s(now):
                with suppress(OSError):
                    path.unlink(missing_ok=True)


def read(state: Path) -> Alive | None:
    """The last report of a coordinator here, with those of the others; None: there is none that can
    be read."""
    paths = sorted(_path(state).parent.glob("alive*.json"))
    found = sorted((one for path in paths if (one := _read(path))), key=lambda one: -one.at)
    return found[0].model_copy(update={"others": tuple(found[1:])}) if found else None


def told(found: Alive | None, now: float, *, awaited: bool) -> Iterator[str]:
    """What is wrong with the coordinator. `awaited`: pods of this host's nodes wait for one."""
    waits = ": strict pods wait" if awaited else ""
    if found is None:
        if awaited:
            yield f"no coordinator reports on this host{waits} unless one runs elsewhere: {START}"
        return
    for one in (found, *found.others):
        if late_s := one.late_s(now):
            yield f"no coordinator{one.of} has stepped for {late_s:.0f} s{waits}: {START}"
            continue
        binding = one.binding
        if binding.trouble:
            yield f"the coordinator{one.of} (pid {one.pid}) is kept from working: {binding.trouble}"
        if binding.silent_nodes:
            silent = ", ".join(binding.silent_nodes)
            yield f"the coordinator{one.of} gets no answer from {silent}"


def summary(found: Alive | None, now: float) -> str:
    """One line for people; "" where no coordinator reported."""
    if found is None or found.late_s(now):
        return ""
    count, more = found.binding.open_claims, len(found.others)
    beside = f", and {more} of other nodes" if more else ""
    told = f"pid {found.pid}, {count} open claims, {now - found.at:.0f} s ago"
    return f"coordinator{found.of}: {told}{beside}"


def _path(state: Path, selecting: str = "") -> Path:
    name = FILE
    if selecting:
        name = f"alive-{hashlib.sha256(selecting.encode()).hexdigest()[:12]}.json"
    return layout.coordinator_directory(state) / name


def _read(path: Path) -> Alive | None:
    try:
        return Alive.model_validate_json(path.read_text())
    except (OSError, ValidationError):
        return None
