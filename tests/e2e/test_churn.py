"""Many pods, one after the other and several at once: nothing is left, and how long it takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleet.kube.base import PODS
from tests.e2e.ground import Ground
from tests.e2e.plugin_process import DEVICES
from tests.e2e.polling import eventually
from tests.e2e.workloads import STAY, container, program

pytestmark = pytest.mark.e2e

ALONE = 15
TOGETHER = 35
PERIOD_S = 0.01
VERBS = ("prepare", "unprepare")
FAILURES = ("refused", "retryable", "unforeseen")
LIFE_S = 150.0
"""Time, s, until a pod runs. Now and then the API server's node authorizer has not heard of a pod
yet when kubelet reads its claim; kubelet then tries again after 60 to 90 s, the plugin unasked."""
LATE_S = 30.0
"""A pod that runs later than this was one of those: no figure of the product."""


@pytest.mark.timeout(600)
def test_fifty_pods_leave_nothing(ground: Ground) -> None:
    """A7, promise 7: 50 pods come and go; no spec, record, lease, taint or checkpoint entry is
    left, every device is clean, and no claim was refused on the way."""
    before = {verb: calls(ground, verb) for verb in VERBS}
    failed = failures(ground)
    source = ground.claim_template()
    alone = [life(ground, source) for _ in range(ALONE)]
    quiet = {verb: calls(ground, verb) for verb in VERBS}
    with ThreadPoolExecutor(DEVICES) as workers:
        together = list(workers.map(lambda _: life(ground, source), range(TOGETHER)))
    eventually("nothing is left", lambda: not ground.left(), timeout_s=60, tell=ground.plugin.told)
    after = {verb: calls(ground, verb) for verb in VERBS}
    for verb in VERBS:
        assert after[verb][0] - before[verb][0] >= ALONE + TOGETHER
    assert failures(ground) == failed
    ground.figures += [
        told(f"{ALONE} pods, one at a time", alone),
        told(f"{TOGETHER} pods, {DEVICES} at a time", together),
        *(mean(f"{verb} (one at a time)", before[verb], quiet[verb]) for verb in VERBS),
        *(mean(f"{verb} ({DEVICES} at a time)", quiet[verb], after[verb]) for verb in VERBS),
    ]


def life(ground: Ground, source: dict[str, str]) -> tuple[float, float]:
    """One pod: seconds from create to ready, and from delete to gone."""
    began = time.monotonic()
    pod = ground.run(program(STAY), source)
    eventually(
        f"{pod} is ready",
        lambda: container(ground.pod(pod)).get("ready"),
        timeout_s=LIFE_S,
        period_s=PERIOD_S,
        tell=lambda: ground.told(pod),
    )
    ready = time.monotonic()
    ground.cluster.delete(PODS, pod)
    eventually(
        f"{pod} is gone",
        lambda: not ground.pod(pod),
        timeout_s=60,
        period_s=PERIOD_S,
        tell=lambda: ground.told(pod),
    )
    return ready - began, time.monotonic() - ready


def calls(ground: Ground, verb: str) -> tuple[float, float]:
    """Claims done with this verb so far, and the seconds they took together."""
    count = ground.plugin.figure(f'fleet_plugin_claim_seconds_count{{verb="{verb}",result="done"}}')
    total = ground.plugin.figure(f'fleet_plugin_claim_seconds_sum{{verb="{verb}",result="done"}}')
    return count or 0.0, total or 0.0


def failures(ground: Ground) -> dict[tuple[str, str], float]:
    """Claims so far whose prepare or unprepare did not succeed at once."""
    name = 'fleet_plugin_claims_total{{verb="{}",result="{}"}}'
    return {
        (verb, result): ground.plugin.figure(name.format(verb, result)) or 0.0
        for verb in VERBS
        for result in FAILURES
    }


def told(what: str, lives: Sequence[tuple[float, float]]) -> str:
    """One line of figures."""
    ready = sorted(one for one, _ in lives if one <= LATE_S)
    gone = sorted(one for _, one in lives)
    return (
        f"{what} ({len(lives) - len(ready)} late ones left out):"
        f" create to ready p50 {quantile(ready, 0.5):.2f} s,"
        f" p95 {quantile(ready, 0.95):.2f} s;"
        f" delete to gone p50 {quantile(gone, 0.5):.2f} s, p95 {quantile(gone, 0.95):.2f} s"
    )


def quantile(ordered: Sequence[float], part: float) -> float:
    """The value below which `part` of an ordered sequence lies."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def mean(what: str, before: tuple[float, float], after: tuple[float, float]) -> str:
    """One line: the mean time of the calls between two looks."""
    count = after[0] - before[0]
    return f"{what}: mean {(after[1] - before[1]) / count * 1000:.1f} ms over {count:.0f} claims"
