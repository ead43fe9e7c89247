"""Profile `lab`: a single user; the pool gate and the wipe at teardown, and no mark on a claim."""

from __future__ import annotations

import secrets

from tests.e2e.polling import eventually
from tests.e2e.workloads import COUNT, FILL, NOT_ZERO, STAY, program
from tests.stories.latency import measured
from tests.stories.stage import WAIT_S, Stage

PROFILE = "lab"
COORDINATED = False


def test_no_claim_is_marked_and_memory_is_wiped(stage: Stage) -> None:
    """Promise 1, DESIGN 5: no hold, no finalizer, no conditions; the next pod finds zeros."""
    secret = secrets.token_hex(16)
    device = stage.uuid("gpu-0")
    pod = stage.run(program(FILL, STAY, secret=secret), stage.claim_template(uuid=device))
    stage.in_phase(pod, "Running")
    claim = stage.claim_of(pod)
    reading = stage.reading(claim)
    assert not reading.gated
    assert not reading.marked
    assert len(stage.plugin.leases()) == 1
    stage.delete(pod)
    heir = stage.run(program(COUNT, NOT_ZERO, secret=secret), stage.claim_template(uuid=device))
    assert stage.ended(heir) == ["0", "0"]
    stage.undone(claim)
    eventually("the claim is gone", lambda: stage.live(claim) is None, timeout_s=WAIT_S)


def test_pod_start_latency(stage: Stage) -> None:
    """Profile lab: the time from create to ready is measured, pod after pod on clean devices."""
    measured(stage, PROFILE)
