"""The bodies of our writes, as a server takes them."""

from __future__ import annotations

import pytest

from fleet.core import errors
from fleet.kube import claim_bodies
from fleet.kube.base import CLAIMS, Object
from fleet.kube.claim import read
from fleet.kube.claim_bodies import MESSAGE_MAX, Told, Word
from fleet.kube.marks import MANAGER
from tests.fleet.control.binding.benches import MARKS, NOW, Bench


def said(bench: Bench, *, message: str = "", receipt: bool = True) -> Object:
    """A body that says Sanitized of every device of the claim."""
    reading = bench.reading()
    words = (Word(MARKS.sanitized, "Certified", message, true=True),)
    data = {"token": "1.2"} if receipt else None
    told = [Told(one, words, data) for one in reading.devices]
    return claim_bodies.status(reading, MARKS, told=told, hold="n1", now=NOW + 0.9)


def test_a_status_is_taken_as_it_is() -> None:
    """Conditions, receipt and hold of two devices go in one apply."""
    bench = Bench()
    bench.given("c", "a", "b")
    bench.cluster.apply(CLAIMS, said(bench), manager=MANAGER, subresource="status")
    reading = bench.reading()
    assert bench.words() == [("a", "True"), ("b", "True")]
    assert [reading.receipt(one, "token") for one in reading.devices] == ["1.2", "1.2"]
    assert reading.held


def test_a_write_is_about_the_claim_that_was_examined() -> None:
    """B5, invariant 35: another UID or an older resourceVersion is refused by the server."""
    bench = Bench()
    bench.given("c", "a")
    body = said(bench)
    other = {**body, "metadata": {**body["metadata"], "uid": "another"}}
    with pytest.raises((errors.ApiInvalid, errors.ApiConflict)):
        bench.cluster.apply(CLAIMS, other, manager=MANAGER, subresource="status")
    bench.deallocate("c")
    bench.allocate("c", "a")
    with pytest.raises(errors.ApiConflict):
        bench.cluster.apply(CLAIMS, body, manager=MANAGER, subresource="status")
    assert bench.words() == []


def test_what_a_body_leaves_out_goes() -> None:
    """One owner: an apply without hold and receipt takes both away."""
    bench = Bench()
    bench.given("c", "a")
    bench.cluster.apply(CLAIMS, said(bench), manager=MANAGER, subresource="status")
    reading = bench.reading()
    bare = claim_bodies.status(reading, MARKS, told=(), now=NOW)
    bench.cluster.apply(CLAIMS, bare, manager=MANAGER, subresource="status")
    reading = bench.reading()
    assert not reading.held
    assert not reading.receipts
    assert [pod.name for pod in reading.pods] == ["c-pod"]


def test_the_finalizer_is_ours_alone() -> None:
    """Putting ours on and off leaves the builtin one where it is."""
    bench = Bench()
    bench.given("c", "a")
    for present in (True, False):
        body = claim_bodies.finalizer(bench.reading(), MARKS, present=present)
        bench.cluster.apply(CLAIMS, body, manager=MANAGER)
        reading = bench.reading()
        assert (reading.finalizer, reading.builtin_finalizer) == (present, True)


def test_a_message_is_bounded_and_a_time_has_a_zone() -> None:
    """A message goes into a pod's event; a time without a zone would be answered with 500."""
    bench = Bench()
    bench.given("c", "a")
    body = said(bench, message="x" * 999)
    (condition,) = body["status"]["devices"][0]["conditions"]
    assert len(condition["message"]) == MESSAGE_MAX
    assert condition["lastTransitionTime"] == claim_bodies.stamp(NOW)
    assert condition["lastTransitionTime"].endswith("Z")


def test_a_share_is_named_and_no_receipt_is_no_data() -> None:
    """The entry is keyed by share where there is one."""
    bench = Bench()
    bench.given("c", "a")
    (entry,) = said(bench, receipt=False)["status"]["devices"]
    assert "data" not in entry
    assert "shareID" not in entry


def test_a_finalizer_never_takes_others_along() -> None:
    """D3: the list is whole: what other parties put on the claim stays, whoever owns its fields."""
    claim = {
        "metadata": {
            "name": "c",
            "namespace": "ns",
            "uid": "u",
            "resourceVersion": "7",
            "finalizers": ["a.example.com/x", MARKS.finalizer, "b.example.com/y"],
        }
    }
    reading = read(claim, MARKS)
    put_on = claim_bodies.finalizer(reading, MARKS, present=True)["metadata"]
    taken_off = claim_bodies.finalizer(reading, MARKS, present=False)["metadata"]
    assert put_on["finalizers"] == ["a.example.com/x", "b.example.com/y", MARKS.finalizer]
    assert taken_off["finalizers"] == ["a.example.com/x", "b.example.com/y"]
    assert (taken_off["uid"], taken_off["resourceVersion"]) == ("u", "7")
