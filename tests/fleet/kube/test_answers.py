"""What answers of the API server mean."""

from __future__ import annotations

import json
import pickle

import pytest

from fleet.core import errors
from fleet.kube import answers
from fleet.kube.base import CLAIMS


def status(reason: str = "", message: str = "", **details: object) -> bytes:
    """The body of a failed request as the server sends it."""
    found = {"kind": "Status", "reason": reason, "message": message, "details": details}
    return json.dumps(found).encode()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, errors.ApiInvalid),
        (401, errors.ApiForbidden),
        (403, errors.ApiForbidden),
        (404, errors.ApiUnavailable),
        (405, errors.ApiInvalid),
        (408, errors.ApiUnavailable),
        (409, errors.ApiConflict),
        (410, errors.ApiUnavailable),
        (415, errors.ApiInvalid),
        (422, errors.ApiInvalid),
        (429, errors.ApiUnavailable),
        (500, errors.ApiFailed),
        (501, errors.ApiFailed),
        (502, errors.ApiFailed),
        (503, errors.ApiUnavailable),
        (504, errors.ApiUnavailable),
        (302, errors.ApiFailed),
    ],
)
def test_each_status_has_one_meaning(code: int, kind: type[errors.FleetError]) -> None:
    """The table of the cluster port holds for every status, whatever the body is."""
    for body in (b"", b"<html>bad gateway</html>", b"null", b"[1]", status("Odd", "text")):
        found = answers.failure(code, body, what="GET x")
        assert type(found) is kind
        assert "GET x" in found.detail
        assert str(pickle.loads(pickle.dumps(found))) == str(found)  # noqa: S301


GONE = {"name": "c", "group": "resource.k8s.io", "kind": "resourceclaims"}
TARGET = "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/c"


@pytest.mark.parametrize("target", ["", TARGET, f"{TARGET}/status", f"{TARGET}?force=true"])
def test_an_object_is_gone_when_a_status_names_it(target: str) -> None:
    """Promise 5: ApiNotFound is the server's word about one object, told by its name."""
    found = answers.failure(404, status("NotFound", "no", **GONE), what="GET x", target=target)
    assert type(found) is errors.ApiNotFound
    assert found.reason == "NotFound"


@pytest.mark.parametrize(
    "body",
    [
        b"404 page not found\n",
        b"<html>not found</html>",
        b"",
        b"{}",
        status("NotFound", "the server could not find the requested resource"),
        status("NotFound", "no", name=""),
        status("NotFound", "no", name=["c"]),
        status("NotFound", "no", **{**GONE, "name": "another"}),
        status("Gone", "no", **GONE),
        json.dumps({"reason": "NotFound", "details": GONE}).encode(),
        json.dumps({"kind": "Status", "reason": "NotFound", "details": "c"}).encode(),
    ],
)
def test_any_other_404_is_an_absence_of_the_server(body: bytes) -> None:
    """B23: a proxy's page, or a server without the group, says nothing about any object."""
    found = answers.failure(404, body, what="GET x", target=TARGET)
    assert type(found) is errors.ApiUnavailable
    assert (found.status, found.retry_after_s) == (404, 0.0)
    assert "an API server with this group" in found.remedy


@pytest.mark.parametrize("reason", ["Conflict", "AlreadyExists"])
def test_a_conflict_says_which_guard(reason: str) -> None:
    """A stale version and an existing object are both 409 and differ in the reason."""
    found = answers.failure(409, status(reason), what="POST x")
    assert found.reason == reason
    assert isinstance(found, errors.Retryable)


def test_a_missing_fine_grained_right_is_no_invalid_body() -> None:
    """Invariant 37: a 422 with a FieldValueForbidden cause is a missing right, and names it."""
    cause = {
        "reason": "FieldValueForbidden",
        "field": "status.devices",
        "message": 'Forbidden: requires resource="resourceclaims/driver"',
    }
    found = answers.failure(422, status("Invalid", "no", causes=[cause]), what="PATCH x")
    assert type(found) is errors.ApiForbidden
    assert found.status == 422
    assert found.causes == [tuple(cause.values())]
    assert "status.devices" in found.detail
    other = {"reason": "FieldValueInvalid", "field": "status", "message": "bad"}
    again = answers.failure(422, status("Invalid", "no", causes=[other]), what="PATCH x")
    assert type(again) is errors.ApiInvalid
    assert again.causes == [("FieldValueInvalid", "status", "bad")]


