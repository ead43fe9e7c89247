"""What the webhook judges by: the rules and the tags together, once each."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.admission.ground import Ground
from fleet.admission.judge import judges
from fleet.admission.review import Reviewing
from fleet.plugin.tags import TagKeys, TagKeysUnreadable
from tests.fleet.admission.reviews import (
    FORBIDDEN_WISH,
    claim,
    devices,
    exactly,
    flat,
    review,
    second,
    template,
)
from tests.fleet.admission.rights import KEYS, NOW, config, issued, parameters

GROUND = Ground()
FORBIDDEN = [
    claim(devices(exactly(**FORBIDDEN_WISH))),
    template(devices(exactly(**FORBIDDEN_WISH))),
    template(devices(second(**FORBIDDEN_WISH))),
    template(devices(flat(**FORBIDDEN_WISH)), "v1beta1"),
    template(devices(exactly(**FORBIDDEN_WISH)), "v1beta2"),
    claim(devices(exactly(tolerations=[{"operator": "Exists"}]))),
    claim(devices(exactly(adminAccess=True))),
]


def answered(given: dict[str, Any], **more: Any) -> dict[str, Any]:
    reviewing = Reviewing(judges(GROUND, lambda: KEYS), frozenset(GROUND.own_namespaces))
    response: dict[str, Any] = reviewing.answer(review(given, **more), now=NOW)["response"]
    return response


def test_a_claim_that_keeps_the_rules_and_has_the_right_is_allowed() -> None:
    """C2, C5: nothing to object in any shape."""
    for found in (exactly(), second()):
        assert answered(claim(devices(found)))["allowed"]
        assert answered(template(devices(found)))["allowed"]
    assert answered(template(devices(flat()), "v1beta1"))["allowed"]


@pytest.mark.parametrize("document", FORBIDDEN)
def test_a_forbidden_wish_is_denied_in_every_shape(document: dict[str, Any]) -> None:
    """B17, B20, B35: tolerating a quarantine or asking for admin access is denied, by its path."""
    response = answered(document)
    assert response["allowed"] is False
    assert "devices.requests[0]" in response["status"]["message"]


def test_the_rules_hold_whoever_asks_but_our_own() -> None:
    """B35: neither a tenant nor the controller that makes its claims; our own accounts may."""
    wish = claim(devices(exactly(adminAccess=True)))
    controller = "system:serviceaccount:kube-system:resource-claim-controller"
    assert not answered(wish, userInfo={"username": controller})["allowed"]
    assert not answered(wish, userInfo={})["allowed"]
    assert answered(wish, userInfo={"username": GROUND.requesters[0]})["allowed"]


def test_a_claim_without_policy_or_tag_is_denied_once_for_each() -> None:
    """C2, C5: missing is denied by the rules; the tag judge does not say it again."""
    message = answered(claim(devices(exactly(), entries=[])))["status"]["message"]
    assert "deallocation" in message
    assert "isolation" in message
    assert message.count(" | ") == 1


def test_a_tag_is_judged_by_the_list() -> None:
    """C5: what only the list of keys can tell is told here."""
    stolen = config(given=parameters(issued(namespaces=("tenant-b",))))
    message = answered(claim(devices(exactly(), entries=[stolen])))["status"]["message"]
    assert "is for namespace tenant-b, not for tenant-a" in message


def test_without_a_list_nothing_with_a_tag_is_allowed() -> None:
    """C5: fail closed."""

    def away() -> TagKeys:
        raise TagKeysUnreadable("gone")

    reviewing = Reviewing(judges(GROUND, away))
    response = reviewing.answer(review(claim(devices(exactly()))), now=NOW)["response"]
    assert response["status"]["code"] == 503
