"""Accounts beside the plugin's and coordinator's: exactly what they call, or no token at all."""

from __future__ import annotations

from fleet.control.repair.uninstall import obstacles, remove
from tests.deploy.manifests import Right, called, of_kind, rights, role, rules
from tests.fleet.control.repair.conftest import MARKS, Site
from tests.fleet.control.repair.test_uninstall import install
from tests.lab.apiserver.access import Access, Caller
from tests.lab.apiserver.cluster import MemoryCluster

GROUP = "resource.k8s.io"
UNINSTALL = "fleet-uninstall"
USER = f"system:serviceaccount:fleetscrub:{UNINSTALL}"
ASKED_BESIDES: set[Right] = {
    (GROUP, "resourceclaims/binding", "patch"),
    (GROUP, "resourceclaims/driver", "arbitrary-node:patch"),
}
"""Rights that no call has by itself: the server asks for them at a write of a claim's status."""


def removed(site: Site) -> None:
    """Everything of ours is found and taken away, as `fleet uninstall --apply` does it."""
    facts = site.facts()
    assert obstacles(facts) == ()
    assert [one.detail for one in remove(facts, site.hands) if not one.done] == []


def test_the_role_is_what_an_uninstall_calls() -> None:
    """E7: looking and taking away need every right and no other."""
    site = Site()
    install(site)
    site.cluster.engine.access = Access(rules(USER, role(UNINSTALL)))
    site.cluster = cluster = MemoryCluster(site.cluster.engine, caller=Caller(USER))
    removed(site)
    assert called(cluster) | ASKED_BESIDES == rights(role(UNINSTALL))
    assert not site.claim("c").marked
    assert MARKS.driver not in str(cluster.calls[-1].body)


def test_who_asks_the_api_nothing_has_no_right_and_no_token() -> None:
    """A5: worker, campaign and webhook; the worker has the store's role for a store at
    the API, and reads the coordinator's Lease."""
    accounts = {one["metadata"]["name"]: one for one in of_kind("ServiceAccount")}
    silent = ("fleet-admission", "fleet-campaign", "fleet-worker")
    for name in silent:
        assert accounts[name]["automountServiceAccountToken"] is False
    bound = {
        (binding["roleRef"]["name"], subject["name"])
        for kind in ("ClusterRoleBinding", "RoleBinding")
        for binding in of_kind(kind)
        for subject in binding["subjects"]
    }
    assert {one for one in bound if one[1] in silent} == {
        ("fleet-store", "fleet-worker"),
        ("fleet-status", "fleet-worker"),
    }
    assert (UNINSTALL, UNINSTALL) in bound
    assert {name for _, name in bound} <= accounts.keys()


def test_no_right_is_given_by_a_wildcard() -> None:
    """A5: in no role of ours is a verb, resource or group a star; nobody reads secrets."""
    roles = [*of_kind("ClusterRole"), *of_kind("Role")]
    granted = rights(*roles)
    assert not any("*" in right for right in granted)
    assert not {resource for _, resource, _ in granted} & {"secrets", "pods/exec", "nodes/proxy"}
