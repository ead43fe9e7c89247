"""Before a pod runs: the wait in PreBind, and everything that can end it."""

from __future__ import annotations

from fleet.evidence.dsse import seconds_of
from fleet.kube.base import CLAIMS, SLICES, uid_of, version_of
from tests.e2e.polling import eventually, throughout
from tests.e2e.workloads import NOT_ZERO, STAY, program
from tests.stories.stage import WAIT_S, Stage, tainted

PROFILE = "strict"
COORDINATED = True
FAULT = "dirty-word"
"""The wipe finds what it did not write: it fails for certain, and for as long as it is set."""


def test_a_pod_waits_until_the_wipe_is_proven(stage: Stage) -> None:
    """B2, B7, promise 1: allocated, the pod waits in PreBind while its device is wiped; it is bound
    with a receipt of the certificate made under the claim's token, our hold and our finalizer,
    and no slice was written for it."""
    stage.slow_down("gpu-1")
    slices = [version_of(one) for one in stage.slices()]
    pod = stage.run(
        program("say $FLEETSCRUB_DEVICE", NOT_ZERO, STAY),
        stage.claim_template(uuid=stage.uuid("gpu-1")),
    )
    claim = stage.in_prebind(pod)
    stage.wiping_for(claim, "gpu-1")
    assert "nodeName" not in stage.pod(pod)["spec"]
    assert not stage.reading(stage.claim_of(pod)).marked
    stage.in_phase(pod, "Running")
    bound = stage.finalized(claim)
    (lease,) = stage.plugin.leases()
    certificate = stage.plugin.certificates("gpu-1")[-1]
    (one,) = bound.holding
    assert bound.receipt(one, "certificate") == certificate.digest
    assert bound.receipt(one, "token") == str(lease.token) == str(certificate.token)
    assert bound.held
    assert bound.finalizer
    assert bound.bound
    assert bound.allocated_at is not None
    assert seconds_of(certificate.predicate["started_at"]) >= bound.allocated_at
    assert [version_of(one) for one in stage.slices()] == slices
    stage.delete(pod)
    stage.undone(claim)


def test_a_failing_device_leads_to_another(stage: Stage) -> None:
    """D4, B6, promise 6: the wipe for the claim fails: the quarantine is in the slice before the
    claim hears of the failure, and the pod runs on another device."""
    stage.break_device("gpu-0", FAULT)
    with stage.recording() as record:
        pod = stage.run(program("say $FLEETSCRUB_DEVICE", NOT_ZERO), stage.claim_template())
        said = stage.ended(pod)
        claim = stage.claim_of(pod)
        given = [
            one.device
            for told in record.told(CLAIMS)
            if uid_of(told.object) == uid_of(claim)
            for one in stage.reading(told.object).holding
        ]
        assert given[0] == "gpu-0", f"the story needs gpu-0 to be chosen first, not {given[0]}"
        hidden = record.first(SLICES, lambda told: tainted(told.object, "gpu-0"))
        failed = record.first(
            CLAIMS,
            lambda told: uid_of(told.object) == uid_of(claim) and stage.reading(told.object).failed,
        )
    assert hidden < failed
    assert said[0] != stage.uuid("gpu-0")
    assert said[1] == "0"
    view = stage.plugin.device("gpu-0")
    assert view is not None
    assert view.state == "QUARANTINED"
    assert [one.code for one in view.reasons] == ["memory-mismatch"]


def test_a_failed_prebind_leaves_nothing(stage: Stage) -> None:
    """B5: nothing else can be had: after the rollback there is no lease, record, spec, hold or
    finalizer, the claim is deallocated by the scheduler, and the pod goes on waiting."""
    stage.break_device("gpu-2", FAULT)
    with stage.recording() as record:
        pod = stage.run(program(STAY), stage.claim_template(uuid=stage.uuid("gpu-2")))
        claim = stage.claim_of(pod)
        record.first(
            CLAIMS,
            lambda told: uid_of(told.object) == uid_of(claim) and stage.reading(told.object).failed,
        )
    stage.undone(claim)
    eventually(
        "the scheduler takes the allocation back",
        lambda: not (stage.claim_of(pod).get("status") or {}),
        timeout_s=WAIT_S,
        tell=lambda: stage.told(pod),
    )
    assert "nodeName" not in stage.pod(pod)["spec"]
    assert "quarantined" in stage.taints("gpu-2")
    stage.delete(pod)


def test_a_pod_deleted_while_it_waits(stage: Stage) -> None:
    """B5, A7: the pod vanishes in the middle of its wait: token closed, lease back, claim gone, and
    the device is clean for the next."""
    stage.slow_down("gpu-3")
    pod = stage.run(program(STAY), stage.claim_template(uuid=stage.uuid("gpu-3")))
    claim = stage.in_prebind(pod)
    stage.wiping_for(claim, "gpu-3")
    (lease,) = stage.plugin.leases()
    stage.delete(pod)
    stage.mend()
    stage.undone(claim)
    eventually("the claim is gone", lambda: stage.live(claim) is None, timeout_s=WAIT_S)
    stage.clean_again("gpu-3")
    assert stage.ended(
        stage.run(
            program("say $FLEETSCRUB_DEVICE", NOT_ZERO),
            stage.claim_template(uuid=stage.uuid("gpu-3")),
        )
    ) == [stage.uuid("gpu-3"), "0"]
    assert stage.plugin.certificates("gpu-3")[-1].token != lease.token


def test_the_coordinator_is_killed_while_a_pod_waits(stage: Stage) -> None:
    """Promise 7, B42: kill -9 of the coordinator in the middle of a wipe: the next one finds claim,
    lease and node as they are, and the pod runs under the token it had."""
    stage.slow_down("gpu-1")
    pod = stage.run(program(STAY), stage.claim_template(uuid=stage.uuid("gpu-1")))
    claim = stage.in_prebind(pod)
    stage.wiping_for(claim, "gpu-1")
    (lease,) = stage.plugin.leases()
    stage.coordinator.kill()
    throughout("the pod waits", lambda: "nodeName" not in stage.pod(pod)["spec"], for_s=0.5)
    stage.coordinator.start()
    stage.in_phase(pod, "Running")
    bound = stage.reading(stage.claim_of(pod))
    assert bound.receipt(bound.holding[0], "token") == str(lease.token)
    assert [one.token for one in stage.plugin.leases()] == [lease.token]
    stage.delete(pod)
    stage.undone(claim)
