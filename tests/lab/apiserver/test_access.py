"""Rules of rights (what a missing one looks like is in tests/contracts/test_api_rows_rights)."""

from __future__ import annotations

import pytest

from fleet.kube.base import Object
from tests.lab.apiserver.access import Access, Caller, Rule, Wish, status_causes

USER = Caller("u")


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        (Rule("u", ("get",), ("pods",)), True),
        (Rule("u", ("*",), ("pods",)), True),
        (Rule("u", ("get",), ("*",)), True),
        (Rule("u", ("get",), ("pods",), ("p",)), True),
        (Rule("u", ("get",), ("pods",), namespace="ns"), True),
        (Rule("v", ("get",), ("pods",)), False),
        (Rule("u", ("list",), ("pods",)), False),
        (Rule("u", ("get",), ("pods/status",)), False),
        (Rule("u", ("get",), ("pods",), ("q",)), False),
        (Rule("u", ("get",), ("pods",), namespace="other"), False),
    ],
)
def test_a_rule_grants_what_it_says(rule: Rule, allowed: bool) -> None:
    """User, verb, resource, name and namespace must all fit."""
    assert Access([rule]).allows(USER, Wish("get", "pods", "p", "ns")) is allowed


def test_administrators_may_do_everything() -> None:
    """The default caller is one; nobody is when none is named."""
    wish = Wish("delete", "nodes", "n")
    assert Access().allows(Caller(), wish)
    assert not Access(admins=()).allows(Caller(), wish)


def claim(*devices: str, node: str = "n", reserved: int = 0) -> Object:
    """A claim allocated on a node, with entries of these drivers."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "metadata": {"namespace": "ns"},
        "status": {
            "allocation": {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}},
            "devices": [{"driver": driver} for driver in devices],
            "reservedFor": [{"uid": str(n)} for n in range(reserved)],
        },
    }


def test_each_driver_needs_its_own_right() -> None:
    """Removing another driver's entry is a change of that driver's devices too."""
    access = Access([Rule("u", ("arbitrary-node:patch",), ("resourceclaims/driver",), ("a",))])
    causes = status_causes(access, USER, "patch", new=claim("a"), old=claim("b"))
    assert len(causes) == 1
    assert 'resourceclaims.resource.k8s.io "b" is forbidden' in causes[0].message


def test_the_node_right_counts_only_on_its_node() -> None:
    """associated-node applies when token and allocation name the same single node."""
    access = Access([Rule("u", ("associated-node:update",), ("resourceclaims/driver",))])
    for node, count in (("n", 0), ("m", 1), ("", 1)):
        caller = Caller("u", node)
        causes = status_causes(access, caller, "update", new=claim("a"), old=claim())
        assert len(causes) == count, node


def test_clearing_the_allocation_needs_only_the_binding_right() -> None:
    """The entries vanish with it; the driver right is not asked for."""
    access = Access([Rule("u", ("update",), ("resourceclaims/binding",))])
    cleared: Object = {"metadata": {"namespace": "ns"}, "status": {}}
    assert status_causes(access, USER, "update", new=cleared, old=claim("a", reserved=1)) == []


def test_reservations_need_the_binding_right() -> None:
    """A change of reservedFor alone is one of the allocation's rights."""
    (cause,) = status_causes(Access(), USER, "patch", new=claim(reserved=1), old=claim())
    assert cause.field == "status.allocation"
