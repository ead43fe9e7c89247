"""GPU check: one partition of a GPU that has partitioning on; its mode is never changed."""

from __future__ import annotations

from collections.abc import Callable

from fleet.core.errors import BackendFailed
from fleet.core.model import Accelerator, Device
from tests.gpu import working
from tests.gpu.place import Machine
from tests.gpu.report import REPORT


def free(machine: Machine, gpu: Accelerator) -> Device | None:
    """The smallest partition that lies beside all instances there are."""
    taken = {unit for one in machine.backend.instances(gpu.uuid) for unit in one.units}
    parts = [one for one in gpu.devices if one.uuid != gpu.uuid and not taken & set(one.units)]
    return min(parts, key=lambda one: (one.memory_bytes, one.name), default=None)


def test_a_partition_is_made_wiped_and_removed(
    machine: Machine, gpu: Accelerator, left_s: Callable[[float], float]
) -> None:
    """gpus-8.29, gpus-8.31, gpus-8.32: an instance of ours is made at its placement, wiped by a
    worker that sees it alone, and removed; instances of others stay as they are."""
    before = {one.uuid for one in machine.backend.instances(gpu.uuid)}
    device = free(machine, gpu)
    if device is None:
        REPORT.note(f"{gpu.uuid}: instances of others fill it, and no partition was wiped")
        return
    made = machine.backend.make(device)
    try:
        wiped = working.wipe(
            working.order(machine.settings, gpu, device, visible=made.uuid),
            contained=bool(machine.contained),
            limit_s=left_s(90),
        )
    finally:
        _unmade(machine, device)
    found = wiped.result
    REPORT.add(
        gpu.uuid,
        "partition",
        {
            "profile": device.profile,
            "verified": found.verified,
            "detail": found.detail,
            "seconds": found.seconds,
            "total_bytes": found.coverage.total,
            "covered_bytes": found.coverage.covered,
            "residual_bytes": found.coverage.residual,
        },
    )
    assert found.verified, found.detail
    assert {one.uuid for one in machine.backend.instances(gpu.uuid)} == before


def _unmade(machine: Machine, device: Device) -> None:
    ours = [
        one for one in machine.backend.instances(device.accelerator) if one.device == device.uuid
    ]
    for one in ours:
        try:
            machine.backend.unmake(one)
        except BackendFailed:
            machine.backend.unmake(one)  # half deleted goes on where it stopped
