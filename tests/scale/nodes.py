"""A node light enough for twelve thousand of them in one process.

Its devices move by the product's table (`fleet.core.unit_states`) and its orders are fenced by the
product's rule (`fleet.core.leases.check_token`); an order repeated is not carried out twice. Stood
in are the rest of the service, the worker that writes memory (a wipe is a span of virtual time),
the journal (kept in memory) and the ledger (a certificate is a digest of its name).
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fleet.core import errors, leases, unit_states
from fleet.core.messages import (
    Acceptance,
    ByteFigures,
    DeviceResult,
    DeviceView,
    Finding,
    NodeView,
    Outcome,
    ReasonView,
    ScrubOrder,
    WipeProgress,
)
from fleet.core.model import BootId, Digest, Source, State, Token, Unit, UnitId
from fleet.core.unit_states import START_GUARD, Change, Event, Fact
from fleet.devices.health import reasons
from fleet.devices.wipe.result import PASSES

START = 1_800_000_000.0
"""The first moment, seconds since the epoch."""
MEMORY_BYTES = 80 << 30
RESERVED_BYTES = 1 << 30
FASTEST_S, SPREAD_S = 2.0, 1.0
"""How long a wipe takes, start and check included, and by how much at most longer: virtual time."""
BOOT = BootId("boot-1")
STARTED = START_GUARD | {Fact.NO_CLAIM_RECORD}


class Events:
    """What is to happen, in virtual time."""

    def __init__(self) -> None:
        self.now = START
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Let `act` happen so many seconds from now."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), act))

    def run_until(self, moment: float) -> None:
        """Let everything happen up to `moment`."""
        while self._queue and self._queue[0][0] <= moment:
            self.now, _, act = heapq.heappop(self._queue)
            act()
        self.now = max(self.now, moment)


@dataclass(slots=True)
class Device:
    """One accelerator of one unit."""

    uuid: str
    name: str
    unit: Unit
    operation: str = ""
    began_at: float = 0.0
    wipe_s: float = 0.0
    faulty: bool = False
    wipes: int = 0


@dataclass(slots=True)
class Node:
    """One node of `devices`, with everything of it that would survive a restart."""

    name: str
    labels: dict[str, str]
    events: Events
    epoch: int
    devices: dict[str, Device] = field(default_factory=dict)
    results: dict[str, DeviceResult] = field(default_factory=dict)
    silent: bool = False
    counts: Counter[str] = field(default_factory=Counter)

    def fit(self, count: int, *, faulty: float) -> None:
        """Give it devices, all clean; every so many-th of them is `faulty`."""
        for index in range(count):
            uuid = f"GPU-{self.name}-{index}"
            seed = zlib.crc32(uuid.encode()) / (1 << 32)
            certificate = Digest(f"sha256:before-{uuid}")
            unit = Unit(UnitId(f"{uuid}/0"), State.CLEAN, boot_id=BOOT, certificate=certificate)
            device = Device(uuid, f"gpu-{index}", unit)
            device.wipe_s, device.faulty = FASTEST_S + SPREAD_S * seed, seed < faulty
            self.devices[uuid] = device

    # --- reading ---------------------------------------------------------------------------------

    def view(self, operations: Sequence[str]) -> NodeView:
        """The node now."""
        return NodeView(
            node=self.name,
            incarnation=f"{self.name}-1",
            boot_id=BOOT,
            at=self.events.now,
            simulated=True,
            backend="simulated",
            epoch=self.epoch,
            labels=self.labels,
            devices=tuple(map(self._view, self.devices.values())),
            results=tuple(self.results[one] for one in operations if one in self.results),
        )

    def _view(self, device: Device) -> DeviceView:
        unit, now = device.unit, self.events.now
        total, progress = MEMORY_BYTES * len(PASSES), None
        if device.operation:
            share = min((now - device.began_at) / device.wipe_s, 1.0)
            progress = WipeProgress(
                phase="fill", done=int(total * share), total=total, started_at=device.began_at
            )
        return DeviceView(
            uuid=device.uuid,
            name=device.name,
            accelerator=device.uuid,
            units=(unit.id,),
            memory_bytes=MEMORY_BYTES,
            profile="strict",
            state=unit.state,
            reasons=tuple(
                ReasonView(code=r.code, source=r.source, liftable=r.liftable, since=r.since)
                for r in sorted(unit.reasons)
            ),
            operation=device.operation,
            certificate=unit.certificate or "",
            floor=str(unit.floor),
            closed=unit.closed,
            since=unit.since,
            progress=progress,
            attributes={"product": "simulated"},
        )

    # --- orders ----------------------------------------------------------------------------------

    def scrub(self, order: ScrubOrder) -> Acceptance:
        """Accept or refuse one order."""
        self.counts["orders"] += 1
        try:
            self._order(order)
        except errors.FleetError as error:
            return Acceptance(
                operation=order.operation,
                accepted=False,
                error=str(error),
                kind=type(error).__name__,
            )
        return Acceptance(operation=order.operation, accepted=True)

    def _order(self, order: ScrubOrder) -> None:
        device = self.devices[order.device]
        if order.operation in self.results or device.operation == order.operation:
            self.counts["repeated"] += 1
            return
        token = Token.parse(order.token)
        leases.check_token([device.unit], token, self.epoch)
        if device.operation:
            raise errors.DeviceBusy(f"{device.name} is worked on by {device.operation}")
        unit = unit_states.raise_floor(device.unit, token)
        quarantined = unit.state is State.QUARANTINED
        event = Event.RETEST_STARTED if quarantined else Event.WIPE_STARTED
        self._move(device, unit, event, Change(facts=STARTED, token=token))
        device.operation, device.began_at = order.operation, self.events.now
        device.wipes += 1
        self.events.after(device.wipe_s, lambda: self._ended(device, order.operation))

    def cancel(self, operations: Sequence[str]) -> None:
        """Stop those of these operations that are in work."""
        for device in self.devices.values():
            if device.operation and device.operation in operations:
                gone = Change(facts=frozenset({Fact.WORKER_GONE}))
                self._move(device, device.unit, Event.CANCELLED, gone)
                self._tell(device, Outcome.INTERRUPTED)

    def _ended(self, device: Device, operation: str) -> None:
        if device.operation != operation:
            return  # it was cancelled
        if device.faulty:
            reason = reasons.make("memory-mismatch", Source.WIPE, since=self.events.now)
            failed = Change(facts=frozenset({Fact.WORKER_GONE}), reasons=frozenset({reason}))
            self._move(device, device.unit, Event.WIPE_FAILED, failed)
            self._tell(device, Outcome.QUARANTINED)
            return
        verified = Change(facts=frozenset({Fact.WORKER_GONE}))
        self._move(device, device.unit, Event.WIPE_VERIFIED, verified)
        name = hashlib.sha256(operation.encode()).hexdigest()
        passed = Change(
            facts=frozenset({Fact.CERTIFICATE_DURABLE}), certificate=Digest(f"sha256:{name}")
        )
        self._move(device, device.unit, Event.HEALTH_PASSED, passed)
        self._tell(device, Outcome.CERTIFIED)

    def _move(self, device: Device, unit: Unit, event: Event, change: Change) -> None:
        device.unit = unit_states.step(unit, event, now=self.events.now, change=change)

    def _tell(self, device: Device, outcome: Outcome) -> None:
        well = outcome is Outcome.CERTIFIED
        covered = MEMORY_BYTES - RESERVED_BYTES if well else 0
        left = 0 if well else MEMORY_BYTES - RESERVED_BYTES
        why = Finding(check="wipe", verdict="fail", detail="it did not pass", remedy="look at it")
        self.results[device.operation] = DeviceResult(
            operation=device.operation,
            node=self.name,
            device=device.name,
            uuid=device.uuid,
            outcome=outcome,
            state=device.unit.state,
            bytes=ByteFigures(
                total=MEMORY_BYTES, reserved=RESERVED_BYTES, covered=covered, residual=left
            ),
            seconds=device.wipe_s,
            rate=covered * len(PASSES) / device.wipe_s,
            certificate=(device.unit.certificate or "") if well else "",
            findings=() if well else (why,),
            started_at=device.began_at,
            ended_at=self.events.now,
        )
        device.operation = ""
