"""The writes of an allocation, and what takes them back: guarded, settled, complete."""

from __future__ import annotations

import pytest

from fleet.control.binding import pledge
from fleet.control.binding.allocation import BUILTIN_FINALIZER
from fleet.control.binding.allocation_writes import Giving, Overtaken
from fleet.control.binding.claim_leases import ClaimLeases
from fleet.control.binding.device_choice import Choice, choose
from fleet.control.binding.device_proof import Proven
from fleet.control.binding.pledge import LIFETIME_S
from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.messages import DeviceResult, Outcome
from fleet.core.model import Holder, HolderKind, Lease, UnitId
from fleet.kube.base import CLAIMS, Name, uid_of, version_of
from tests.fleet.control.binding.grounds import MARKS, POD, Ground, Leases
from tests.fleet.control.binding.scenes import device, scene, view
from tests.lab.apiserver.cluster import MemoryCluster


def giving(ground: Ground, name: Name) -> Giving:
    """One attempt, over a connection of its own."""
    uid = uid_of(ground.cluster.get(CLAIMS, name))
    connection = MemoryCluster(ground.engine)
    leases = ClaimLeases(Leases(ground.store), ground.nodes)
    return Giving(connection, name, uid, MARKS, ground.clock, ground.clock.advance, leases)


def choice(ground: Ground, name: Name) -> Choice:
    """The first device."""
    found = choose(ground.cluster.get(CLAIMS, name), scene(view(device("gpu-0"))))
    assert isinstance(found, Choice)
    return found


def test_a_pledge_is_renewed_at_half_of_its_life() -> None:
    """Long wipes keep their pledge with one write in half a minute, not with one at each look."""
    ground = Ground(1)
    name = ground.create()
    mine = giving(ground, name)
    mine.pledge()
    version = version_of(ground.cluster.get(CLAIMS, name))
    mine.keep_pledge()
    assert version_of(ground.cluster.get(CLAIMS, name)) == version
    ground.clock.advance(LIFETIME_S / 2 + 1)
    mine.keep_pledge()
    (right,) = ground.store.leases(pledge.holder(mine.owner))
    assert right.units == {pledge.unit(mine.uid)}
    assert right.expires_at == ground.clock.now() + LIFETIME_S
    found = pledge.read(ground.cluster.get(CLAIMS, name), MARKS)
    assert found is not None
    assert found.until > ground.clock.now() + LIFETIME_S - 2


def test_whoever_loses_the_claim_hears_of_it_at_the_next_look() -> None:
    """A claim allocated, deleted or replaced meanwhile ends the work on its devices."""
    ground = Ground(1)
    name = ground.create()
    mine = giving(ground, name)
    mine.pledge()
    ground.clock.advance(LIFETIME_S)
    ground.schedule(name, "gpu-0")
    with pytest.raises(errors.ClaimUnready, match="somebody else"):
        mine.keep_pledge()
    ground.change(name, allocation=None, reservedFor=None)
    ground.cluster.delete(CLAIMS, name)
    with pytest.raises(errors.ApiNotFound):
        mine.keep_pledge()
    ground.create()
    with pytest.raises(errors.ClaimReplaced):
        mine.keep_pledge()
    mine.take_back()


def test_a_choice_that_does_not_stand_is_not_written() -> None:
    """B5: the claim has changed since: the choice is asked for again before it is sent."""
    ground = Ground(1)
    name = ground.create()
    mine = giving(ground, name)
    mine.pledge()
    faults = mine.cluster.faults  # type: ignore[attr-defined] # the twin's
    faults.before_next("replace", lambda: None)
    faults.before_next("replace", lambda: ground.annotate(name, "x"))
    with pytest.raises(Overtaken):
        mine.give(choice(ground, name), lambda _: False)
    mine.take_back()
    reading = ground.reading(name)
    assert not reading.allocated
    assert not reading.builtin_finalizer
    assert pledge.read(reading.raw, MARKS) is None


def test_a_lost_update_cannot_land_after_it_was_taken_back() -> None:
    """B5: taking back changes the version first, so that a write still under way meets a conflict;
    what has landed already is found and taken back."""
    ground = Ground(1)
    name = ground.create()
    mine = giving(ground, name)
    mine.pledge()
    faults = mine.cluster.faults  # type: ignore[attr-defined] # the twin's
    faults.before_next("replace", lambda: None)
    faults.before_next("replace", lambda: faults.lose_answer_next("replace"))
    faults.before_next("get", lambda: None)
    faults.before_next("get", lambda: None)
    down = errors.ApiUnavailable("no answer")
    faults.before_next("get", lambda: faults.fail_next("get", down, times=20))
    with pytest.raises(errors.ApiUnavailable):
        mine.give(choice(ground, name), lambda _: True)
    faults.clear()
    version = version_of(ground.cluster.get(CLAIMS, name))
    mine.take_back()
    reading = ground.reading(name)
    assert not reading.allocated
    assert not reading.builtin_finalizer
    assert version_of(reading.raw) != version


def test_all_marks_are_taken_back() -> None:
    """Hold, conditions, receipt, allocation and both finalizers: the claim is as it was."""
    ground = Ground(1)
    name = ground.create()
    before = ground.cluster.get(CLAIMS, name)
    mine = giving(ground, name)
    mine.pledge()
    wanted = choice(ground, name)
    mine.give(wanted, lambda _: True)
    (lease,) = ground.store.acquire(
        [AcquireRequest(frozenset({UnitId("u")}), Holder(HolderKind.CLAIM, mine.uid))]
    )
    assert isinstance(lease, Lease)
    proof = DeviceResult(
        node="n1", device="gpu-0", uuid="GPU-n1-gpu-0", outcome=Outcome.CERTIFIED, state="CLEAN"
    )
    exposed = mine.expose(wanted, Proven(lease, {"GPU-n1-gpu-0": proof}))
    assert exposed.held
    assert exposed.finalizer
    mine.take_back()
    after = ground.cluster.get(CLAIMS, name)
    assert after.get("status") == before.get("status")
    assert after["metadata"].get("finalizers") == before["metadata"].get("finalizers")


def test_a_finalizer_that_was_there_stays() -> None:
    """Whoever made the claim with the builtin finalizer keeps it."""
    ground = Ground(1)
    name = ground.create(finalizers=(BUILTIN_FINALIZER,))
    mine = giving(ground, name)
    mine.pledge()
    mine.give(choice(ground, name), lambda _: True)
    mine.take_back()
    reading = ground.reading(name)
    assert not reading.allocated
    assert reading.builtin_finalizer


def test_what_a_pod_is_reserved_for_is_not_taken_back() -> None:
    """Nothing is taken from under a pod: allocation and builtin finalizer stay."""
    ground = Ground(1)
    name = ground.create()
    mine = giving(ground, name)
    mine.pledge()
    mine.give(choice(ground, name), lambda _: True)
    assert not mine.in_use()
    ground.change(name, reservedFor=[POD])
    assert mine.in_use()
    mine.take_back()
    reading = ground.reading(name)
    assert reading.allocated
    assert reading.builtin_finalizer
    assert reading.pods
