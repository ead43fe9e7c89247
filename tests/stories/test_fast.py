"""Profile `fast`: no coordinator at all; the plugin holds and lets go by itself."""

from __future__ import annotations

from tests.e2e.polling import eventually
from tests.e2e.workloads import STAY, program
from tests.stories.latency import measured
from tests.stories.stage import MARKS, WAIT_S, Stage

PROFILE = "fast"
COORDINATED = False


def test_the_plugin_holds_and_lets_go_alone(stage: Stage) -> None:
    """D3, E1: without a coordinator: held with our finalizer before the pod had its device, no
    conditions, and let go after the teardown."""
    pod = stage.run(program(STAY), stage.claim_template())
    stage.in_phase(pod, "Running")
    claim = stage.claim_of(pod)
    reading = stage.reading(claim)
    assert not reading.gated
    assert reading.held
    assert reading.finalizer
    assert MARKS.finalizer in claim["metadata"]["finalizers"]
    stage.delete(pod)
    stage.undone(claim)
    eventually("the claim is gone", lambda: stage.live(claim) is None, timeout_s=WAIT_S)


def test_pod_start_latency(stage: Stage) -> None:
    """Profile fast: the time from create to ready is measured, pod after pod on clean devices."""
    measured(stage, PROFILE)
