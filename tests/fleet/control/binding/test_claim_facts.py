"""What is known about a claim, read."""

from __future__ import annotations

from dataclasses import replace
from weakref import ref

from fleet.control.binding.claim_facts import _KNOWN, Facts, devices_of
from fleet.core.messages import ClaimBrief, Owed
from fleet.core.model import Holder, HolderKind, Lease, Token, UnitId
from tests.fleet.control.binding.benches import NOW, SPACE, Bench
from tests.fleet.control.binding.scenes import device, view


def facts(**more: object) -> Facts:
    """A claim of device b."""
    bench = Bench()
    bench.given("c", "b")
    return Facts(reading=bench.reading(), now=NOW, **more)  # type: ignore[arg-type]


def test_names_mean_devices_as_the_slice_names_them() -> None:
    """A name the node does not have is told apart from one it has; the order means nothing."""
    found = devices_of(view(device("b"), device("a")), facts().reading.holding)
    assert {name: one and one.uuid for name, one in found.items()} == {"b": "GPU-n1-b"}
    lost = devices_of(view(device("a")), facts().reading.holding)
    assert lost == {"b": None}


def test_each_view_answers_for_itself() -> None:
    """A name is looked up in the very view that is asked, whatever others said before it."""
    wanted = facts().reading.holding
    for state in ("CLEAN", "DIRTY", "WIPING") * 20:  # views come and go, at the same places
        found = devices_of(view(device("a"), device("b", state=state)), wanted)["b"]
        assert found is not None
        assert found.state == state
    before = view(device("b"))
    assert devices_of(before, wanted)["b"] is devices_of(before, wanted)["b"]
    after = before.model_copy(update={"devices": ()})
    assert devices_of(after, wanted) == {"b": None}


def test_nothing_is_kept_of_a_view_that_is_gone() -> None:
    """A coordinator that runs for months keeps the views it has, and no more."""
    seen = view(device("b"))
    devices_of(seen, facts().reading.holding)
    gone = ref(seen)
    del seen
    assert gone() is None
    assert all(known() is not None for known, _ in [*_KNOWN.values()])


def test_a_node_that_is_silent_tells_nothing() -> None:
    """No record, no device, nothing owed is claimed of a node that does not answer."""
    silent = facts(view=None)
    assert (silent.record, silent.owed, dict(silent.ours)) == (None, False, {})


def test_only_the_claims_own_record_counts() -> None:
    """Records and debts of other claims on the node are theirs."""
    found = facts()
    uid = found.reading.uid
    theirs = view(
        device("b"),
        claims=(ClaimBrief(uid="v", state="PREPARED"),),
        owed=(Owed(uid="v", namespace=SPACE, name="v"),),
    )
    mine = view(
        device("b"),
        claims=(ClaimBrief(uid=uid, state="PREPARED"),),
        owed=(Owed(uid=uid, namespace=SPACE, name="c"),),
    )
    told = [(one.record is not None, one.owed)
            for one in (replace(found, view=theirs), replace(found, view=mine))]  # fmt: skip
    assert told == [(False, False), (True, True)]


def test_all_leases_count() -> None:
    """Whatever the claim has anywhere is to be given back in the end."""
    own = Lease(frozenset({UnitId("x")}), Holder(HolderKind.CLAIM, "u"), Token(1, 1))
    stray, stuck = (replace(own, token=Token(1, n)) for n in (2, 3))
    assert facts(lease=own, strays=(stray,), stuck=(stuck,)).leases == (own, stray, stuck)
    assert facts().leases == ()
    assert not facts().allocated_by_us
