"""AdmissionReview in, AdmissionReview out: who is asked, who is not, and that nothing slips by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.admission.review import (
    LENGTH_MAX,
    MESSAGE_MAX,
    PARAMETERS_MAX,
    Objection,
    Reviewing,
    Subject,
)
from fleet.core import errors
from fleet.plugin.tags import TagKeysUnreadable
from tests.fleet.admission.reviews import claim, devices, exactly, review, template
from tests.fleet.admission.rights import NOW, SPACE


class Asked:
    """A judge that says no to everything, and remembers what it was asked."""

    def __init__(self) -> None:
        self.subjects: list[Subject] = []

    def __call__(self, subject: Subject) -> Iterator[Objection]:
        self.subjects.append(subject)
        yield Objection("spec.x", "is wrong", "write y")


def answered(given: Any, *judges: Any) -> dict[str, Any]:
    found = Reviewing(judges or (Asked(),), frozenset({"fleetscrub", "kube-system"}))
    response: dict[str, Any] = found.answer(given, now=NOW)["response"]
    return response


CLAIM = claim(devices(exactly()))


def test_the_answer_is_in_the_words_of_the_question() -> None:
    """B20: uid and version as asked; a denial names path, fault and remedy."""
    answer = Reviewing((Asked(),)).answer(review(CLAIM, uid="abc"), now=NOW)
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = answer["response"]
    assert (response["uid"], response["allowed"]) == ("abc", False)
    assert response["status"]["message"] == "spec.x: is wrong — write y"
    assert response["status"]["code"] == 403
    assert answered(review(CLAIM), lambda _: ()) == {"uid": "rev-1", "allowed": True}


def test_judges_are_told_who_asks_and_when() -> None:
    """C5: a claim about to be made is judged by now, whatever date it carries; an update by the
    server's date of what is there."""
    judge = Asked()
    document = claim(devices(exactly()), creationTimestamp="2020-01-01T00:00:00Z")
    answered(review(document), judge)
    before = claim(devices(), creationTimestamp="2027-01-01T00:00:00Z")
    answered(review(document, operation="UPDATE", oldObject=before), judge)
    answered(review(document, operation="UPDATE", oldObject=claim(devices())), judge)
    made, changed, undated = judge.subjects
    assert (made.namespace, made.user, made.created_at) == (SPACE, "user-1", NOW)
    assert changed.created_at == 1798761600.0
    assert undated.created_at == NOW


@pytest.mark.parametrize(
    "given",
    [
        review(None, operation="DELETE", oldObject=CLAIM),
        review(None, operation="CONNECT", oldObject=CLAIM),
        review({"apiVersion": "v1", "kind": "Pod"}),
        review({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}),
        review({"apiVersion": "example.com/v1", "kind": "ResourceClaim"}),
        review({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}),
        review(CLAIM, subResource="status"),
        review(CLAIM, namespace="kube-system"),
        review(CLAIM, namespace="fleetscrub"),
        review(
            claim(devices(exactly()), finalizers=["x"], deletionTimestamp="2027-01-01T00:00:00Z"),
            operation="UPDATE",
            oldObject=claim(devices(exactly()), finalizers=["x", "y"]),
        ),
    ],
)
def test_what_is_not_ours_to_judge_is_allowed(given: dict[str, Any]) -> None:
    """B65, D3: deletions, other objects, subresources, our own namespaces, and finalizers or labels
    of a claim whose spec stays."""
    judge = Asked()
    assert answered(given, judge)["allowed"] is True
    assert judge.subjects == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (review(claim(devices(), "v9")), "version 'v9' is not known here"),
        (review(template(devices(), "v1alpha3")), "version 'v1alpha3' is not known here"),
        (review(CLAIM, object=None), "CREATE without an object"),
        (review(CLAIM, object=[1]), "CREATE without an object"),
        (review(CLAIM, operation="PATCH"), "operation 'PATCH'"),
        (review(CLAIM, operation=""), "operation ''"),
        (review(CLAIM, object=template(devices())), "of another kind than the review says"),
        (review(CLAIM, object=claim(devices(), "v1beta1")), "of another kind"),
    ],
)
def test_what_is_not_understood_is_denied(given: dict[str, Any], words: str) -> None:
    """B20: an unknown version or a review that contradicts itself is denied, not let through."""
    response = answered(given, lambda _: ())
    assert response["allowed"] is False
    assert words in response["status"]["message"]
    assert response["status"]["code"] == 422


