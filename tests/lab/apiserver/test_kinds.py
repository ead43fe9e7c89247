"""Rules of the table of kinds."""

from __future__ import annotations

from fleet.kube.base import (
    CLAIMS,
    CLASSES,
    CONFIGMAPS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SLICES,
)
from tests.lab.apiserver import schema
from tests.lab.apiserver.gates import Features
from tests.lab.apiserver.kinds import CLAIM_TEMPLATES, table


def test_every_kind_of_the_port_is_served() -> None:
    """Whatever the product asks for exists in the twin."""
    kinds = table(Features())
    assert set(kinds) == {
        CLAIMS, CLAIM_TEMPLATES, CLASSES, CONFIGMAPS, EVENTS, LEASES, NAMESPACES, NODES, PODS,
        SLICES,
    }  # fmt: skip


def test_habits_are_those_measured() -> None:
    """Only leases and events are created by PUT; only leases refuse an unconditional one."""
    kinds = table(Features())
    assert {r.plural for r, k in kinds.items() if k.create_on_update} == {"leases", "events"}
    assert {r.plural for r, k in kinds.items() if not k.unconditional_update} == {"leases"}
    assert {r.plural for r, k in kinds.items() if k.has_status} == {
        "resourceclaims",
        "pods",
        "namespaces",
        "nodes",
    }
    assert "spec.driver" in kinds[SLICES].selectable


def test_a_newer_server_knows_more_fields() -> None:
    """B19: extra fields belong to one kind only, and the module's own shapes stay as they are."""
    kinds = table(Features(), {CLAIMS: ("status.futureField",)})
    status = kinds[CLAIMS].shape.fields["status"]
    assert isinstance(status, schema.Struct)
    assert "futureField" in status.fields
    assert "futureField" not in schema.CLAIM_STATUS.fields
