"""Devices proven for a claim before it is allocated: leased as a whole, wiped, checked.

All or nothing: a proof that does not come gives back everything that was taken for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.control.binding.claim_leases import ClaimLeases
from fleet.core import errors
from fleet.core.clock import Clock
from fleet.core.messages import Acceptance, DeviceResult, DeviceView, NodeView, Outcome, ScrubOrder
from fleet.core.model import Lease, State, UnitId
from fleet.core.settings import WipePolicy
from fleet.rpc.nodes import Nodes

POLL_S = 0.25
"""Pause, s, between two looks at the work of the node."""
TRIES = 3
"""Wipes ordered of a device that end without a verdict on it (node restarted, busy)."""
UNDECIDED = frozenset({Outcome.INTERRUPTED, Outcome.BUSY, Outcome.UNREACHABLE})


@dataclass(frozen=True, slots=True)
class Proven:
    """Devices of one node that are ready under `lease`, with the result by UUID."""

    lease: Lease
    results: Mapping[str, DeviceResult]


@dataclass(frozen=True, slots=True)
class Unproven:
    """It was not to be had: `devices` (UUIDs) are to be left out of the next choice."""

    why: str
    devices: frozenset[str]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, and what to do at each look; what it raises ends the wait."""

    seconds: float
    meanwhile: Callable[[], None]


@dataclass(frozen=True)
class Proving:
    """Leases, orders and waits. Keeps nothing; safe for threads."""

    leases: ClaimLeases
    nodes: Nodes
    clock: Clock
    sleep: Callable[[float], None]
    fresh_s: float
    """Age, s, up to which a verdict of health counts."""

    def prove(
        self,
        uid: str,
        view: NodeView,
        devices: Sequence[str],
        *,
        wait: Patience,
        wipe: WipePolicy | None,
    ) -> Proven | Unproven:
        """Make `devices` (UUIDs) of the node of `view` ready for the claim `uid`.

        `wipe`: what to demand beyond the node's own policy. Whatever is raised, the lease has been
        given back, or the error says what is left (`give_back` repeats it).
        """
        known = {device.uuid: device for device in view.devices}
        chosen = [known[uuid] for uuid in devices]
        (answer,) = self.leases.acquire([(uid, chosen)])
        if isinstance(answer, errors.LeaseHeld):
            unit = str(answer.fields.get("unit", ""))
            held = frozenset(device.uuid for device in chosen if unit in device.units)
            return Unproven(answer.detail, held or frozenset(devices))
        if isinstance(answer, errors.FleetError):
            raise answer
        work = _Work(self, view.node, answer, {device.uuid: 0 for device in chosen}, wipe)
        try:
            found = work.run(wait)
        except BaseException:  # an interrupt too: nothing may stay leased for a claim without it
            self.give_back(uid, [answer])
            raise
        if isinstance(found, Unproven):
            self.give_back(uid, [answer])
        return found

    def left_over(self, uid: str) -> Sequence[Lease]:
        """Leases that the claim has now."""
        return tuple(self.leases.by_claim([uid]).get(uid, ()))

    def give_back(self, uid: str, leases: Sequence[Lease]) -> None:
        """Close the tokens on the nodes, then release. Raises `DeviceBusy` when something is left:
        the coordinator's reconcile, or the same call again, finishes it.
        """
        mine = [lease for lease in leases if lease.holder.name == uid]
        if not mine:
            return
        views: dict[str, NodeView | None] = {
            node: answer if isinstance(answer, NodeView) else None
            for node, answer in self.nodes.views(dict.fromkeys(self.nodes.names(), ())).items()
        }
        where = {
            UnitId(unit): node
            for node, view in views.items()
            for device in (view.devices if view is not None else ())
            for unit in device.units
        }
        left = self.leases.undo(mine, where, views)
        if left:
            raise errors.DeviceBusy(
                f"the lease of claim {uid} is not given back yet: {left}",
                remedy="the coordinator gives it back as soon as it can; or repeat the command",
            )


