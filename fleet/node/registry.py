"""What the node knows: inventory, journal, and who is working on which unit right now.

Every change of a unit goes through `Registry.move`: one transaction, all units of a device or
none, then the witness. Decisions are made under the journal's lock and last milliseconds; work
that takes longer holds a reservation of its units instead (one operation per unit at a time).
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fleet.core import errors, leases, sqlite, unit_states
from fleet.core.clock import Clock
from fleet.core.messages import WipeProgress
from fleet.core.model import (
    Accelerator,
    BootId,
    ClaimUid,
    Device,
    OperationId,
    State,
    Token,
    Unit,
    UnitId,
    Uuid,
)
from fleet.core.unit_states import Change, Event, Fact
from fleet.devices.base import Backend
from fleet.node import boards, inventory, relayout
from fleet.node.journal.journal import Commit, Journal
from fleet.node.journal.startup import Place
from fleet.node.journal_copies import Copies

# The node's gate for acts under a token, with a count of what it refused.
#
# A refused act changes nothing on the node, so the count is the process's own and begins anew with
# it: it tells that somebody acts under tokens that are no longer theirs, not how often ever.


class Fence:
    """Refuses old and foreign tokens. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refused: Counter[str] = Counter()

    def check(self, units: Iterable[Unit], token: Token, epoch: int) -> None:
        """See `leases.check_token`. Raises `EpochForeign` or `TokenStale`, counted."""
        try:
            leases.check_token(units, token, epoch)
        except (errors.EpochForeign, errors.TokenStale) as error:
            with self._lock:
                self._refused[type(error).__name__] += 1
            raise

    def refused(self) -> dict[str, int]:
        """How many acts were refused since the start, by class of the error."""
        with self._lock:
            return dict(self._refused)


LOG = logging.getLogger(__name__)
_SIZE = "size:"
"""Beginning of the journal's words for how much memory each accelerator has."""

CLEANEST_LAST = (
    State.HELD,
    State.QUARANTINED,
    State.RETESTING,
    State.IN_USE,
    State.WIPING,
    State.CHECKING,
    State.DIRTY,
    State.CLEAN,
)
"""A device shows the first of these found among its units."""


@dataclass(slots=True)
class Work:
    """An operation in work on some units, in this process."""

    operation: OperationId
    device: Device
    idle: bool
    """Started by the idle cleaner: gives way to anybody who asks."""
    token: Token | None = None
    """Token it works under, so that closing the token finds it."""
    wipes: bool = True
    """Whether it ends in a verdict of its own; a decision only keeps others off for a moment."""
    cancel: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    progress: WipeProgress = field(default_factory=WipeProgress)
    dirty_since: float | None = None
    """When its device became dirty, s since the epoch; None: it is not."""


