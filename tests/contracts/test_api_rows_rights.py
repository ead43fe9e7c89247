"""What a service account needs to write a claim's status (experiments 1.2).

Kubernetes 1.36 with DRAResourceClaimGranularStatusAuthorization: a missing right is answered 422
with a cause FieldValueForbidden, not 403; a client must not take it for a bad body.
"""

from __future__ import annotations

import pytest

from tests.contracts.api_ground import (
    DONE,
    DRIVER,
    HEAD,
    HOLD,
    Ground,
    allocation,
    condition,
    entry,
    reservation,
)
from tests.contracts.api_server import Grant

STATUS = Grant("resourceclaims/status", ("patch", "update"))


def drive(*verbs: str) -> Grant:
    """Rights on the devices of our driver."""
    return Grant("resourceclaims/driver", verbs, (DRIVER,))


def test_patching_conditions_needs_two_rights(ground: Ground) -> None:
    """1.2: patch on status and arbitrary-node:patch on our driver, in the namespace; no get."""
    claim = ground.claim("d0")
    _, token = ground.server.account([STATUS, drive("arbitrary-node:patch")])
    assert ground.confirm(claim, entry("d0", condition()), token=token).code == 200
    assert ground.send("GET", claim, token=token).code == 403


@pytest.mark.parametrize(
    ("verb", "put_code", "patch_code"),
    [
        ("arbitrary-node:update", 200, 422),
        ("arbitrary-node:patch", 422, 200),
        ("arbitrary-node:*", 422, 422),
        ("*", 200, 200),
    ],
)
def test_the_verb_must_fit_the_method(
    ground: Ground, verb: str, put_code: int, patch_code: int
) -> None:
    """1.2: patch rights do not allow PUT, nor the reverse; arbitrary-node:* is no wildcard."""
    claim = ground.claim("d0")
    _, token = ground.server.account([STATUS, drive(verb)])
    found = ground.get(claim)
    found["status"]["devices"] = [entry("d0", condition("x.example.com/ByPut"))]
    assert ground.put_status(claim, found, token=token).code == put_code
    reply = ground.confirm(claim, entry("d0", condition()), token=token)
    assert reply.code == patch_code


@pytest.mark.parametrize(("bound", "code"), [(False, 422), (True, 200)], ids=["unbound", "bound"])
def test_a_node_right_needs_a_node_token(ground: Ground, bound: bool, code: int) -> None:
    """1.2: associated-node:patch works only with a token bound to the allocation's node."""
    node = ground.server.node()
    claim = ground.claim("d0", node=node)
    rights = [STATUS, drive("associated-node:patch")]
    _, token = ground.server.account(rights, node=node if bound else "")
    assert ground.confirm(claim, entry("d0", condition()), token=token).code == code


def test_a_node_right_ends_at_the_node(ground: Ground) -> None:
    """1.2: associated-node:patch does not reach a claim without the node's own selector."""
    claim = ground.claim("d0")
    rights = [STATUS, drive("associated-node:patch")]
    _, token = ground.server.account(rights, node=ground.server.node())
    assert ground.confirm(claim, entry("d0", condition()), token=token).code == 422


@pytest.mark.parametrize(("cluster", "code"), [(True, 200), (False, 422)], ids=["cluster", "ns"])
def test_the_binding_right_is_cluster_wide(ground: Ground, cluster: bool, code: int) -> None:
    """1.2: allocation and reservedFor need patch on resourceclaims/binding, cluster-wide."""
    claim = ground.claim("d0")
    binding = Grant("resourceclaims/binding", ("patch",), cluster=cluster)
    _, token = ground.server.account([STATUS, binding])
    reply = ground.apply(claim, {"reservedFor": [reservation("s1")]}, token=token)
    assert reply.code == code
    both = {"status": {"allocation": None, "reservedFor": None}}
    assert ground.merge(f"{claim}/status", both, token=token).code == code


