"""How devices are shown."""

from __future__ import annotations

import pytest

from fleet.core import errors
from fleet.core.messages import ClaimBrief, TeardownOrder
from fleet.core.model import State
from fleet.node import view as node_view
from fleet.node.registry import Registry
from tests.fleet.node.conftest import Lab, wait_for
from tests.fleet.node.test_registry import Showing


def test_a_device_shows_the_least_clean_of_its_units(lab: Lab) -> None:
    """DESIGN 4: a device is CLEAN only if all its units are."""
    lab.scrub("gpu-1-1g-0")
    assert lab.device("gpu-1-1g-0").state == State.CLEAN
    assert lab.device("gpu-1-2g-0").state == State.DIRTY
    lab.node.quarantine_add("gpu-1-1g-1", detail="noise", operator="ada")
    parent = lab.device("gpu-1")
    assert parent.state == State.QUARANTINED
    assert [(r.code, r.detail, r.liftable) for r in parent.reasons] == [
        ("operator", "noise", False)
    ]
    assert lab.device("gpu-1-1g-0").reasons == ()


def test_progress_operation_floor_and_claim_are_shown(lab: Lab) -> None:
    """An operator sees who has a device, under which token, and how far a wipe is."""
    lab.fault("hang")
    lease = lab.lease("gpu-0")
    order = lab.order(lease=lease)
    lab.node.scrub([order])
    wait_for(lambda: lab.device().state == State.WIPING and lab.device().progress is not None)
    shown = lab.device()
    assert (shown.operation, shown.floor) == (order.operation, str(lease.token))
    assert shown.progress is not None
    assert shown.progress.total == shown.memory_bytes * 4
    lab.node.cancel([order.operation])
    lab.result(order.operation)
    assert lab.device().progress is None
    claim = lab.claim("claim-a", "gpu-1-1g-0")
    lab.node.prepare(claim)
    assert lab.device("gpu-1-1g-0").claim == lab.device("gpu-1").claim == "claim-a"
    assert lab.device("gpu-1-1g-1").claim == ""


def test_a_hold_is_shown_for_the_very_device_only(lab: Lab) -> None:
    """Promise 9: the allocation of a partition keeps nobody off the accelerator it is part of."""
    order = lab.bare("claim-a", "gpu-1-1g-0", namespace="team", name="job", held=True)
    lab.node.prepare(order)
    assert [d.name for d in lab.node.view().devices if d.held] == ["gpu-1-1g-0"]
    lab.node.prepare(order.model_copy(update={"held": False}))
    lab.restart()
    assert lab.device("gpu-1-1g-0").held
    (brief,) = lab.node.view().claims
    assert brief == ClaimBrief(
        uid="claim-a",
        state="PREPARED",
        namespace="team",
        name="job",
        held=True,
        token=str(lab.leases_of("claim-a")[0].token),
        units=lab.device("gpu-1-1g-0").units,
    )
    assert lab.node.view().epoch == lab.coordinator.newest().epoch
    lab.node.unprepare("claim-a")
    assert not any(device.held for device in lab.node.view().devices)


def test_a_hold_that_the_api_gave_up_keeps_nobody_off(lab: Lab) -> None:
    """Promise 6: a claim deallocated under its tenant no longer exempts its device from the taint;
    prepared anew under a hold it does again, and what we owe the claim stays owed.
    """
    order = lab.bare("claim-a", "gpu-1", namespace="team", name="job", held=True)
    lab.node.prepare(order)
    with lab.tenant("gpu-1"), pytest.raises(errors.DeviceBusy):
        lab.node.unprepare(TeardownOrder(uid="claim-a", unheld=True), budget_s=0.1)
    assert not lab.device("gpu-1").held
    (brief,) = lab.node.view().claims
    assert (brief.state, brief.held) == ("UNPREPARING", True)


def test_the_token_of_the_certificate_in_force_is_shown(lab: Lab) -> None:
    """DESIGN 5, Pre-bind: whether a device was wiped under the claim's own token; else 0.0."""
    assert lab.device().certified_under == "0.0"
    lease = lab.lease("gpu-0")
    order = lab.order(lease=lease)
    lab.node.scrub([order])
    lab.result(order.operation)
    assert lab.device().certified_under == str(lease.token)
    lab.scrub("gpu-1-1g-0")
    assert lab.device("gpu-1-1g-0").certified_under != "0.0"
    assert lab.device("gpu-1").certified_under == "0.0"
    lab.fault("hang")
    again = lab.order(lease=lease).model_copy(update={"operation": "again"})
    lab.node.scrub([again])
    wait_for(lambda: lab.device().state == State.WIPING)
    assert lab.device().certified_under == "0.0"
    lab.node.cancel(["again"])
    lab.result("again")


def test_units_are_counted_by_state_each_once(lab: Lab) -> None:
    """E4: partitions that overlap share units, and the memory is still only there once."""
    lab.scrub("gpu-0")
    view = lab.node.view()
    whole = [device for device in view.devices if device.uuid == device.accelerator]
    memory_bytes = sum(device.memory_bytes for device in whole)
    assert sum(found.bytes for found in view.units.values()) == memory_bytes
    assert view.units["CLEAN"].units >= 1
    assert 0 < view.units["CLEAN"].since <= view.at
    assert view.units["CLEAN"].late == 0


def test_a_node_answers_for_the_units_of_a_card_that_was_taken_out(lab: Lab) -> None:
    """B10: a lease of its memory may come back with a store; the node can close its token."""
    registry = lab.node._registry
    kept, taken = lab.backend.inventory()
    backend = Showing([kept], registry.backend)
    without = Registry(
        backend, registry.journal, registry.place, registry.clock, boot_id=registry.boot_id
    )
    without.load()
    assert node_view.gone(without) == tuple(sorted(spec.id for spec in taken.units))
    assert node_view.gone(registry) == () == lab.node.view().gone
