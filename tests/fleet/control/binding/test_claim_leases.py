"""Leases of claims: as a whole, and back in two steps."""

from __future__ import annotations

import pytest

from fleet.control.binding.claim_leases import ClaimLeases
from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.messages import ClaimBrief, NodeView
from fleet.core.model import Holder, HolderKind, Lease, Token, UnitId
from tests.fleet.control.binding.benches import Bench


@pytest.fixture
def bench() -> Bench:
    """Two nodes and a store."""
    return Bench()


def leases_of(bench: Bench) -> ClaimLeases:
    """Leases over the bench's store and nodes."""
    return ClaimLeases(bench.coordinator, bench.nodes)


def undo(bench: Bench, *leases: Lease, silent: bool = False) -> str:
    """Give back, as seen from all nodes."""
    found = bench.nodes.views(dict.fromkeys(bench.nodes.names(), ()))
    views = {name: one if isinstance(one, NodeView) else None for name, one in found.items()}
    where = {
        UnitId(unit): node.name
        for node in bench.nodes.by_name.values()
        for device in node.devices.values()
        for unit in device.units
    }
    if silent:
        views["n1"] = None
    return leases_of(bench).undo(leases, where, views)


def test_devices_of_one_claim_are_one_lease(bench: Bench) -> None:
    """B2: all units under one token, and the same token when asked again."""
    both = [bench.device("a"), bench.device("b")]
    (first,) = leases_of(bench).acquire([("u", both)])
    (again,) = leases_of(bench).acquire([("u", both)])
    assert isinstance(first, Lease)
    assert first == again
    assert first.units == {UnitId(unit) for device in both for unit in device.units}
    assert first.expires_at is None


def test_one_device_that_is_held_refuses_all(bench: Bench) -> None:
    """B2: all or nothing, and each claim its own answer."""
    leases = leases_of(bench)
    leases.acquire([("v", [bench.device("b")])])
    answers = leases.acquire(
        [("u", [bench.device("a"), bench.device("b")]), ("w", [bench.device("a")])]
    )
    assert isinstance(answers[0], errors.LeaseHeld)
    assert isinstance(answers[1], Lease)
    assert set(leases.by_claim()) == {"v", "w"}


def test_nothing_wanted_asks_nothing(bench: Bench) -> None:
    """An empty batch is no transaction."""
    before = bench.store.history(99)
    assert leases_of(bench).acquire([]) == ()
    assert bench.store.history(99) == before


def test_a_token_that_the_node_has_closed_is_not_given_again(bench: Bench) -> None:
    """Promise 2: the floors of all devices count, and a closed one is passed."""
    leases = leases_of(bench)
    (first,) = leases.acquire([("u", [bench.device("a"), bench.device("b")])])
    assert isinstance(first, Lease)
    bench.change("b", floor=str(first.token), closed=True)
    (second,) = leases.acquire([("u", [bench.device("a"), bench.device("b")])])
    assert isinstance(second, Lease)
    assert second.token > first.token


def test_a_store_behind_the_nodes_grants_nothing(bench: Bench) -> None:
    """A floor that was never issued suspends the store: every claim is refused, none guessed."""
    bench.change("a", floor=str(Token(bench.store.newest().epoch, 99)))
    answers = leases_of(bench).acquire([("u", [bench.device("a")]), ("v", [bench.device("b")])])
    assert [type(one) for one in answers] == [errors.StoreBehind, errors.StoreBehind]


def test_only_claims_leases_are_listed(bench: Bench) -> None:
    """Leases of operators and quarantines are nobody's claim."""
    holder = Holder(HolderKind.QUARANTINE, "x")
    bench.coordinator.acquire([AcquireRequest(frozenset({UnitId("x/0")}), holder)])
    assert leases_of(bench).by_claim() == {}


def test_the_node_closes_before_the_store_releases(bench: Bench) -> None:
    """D6: the token is closed on its devices, then the lease goes; twice does no harm."""
    (lease,) = leases_of(bench).acquire([("u", [bench.device("a")])])
    assert isinstance(lease, Lease)
    assert undo(bench, lease) == ""
    assert (bench.device("a").floor, bench.device("a").closed) == (str(lease.token), True)
    assert not bench.device("b").closed
    assert bench.lease("u") is None
    assert undo(bench, lease) == ""