@pytest.mark.parametrize(
    "given",
    [
        None,
        [],
        "x",
        {},
        {"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {}},
        {"apiVersion": "admission.k8s.io/v1", "kind": "Pod"},
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"},
        review(CLAIM, uid=""),
        review(CLAIM, uid=3),  # type: ignore[arg-type] # what JSON may hold
    ],
)
def test_what_is_no_review_is_no_answer(given: Any) -> None:
    """B20: bad input is the sender's fault, and said to be."""
    with pytest.raises(errors.InputInvalid):
        answered(given)


def test_a_judge_that_cannot_judge_denies() -> None:
    """C5: no list of keys, no yes; retryable, so that controllers come again."""

    def away(_: Subject) -> list[Objection]:
        raise TagKeysUnreadable("the list is gone")

    response = answered(review(CLAIM), away)
    assert response["status"]["code"] == 503
    assert response["status"]["reason"] == "ServiceUnavailable"
    assert "the list is gone" in response["status"]["message"]

    def deep(_: Subject) -> list[Objection]:
        raise RecursionError

    assert answered(review(CLAIM), deep)["status"]["code"] == 422


def test_one_place_is_blamed_once() -> None:
    """What two judges find at one place is told in the words of the first; two faults of one
    judge are both told."""

    def first(_: Subject) -> list[Objection]:
        return [Objection("a", "one", "x"), Objection("a", "two", "x")]

    def other(_: Subject) -> list[Objection]:
        return [Objection("a", "three", "x"), Objection("b", "four", "x")]

    message = answered(review(CLAIM), first, other)["status"]["message"]
    assert message == "a: one — x | a: two — x | b: four — x"


def test_a_message_can_be_sent_whatever_it_names() -> None:
    """B20: a tenant's lone surrogates and endless names end in a short, sendable message."""

    def odd(_: Subject) -> list[Objection]:
        return [Objection("\ud800" * 10_000, "x", "y")]

    message = answered(review(CLAIM), odd)["status"]["message"]
    assert len(message) == MESSAGE_MAX
    assert message.encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kind", "spec", "metadata", "group", "x"]), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(fields=st.dictionaries(st.sampled_from([*review(CLAIM)["request"], "dryRun"]), JSON))
def test_no_review_breaks_the_answer(fields: dict[str, Any]) -> None:
    """B20: whatever a review holds, it is answered or refused as no review."""
    given = review(CLAIM)
    given["request"].update(fields)
    uid = given["request"]["uid"]
    if isinstance(uid, str) and uid:
        assert json.dumps(answered(given))
    else:
        with pytest.raises(errors.InputInvalid, match="uid"):
            answered(given)


ENTRY = {"requests": ["gpu"], "opaque": {"driver": "d", "parameters": {}}}
CONSTRAINT = {"matchAttribute": "a/b"}
LONG = range(LENGTH_MAX + 1)


@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        ({"requests": [exactly()] * len(LONG)}, "requests"),
        ({"requests": [{"name": "a", "firstAvailable": [{}] * len(LONG)}]},
         "requests[0].firstAvailable"),
        ({"requests": [exactly(tolerations=[{}] * len(LONG))]}, "requests[0].exactly.tolerations"),
        ({"config": [ENTRY] * len(LONG)}, "config"),
        ({"config": [ENTRY, {**ENTRY, "requests": ["x"] * len(LONG)}]}, "config[1].requests"),
        ({"constraints": [CONSTRAINT] * len(LONG)}, "constraints"),
        ({"constraints": [{**CONSTRAINT, "requests": ["x"] * len(LONG)}]},
         "constraints[0].requests"),
    ],
)  # fmt: skip
def test_a_list_longer_than_any_is_denied_unseen(wanted: dict[str, Any], place: str) -> None:
    """B20, B65: judging takes the product of such lists, so no judge is asked; it says where."""
    for document, before in ((claim(wanted), "spec"), (template(wanted), "spec.spec")):
        judge = Asked()
        response = answered(review(document), judge)
        assert (response["allowed"], response["status"]["code"]) == (False, 422)
        assert f"{before}.devices.{place} has 33 entries" in response["status"]["message"]
        assert "at most 32" in response["status"]["message"]
        assert judge.subjects == []


@pytest.mark.parametrize("part", ["spec", "metadata", "status"])
def test_ballast_anywhere_in_an_object_is_denied_unseen(part: str) -> None:
    """B65: what no judge asks about is walked all the same, so it is counted before."""
    document = claim({"requests": [exactly()]})
    document[part] = {**document.get(part, {}), "ballast": [{"a": [1]}] * 20_000}
    judge = Asked()
    response = answered(review(document), judge)
    assert (response["allowed"], response["status"]["code"]) == (False, 422)
    assert "60000 values" in response["status"]["message"]
    assert judge.subjects == []


def test_parameters_may_be_of_any_shape_but_not_of_any_size() -> None:
    """B20: a list in them is their driver's affair; beyond what is ever stored, denied."""
    for count, is_seen in ((64, 1), (PARAMETERS_MAX, 0)):
        judge = Asked()
        opaque = {"driver": "nic.example.com", "parameters": {"ports": [1] * count}}
        answered(review(claim({"requests": [exactly()], "config": [{"opaque": opaque}]})), judge)
        assert len(judge.subjects) == is_seen


def test_an_oversized_claim_from_before_may_end() -> None:
    """B65: its finalizers go, since its spec stays as it was."""
    long = claim({"requests": [exactly()] * len(LONG)})
    assert answered(review(long, operation="UPDATE", oldObject=long))["allowed"] is True
    changed = review(long, operation="UPDATE", oldObject=CLAIM)
    assert answered(changed)["allowed"] is False
