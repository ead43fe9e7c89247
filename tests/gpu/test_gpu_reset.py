"""GPU check, only where FLEET_GPU_RESET=1 asks for it: a GPU is reset as a node would reset it."""

from __future__ import annotations

from collections.abc import Callable

from fleet.core.model import Accelerator
from fleet.devices.base import CanReset
from tests.gpu import working
from tests.gpu.place import Machine
from tests.gpu.report import REPORT


def test_a_gpu_is_reset_and_wiped_after_it(
    machine: Machine, gpu: Accelerator, left_s: Callable[[float], float]
) -> None:
    """F81: a reset by the node's own way is done and proven, the GPU is the one it was, and a wipe
    goes through on it afterwards."""
    backend: CanReset = machine.backend
    left_s(160)
    outcome = backend.reset(gpu.uuid)
    REPORT.add(
        gpu.uuid,
        "reset",
        {"done": outcome.done, "method": outcome.method, "detail": outcome.detail},
    )
    assert outcome.done, outcome.detail
    now = machine.backend.readings(gpu.uuid)
    assert (now.present, now.reset_required) == (True, False)
    after = machine.backend.accelerator(gpu.uuid)
    assert [unit.id for unit in after.units] == [unit.id for unit in gpu.units]
    wiped = working.wipe(
        working.order(machine.settings, after, after.device),
        contained=bool(machine.contained),
        limit_s=left_s(90),
    )
    assert wiped.result.verified, wiped.result.detail
