"""How long a pod takes from its creation until it is ready, alone on clean devices."""

from __future__ import annotations

import statistics
import time

from tests.e2e.polling import eventually
from tests.e2e.workloads import STAY, container, program
from tests.stories.stage import Stage

REAL, STAND_IN = 10, 2
"""Pods measured, one after the other."""
PERIOD_S = 0.01
LIFE_S = 150.0
LATE_S = 30.0
"""A pod that starts later than this was refused by the API server's node authorizer first, and
kubelet tried again after 60 to 90 s: no figure of the product."""


def measured(stage: Stage, profile: str) -> None:
    """Note how long pods took to start; each of them has to."""
    source = stage.claim_template()
    took = sorted(_start_s(stage, source) for _ in range(REAL if stage.world.real else STAND_IN))
    prompt = [one for one in took if one <= LATE_S]
    assert prompt, took
    stage.figures.append(
        f"{profile}: create to ready p50 {statistics.median(prompt):.2f} s, "
        f"max {prompt[-1]:.2f} s ({len(prompt)} pods, {len(took) - len(prompt)} late ones left out)"
    )


def _start_s(stage: Stage, source: dict[str, str]) -> float:
    began = time.monotonic()
    pod = stage.run(program(STAY), source)
    eventually(
        f"{pod} is ready",
        lambda: container(stage.pod(pod)).get("ready"),
        timeout_s=LIFE_S,
        period_s=PERIOD_S,
        tell=lambda: stage.told(pod),
    )
    took = time.monotonic() - began
    stage.delete(pod)
    return took
