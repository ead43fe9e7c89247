"""How devices are shown."""

from __future__ import annotations

from fleet.model import State
from tests.fleet.node.conftest import Lab, wait_for


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
