"""A claim's requests as they are meant; what only the scheduler can serve is refused by name."""

from __future__ import annotations

import pytest

from fleet.control.binding import wishes
from fleet.core import errors
from fleet.kube.base import Object
from tests.fleet.control.binding.scenes import claim, device_class, request

CLASSES = {"gpu": device_class()}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (claim(request(adminAccess=True)), "request gpu: adminAccess is not supported"),
        (
            claim(request(capacity={"requests": {"memory": "1Gi"}})),
            "a share of a device's capacity",
        ),
        (claim(request(allocationMode="Some")), "allocationMode Some"),
        (claim(constraints=[{"distinctAttribute": "a/b"}]), "distinctAttribute"),
        (claim(constraints=[{"requests": ["gpu"]}]), "without matchAttribute"),
        (claim(request(deviceClassName="none")), "there is no DeviceClass 'none'"),
        (claim(request(count=0)), "count 0"),
        (claim(request(count="2")), "count '2'"),
        (claim(request(count=33)), "33 devices"),
        (claim({"name": "gpu"}), "neither `exactly` nor `firstAvailable`"),
        (claim(request(selectors=[{"other": {}}])), "no CEL expression"),
        (claim(request(selectors={"cel": {}})), "is no list"),
        ({**claim(), "spec": {"devices": {"requests": []}}}, "asks for no device"),
        ({**claim(), "spec": None}, "is no object"),
    ],
)
def test_what_is_not_supported_is_refused(asked: Object, told: str) -> None:
    """B19: nothing of a claim is passed over; the error names claim and request."""
    with pytest.raises(errors.InputInvalid) as caught:
        wishes.read(asked, CLASSES)
    assert told in caught.value.detail
    assert "claim tenant/c" in caught.value.detail


def test_an_expression_names_where_it_stands() -> None:
    """A wrong selector of a class names the claim, its request and the class."""
    with pytest.raises(errors.InputInvalid, match=r"claim tenant/c, request gpu, DeviceClass gpu"):
        wishes.read(claim(), {"gpu": device_class("gpu", "(")})


def test_alternatives_are_named_with_their_request() -> None:
    """firstAvailable: ``request/alternative``; a constraint on the request covers each."""
    alternatives = [{"name": name, "deviceClassName": "gpu"} for name in ("big", "small")]
    found = wishes.read(
        claim(
            {"name": "gpu", "firstAvailable": alternatives},
            request("other"),
            constraints=[{"requests": ["gpu"], "matchAttribute": "a/b"}, {"matchAttribute": "a/c"}],
        ),
        CLASSES,
    )
    first, second = found.requests
    assert [wish.name for wish in first] == ["gpu/big", "gpu/small"]
    assert [wish.request for wish in first] == ["gpu", "gpu"]
    named, general = found.constraints
    assert all(named.covers(wish) for wish in first)
    assert not named.covers(second[0])
    assert general.covers(second[0])


def test_an_allocation_holds_so_many_configurations() -> None:
    """The server takes 64; more is said before anything is wiped."""
    one = {"opaque": {"driver": "d", "parameters": {}}}
    found = wishes.read(claim(config=[one] * 65), CLASSES)
    with pytest.raises(errors.InputInvalid, match="65 configurations"):
        found.config(["gpu"])