@dataclass
class _Work:
    """The work on the devices of one lease."""

    proving: Proving
    node: str
    lease: Lease
    numbers: dict[str, int]
    """Number of the newest operation by UUID."""
    wipe: WipePolicy | None
    accepted: set[str] = field(default_factory=set)
    """UUIDs whose newest operation the node has taken in."""
    why: str = "the node has not answered yet"

    def run(self, wait: Patience) -> Proven | Unproven:
        clock = self.proving.clock
        until = clock.monotonic() + wait.seconds
        while True:
            found = self._order() or self._look()
            if found is not None:
                return found
            if clock.monotonic() >= until:
                return Unproven(f"not ready within {wait.seconds:g} s: {self.why}", self._open())
            wait.meanwhile()
            self.proving.sleep(POLL_S)

    def _operation(self, uuid: str) -> str:
        # Not one of the coordinator's: those tell the pool gate that the device is allocated
        # already and needs no taint, while this one has to be kept from the scheduler meanwhile.
        return f"bind/{self.lease.holder.name}/{self.lease.token}/{uuid}/{self.numbers[uuid]}"

    def _order(self) -> Unproven | None:
        missing = [uuid for uuid in self.numbers if uuid not in self.accepted]
        if not missing:
            return None
        orders = [
            ScrubOrder(
                operation=self._operation(uuid),
                node=self.node,
                device=uuid,
                token=str(self.lease.token),
                wipe=self.wipe,
            )
            for uuid in missing
        ]
        answer = self.proving.nodes.scrub({self.node: orders})[self.node]
        if isinstance(answer, errors.FleetError):
            self.why = answer.detail
            return None
        for uuid, taken in zip(missing, answer, strict=True):
            if taken.accepted:
                self.accepted.add(uuid)
            elif not _retryable(taken):
                return Unproven(taken.error, frozenset({uuid}))
            else:
                self.why = taken.error
        return None

    def _look(self) -> Proven | Unproven | None:
        operations = {self._operation(uuid): uuid for uuid in self.numbers}
        view = self.proving.nodes.views({self.node: tuple(operations)})[self.node]
        if isinstance(view, errors.FleetError):
            self.why = view.detail
            return None
        results = {operations[one.operation]: one for one in view.results}
        devices = {device.uuid: device for device in view.devices}
        for uuid, result in results.items():
            if result.outcome in UNDECIDED and self.numbers[uuid] + 1 < TRIES:
                self.numbers[uuid] += 1
                self.accepted.discard(uuid)
                return None
            if result.outcome is not Outcome.CERTIFIED:
                return Unproven(_told(result), frozenset({uuid}))
        for uuid in self.numbers:
            found = self._obstacle(results.get(uuid), devices.get(uuid))
            if found:
                self.why = found
                return None
        return Proven(self.lease, results)

    def _obstacle(self, result: DeviceResult | None, device: DeviceView | None) -> str:
        """What the device is still lacking; "" when it is ready."""
        if device is None:
            return "the node does not list a device any more"
        if result is None:
            return f"{device.name} is being wiped and checked ({device.state})"
        if device.state != State.CLEAN or device.certificate != result.certificate:
            return f"{device.name} is {device.state} again, after its wipe"
        if device.claim not in ("", self.lease.holder.name) or device.attached:
            return f"{device.name} is in use"
        if abs(self.proving.clock.now() - device.checked_at) > self.proving.fresh_s:
            return f"the health of {device.name} was not checked of late"
        return ""

    def _open(self) -> frozenset[str]:
        return frozenset(self.numbers)


def _retryable(answer: Acceptance) -> bool:
    kind = getattr(errors, answer.kind, None)
    return isinstance(kind, type) and issubclass(kind, errors.Retryable)


def _told(result: DeviceResult) -> str:
    findings = "; ".join(one.detail or one.check for one in result.findings)
    return f"{result.device}: {result.outcome}" + (f" ({findings})" if findings else "")
