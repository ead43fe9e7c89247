"""The pledge says who allocates a claim, and ends by itself."""

from __future__ import annotations

import pytest

from fleet.control.binding import pledge
from fleet.control.binding.pledge import LIFETIME_S, Pledge
from fleet.core.model import Lease, Token
from fleet.kube.marks import Marks
from tests.fleet.control.binding.scenes import DRIVER, NOW

MARKS = Marks(DRIVER)


def annotated(text: object) -> dict[str, object]:
    """A claim with this annotation."""
    return {"metadata": {"annotations": {f"{DRIVER}/allocating": text}}}


def test_a_pledge_is_read_as_it_was_written() -> None:
    """The patch that sets it carries the guards; the one that removes it says null."""
    claim = {"metadata": {"uid": "u", "resourceVersion": "7"}}
    mine = Pledge("me", NOW)
    body = pledge.body(claim, MARKS, mine)
    assert pledge.read(body, MARKS) == mine
    assert (body["metadata"]["uid"], body["metadata"]["resourceVersion"]) == ("u", "7")
    assert pledge.body(claim, MARKS, None)["metadata"]["annotations"] == {pledge.key(MARKS): None}


@pytest.mark.parametrize("text", [None, "", "me", "me soon", " 12", 12, {}])
def test_what_is_no_pledge_binds_nobody(text: object) -> None:
    """B19: an annotation that cannot be understood is none."""
    assert pledge.read(annotated(text), MARKS) is None
    assert pledge.read({"metadata": {"annotations": []}}, MARKS) is None
    assert pledge.read({}, MARKS) is None


def test_an_owner_is_short() -> None:
    """T3: what a tenant writes there is not carried to the store whatever it is."""
    long = "9" * 65
    assert pledge.read(annotated(f"{long} 5"), MARKS) is None
    assert pledge.read(annotated(f"me {long}"), MARKS) is None


def test_a_lease_is_of_one_claim_and_one_owner() -> None:
    """T3: only the lease that its owner has for this very claim makes a pledge good."""
    lease = Lease(frozenset({pledge.unit("u")}), pledge.holder("me"), Token(1, 1), 5.0)
    assert pledge.covers(lease, "u", "me")
    assert not pledge.covers(lease, "v", "me")
    assert not pledge.covers(lease, "u", "you")


def test_a_pledge_ends_by_itself() -> None:
    """Whoever died in mid-work keeps nobody waiting, nor does a clock that runs ahead."""
    assert Pledge("me", NOW + LIFETIME_S).counts(NOW)
    assert not Pledge("me", NOW).counts(NOW)
    assert not Pledge("me", NOW + 10 * LIFETIME_S).counts(NOW)
