"""A wipe task names its device through its work, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from fleet.core.messages import DeviceResult, Outcome
from fleet.core.model import Device, OperationId, UnitId, Uuid
from fleet.core.settings import WipePolicy
from fleet.devices.base import Coverage
from fleet.devices.wipe.result import Kind, WipeResult
from fleet.node.registry import Work
from fleet.node.tasks import Stopped, WipeTask

DEVICE = Device(Uuid("G"), "gpu-0", Uuid("G"), (UnitId("G/all"),), 1024)


def test_the_device_of_a_task_is_that_of_its_work() -> None:
    """Two places for one fact would one day disagree."""
    task = WipeTask(Work(OperationId("op"), DEVICE, idle=False), WipePolicy())
    assert task.device is DEVICE
    assert task.token is None


def test_a_stopped_wipe_carries_its_result() -> None:
    """E1: a flow that ends early has an answer all the same."""
    result = DeviceResult(node="n", device="gpu-0", uuid="G", outcome=Outcome.HELD, state="HELD")
    assert Stopped(result).result is result


def test_a_reset_meets_no_demand_for_coverage() -> None:
    """Issue 5: a claim that asks for more coverage than the node does cannot be given a device
    whose memory nobody read; one that asks for nothing is not refused.
    """
    wipe = WipeResult(
        DEVICE.accelerator, DEVICE.units, 0.0, 1.0, coverage=Coverage(1024, 0, 0), kind=Kind.RESET
    )
    work = Work(OperationId("op"), DEVICE, idle=False)
    task = WipeTask(work, WipePolicy())
    assert task.lacking(wipe) == ""
    demand = WipePolicy(coverage_floor=0.999)
    assert "not read back" in WipeTask(work, WipePolicy(), demand=demand).lacking(wipe)
    assert "covered" in task.lacking(replace(wipe, kind=Kind.MEMORY))
