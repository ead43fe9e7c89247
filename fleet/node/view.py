"""How devices are shown: the least clean of their units, with every reason."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.core import state_targets
from fleet.core.messages import (
    ClaimBrief,
    DeviceView,
    Finding,
    LostDevice,
    ReasonView,
    Swept,
    UnitsView,
)
from fleet.core.model import NO_TOKEN, Device, Reason, Source, State, Unit, UnitId
from fleet.devices.base import CanPartition
from fleet.devices.health import reasons
from fleet.node import admission, boards, partition_mode
from fleet.node.occupants import Occupants
from fleet.node.registry import Registry
from fleet.node.sweep import Seen, Sweep

LOST = "device-lost"
MISSED = "it is not on this node any more"
RETIRE = "put it back, or `fleet devices retire` it for good"


def devices(
    registry: Registry, health: Sweep, occupants: Occupants | None = None
) -> tuple[DeviceView, ...]:
    """All devices of the inventory as they are now."""
    return tuple(
        device(
            registry,
            one,
            checked_at=health.good_at(one),
            unused=health.unused(one),
            kept_by=occupants.of(one.uuid) if occupants is not None else "",
        )
        for one in registry.devices.values()
    )


def gone(registry: Registry) -> tuple[UnitId, ...]:
    """Units with a record and no memory: of cards taken out since.

    A lease of one may come back with a store that is restored; only its node can close the token.
    """
    there = {spec.id for one in registry.accelerators.values() for spec in one.units}
    return tuple(sorted(registry.journal.units.keys() - there))


def lost(registry: Registry) -> tuple[LostDevice, ...]:
    """Devices of boards that were taken out since, with what was open against them."""
    journal = registry.journal
    return tuple(
        LostDevice(
            device=_missed(device(registry, one), board), slot=board.slot, closed=board.closed
        )
        for board in boards.missing(journal.meta, journal.units, registry.accelerators)
        for one in boards.devices(board, journal.units)
    )


def _missed(found: DeviceView, board: boards.Board) -> DeviceView:
    """The device with a reason that says that it is not there, unless another is in its place."""
    if board.closed or any(one.code == LOST for one in found.reasons):
        return found
    why = reasons.make(LOST, Source.HEALTH, detail=MISSED, since=found.since, remedy=RETIRE)
    return found.model_copy(update={"reasons": (*found.reasons, reason(why))})


def device(
    registry: Registry,
    device: Device,
    *,
    checked_at: float = 0.0,
    unused: bool = False,
    kept_by: str = "",
) -> DeviceView:
    """One device as it is now; `checked_at` is when its health was last found good.

    `unused`: whether its accelerator had no instance of any partition when it was last read.
    `kept_by`: see `fleet.node.occupants`.
    """
    units = registry.units(device)
    work = registry.work_on(device)
    newest = max(units, key=lambda unit: (unit.floor, unit.closed))
    found = sorted({reason for unit in units for reason in unit.reasons})
    certificates = {unit.certificate for unit in units}
    return DeviceView(
        uuid=device.uuid,
        name=device.name,
        accelerator=device.accelerator,
        units=device.units,
        memory_bytes=device.memory_bytes,
        profile=device.profile,
        state=registry.state(device),
        reasons=tuple(reason(r) for r in found),
        claim=next((unit.claim for unit in units if unit.claim), None) or "",
        operation=work.operation if work else "",
        certificate=", ".join(sorted(c for c in certificates if c)),
        certified_under=_certified_under(units),
        held=_held(registry, device, units),
        floor=str(newest.floor),
        closed=newest.closed,
        since=max(unit.since for unit in units),
        checked_at=checked_at,
        attached=registry.attached((device.uuid,)),
        kept_by=kept_by if found or registry.state(device) is State.DIRTY else "",
        progress=work.progress if work else None,
        partitioning=_partitioning(registry, device, unused=unused),
        attributes=dict(device.attributes),
    )


def _partitioning(registry: Registry, device: Device, *, unused: bool) -> str:
    divided = device.attributes.get("partitionable") == "true"
    if not (device.whole and divided and isinstance(registry.backend, CanPartition)):
        return ""
    idle = ", no instance" if unused else ""
    before = partition_mode.baseline(registry, device.accelerator)
    return f"partitioning on{idle}; {before or 'no whole-GPU baseline was taken'}"


def claims(registry: Registry) -> tuple[ClaimBrief, ...]:
    """The claim records in brief."""
    return tuple(
        ClaimBrief(
            uid=claim.uid,
            state=claim.state,
            namespace=claim.namespace,
            name=claim.name,
            held=admission.held(claim),
            token=str(claim.token),
            units=claim.units,
        )
        for claim in registry.journal.claims.values()
    )


def units(registry: Registry) -> dict[str, UnitsView]:
    """The units of the inventory by state."""
    now, known = registry.clock.now(), registry.journal.units
    found: dict[str, UnitsView] = {}
    for accelerator in registry.accelerators.values():
        for spec in accelerator.units:
            unit = known[spec.id]
            before = found.get(unit.state, UnitsView(since=unit.since))
            found[unit.state] = UnitsView(
                units=before.units + 1,
                bytes=before.bytes + spec.size_bytes,
                since=min(before.since, unit.since),
                late=before.late + state_targets.is_late(unit.state, unit.since, now),
            )
    return found


def _held(registry: Registry, device: Device, units: Sequence[Unit]) -> bool:
    """Whether the claim that keeps the units was given this very device, and we hold it.

    Another device that shares units with it may well be allocatable by the API's word.
    """
    keepers = {unit.claim for unit in units}
    uid = next(iter(keepers)) if len(keepers) == 1 else None
    claim = registry.journal.claims.get(uid) if uid is not None else None
    if claim is None or device.uuid not in claim.devices or admission.UNHELD in claim.attributes:
        return False
    return admission.held(claim)


def _certified_under(units: Sequence[Unit]) -> str:
    """The token of the one certificate that is in force for all units."""
    found = {(unit.certificate, unit.token) for unit in units}
    certificate, token = next(iter(found))
    whole = len(found) == 1 and certificate is not None
    return str(token if whole and token is not None else NO_TOKEN)


def reason(found: Reason) -> ReasonView:
    """One reason."""
    return ReasonView(
        code=found.code,
        source=found.source,
        liftable=found.liftable,
        detail=found.detail,
        remedy=found.remedy,
        since=found.since,
    )


def swept(seen: Seen) -> Swept:
    """A sweep's word on one accelerator as a message."""
    return Swept(
        device=seen.device.name,
        uuid=seen.device.uuid,
        failing=seen.failing,
        error=seen.error,
        findings=tuple(
            Finding(
                check=finding.check,
                verdict=str(finding.verdict),
                detail=finding.detail,
                remedy=finding.remedy,
            )
            for finding in seen.findings
        ),
    )