def test_a_claim_with_a_record_keeps_its_lease(bench: Bench) -> None:
    """Promise 1: the node has the last word; what it exposed is torn down, never abandoned."""
    (lease,) = leases_of(bench).acquire([("u", [bench.device("a")])])
    assert isinstance(lease, Lease)
    bench.nodes.by_name["n1"].claims["u"] = ClaimBrief(uid="u", state="PREPARING")
    assert "record" in undo(bench, lease)
    assert bench.lease("u") == lease


def test_a_silent_node_keeps_the_lease(bench: Bench) -> None:
    """Nothing is released without the node's word, and the next lease is seen to all the same."""
    leases = leases_of(bench)
    answers = leases.acquire([("u", [bench.device("a")]), ("u", [bench.device("a", "n2")])])
    first, second = (one for one in answers if isinstance(one, Lease))
    assert "n1" in undo(bench, first, second, silent=True)
    assert leases.by_claim() == {"u": [first]}


def seen(bench: Bench) -> tuple[dict[UnitId, str], dict[str, NodeView | None]]:
    """Node of each unit, and the nodes."""
    found = bench.nodes.views(dict.fromkeys(bench.nodes.names(), ()))
    views = {name: one if isinstance(one, NodeView) else None for name, one in found.items()}
    where = {
        UnitId(unit): node.name
        for node in bench.nodes.by_name.values()
        for device in {**node.lost, **node.devices}.values()
        for unit in device.units
    }
    return where, views


def test_many_leases_are_one_batch_and_one_transaction(bench: Bench) -> None:
    """Of many claims one is refused by its node; all the others are given back together."""
    leases = leases_of(bench)
    granted = [
        lease
        for lease in leases.acquire(
            [
                ("u", [bench.device("a")]),
                ("v", [bench.device("b")]),
                ("w", [bench.device("a", "n2")]),
            ]
        )
        if isinstance(lease, Lease)
    ]
    bench.nodes.by_name["n1"].claims["v"] = ClaimBrief(uid="v", state="PREPARED")
    words = leases.close(granted, *seen(bench))
    assert bench.nodes.batches == [3]
    assert ["record" in word if isinstance(word, str) else word.holder.name for word in words] == [
        "u", True, "w",
    ]  # fmt: skip
    before = len(bench.store.history(99))
    assert leases.release([word for word in words if not isinstance(word, str)]) == ["", ""]
    assert [lease.holder.name for lease in bench.store.leases()] == ["v"]
    assert len(bench.store.history(99)) == before + 2
    assert leases.release([]) == ()


def test_a_lease_of_a_lost_device_is_closed_by_its_units(bench: Bench) -> None:
    """D6: the journal knows the units of a device that the view does not show any more."""
    (lease,) = leases_of(bench).acquire([("u", [bench.device("a"), bench.device("b")])])
    assert isinstance(lease, Lease)
    bench.lose("a")
    (word,) = leases_of(bench).close([lease], *seen(bench))
    assert not isinstance(word, str)
    floors = {d.name: (d.floor, d.closed) for there in (bench.nodes.by_name["n1"].lost,
              bench.nodes.by_name["n1"].devices) for d in there.values()}  # fmt: skip
    assert floors == {"a": (str(lease.token), True), "b": (str(lease.token), True)}


def test_nothing_is_signed_for_units_that_a_node_never_had(bench: Bench) -> None:
    """Promise 1: a word about nothing would release a device that somebody may have."""
    (lease,) = leases_of(bench).acquire([("u", [bench.device("a")])])
    assert isinstance(lease, Lease)
    where, views = seen(bench)
    (word,) = leases_of(bench).close([lease], dict.fromkeys(where, "n2"), views)
    assert isinstance(word, str)
    assert "names no device" in word
    half = {unit: node for unit, node in where.items() if unit not in lease.units}
    assert leases_of(bench).close([lease], half, views) == [
        "the node of its units is not known yet"
    ]


def test_a_lease_of_unknown_units_waits(bench: Bench) -> None:
    """Units no node was ever seen with are not released by guess."""
    lease = Lease(frozenset({UnitId("z/0")}), Holder(HolderKind.CLAIM, "u"), Token(1, 1))
    assert "not known" in undo(bench, lease)
