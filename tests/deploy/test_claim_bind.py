"""The role of whoever allocates claims with `fleet claim bind`."""

from __future__ import annotations

import pytest

from fleet.core import errors
from tests.deploy.manifests import Right, called, rights, role, rules
from tests.fleet.control.binding.grounds import Ground
from tests.lab.apiserver.access import Access, Caller

GROUP = "resource.k8s.io"
USER = "hybrid-scheduler"
ROLE = role("fleet-claim-bind")
BINDING = "resourceclaims/binding"
ASKED_BESIDES: set[Right] = {
    (GROUP, BINDING, "update"),
    (GROUP, BINDING, "patch"),
    (GROUP, "resourceclaims/driver", "arbitrary-node:patch"),
}
"""Rights that no call has by itself: the server asks for them at a write of a claim's status."""
SHOWING: set[Right] = {("", "pods", "get")}


def allocated(ground: Ground, *, without: Right | None = None) -> set[Right]:
    """The rights behind an allocation by ourselves with the role as shipped."""
    allocator = ground.allocator()
    ground.engine.access = Access(rules(USER, ROLE, without=without))
    ground.connection._caller = Caller(USER, manager="fleetscrub")
    allocator.allocate(ground.create())
    return called(ground.connection)


def test_the_role_is_what_an_allocation_calls() -> None:
    """A5, B8: choosing, giving and saying need every right and no other."""
    assert allocated(Ground(1)) | ASKED_BESIDES | SHOWING == rights(ROLE)


@pytest.mark.parametrize("right", sorted(ASKED_BESIDES))
def test_the_rights_asked_for_besides_are_needed(right: Right) -> None:
    """Without one of them the claim is left as it was, and the refusal names what is missing."""
    ground = Ground(1)
    with pytest.raises(errors.ApiForbidden):
        allocated(ground, without=right)
    assert ground.lease(ground.create("another")) is None
