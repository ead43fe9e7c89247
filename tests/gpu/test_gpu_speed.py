"""GPU check: each pass beside a plain kernel that moves as many bytes, in the same run."""

from __future__ import annotations

from collections.abc import Callable

from fleet.core.model import Accelerator
from tests.gpu import goals, working
from tests.gpu.place import Machine, stand_in
from tests.gpu.report import REPORT

ROUNDS = 5
YARDSTICKS = {
    "fill": "plain set",
    "verify": "plain read",
    "zero": "plain set",
    "verify-zero": "plain read",
}
COLD = {"CUDA_CACHE_DISABLE": "1"}


def test_kernels_are_compiled_in_little_time(
    gpu: Accelerator, left_s: Callable[[float], float]
) -> None:
    """Issue 5, worker start: the driver's start, a context, and our kernels compiled without and
    with the driver's cache."""
    cold = working.ask("jit", {}, limit_s=left_s(60), visible=gpu.uuid, extra=COLD)
    working.ask("jit", {}, limit_s=left_s(60), visible=gpu.uuid)
    warm = working.ask("jit", {}, limit_s=left_s(60), visible=gpu.uuid)
    REPORT.add(
        gpu.uuid,
        "speed",
        {
            "driver_s": warm["driver_s"],
            "context_s": warm["context_s"],
            "jit_cold_s": cold["jit_s"],
            "jit_warm_s": warm["jit_s"],
        },
    )
    assert cold["jit_s"] < 10


def test_passes_run_at_the_speed_of_memory(
    machine: Machine, gpu: Accelerator, left_s: Callable[[float], float]
) -> None:
    """Issue 5: medians of passes and plain kernels that took turns, and the passes of the wipe by
    the figures it certified; 85 % is the goal, and below half something is wrong."""
    found = working.ask(
        "measure",
        {
            "settings": machine.settings,
            "contained": bool(machine.contained),
            "accelerator": gpu.uuid,
            "units": list(gpu.device.units),
            "rounds": ROUNDS,
        },
        limit_s=left_s(90),
        visible=gpu.uuid,
    )
    REPORT.add(gpu.uuid, "speed", found)
    passes = found["passes"]
    rates = {name: done["bytes"] / max(done["seconds"], 1e-9) for name, done in passes.items()}
    REPORT.add(gpu.uuid, "speed", {"bytes_per_s": rates})
    assert found["wrong"] == 0
    failed = []
    wiped = {one["name"]: one for one in REPORT.gpus[gpu.uuid].get("wipe", {}).get("passes", ())}
    figures = [(name, rates[name] / rates[plain]) for name, plain in YARDSTICKS.items()]
    figures += [
        (f"{name} of the wipe", wiped[name]["bytes"] / wiped[name]["seconds"] / rates[plain])
        for name, plain in YARDSTICKS.items()
        if name in wiped
    ]
    for name, value in figures:
        goal = goals.ratio(name, value, judged=not stand_in(gpu))
        try:
            REPORT.judge(gpu.uuid, goal)
        except AssertionError as error:
            failed.append(str(error))
    assert failed == []
