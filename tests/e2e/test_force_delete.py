"""Force delete: the API forgets a pod at once while its process, deaf to SIGTERM, still writes.

Kubelet kills the process after two seconds; the next pod's claim is allocated after 0.1 s where
nothing stands in the way. The next pod must get the device after the process is gone and the memory
was wiped, whatever the scheduler did (B01, promises 1 and 4).
"""

from __future__ import annotations

import secrets
import time

import pytest

from fleet.evidence.dsse import seconds_of
from fleet.kube.base import uid_of
from tests.e2e.ground import Ground
from tests.e2e.plugin_process import DRIVER
from tests.e2e.polling import eventually
from tests.e2e.succession import deaf_pod, succession
from tests.e2e.workloads import COUNT, NOT_ZERO, Wish, program

pytestmark = pytest.mark.e2e

KUBELET_AWAY_S = 120.0
"""Time, s, until two looks of the orphan sweep have found a claim given up."""


@pytest.mark.parametrize("tolerated", [(), (f"{DRIVER}/not-clean",)], ids=["waits", "insists"])
def test_the_next_pod_waits_for_the_old_process_and_a_wipe(
    ground: Ground, tolerated: tuple[str, ...]
) -> None:
    """B01: exposed only after the old process is gone and a certified wipe, also where the next
    claim tolerates the taint, so that the scheduler gives it the device at once."""
    secret = secrets.token_hex(16)
    device = ground.uuid("gpu-0")
    old, old_uid, _ = deaf_pod(ground, device, secret)
    source = ground.claim_template(Wish(uuid=device, tolerated=tolerated))
    ground.force_delete(old)
    deleted_at = time.time()
    heir = ground.run(
        program("say $FLEETSCRUB_DEVICE", COUNT, NOT_ZERO, "sleep 1", secret=secret), source
    )
    alive_at, exposed_at = succession(ground, old_uid, uid_of(ground.claim_of(heir)))
    assert alive_at > deleted_at, "the old process ended by itself: nothing was tried"
    spans = [
        (seconds_of(one.predicate["started_at"]), seconds_of(one.predicate["ended_at"]))
        for one in ground.plugin.certificates("gpu-0")
    ]
    assert [span for span in spans if alive_at <= span[0] and span[1] <= exposed_at]
    assert ground.ended(heir) == [device, "0", "0"]
    ground.figures.append(
        f"force delete ({'tolerating' if tolerated else 'waiting'} heir):"
        f" old process gone {alive_at - deleted_at:.2f} s,"
        f" next exposed {exposed_at - deleted_at:.2f} s after the delete"
    )


@pytest.mark.timeout(400)
def test_a_kubelet_that_is_down_changes_nothing(ground: Ground) -> None:
    """Promise 4, reference 1.5: kubelet down, pod force-deleted, claim gone from the API: nothing
    is wiped under the process, which goes on; once kubelet is back and ends it, all is cleaned."""
    secret = secrets.token_hex(16)
    device = ground.uuid("gpu-0")
    pod, pod_uid, claim_uid = deaf_pod(ground, device, secret)
    memory = ground.memory(claim_uid)
    ground.kubelet.stop()
    ground.force_delete(pod)
    eventually(
        "the claim is known to be an orphan",
        lambda: [one.state for one in ground.plugin.claims() or ()] == ["UNPREPARING"],
        timeout_s=KUBELET_AWAY_S,
        tell=ground.plugin.told,
    )
    assert ground.alive(pod_uid)
    assert secret.encode() in memory.read_bytes()
    kept = ground.plugin.device("gpu-0")
    assert kept is not None
    assert kept.held
    assert not ground.plugin.spec(claim_uid).exists()
    ground.kubelet.start()
    eventually("the process has ended", lambda: not ground.alive(pod_uid), timeout_s=60)
    eventually(
        "the device is clean",
        lambda: (found := ground.plugin.device("gpu-0")) and found.state == "CLEAN",
        timeout_s=60,
        tell=ground.plugin.told,
    )
    assert not memory.read_bytes().strip(b"\0")
