"""GPU check: all memory of a GPU wiped and verified by the worker that the node uses."""

from __future__ import annotations

from collections.abc import Callable

from fleet.core.model import Accelerator
from fleet.core.settings import HealthPolicy
from fleet.devices.base import Coverage
from fleet.devices.health import checks
from fleet.devices.health.checks import Verdict
from fleet.devices.nvidia.access import ON_CHIP_DONE
from fleet.devices.wipe.result import PASSES
from tests.gpu import goals, working
from tests.gpu.place import Machine, stand_in
from tests.gpu.report import REPORT
from tests.gpu.test_gpu_health import KERNEL_LOG, told


def test_all_memory_is_wiped_and_verified(
    machine: Machine, gpu: Accelerator, left_s: Callable[[float], float]
) -> None:
    """gpus-8.3, issue 5: the four passes over all allocatable memory, the verifier's own test in
    them; goals are 99 % of total minus reserved, and 0.25 s of GPU time on an H200."""
    wiped = working.wipe(
        working.order(machine.settings, gpu, gpu.device),
        contained=bool(machine.contained),
        limit_s=left_s(90),
    )
    found = wiped.result
    coverage = found.coverage
    judged_under_load = checks.judge(
        found.after or machine.backend.readings(gpu.uuid),
        HealthPolicy(),
        before=found.before,
        under_load=found.under_load,
    )
    REPORT.add(
        gpu.uuid,
        "wipe",
        {
            **found.extra,
            "verified": found.verified,
            "failure": found.failure,
            "detail": found.detail,
            "worker": wiped.worker,
            "ready_s": wiped.ready_s,
            "wall_s": wiped.wall_s,
            "passes": [
                {"name": one.name, "bytes": one.bytes, "seconds": one.seconds}
                for one in found.passes
            ],
            "seconds": found.seconds,
            "bytes_per_s": found.rate,
            "total_bytes": coverage.total,
            "reserved_bytes": coverage.reserved,
            "covered_bytes": coverage.covered,
            "residual_bytes": coverage.residual,
            "pattern": found.pattern,
            "failed": told(judged_under_load, Verdict.FAIL),
            "unknown": told(judged_under_load, Verdict.UNKNOWN),
            "blocked": [
                one.check
                for one in judged_under_load
                if one.verdict is Verdict.UNKNOWN and one.mandatory
            ],
            "under_load": found.under_load.as_json() if found.under_load else None,
        },
    )
    assert found.failure is None, found.detail
    assert found.verified
    assert tuple(one.name for one in found.passes) == PASSES
    real = not stand_in(gpu)
    REPORT.judge(gpu.uuid, goals.gpu_time(found.seconds, judged=real))
    REPORT.judge(gpu.uuid, goals.coverage(_fraction(coverage), judged=True))


def _fraction(coverage: Coverage) -> float:
    return coverage.covered / (coverage.total - coverage.reserved)


def test_the_gate_passes_under_load(machine: Machine, gpu: Accelerator) -> None:
    """gpus-8.23: with readings from before, during and after the wipe the gate finds no fault, and
    nothing mandatory is unknown but fault codes where there is no kernel log."""
    wipe = REPORT.gpus.get(gpu.uuid, {}).get("wipe", {})
    assert wipe.get("under_load"), "no readings were taken while memory traffic ran"
    assert wipe["failed"] == []
    unknown = [one for one in wipe["blocked"] if not (one == KERNEL_LOG and machine.kernel_log)]
    assert unknown == []


def test_on_chip_memory_is_overwritten(gpu: Accelerator) -> None:
    """Issue 5, gpus-10.27: the kernel for shared memory and registers ran; best effort, and said
    so."""
    wipe = REPORT.gpus.get(gpu.uuid, {}).get("wipe", {})
    assert wipe.get("on_chip") == ON_CHIP_DONE, wipe.get("on_chip")
    assert wipe["verify"] == "device kernels"
