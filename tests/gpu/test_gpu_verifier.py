"""GPU check: the verifier finds what is wrong with memory, at its place, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from fleet.core.model import Accelerator
from tests.gpu import working
from tests.gpu.place import Machine
from tests.gpu.report import REPORT

WORD = 8


def test_the_verifier_catches_seeded_errors(
    machine: Machine, gpu: Accelerator, left_s: Callable[[float], float]
) -> None:
    """gpus-8.7, gpus-8.8, issue 5: one word, and one bit, changed anywhere in all memory is found
    alone and where it is; without it memory is clean; another nonce fits nowhere."""
    found = working.ask(
        "verifier",
        {
            "settings": machine.settings,
            "contained": bool(machine.contained),
            "accelerator": gpu.uuid,
            "units": list(gpu.device.units),
        },
        limit_s=left_s(90),
        visible=gpu.uuid,
    )
    REPORT.add(gpu.uuid, "verifier", found)
    for seed in found["seeds"]:
        unit, offset = seed["at"]
        assert seed["found"] == [[unit, offset, WORD]], seed
    kinds = [seed["kind"] for seed in found["seeds"]]
    assert kinds.count("word") >= 3
    assert {"bit", "bit after zeros"} < set(kinds)
    assert found["clean"] == 0
    assert found["under_another"] == found["covered"]
