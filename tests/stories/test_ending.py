"""After a pod: force delete, reuse of a named claim, the end of a namespace, and the hold."""

from __future__ import annotations

import secrets

import pytest

from fleet.core.model import HolderKind
from fleet.kube.base import CLAIMS, SLICES, Change, Object, uid_of, version_of
from tests.e2e.polling import eventually
from tests.e2e.workloads import COUNT, FILL, NOT_ZERO, STAY, program
from tests.stories.latency import measured
from tests.stories.stage import WAIT_S, Record, Stage, tainted

PROFILE = "strict"
COORDINATED = True
DEAF = f'trap "" TERM; while true; do {FILL}; done'
"""Write the secret again and again, and ignore being asked to stop."""


def let_go(stage: Stage, record: Record, claim: Object) -> int:
    """The version in which a claim lost its hold, or was gone."""
    held = record.first(CLAIMS, lambda told: same(told.object, claim) and holds(stage, told.object))
    return record.first(
        CLAIMS,
        lambda told: (
            same(told.object, claim)
            and told.version > held
            and (told.change is Change.DELETED or not holds(stage, told.object))
        ),
    )


def same(one: Object, other: Object) -> bool:
    """Whether both are versions of one object."""
    return uid_of(one) == uid_of(other)


def holds(stage: Stage, claim: Object) -> bool:
    """Whether our hold is on the claim."""
    return stage.reading(claim).held


def test_a_force_delete_hands_nothing_over(stage: Stage) -> None:
    """B01, D5, promises 1 and 4: the API forgets a pod whose process goes on writing. Our hold
    keeps the allocation: the next claim gets the device only after the process is gone and the
    memory is clean, and never reads the old secret."""
    secret = secrets.token_hex(16)
    device = stage.uuid("gpu-0")
    old = stage.run(program(DEAF, secret=secret), stage.claim_template(uuid=device))
    old_uid = uid_of(stage.in_phase(old, "Running"))
    claim = stage.claim_of(old)
    memory = stage.memory(uid_of(claim))
    eventually("the secret is there", lambda: secret.encode() in memory.read_bytes(), timeout_s=10)
    with stage.recording() as record:
        stage.force_delete(old)
        heir = stage.run(
            program("say $FLEETSCRUB_DEVICE", COUNT, NOT_ZERO, secret=secret),
            stage.claim_template(uuid=device),
        )
        heirs = stage.claim_of(heir)
        while_alive(stage, old_uid, claim, heirs)
        assert stage.ended(heir) == [device, "0", "0"]
        given = record.first(
            CLAIMS, lambda told: same(told.object, heirs) and stage.reading(told.object).allocated
        )
        freed = record.first(
            CLAIMS,
            lambda told: (
                same(told.object, claim)
                and (told.change is Change.DELETED or not stage.reading(told.object).allocated)
            ),
        )
    assert freed < given
    stage.undone(claim)


def while_alive(stage: Stage, pod_uid: str, claim: Object, heirs: Object) -> None:
    """See for as long as the old process lives that the claim is held and its heir has nothing."""
    looks = 0

    def over() -> bool:
        nonlocal looks
        held, heir = stage.live(claim), stage.live(heirs)
        if not stage.alive(pod_uid):
            return True
        looks += 1
        if held is None or not held.held or heir is None or heir.allocated:
            pytest.fail(f"while the old process lives: {held}, {heir}")
        return False

    eventually("the old process has ended", over, timeout_s=WAIT_S)
    assert looks, "the old process ended by itself: nothing was tried"


def test_a_named_claim_is_wiped_again_for_its_second_pod(stage: Stage) -> None:
    """Promise 1, D2: a claim that outlives its pod is let go after teardown, and the second pod
    gets it only after a wipe under a new token, with a receipt of its own."""
    secret = secrets.token_hex(16)
    source = stage.named_claim(uuid=stage.uuid("gpu-2"))
    first = stage.run(program(FILL, COUNT, STAY, secret=secret), source)
    stage.in_phase(first, "Running")
    before = stage.reading(stage.named(source))
    assert before.held
    stage.delete(first)
    stage.undone(stage.named(source))
    rest = stage.reading(stage.named(source))
    assert not rest.bound or not rest.allocated, "a condition outlived the teardown"
    second = stage.run(program(COUNT, NOT_ZERO, STAY, secret=secret), source)
    stage.in_phase(second, "Running")
    after = stage.reading(stage.named(source))
    assert after.uid == before.uid
    assert after.held
    for key in ("token", "certificate"):
        assert after.receipt(after.holding[0], key) != before.receipt(before.holding[0], key)
    stage.delete(second)
    stage.undone(stage.named(source))


def test_a_namespace_is_deleted_under_use(stage: Stage) -> None:
    """A7, B75, promise 7: everything in a namespace goes at once while a pod uses its device: the
    device is torn down, the claim let go, and the namespace comes to its end."""
    with stage.elsewhere() as there:
        pod = there.run(program(STAY), there.claim_template())
        there.in_phase(pod, "Running")
        claim = there.claim_of(pod)
        (device,) = there.reading(claim).holding
    eventually(
        "the namespace is gone",
        lambda: not stage.world.has_namespace(there.namespace),
        timeout_s=WAIT_S,
        tell=lambda: "\n".join((*there.left(), *stage.left(), stage.coordinator.told())),
    )
    stage.undone(claim)
    stage.clean_again(device.device)


def test_the_hold_ends_when_the_device_is_clean(stage: Stage) -> None:
    """D3, D6: the hold outlives the pod, and the finalizer goes with it: only once the device is
    certified clean; the slice was never written for it."""
    pod = stage.run(program(STAY), stage.claim_template(uuid=stage.uuid("gpu-3")))
    stage.in_phase(pod, "Running")
    claim = stage.claim_of(pod)
    before = len(stage.plugin.certificates("gpu-3"))
    slices = {int(version_of(one)) for one in stage.slices()}
    with stage.recording() as record:
        stage.delete(pod)
        let_go(stage, record, claim)
        assert len(stage.plugin.certificates("gpu-3")) > before
        assert {one.version for one in record.told(SLICES)} == slices
    stage.undone(claim)


def test_the_hold_ends_when_the_quarantine_is_visible(stage: Stage) -> None:
    """D3, D4, promise 6: the wipe at teardown fails: the claim is let go only after the quarantine
    stands in the slice, and a quarantine lease has the device then."""
    pod = stage.run(program(STAY), stage.claim_template(uuid=stage.uuid("gpu-1")))
    stage.in_phase(pod, "Running")
    claim = stage.claim_of(pod)
    with stage.recording() as record:
        stage.break_device("gpu-1", "dirty-zero")
        stage.delete(pod)
        hidden = record.first(SLICES, lambda told: tainted(told.object, "gpu-1"))
        freed = let_go(stage, record, claim)
    assert hidden < freed
    stage.undone(claim)
    view = stage.plugin.device("gpu-1")
    assert view is not None
    assert view.state == "QUARANTINED"
    eventually(
        "a quarantine lease has the device",
        lambda: (
            [one.holder.name for one in stage.plugin.leases(HolderKind.QUARANTINE)] == [view.uuid]
        ),
        timeout_s=WAIT_S,
        tell=stage.coordinator.told,
    )


def test_pod_start_latency(stage: Stage) -> None:
    """Profile strict: the time from create to ready is measured, pod after pod on clean devices."""
    measured(stage, PROFILE)
