"""The lease a claim is exposed under: found or acquired, never leaked, wherever the node dies."""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.claim_states import ClaimState
from fleet.core.leases import AcquireRequest, ClosedBy, Closure
from fleet.core.messages import ClaimOrder
from fleet.core.model import (
    NO_TOKEN,
    ClaimUid,
    Holder,
    HolderKind,
    Lease,
    NodeName,
    State,
    Token,
    UnitId,
)
from fleet.node.claim_lease import Securing
from fleet.node.ports import Leases
from fleet.stores.base import Release
from tests.fleet.node.conftest import Lab, wait_for
from tests.fleet.node.crashing import POINTS

MINUTES = itertools.count(0, 60)
"""Times for ticks, s: a remote act that failed is tried again within a minute."""
CLAIM = Holder(HolderKind.CLAIM, "claim-a")


def settled(lab: Lab) -> bool:
    """Whether the node has given back what it had to."""
    lab.node.tick(next(MINUTES))
    return lab.node.view().outbox == 0


def test_a_claim_without_token_gets_a_lease_in_its_name(lab: Lab) -> None:
    """Promise 2: holder is the claim's uid; record, unit, certificate and store have one token."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0", "gpu-1-1g-0"))
    (lease,) = lab.leases_of("claim-a")
    assert lease.expires_at is None
    assert lease.units == {unit.id for name in ("gpu-0", "gpu-1-1g-0") for unit in lab.units(name)}
    (record,) = lab.node._registry.journal.claims.values()
    assert record.token == lease.token
    for name in ("gpu-0", "gpu-1-1g-0"):
        assert {unit.token for unit in lab.units(name)} == {lease.token}
        assert {unit.floor for unit in lab.units(name)} == {lease.token}


def test_a_repeated_prepare_keeps_the_lease_and_the_answer(lab: Lab) -> None:
    """Idempotent: same token, same certificates, one wipe, also after a restart."""
    order = lab.bare("claim-a", "gpu-0")
    first = lab.node.prepare(order)
    leases = lab.leases_of("claim-a")
    assert lab.node.prepare(order) == first
    lab.restart()
    assert lab.node.prepare(order) == first
    assert (lab.leases_of("claim-a"), lab.ledger.count) == (leases, 1)


def test_a_failed_prepare_keeps_its_lease_until_the_teardown(lab: Lab) -> None:
    """DESIGN 4: PrepareFailed keeps the lease; the retry uses it; the teardown returns it."""
    lab.fault("worker-crash", times=1)
    order = lab.bare("claim-a", "gpu-0")
    with pytest.raises(errors.DeviceBusy, match="interrupted"):
        lab.node.prepare(order)
    leases = lab.leases_of("claim-a")
    assert len(leases) == 1
    assert lab.node.prepare(order).state == "PREPARED"
    assert lab.leases_of("claim-a") == leases
    lab.node.unprepare("claim-a")
    wait_for(lambda: settled(lab))
    assert lab.coordinator.leases() == []


def test_a_lease_of_the_coordinator_is_found_by_its_holder(lab: Lab) -> None:
    """B3: bound before, wiped under the claim's token: no second lease and no second wipe."""
    lease = lab.lease("gpu-0", holder=CLAIM)
    wiped = lab.scrub(lease=lease)
    answer = lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    assert answer.certificates == (wiped.certificate,)
    assert (lab.leases_of("claim-a"), lab.ledger.count) == ([lease], 1)
    assert lab.units()[0].token == lease.token


def test_a_wipe_under_another_token_is_none_of_this_claims(lab: Lab) -> None:
    """Promise 1, strict: what a campaign wiped is wiped again under the claim's own token."""
    lab.scrub()
    lab.let_go()
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    assert lab.ledger.count == 2


def test_with_the_store_away_nothing_is_exposed_and_the_teardown_works(lab: Lab) -> None:
    """DESIGN 5: retryable; the intent is kept, no lease, no wipe, no spec; teardown succeeds."""
    order = lab.bare("claim-a", "gpu-0")
    with lab.store_away():
        for _ in range(2):
            with pytest.raises(errors.StoreUnavailable):
                lab.node.prepare(order)
        assert [claim.state for claim in lab.node.claims()] == [ClaimState.PREPARING]
        assert (lab.device().state, lab.specs, lab.ledger.count) == (State.DIRTY, [], 0)
        assert lab.node.unprepare("claim-a").state == "ABSENT"
        lab.node.tick(0.0)
        assert lab.node.view().outbox == 1
    wait_for(lambda: settled(lab))
    assert lab.coordinator.leases() == []
    assert lab.node.prepare(lab.bare("claim-a", "gpu-0")).state == "PREPARED"