@pytest.mark.parametrize(
    ("header", "stated", "wait_s"),
    [
        ("7", None, 7.0),
        (" 7 ", 3, 7.0),
        ("", 3, 3.0),
        ("99999", None, answers.RETRY_AFTER_MAX_S),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None, 0.0),
        ("-1", None, 0.0),
        ("", "soon", 0.0),
        ("", -5, 0.0),
    ],
)
def test_the_wait_asked_for_is_kept_within_bounds(
    header: str, stated: object, wait_s: float
) -> None:
    """Retry-After in seconds, from the header or the body, at most a minute; else none."""
    body = status("TooManyRequests", "slow down", retryAfterSeconds=stated)
    found = answers.failure(429, body, what="GET x", retry_after=header)
    assert found.retry_after_s == wait_s


@pytest.mark.parametrize(
    "body",
    [
        b'{"details": null}',
        b'{"details": {"causes": null}}',
        b'{"details": {"causes": [null, 3, {"reason": null}]}}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_a_strange_body_is_still_an_answer(body: bytes) -> None:
    """Making the error never fails, whatever a proxy put into the body."""
    found = answers.failure(422, body, what="PUT x")
    assert type(found) is errors.ApiInvalid
    assert len(found.detail) < 2 * answers.MESSAGE_MAX


def test_long_messages_are_cut() -> None:
    """Validation errors repeat whole objects; an error must fit an event."""
    found = answers.failure(422, status("Invalid", "x" * 10_000), what="PUT x")
    assert len(found.detail) < 2 * answers.MESSAGE_MAX
    assert found.detail.endswith(" ...")


def test_a_refusal_of_a_generated_name_is_the_same_at_each_try() -> None:
    """What is told once, and compared with what was told before, has no random part."""
    what = "POST resourceslices 00000-d.example.com-n1-"
    told = {
        str(
            answers.failure(
                403, status("Forbidden", f'"00000-d.example.com-n1-{end}" is denied'), what=what
            )
        )
        for end in ("zzxp9", "vbbdw")
    }
    assert len(told) == 1
    assert '"00000-d.example.com-n1-..." is denied' in told.pop()


def test_no_answer_says_that_a_write_may_have_happened() -> None:
    """A broken connection is retryable, and not known to have changed nothing."""
    found = answers.unreachable("PUT x", "reset", timed_out=True)
    assert isinstance(found, errors.ApiUnavailable)
    assert (found.status, found.retry_after_s) == (0, 0.0)
    assert "api_timeout_s" in found.remedy


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"ok", b"\xff", b"[" * 100_000])
def test_a_success_without_an_object_is_a_failure(body: bytes) -> None:
    """A 200 from something that is no API server is never taken for an object."""
    with pytest.raises(errors.ApiFailed, match="no JSON object"):
        answers.object_of(body, what="GET x")
    assert answers.parsed(body) == {}


def test_entries_that_are_no_objects_are_left_out_and_counted() -> None:
    """B19: null and nameless items of a list are skipped; nulls inside an object stay as sent."""
    good = {"metadata": {"name": "a"}, "status": {"devices": [None], "futureField": 1}}
    page = {"items": [None, good, 3, {"metadata": None}, {"metadata": {"name": None}}, {}]}
    found, skipped = answers.entries(CLAIMS, page, what="GET list")
    assert skipped == 5
    assert found == [{**good, "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}]


def test_an_empty_list_may_be_null() -> None:
    """Go servers send null for an empty list; any other type is no list."""
    assert answers.entries(CLAIMS, {"items": None}, what="GET list") == ([], 0)
    assert answers.entries(CLAIMS, {}, what="GET list") == ([], 0)
    with pytest.raises(errors.ApiFailed):
        answers.entries(CLAIMS, {"items": "x"}, what="GET list")