class Registry:
    """Inventory, journal and reservations of one node."""

    def __init__(
        self, backend: Backend, journal: Journal, place: Place, clock: Clock, *, boot_id: BootId
    ) -> None:
        self.backend = backend
        self.journal = journal
        self.place = place
        self.clock = clock
        self.boot_id = boot_id
        self.fence = Fence()
        self.accelerators: dict[Uuid, Accelerator] = {}
        self.devices: dict[Uuid, Device] = {}
        self.commit_trouble = ""
        """Why the journal refused the last commit; empty when it took it."""
        self.absent: errors.DriverAbsent | None = None
        """Why the driver as a whole tells nothing now: no device is to blame for that."""
        self.unsigned: Callable[[], errors.KeyUnusable | None] = lambda: None
        """Why nothing can be certified now."""
        self.own: Callable[[Sequence[Uuid]], None] = lambda found: None  # noqa: ARG005 - default
        """Takes the right to speak for accelerators, before anything is written about them."""
        self.copies = Copies(place, boot_id)
        self._tries = inventory.Tries()
        self._told = False
        """Whether the driver has listed its accelerators since the start."""
        self._kept: tuple[Accelerator, ...] | None = None
        """What is remembered of them; None: nothing is to be."""
        self._gathering = 0
        """The thread whose commits are followed once, at the end; 0: none."""
        self._lock = threading.RLock()
        self._work: dict[UnitId, Work] = {}

    # --- inventory ---

    def begin(self, question: inventory.Question) -> None:
        """Start with what the driver says by now, else with what is remembered (B14, B72).

        The journal is all that is needed to begin. A driver that has not answered yet has not lost
        anybody's trust; one that refused has.
        """
        self._kept = inventory.remembered(self._remembered_at)
        self._tries = inventory.Tries(question=question)
        if (asked := self._tries.ended()) is None:
            self.absent = inventory.silent()
            LOG.warning("the node serves on what is remembered of its devices: the driver is slow")
        elif self._answered(asked):
            return
        with self._lock:
            self._know({one.uuid: one for one in self._kept})

    def retry(self) -> bool:
        """Ask a driver that is away again, when it is time and aside; whether it is back."""
        if self.absent is None:
            return False
        if (asked := self._tries.ended()) is not None:
            try:
                return self._answered(asked)
            except (errors.NotOwner, errors.InputInvalid, errors.BackendFailed) as error:
                # Another service speaks for what has come; told, and asked again like a driver.
                self.absent = errors.DriverAbsent(error.detail, remedy=error.remedy)
                return False
        if self._tries.due:
            renew = getattr(self.backend, "renew", None)
            if renew is not None:
                renew()  # a library that is loaded stays the old one after an upgrade
            self._tries.question = inventory.Question(self.backend.inventory)
        return False

    @property
    def hindrance(self) -> errors.FleetError | None:
        """Why no device can be wiped and certified now, none of them being to blame."""
        return self.absent or self.unsigned()

    def require_wiping(self) -> None:
        """Raises `DriverBusy` while the driver may be starting, `DriverAbsent` where it is away,
        and `KeyUnusable` where nothing can be certified."""
        absent, unsigned = self.absent, self.unsigned()
        if absent is None and unsigned is not None:
            raise errors.KeyUnusable(unsigned.detail, remedy=unsigned.remedy)
        if absent is None:
            return
        asking_s = self._tries.asking_s
        if not self._told and asking_s is not None and asking_s < inventory.SLOW_S:
            raise errors.DriverBusy(absent.detail)
        raise errors.DriverAbsent(absent.detail, remedy=absent.remedy, **absent.fields)

    def lose(self, error: errors.DriverAbsent) -> None:
        """The driver as a whole is away: CLEAN memory is not trusted, and it is asked again."""
        if self.absent is None or self.absent.detail != error.detail:
            LOG.warning("no device of this node can be asked: %s", error)
        if self.absent is None:
            self._tries = inventory.Tries(question=self._tries.question)
        self.absent = error
        self._distrust({})

    def load(self) -> None:
        """Read the inventory; units never seen start HELD. Raises `DriverAbsent`.

        Read again while serving: what has come is added, and what is gone stays known, under its
        name, for the sweep to find it lost (B24). Memory that was away, or shows another size than
        it had, is not CLEAN any more, whether or not it comes back: who had it is not known.
        """
        try:
            found = self.backend.inventory()
        except errors.DriverAbsent as error:
            self.lose(error)
            raise
        self._take(found)

    def _answered(self, question: inventory.Question) -> bool:
        """Take the answer to a question; whether the driver listed its accelerators."""
        try:
            self._take(question.answer())
        except errors.DriverAbsent as error:
            self.lose(error)
            return False
        return True

    def _take(self, listed: Sequence[Accelerator]) -> None:
        """The driver's own word on what there is."""
        found = {accelerator.uuid: accelerator for accelerator in listed}
        self.own(tuple(found))
        self._distrust(found)
        with self._lock:
            # What is only remembered, and the driver does not list, is gone as after any restart.
            self._know({**self.accelerators, **found} if self._told else found)
            self._told = True
            if self.absent is not None:
                LOG.warning("the driver answers again, for %d devices", len(found))
            self.absent = None
        if self._kept is not None and self._kept != tuple(listed):
            self._kept = tuple(listed)
            inventory.remember(self._remembered_at, self._kept)

    def _know(self, found: Mapping[Uuid, Accelerator]) -> None:
        if found == self.accelerators:
            return
        known = list(self.journal.units.values())
        divided = [one for one in found.values() if not self._is_known(one)]
        if divided:
            self._divide(divided, known, now=self.clock.now())
        self.accelerators = dict(found)
        self.devices = {d.uuid: d for a in found.values() for d in a.devices}

    @property
    def _remembered_at(self) -> Path:
        return self.place.path.with_name(inventory.FILE)

    def _distrust(self, found: Mapping[Uuid, Accelerator]) -> None:
        """CLEAN memory of accelerators that are not in `found` as they were, becomes DIRTY."""
        with self._lock:
            sizes = {f"{_SIZE}{one.uuid}": str(one.device.memory_bytes) for one in found.values()}
            meta = self.journal.meta
            changed = {name: size for name, size in sizes.items() if meta.get(name) != size}
            doubted = [
                unit.id
                for unit in self.journal.units.values()
                if unit.state is State.CLEAN and _is_doubted(unit.id, found, changed, meta)
            ]
            now = self.clock.now()
            noted = boards.noted(meta, found, now=now)
            if not changed and not doubted and not noted:
                return
            change = Change(frozenset({Fact.WORKER_GONE}))
            with self.commit() as commit:
                for name, text in {**changed, **noted}.items():
                    commit.set_meta(name, text)
                for old, told in boards.replacements(noted):
                    commit.record_act(
                        "board replaced", old, operator="the node itself", detail=told, now=now
                    )
                    LOG.warning("%s: %s", old, told)
                for unit_id in doubted:
                    unit = commit.unit(unit_id)
                    moved = unit_states.step(unit, Event.TRUST_LOST, now=now, change=change)
                    commit.put_unit(moved)
                    LOG.warning("%s was away, or had another size: it is wiped again", unit_id)

    def _is_known(self, accelerator: Accelerator) -> bool:
        """Whether the journal has all units of an accelerator, divided as it is now."""
        kept = self.journal.meta.get(relayout.name(accelerator))
        known = all(spec.id in self.journal.units for spec in accelerator.units)
        return known and kept == relayout.division(accelerator)

    def _divide(
        self, accelerators: Sequence[Accelerator], known: Sequence[Unit], *, now: float
    ) -> None:
        there = {unit.id for unit in known}
        with self.commit() as commit:
            for accelerator in accelerators:
                if any(spec.id not in there for spec in accelerator.units):
                    for name, kept in self.copies.recall(accelerator, there).items():
                        commit.put_unit(Unit(name, boot_id=self.boot_id, reasons=kept, since=now))
                relayout.settle(commit, known, accelerator, now=now)

    def device(self, name: str) -> Device:
        """A device by UUID or name. Raises `DeviceUnknown`."""
        for device in self.devices.values():
            if name in (device.uuid, device.name):
                return device
        raise errors.DeviceUnknown(f"node {self.place.node} has no device {name!r}")

    def whole(self) -> Sequence[Device]:
        """The whole accelerators as devices: together they cover every unit once."""
        return [accelerator.device for accelerator in self.accelerators.values()]

    def units(self, device: Device) -> list[Unit]:
        """The records of a device's units."""
        return [self.journal.units[unit] for unit in device.units]

    def state(self, device: Device) -> State:
        """The least clean state among the device's units."""
        states = {unit.state for unit in self.units(device)}
        return next(state for state in CLEANEST_LAST if state in states)

    def attached(self, devices: Sequence[Uuid], *, besides: str = "") -> tuple[ClaimUid, ...]:
        """Claims other than `besides` that look, with adminAccess, into memory of `devices`."""
        known = [self.devices[uuid] for uuid in devices if uuid in self.devices]
        memory = {unit for device in known for unit in device.units}
        return tuple(
            uid
            for uid, claim in self.journal.claims.items()
            if uid != besides
            and any(
                memory.intersection(self.devices[uuid].units)
                for uuid in claim.attached
                if uuid in self.devices
            )
        )

    def lingering(self, units: Iterable[UnitId]) -> tuple[str, ...]:
        """Pods of this boot that had not left these units when their claim's record ended."""
        found: dict[str, None] = {}
        for unit in units:
            kept = json.loads(self.journal.meta.get(f"lingering:{unit}", "{}"))
            if kept.get("boot_id") == self.boot_id:
                found |= dict.fromkeys(kept["pods"])
        return tuple(found)

    def remember_lingering(self, commit: Commit, unit: UnitId, pods: Sequence[str]) -> None:
        """Keep pods for `lingering`, with the transaction that ends their claim's record."""
        kept = {"boot_id": self.boot_id, "pods": [*self.lingering((unit,)), *pods]}
        commit.set_meta(f"lingering:{unit}", json.dumps(kept))

    # --- changes ---

    @contextmanager
    def commit(self) -> Iterator[Commit]:
        """One journal transaction, with the copy of reasons and the witness."""
        with self._lock:
            try:
                with self.journal.commit() as commit:
                    yield commit
                    known = dict(self.journal.units)
                    self.copies.foretell(known, commit.units)
            except (sqlite.Unusable, sqlite.Locked, sqlite.Full) as error:
                self.commit_trouble = str(error)
                raise
            self.commit_trouble = ""
            _tell(known, commit.units)
            if self._gathering != threading.get_ident():
                self.copies.follow(self.journal)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Commits of this thread, each durable by itself, share one witness, at the end.

        It costs what a commit does, and a sweep may commit for each accelerator.
        """
        before = self.journal.sequence
        self._gathering = threading.get_ident()
        try:
            yield
        finally:
            with self._lock:
                self._gathering = 0
                if self.journal.sequence != before:
                    self.copies.follow(self.journal)

    def move(
        self,
        device: Device,
        event: Event | Callable[[Unit], Event | None],
        change: Change | Callable[[Unit], Change] | None = None,
        *,
        also: Callable[[Commit], None] | None = None,
    ) -> list[Unit]:
        """Apply `event` to all units of `device` in one transaction, with `also` before it.

        Callables choose event and change per unit, inside the transaction; no event leaves the
        unit alone. Raises `IllegalTransition` or what `also` raises, and then nothing has changed.
        """
        now = self.clock.now()
        with self.commit() as commit:
            if also is not None:
                also(commit)
            for unit_id in device.units:
                unit = commit.unit(unit_id)
                chosen = event(unit) if callable(event) else event
                if chosen is not None:
                    brought = change(unit) if callable(change) else change
                    commit.put_unit(unit_states.step(unit, chosen, now=now, change=brought))
        return self.units(device)

    # --- reservations ---

    def reserve(self, work: Work) -> Work | None:
        """Take the units of `work`, or return the work that has one of them."""
        with self._lock:
            for unit in work.device.units:
                other = self._work.get(unit)
                if other is not None:
                    return other
            for unit in work.device.units:
                self._work[unit] = work
            return None

    def unreserve(self, work: Work) -> None:
        """Give the units back and wake whoever waits."""
        with self._lock:
            for unit in work.device.units:
                if self._work.get(unit) is work:
                    del self._work[unit]
        work.done.set()

    def work_on(self, device: Device) -> Work | None:
        """The work that has a unit of `device` now."""
        with self._lock:
            return next((self._work[u] for u in device.units if u in self._work), None)

    def reserved(self, unit: UnitId) -> bool:
        """Whether some work has the unit now."""
        with self._lock:
            return unit in self._work

    def wiped_now(self, unit: UnitId) -> bool:
        """Whether a wipe has the unit now, which will judge its health itself."""
        with self._lock:
            work = self._work.get(unit)
            return work is not None and work.wipes

    def reserve_over_idle(self, work: Work, *, wait_s: float) -> Work | None:
        """Reserve for `work`; the node's own idle cleaning gives way, anybody else is returned.

        `wait_s` bounds the waiting for idle cleaning to end.
        """
        deadline = self.clock.monotonic() + wait_s
        while (other := self.reserve(work)) is not None:
            if not other.idle or work.idle:
                return other
            other.cancel.set()
            if not other.done.wait(max(0.0, deadline - self.clock.monotonic())):
                return other
        return None

    def claim_for(self, work: Work, *, wait_s: float) -> Work | None:
        """Reserve for `work`, stopping whatever has its units; returns what did not end in time.

        `wait_s` bounds the waiting for all of them together.
        """
        deadline = self.clock.monotonic() + wait_s
        while (other := self.reserve(work)) is not None:
            other.cancel.set()
            if not other.done.wait(max(0.0, deadline - self.clock.monotonic())):
                return other
        return None

    def works(self) -> list[Work]:
        """All work now, each once."""
        with self._lock:
            return list({id(work): work for work in self._work.values()}.values())


def _is_doubted(
    unit: UnitId,
    found: Mapping[Uuid, Accelerator],
    changed: Mapping[str, str],
    before: Mapping[str, str],
) -> bool:
    """Whether the accelerator of a unit is away, or had another size before."""
    accelerator = Uuid(unit.rpartition("/")[0])
    name = f"{_SIZE}{accelerator}"
    return accelerator not in found or (name in changed and name in before)


def _tell(before: Mapping[UnitId, Unit], after: Mapping[UnitId, Unit]) -> None:
    """One line where a unit goes out of service or comes back; the rest is the ledger's matter."""
    for name, unit in after.items():
        was = before[name].state if name in before else None
        if was == unit.state or not {was, unit.state} & {State.QUARANTINED, State.HELD}:
            continue
        why = "; ".join(f"{reason.code}: {reason.detail}" for reason in sorted(unit.reasons))
        LOG.warning("%s: %s -> %s%s", name, was or "new", unit.state, f" ({why})" if why else "")