def test_a_prepared_claim_needs_no_store_to_be_answered_again(lab: Lab) -> None:
    """Promise 7: kubelet's repeated prepare and the teardown succeed while the store is away."""
    order = lab.bare("claim-a", "gpu-0")
    first = lab.node.prepare(order)
    with lab.store_away():
        assert lab.node.prepare(order) == first
        lab.restart()
        assert lab.node.prepare(order) == first
        assert lab.node.unprepare("claim-a").quarantined == ()
    wait_for(lambda: settled(lab))
    assert lab.coordinator.leases() == []


@pytest.mark.parametrize("kind", [HolderKind.CAMPAIGN, HolderKind.QUARANTINE])
def test_a_device_leased_to_another_is_waited_for_by_name(lab: Lab, kind: HolderKind) -> None:
    """B01: retryable and naming the holder; nothing of the claim is exposed meanwhile."""
    other = Holder(kind, "run-7")
    ttl_s = 600.0 if kind is HolderKind.CAMPAIGN else None
    units = frozenset(unit.id for unit in lab.units())
    store = lab.node._parts.store
    (lease,) = store.acquire([AcquireRequest(units, other, ttl_s=ttl_s)])
    assert isinstance(lease, Lease)
    order = lab.bare("claim-a", "gpu-0", "gpu-1")
    with pytest.raises(errors.LeaseHeld, match="run-7") as refused:
        lab.node.prepare(order)
    assert isinstance(refused.value, errors.Retryable)
    assert refused.value.holder == other
    assert (lab.leases_of("claim-a"), lab.ledger.count, lab.specs) == ([], 0, [])
    store.release([Release(other, lease.token)])
    assert lab.node.prepare(order).state == "PREPARED"


def test_a_lease_that_was_lost_is_replaced_and_wiped_for_again(lab: Lab) -> None:
    """DESIGN 5: a lease missing in the store is acquired anew, with a wipe under the new token."""
    lab.fault("worker-crash", times=1)
    order = lab.bare("claim-a", "gpu-0")
    with pytest.raises(errors.DeviceBusy):
        lab.node.prepare(order)
    (lost,) = lab.leases_of("claim-a")
    lose(lab, lost)
    answer = lab.node.prepare(order)
    (lease,) = lab.leases_of("claim-a")
    assert lease.token > lost.token
    assert {unit.token for unit in lab.units()} == {lease.token}
    assert answer.state == "PREPARED"


def lose(lab: Lab, lease: Lease) -> None:
    """Take a claim's lease out of the store behind its node's back."""
    closure = Closure(lease.holder, lease.token, NodeName("n1"), ClosedBy.NODE_LOST)
    store = lab.node._parts.store
    assert list(store.release([Release(lease.holder, lease.token, closure)])) == [True]


@dataclass
class Between:
    """A store with something happening just after it has granted."""

    inner: Leases
    happening: list[object]

    def newest(self) -> Token:
        return self.inner.newest()

    def leases(self) -> Sequence[Lease]:
        return self.inner.leases()

    def held_by(self, holders: Collection[Holder]) -> Sequence[Lease]:
        return self.inner.held_by(holders)

    def holder(self, unit: UnitId) -> Lease | None:
        return self.inner.holder(unit)

    def release(self, releases: Sequence[Release]) -> Sequence[bool | errors.FleetError]:
        return self.inner.release(releases)

    def acquire(self, requests: Sequence[AcquireRequest]) -> Sequence[Lease | errors.FleetError]:
        answers = self.inner.acquire(requests)
        for happens in self.happening:
            assert callable(happens)
            happens()
        return answers


class Died(Exception):
    """The process ends here, as far as the journal can tell."""


def die() -> None:
    raise Died


def between(lab: Lab, happens: object) -> Securing:
    """The node's securing, with something happening between grant and commit."""
    securing = lab.node._parts.holding.securing
    return replace(securing, store=Between(securing.store, [happens]))


