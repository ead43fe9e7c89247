"""Which rights are missing is learnt from refusals, said once, and over once they are granted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet.core import errors
from fleet.core.messages import Right
from fleet.kube.base import CLAIMS, EVENTS, NODES, Cluster, Name, Object, PatchKind, Resource
from fleet.kube.rights import REVIEWS, Rights
from tests.contracts.cluster_benches import claim
from tests.lab.apiserver.access import Access, Caller, Rule
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine

USER = "system:serviceaccount:fleetscrub:fleet-coordinator"
NODE: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
HERE = Name("a", "default")


class Reviewed(MemoryCluster):
    """The stand-in with reviews of one's own access, which it answers by its rules."""

    def create(self, resource: Resource, body: Object) -> Object:
        if resource != REVIEWS:
            return super().create(resource, body)
        asked = body["spec"]["resourceAttributes"]
        part = f"/{asked['subresource']}" if "subresource" in asked else ""
        access = self.engine.access
        assert isinstance(access, Access)
        wished = f"{asked['resource']}{part}"
        allowed = any(
            asked["verb"] in rule.verbs and wished in rule.resources for rule in access.rules
        )
        return {**body, "status": {"allowed": allowed}}


def cluster(*rules: Rule) -> tuple[Rights, Access]:
    """An account with these rights."""
    engine = Engine()
    MemoryCluster(engine).create(CLAIMS, claim("a"))
    engine.access = access = Access(rules)
    return Rights(Reviewed(engine, caller=Caller(USER))), access


def test_the_wrapper_is_a_cluster() -> None:
    """mypy holds it to the protocol here."""
    found: Cluster = cluster()[0]
    with pytest.raises(errors.ApiForbidden):
        found.list(CLAIMS)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda c: c.get(CLAIMS, HERE), "get resourceclaims.resource.k8s.io"),
        (lambda c: c.list(CLAIMS), "list resourceclaims.resource.k8s.io"),
        (lambda c: next(c.watch(CLAIMS, timeout_s=60.0)), "list resourceclaims.resource.k8s.io"),
        (lambda c: c.create(NODES, NODE), "create nodes"),
        (lambda c: c.delete(CLAIMS, HERE), "delete resourceclaims.resource.k8s.io"),
        (
            lambda c: c.patch(CLAIMS, HERE, {}, kind=PatchKind.MERGE, subresource="status"),
            "patch resourceclaims.resource.k8s.io/status",
        ),
        (
            lambda c: c.apply(CLAIMS, claim("a"), manager="m"),
            "patch resourceclaims.resource.k8s.io",
        ),
        (
            lambda c: c.replace(
                CLAIMS, {**claim("a"), "metadata": {"name": "a", "namespace": "default",
                                                   "resourceVersion": "1"}}
            ),
            "update resourceclaims.resource.k8s.io",
        ),
    ],
)  # fmt: skip
def test_f71_a_refusal_names_verb_resource_and_account(
    call: Callable[[Rights], object], told: str
) -> None:
    """F71: whatever is called, the right that it lacked is known from then on."""
    rights, _ = cluster()
    with pytest.raises(errors.ApiForbidden):
        call(rights)
    assert [*map(str, rights.missing)] == [f"{told} (account {USER})"]


def test_f77_it_is_said_once_and_once_when_it_is_granted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """F77: neither the next refusal nor another call that is allowed says anything."""
    rights, access = cluster(Rule(USER, ("get",), ("resourceclaims",)))
    for _ in range(5):
        with pytest.raises(errors.ApiForbidden):
            rights.list(CLAIMS)
        rights.get(CLAIMS, HERE)
        rights.ask_again()
    lines = [record.message for record in caplog.records]
    assert lines == [f"a right is missing: list resourceclaims.resource.k8s.io (account {USER})"]
    access.rules.append(Rule(USER, ("list",), ("resourceclaims",)))
    for news in (True, False):
        assert rights.ask_again() is news
        assert rights.missing == ()
    assert caplog.messages[1:] == [
        f"the right is granted again: list resourceclaims.resource.k8s.io (account {USER})"
    ]


@pytest.mark.parametrize("told", ["arbitrary-node:patch", "associated-node:patch"])
def test_f71_the_fine_grained_rights_of_a_status_are_known_too(told: str) -> None:
    """F71: a 422 whose cause names a right is one. The server names either verb, whosever account
    it is: a node's is never said to lack a right over all nodes, another one that of a node."""
    said = (
        'Forbidden: changing status.devices requires resource="resourceclaims/driver" permission:'
        f' resourceclaims.resource.k8s.io "d" is forbidden: User "{USER}" cannot'
        f' {told} resource "resourceclaims/driver" in API group "resource.k8s.io" in'
        ' the namespace "default"'
    )
    cause = ("FieldValueForbidden", "status.devices", said)
    error = errors.ApiForbidden("PATCH: HTTP 422 Invalid: ...", status=422, causes=[cause])
    for of_node, verb in ((False, "arbitrary-node:patch"), (True, "associated-node:patch")):
        rights = Rights(MemoryCluster(), of_node=of_node)
        rights.note(error)
        (found,) = rights.missing
        assert (found.verb, found.resource, found.account) == (verb, "resourceclaims/driver", USER)


def test_a_policy_that_denies_a_write_is_no_missing_right() -> None:
    """An admission policy answers 403 as well, about one object and not about the account."""
    rights = Rights(MemoryCluster())
    told = "configmaps \"x\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: no"
    rights.note(errors.ApiForbidden(f"POST: HTTP 403 Forbidden: {told}", status=403, causes=[]))
    assert rights.missing == ()


def test_a_server_that_does_not_say_changes_nothing() -> None:
    """A review that fails leaves what is known as it is."""
    twin = MemoryCluster(caller=Caller(USER))
    twin.engine.access = Access(())
    rights = Rights(twin)
    with pytest.raises(errors.ApiForbidden):
        rights.list(EVENTS)
    before = rights.missing
    twin.faults.fail_next("create", errors.ApiUnavailable("away", status=503))
    rights.ask_again()
    assert rights.missing == before
    assert before[0].lesser
    assert not Right(verb="get", resource="nodes", account="a").lesser