def test_a_missing_binding_right_is_a_422(ground: Ground) -> None:
    """1.2: cause FieldValueForbidden on status.allocation names the right."""
    claim = ground.claim("d0")
    _, token = ground.server.account([STATUS])
    reply = ground.merge(f"{claim}/status", {"status": {"allocation": None}}, token=token)
    assert (reply.code, reply.reason) == (422, "Invalid")
    reason, field, message = reply.causes[0]
    assert (reason, field) == ("FieldValueForbidden", "status.allocation")
    assert 'requires resource="resourceclaims/binding", verb="patch"' in message
    assert "at the cluster scope" in message


def test_a_put_that_would_clear_the_allocation_needs_the_binding_right(ground: Ground) -> None:
    """1.1: the unconditional PUT of a status is refused without it: 422."""
    claim = ground.claim("d0")
    _, token = ground.server.account([STATUS, drive("*")])
    body = {
        **HEAD,
        "metadata": {"name": claim.rpartition("/")[2], "namespace": "default"},
        "status": {"devices": [entry("d0", condition())]},
    }
    assert ground.put_status(claim, body, token=token).code == 422
    assert "allocation" in ground.status(claim)


def test_a_missing_driver_right_is_a_422(ground: Ground) -> None:
    """1.2: cause FieldValueForbidden on status.devices names arbitrary-node and our driver."""
    claim = ground.claim("d0")
    user, token = ground.server.account([STATUS])
    reply = ground.confirm(claim, entry("d0", condition()), token=token)
    assert (reply.code, reply.reason) == (422, "Invalid")
    reason, field, message = reply.causes[0]
    assert (reason, field) == ("FieldValueForbidden", "status.devices")
    assert 'requires resource="resourceclaims/driver", verb="[arbitrary-node:patch]"' in message
    assert f'resourceclaims.resource.k8s.io "{DRIVER}" is forbidden: User "{user}"' in message


def test_a_missing_status_right_is_a_403(ground: Ground) -> None:
    """1.2: without any right on resourceclaims/status: 403 Forbidden, naming all of it."""
    claim = ground.claim("d0")
    user, token = ground.server.account([])
    reply = ground.confirm(claim, entry("d0", condition()), token=token)
    assert (reply.code, reply.reason) == (403, "Forbidden")
    assert (
        f'User "{user}" cannot patch resource "resourceclaims/status" in API group'
        ' "resource.k8s.io" in the namespace "default"'
    ) in reply.message


@pytest.mark.parametrize("granted", [True, False])
def test_a_finalizer_needs_the_main_resource(ground: Ground, granted: bool) -> None:
    """1.2: adding a finalizer needs patch on resourceclaims itself."""
    claim = ground.claim("d0")
    rights = [Grant("resourceclaims", ("patch",))] if granted else [STATUS]
    _, token = ground.server.account(rights)
    reply = ground.merge(claim, {"metadata": {"finalizers": [HOLD]}}, token=token)
    assert reply.code == (200 if granted else 403)


def test_a_write_of_nothing_needs_no_right(ground: Ground) -> None:
    """1.2: a no-op write passes without the driver right: rights show only with a real change."""
    claim = ground.claim("d0")
    ground.confirm(claim, entry("d0", condition())).ok()
    _, token = ground.server.account([STATUS])
    same = {"status": {"devices": ground.status(claim)["devices"]}}
    assert ground.merge(f"{claim}/status", same, token=token).code == 200
    other = {"status": {"devices": [entry("d0", condition(DONE, status="False"))]}}
    assert ground.merge(f"{claim}/status", other, token=token).code == 422


def test_no_token_is_a_401(ground: Ground) -> None:
    """B78: a token that is not accepted: 401 Unauthorized."""
    claim = ground.claim(finalizers=())
    ground.allocate(claim, allocation("d0")).ok()
    stranger = "not-a-token"
    assert ground.send("GET", claim, token=stranger).code == 401