def test_a_replaced_lease_does_not_leak_when_the_node_dies_before_it_is_recorded(lab: Lab) -> None:
    """Promise 7: the record forgets the lost token first, so the burial finds what there is."""
    lab.fault("worker-crash", times=1)
    with pytest.raises(errors.DeviceBusy):
        lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    lose(lab, lab.leases_of("claim-a")[0])
    record = lab.node._registry.journal.claims[ClaimUid("claim-a")]
    with pytest.raises(Died):
        between(lab, die).secure(record)
    assert len(lab.leases_of("claim-a")) == 1
    lab.restart()
    lab.node.unprepare("claim-a")
    wait_for(lambda: settled(lab))
    assert lab.coordinator.leases() == []


def test_a_release_still_under_way_never_takes_the_next_claims_lease(lab: Lab) -> None:
    """Promise 2: an earlier life's release by holder closes its token before a new life uses it."""
    with lab.store_away(), pytest.raises(errors.StoreUnavailable):
        lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    record = lab.node._registry.journal.claims[ClaimUid("claim-a")]
    with pytest.raises(Died):
        between(lab, die).secure(record)
    (leaked,) = lab.leases_of("claim-a")
    lab.node.unprepare("claim-a")
    assert lab.node.view().outbox == 1
    with lab.store_away(), pytest.raises(errors.StoreUnavailable):
        lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    again = lab.node._registry.journal.claims[ClaimUid("claim-a")]
    assert again.token == NO_TOKEN
    assert lab.node._tending.outbox._close(leaked) is False
    assert lab.units()[0].floor < leaked.token
    with lab.node._registry.commit() as commit:
        commit.bury_claim(again.uid, NO_TOKEN, 0.0)

    def close_and_return() -> None:
        assert lab.node._tending.outbox._close(leaked)
        with lab.node._registry.commit() as commit:
            commit.put_claim(again)

    with pytest.raises(errors.LeaseLost):
        between(lab, close_and_return).secure(again)
    secured = lab.node._parts.holding.securing.secure(again)
    assert secured.token > leaked.token
    lab.node.unprepare("claim-a")
    wait_for(lambda: settled(lab))
    assert lab.coordinator.leases() == []


@contextmanager
def copied(lab: Lab, number: int) -> Iterator[Lab]:
    """A lab opened on a copy of this one's state."""
    state = lab.state.with_name(f"{lab.state.name}-{number}")
    shutil.copytree(lab.state, state, ignore=shutil.ignore_patterns("*.sock"))
    made = Lab(state, lab.settings)
    try:
        yield made
        made.node.close()
    finally:
        shutil.rmtree(state)


def crashed(lab: Lab, mode: str, order: ClaimOrder, at: str) -> None:
    """Let another process begin the prepare and die at a point of it."""
    lab.node.close()
    command = (sys.executable, "-m", "tests.fleet.node.crashing", mode)
    arguments = (*command, lab.plan.model_dump_json(), order.model_dump_json(), at)
    killed = subprocess.run(arguments, cwd=Path(__file__).parents[3], check=False)
    assert killed.returncode == -signal.SIGKILL


@pytest.mark.parametrize("at", [*POINTS, "1", "2", "5", "6"])
def test_after_a_crash_anywhere_in_a_prepare_both_ways_lead_out(lab: Lab, at: str) -> None:
    """Promise 7: prepare and unprepare both succeed, and no lease, record or spec is left."""
    order = lab.bare("claim-a", "gpu-0")
    crashed(lab, "prepare" if at.isdigit() else "cut", order, at)
    with copied(lab, 1) as torn:
        assert torn.node.unprepare("claim-a").quarantined == ()
        check_nothing_left(torn)
    lab.open()
    answer = lab.node.prepare(order)
    (lease,) = lab.leases_of("claim-a")
    (unit,) = lab.units()
    assert (answer.state, unit.token, unit.state) == ("PREPARED", lease.token, State.IN_USE)
    assert len(lab.specs) == 1
    assert lab.node.unprepare("claim-a").quarantined == ()
    check_nothing_left(lab)


def check_nothing_left(lab: Lab) -> None:
    """No lease, record, spec or worker, and the device clean or free to be cleaned."""
    wait_for(lambda: settled(lab))
    assert (lab.coordinator.leases(), lab.node.claims(), lab.specs) == ([], [], [])
    assert lab.node._registry.journal.workers() == []
    assert lab.device().state == State.CLEAN
    assert lab.device().claim == ""
