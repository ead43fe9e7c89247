"""Proof about tenants from processes: bounded, per device, and never a proof for real hardware."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.core import errors
from fleet.core.claim_states import Claim, ClaimState
from fleet.core.model import BootId, ClaimUid, Token, Uuid
from fleet.node.tenancy import ProcessTenants
from tests.fleet.node.conftest import Lab


def claim_of(lab: Lab, name: str) -> Claim:
    device = lab.device(name)
    return Claim(
        ClaimUid("c"), ClaimState.PREPARED, (Uuid(device.uuid),), (), Token(1, 1), BootId("b")
    )


def test_a_tenant_on_one_partition_is_not_the_neighbours(lab: Lab) -> None:
    """Promise 9: only processes on the claim's own devices keep its teardown waiting."""
    tenants = lab.node._parts.tenants
    with lab.tenant("gpu-1-1g-0"):
        assert tenants.obstacle(claim_of(lab, "gpu-1-1g-0"))
        assert not tenants.obstacle(claim_of(lab, "gpu-1-1g-1"))
        assert not tenants.free(Uuid(lab.device("gpu-1").uuid))
    assert not tenants.obstacle(claim_of(lab, "gpu-1-1g-0"))
    assert tenants.free(Uuid(lab.device("gpu-1").uuid))
    assert not tenants.created(Uuid(lab.device("gpu-1").uuid))


def test_a_device_that_vanished_has_no_tenant(lab: Lab) -> None:
    """A3: teardown of a claim whose hardware is gone is not stuck on it."""
    found = replace(claim_of(lab, "gpu-0"), devices=(Uuid("SIM-gone"),))
    assert not lab.node._parts.tenants.obstacle(found)


def test_no_answer_is_no_proof(lab: Lab) -> None:
    """Promise 5: unknown never counts as free."""
    registers = lab.backend.registers(Uuid(lab.device().uuid))
    registers.path.write_text("{")
    with pytest.raises(errors.BackendFailed):
        lab.node._parts.tenants.free(Uuid(lab.device().uuid))
    registers.path.unlink()


def test_an_empty_process_list_proves_nothing_on_real_hardware(lab: Lab) -> None:
    """DESIGN 4, ProvenFree: (d) holds for simulated devices only."""

    class Real(type(lab.node._registry.backend)):  # type: ignore[misc] # its class is the fixture's
        simulated = False

    registry = lab.node._registry
    tenants = ProcessTenants(registry, lab.node._parts.tenants.validator)  # type: ignore[attr-defined]
    device = Uuid(lab.device().uuid)
    assert tenants.free(device)
    registry.backend = Real(registry.backend.root)  # type: ignore[attr-defined]
    assert not tenants.free(device)


def test_without_pods_nothing_of_the_node_can_be_missing(lab: Lab) -> None:
    """Bare metal has neither cgroups of pods nor a checkpoint to be read."""
    assert lab.node._parts.tenants.trouble() == ""
