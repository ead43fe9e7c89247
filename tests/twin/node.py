"""`TwinNode`: one node in memory on the real tables and rules, behind the ports of the real one.

What `fleet.node` does with threads, files and processes happens here in events of virtual time. The
journal, the memory and the ledger survive a crash; everything else is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fleet import claims, errors, leases
from fleet.claims import Claim, ClaimEvent
from fleet.health import reasons
from fleet.leases import Closure
from fleet.lifecycle import Change, Event
from fleet.messages import (
    Acceptance,
    ClaimAnswer,
    ClaimBrief,
    ClaimOrder,
    DeviceResult,
    DeviceView,
    NodeView,
    Outcome,
    Published,
    ReasonView,
    ScrubOrder,
    TeardownOrder,
)
from fleet.model import (
    NO_TOKEN,
    BootId,
    ClaimUid,
    Device,
    OperationId,
    Source,
    State,
    Token,
    Unit,
    Uuid,
)
from fleet.node import confirming
from fleet.profiles import Profile
from fleet.stores.base import LeaseStore
from tests.twin.admission import HELD, Admission, is_held
from tests.twin.clock import Alarm, Timeline
from tests.twin.flights import Holding
from tests.twin.journal import Fates, Hardware, Journal, Work
from tests.twin.owing import Owing
from tests.twin.wiping import GONE, Wiping

SWEEP_S = 25.0
IDLE_DELAY_S = 5.0
RETEST_S = 300.0


@dataclass(frozen=True, slots=True)
class Build:
    """What a node is made of. `exposed` is told of each exposure, `changed` of each change."""

    name: str
    devices: int
    timeline: Timeline
    store: LeaseStore
    fates: Fates
    profile: Profile
    exposed: Callable[[TwinNode, Claim], None]
    changed: Callable[[TwinNode], None]


@dataclass
class TwinNode:
    """One node. `alive` is its service; the hardware is there either way."""

    build: Build
    journal: Journal = field(default_factory=Journal)
    alive: bool = True
    silent: bool = False
    """Does not answer the coordinator, though it works."""
    starts: int = 0
    revision: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    """Reason code that every sweep finds, by device UUID."""
    hardware: Hardware = field(init=False)
    wiping: Wiping = field(init=False)
    holding: Holding = field(init=False)
    admission: Admission = field(init=False)
    owing: Owing = field(init=False)
    _alarm: Alarm = field(init=False)
    _swept_at: float = float("-inf")
    _seen: tuple[int, tuple[DeviceView, ...]] | None = None

    def __post_init__(self) -> None:
        build = self.build
        self.hardware = Hardware.fitted(build.name, build.devices, build.timeline)
        for device in self.hardware.devices.values():
            for unit in device.units:
                self.journal.units[unit] = Unit(unit, State.DIRTY, boot_id=self.journal.boot_id)
        self._open()

    @property
    def name(self) -> str:
        """The node's name."""
        return self.build.name

    # --- start, crash, reboot ---

    def _open(self) -> None:
        build, timeline = self.build, self.build.timeline
        self.starts += 1
        self.wiping = Wiping(timeline, self.journal, self.hardware, build.fates, self._changed)
        self.admission = Admission(timeline, self.journal, self.hardware, self.wiping, build.store)
        self.owing = Owing(build.name, timeline, self.journal, self.wiping, build.store)
        self._alarm = Alarm(timeline, self._tick, f"tick {build.name}")
        self.holding = Holding(
            node=build.name,
            timeline=timeline,
            journal=self.journal,
            hardware=self.hardware,
            wiping=self.wiping,
            store=build.store,
            profile=build.profile,
            admission=self.admission,
            exposed=lambda claim: build.exposed(self, claim),
            wake=self._alarm.wake,
        )
        self.journal.epoch = self.journal.epoch or build.store.newest().epoch
        self._swept_at = float("-inf")
        self._alarm.wake(0.05)

    def crash(self) -> None:
        """Kill the service. Tenants run on; workers die with it."""
        self.alive = False
        self._alarm.stop()
        self.wiping.crash()
        self.holding.flights.clear()
        self._changed()

    def start(self, *, new_boot: bool = False) -> None:
        """Start the service again; after a reboot nobody computes any more, nothing is trusted."""
        if new_boot:
            self.journal.boot_id = BootId(f"boot-{self.starts + 1}")
            self.hardware.containers.clear()
            self.hardware.specs.clear()
        self.alive = True
        self._open()
        self.wiping.recover(new_boot=new_boot)
        for operation in self.journal.requests.keys() - self.journal.results.keys():
            self._answer_interrupted(operation)
        if new_boot:
            for uid, claim in self.journal.claims.items():
                state = claims.step(claim.state, ClaimEvent.NEW_BOOT)
                self.journal.claims[uid] = _stated(claim, state, self.journal.boot_id)
        self._changed()

    def _answer_interrupted(self, operation: OperationId) -> None:
        device = self.admission.device(str(self.journal.requests[operation]["device"]))
        self.journal.results[operation] = DeviceResult(
            operation=operation,
            node=self.name,
            device=device.name,
            uuid=device.uuid,
            outcome=Outcome.INTERRUPTED,
            state=self.wiping.state(device),
        )

    def _changed(self) -> None:
        self.revision += 1
        self._seen = None
        self.build.changed(self)

    def _serving(self) -> None:
        if not self.alive:
            raise errors.NotOwner(f"nobody serves node {self.name}")

    # --- reading ---

    def view(self, operations: Sequence[str] = ()) -> NodeView:
        """The node now."""
        self._serving()
        if self._seen is None or self._seen[0] != self.revision:
            views = tuple(self._device(device) for device in self.hardware.devices.values())
            self._seen = (self.revision, views)
        releases, owed = self.owing.shown()
        wanted = [self.journal.results.get(OperationId(one)) for one in operations]
        return NodeView(
            node=self.name,
            incarnation=f"{self.name}-{self.starts}",
            boot_id=self.journal.boot_id,
            at=self.build.timeline.now(),
            simulated=True,
            backend="simulated",
            devices=self._seen[1],
            results=tuple(one for one in wanted if one is not None),
            outbox=releases,
            claims=tuple(
                ClaimBrief(
                    uid=claim.uid,
                    state=claim.state,
                    namespace=claim.namespace,
                    name=claim.name,
                    held=HELD in claim.attributes,
                )
                for claim in self.journal.claims.values()
            ),
            owed=owed,
        )

    def _device(self, device: Device) -> DeviceView:
        units = self.wiping.units(device)
        newest = max(units, key=lambda unit: (unit.floor, unit.closed))
        work = self.wiping.work_on(device)
        uid = next((unit.claim for unit in units if unit.claim), None)
        claim = self.journal.claims.get(uid) if uid else None
        certificate = units[0].certificate
        return DeviceView(
            uuid=device.uuid,
            name=device.name,
            accelerator=device.accelerator,
            units=device.units,
            memory_bytes=device.memory_bytes,
            state=self.wiping.state(device),
            reasons=tuple(
                ReasonView(code=r.code, source=r.source, liftable=r.liftable, since=r.since)
                for r in sorted({reason for unit in units for reason in unit.reasons})
            ),
            claim=uid or "",
            operation=work.operation if work else "",
            certificate=certificate or "",
            certified_under=str((units[0].token if certificate else None) or NO_TOKEN),
            held=claim is not None and is_held(claim),
            floor=str(newest.floor),
            closed=newest.closed,
            since=max(unit.since for unit in units),
            checked_at=self.wiping.checked_at.get(device.uuid, 0.0),
            attached=self.wiping.attached(device),
        )

    def claims(self) -> Sequence[ClaimAnswer]:
        """Claim records."""
        self._serving()
        return [self.holding.answer(claim) for claim in self.journal.claims.values()]

    # --- orders ---

    def scrub(self, orders: Sequence[ScrubOrder]) -> list[Acceptance]:
        """Accept or refuse each order on its own."""
        return [self._accept(order) for order in orders]

    def _accept(self, order: ScrubOrder) -> Acceptance:
        try:
            self._order(order)
        except errors.FleetError as error:
            shown = {name: str(value) for name, value in error.fields.items()}
            return Acceptance(
                operation=order.operation,
                accepted=False,
                error=str(error),
                kind=type(error).__name__,
                fields=shown,
            )
        return Acceptance(operation=order.operation, accepted=True)

    def _order(self, order: ScrubOrder) -> None:
        self._serving()
        token, operation = Token.parse(order.token), OperationId(order.operation)
        if order.node != self.name:
            raise errors.WrongNode(f"order {operation} is for node {order.node}")
        request = order.model_dump(mode="json")
        known = self.journal.requests.get(operation)
        if known is not None:
            if known != request:
                raise errors.InputInvalid(f"operation {operation} is known with other content")
            return
        device = self.admission.device(order.device)
        leases.check_token(self.wiping.units(device), token, self.journal.epoch)
        confirming.issued(self.build.store, token)
        self.journal.requests[operation] = request
        self.wiping.begin(Work(operation, device, token, None, self._record))

    def _record(self, result: DeviceResult) -> None:
        self.journal.results[OperationId(result.operation)] = result
        self._changed()

    def prepare(self, order: ClaimOrder, *, budget_s: float = 0.0) -> ClaimAnswer:  # noqa: ARG002
        """Prepare, or say that it is still in work."""
        self._serving()
        if order.node != self.name:
            raise errors.WrongNode(f"claim {order.uid} is for node {order.node}")
        return self.holding.prepare(order)

    def unprepare(self, order: TeardownOrder, *, budget_s: float = 0.0) -> ClaimAnswer:  # noqa: ARG002
        """Tear down, or say that it is still in work."""
        self._serving()
        if order.unheld:
            self.holding.unhold(ClaimUid(order.uid))
        return self.holding.unprepare(ClaimUid(order.uid), order.consumers, order.reserved)

    def abandon(self, uid: str, token: str, devices: Sequence[str]) -> Closure:
        """Close a token for a claim without a record."""
        self._serving()
        return self.holding.abandon(ClaimUid(uid), Token.parse(token), devices)

    def published(self, published: Published) -> None:
        """What was read back from the slices."""
        self._serving()
        self.holding.visible = dict(published.quarantined)

    def paid(self, uids: Sequence[str]) -> None:
        """Claims let go at the API."""
        self._serving()
        self.owing.paid(uids)

    def quarantine_add(
        self, device: str, *, detail: str, operator: str, codes: Sequence[str] = ()
    ) -> DeviceView:
        """Take a device out of service; who says so, and why, is not kept here."""
        assert detail and operator  # noqa: PT018 - both are demanded, neither is looked at
        self._serving()
        found, source = self.admission.device(device), Source.OPERATOR
        for code in codes or ("operator",):
            known = code if code in reasons.CATALOGUE else "taken-over"
            self.wiping.fault(found, known, Source.COORDINATOR if codes else source)
        return self._device(found)

    def quarantine_clear(self, device: str) -> None:
        """An operator clears all reasons."""
        self._serving()
        self.wiping.clear(self.admission.device(device))

    def break_device(self, index: int, code: str = "ecc-uncorrectable") -> None:
        """A fault that the next sweep would find is found now."""
        device = list(self.hardware.devices.values())[index]
        if self.alive:
            self.wiping.fault(device, code)
        else:
            self.faults[device.uuid] = code

    # --- by itself ---

    def _tick(self) -> float:
        now = self.build.timeline.now()
        if now - self._swept_at >= SWEEP_S:
            self._sweep(now)
        left = self.owing.drain()
        self.holding.resume()
        due = min([self._swept_at + SWEEP_S, *([now + 1.0] if left else [])])
        return min(due, self._clean_idle(now))

    def _sweep(self, now: float) -> None:
        self._swept_at = now
        for device in self.hardware.devices.values():
            code = self.faults.pop(device.uuid, "")
            if code:
                self.wiping.fault(device, code)
            else:
                self.wiping.checked_at[device.uuid] = now
        self._changed()

    def _clean_idle(self, now: float) -> float:
        """Wipe dirty devices that nobody holds, retest the quarantined; when to look again."""
        due = float("inf")
        for device in self.hardware.devices.values():
            units = self.wiping.units(device)
            state = self.wiping.state(device)
            if any(unit.claim for unit in units) or self.wiping.work_on(device) is not None:
                continue
            liftable = all(r.liftable for unit in units for r in unit.reasons)
            wait_s = IDLE_DELAY_S if state is State.DIRTY else RETEST_S
            if state is not State.DIRTY and not (state is State.QUARANTINED and liftable):
                continue
            moment = max(unit.since for unit in units) + wait_s
            if now < moment:
                due = min(due, moment)
                continue
            operation = OperationId(f"idle/{device.uuid}/{self.revision}")
            self.wiping.begin(Work(operation, device, None, None, self._idled, idle=True))
            due = min(due, now + IDLE_DELAY_S)
        return due

    def _idled(self, _result: DeviceResult) -> None:
        self._alarm.wake(IDLE_DELAY_S)

    def lose_trust(self, uuid: str) -> None:
        """A foreign process was seen on a device that nobody has: dirty."""
        device = self.hardware.devices[Uuid(uuid)]
        if self.wiping.work_on(device) is None:
            self.wiping.move(
                device,
                lambda unit: Event.TRUST_LOST if unit.state is State.CLEAN else None,
                Change(facts=GONE),
            )


def _stated(claim: Claim, state: claims.ClaimState, boot_id: BootId) -> Claim:
    return replace(claim, state=state, boot_id=boot_id)
