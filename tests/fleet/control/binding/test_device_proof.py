"""Devices leased, wiped and checked for a claim, or given back."""

from __future__ import annotations

import pytest

from fleet.control.binding.claim_leases import ClaimLeases
from fleet.control.binding.device_proof import TRIES, Patience, Proven, Proving, Unproven
from fleet.core import errors
from fleet.core.messages import NodeView, Outcome
from fleet.core.model import UnitId
from fleet.core.settings import WipePolicy
from tests.fleet.control.binding.grounds import Ground, Leases

FIRST, SECOND = "GPU-n1-gpu-0", "GPU-n1-gpu-1"


def proving(ground: Ground) -> Proving:
    """Over the ground's nodes and leases."""
    leases = ClaimLeases(Leases(ground.store), ground.nodes)
    return Proving(leases, ground.nodes, ground.clock, ground.clock.advance, 60.0)


def prove(
    ground: Ground, *devices: str, uid: str = "uid", wipe: WipePolicy | None = None
) -> Proven | Unproven:
    """Prove devices of n1 for a claim."""
    view = ground.nodes.views({"n1": ()})["n1"]
    assert isinstance(view, NodeView)
    patience = Patience(10.0, lambda: None)
    return proving(ground).prove(uid, view, devices or (FIRST,), wait=patience, wipe=wipe)


def free(ground: Ground) -> bool:
    """Whether nothing is leased."""
    return not ground.store.leases()


def test_what_is_proven_is_leased_as_a_whole() -> None:
    """B2: one token for all devices; every result is a certificate made under it."""
    ground = Ground(2)
    found = prove(ground, FIRST, SECOND)
    assert isinstance(found, Proven)
    assert set(found.results) == {FIRST, SECOND}
    assert {one.outcome for one in found.results.values()} == {Outcome.CERTIFIED}
    assert found.lease.units == {UnitId(f"{one}/all") for one in (FIRST, SECOND)}


def test_the_claims_demand_goes_with_the_order() -> None:
    """A claim may demand more than the node's policy, never less: the node decides."""
    ground = Ground(1)
    demand = WipePolicy(coverage_floor=0.999)
    prove(ground, wipe=demand)
    assert [order.wipe for order in ground.nodes.orders.values()] == [demand]


@pytest.mark.parametrize(
    "outcome",
    [Outcome.QUARANTINED, Outcome.FAILED, Outcome.IN_USE, Outcome.HELD, Outcome.REFUSED],
)
def test_anything_but_a_certificate_is_no_proof(outcome: Outcome) -> None:
    """Promise 5: doubt is no proof; the lease goes back by the node's word."""
    ground = Ground(2)
    ground.nodes.outcomes = {SECOND: [outcome]}
    found = prove(ground, FIRST, SECOND)
    assert isinstance(found, Unproven)
    assert found.devices == {SECOND}
    assert free(ground)
    assert ground.nodes.machines["n1"][FIRST].closed


def test_a_wipe_without_a_verdict_is_tried_so_often() -> None:
    """Interrupted is not failed, but it is not tried for ever."""
    ground = Ground(1)
    ground.nodes.outcomes = {FIRST: [Outcome.INTERRUPTED] * TRIES}
    assert isinstance(prove(ground), Unproven)
    assert len(ground.nodes.orders) == TRIES
    assert free(ground)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"state": "DIRTY"}, "DIRTY again"),
        ({"certificate": "sha256:another"}, "again, after its wipe"),
        ({"claim": "somebody"}, "in use"),
        ({"attached": ("somebody",)}, "in use"),
        ({"checked_at": 0.0}, "not checked of late"),
    ],
)
def test_a_result_alone_is_no_proof(changed: dict[str, object], told: str) -> None:
    """The device has to be CLEAN and free by that very certificate when it is looked at."""
    ground = Ground(1)
    ground.nodes.spoiled = {FIRST: changed}
    found = prove(ground)
    assert isinstance(found, Unproven)
    assert told in found.why
    assert free(ground)


def test_who_else_has_it_is_said_with_its_devices() -> None:
    """All or nothing: the device that is leased by another claim is named, none is kept."""
    ground = Ground(2)
    assert isinstance(prove(ground, SECOND), Proven)
    found = prove(ground, FIRST, SECOND, uid="other")
    assert isinstance(found, Unproven)
    assert found.devices == {SECOND}
    assert len(ground.store.leases()) == 1


def test_a_closed_token_is_not_used_again() -> None:
    """B4: what the node has closed is leased anew under a newer token."""
    ground = Ground(1)
    first = prove(ground)
    assert isinstance(first, Proven)
    proving(ground).give_back("uid", [first.lease])
    second = prove(ground)
    assert isinstance(second, Proven)
    assert second.lease.token > first.lease.token


def test_without_the_nodes_word_nothing_is_released() -> None:
    """D6: a silent node, or one with a record of the claim, keeps the lease where it is."""
    ground = Ground(1)
    found = prove(ground)
    assert isinstance(found, Proven)
    ground.nodes.records = {("n1", "uid")}
    with pytest.raises(errors.DeviceBusy, match="has a record"):
        proving(ground).give_back("uid", [found.lease])
    ground.nodes.records, ground.nodes.silent = set(), {"n1"}
    with pytest.raises(errors.DeviceBusy, match="not given back yet"):
        proving(ground).give_back("uid", [found.lease])
    assert not free(ground)
    ground.nodes.silent = set()
    proving(ground).give_back("uid", proving(ground).left_over("uid"))
    assert free(ground)
