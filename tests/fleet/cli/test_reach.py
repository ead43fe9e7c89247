"""How a verb reaches the fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet import bootstrap
from fleet.cli import reach
from fleet.cli.main import main
from fleet.journal.lock import OwnerLock
from fleet.leases import AcquireRequest
from fleet.messages import ClaimOrder
from fleet.model import Holder, HolderKind, Lease, UnitId


def test_a_name_on_two_nodes_must_be_narrowed_down(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device name that is on several nodes is refused rather than guessed."""
    assert main(["quarantine", "add", "gpu-0", "--reason", "x", "--state", str(state)]) == 2
    error = capsys.readouterr().err
    assert "node-01, node-02" in error
    assert "--node" in error


def test_a_node_that_somebody_owns_is_asked_at_its_door(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A journal has one owner: verbs see and decide what it has, and leave it in place."""
    plan = bootstrap.plan_fleet(state).nodes[0]
    service = bootstrap.open_node(plan)
    where = ["--state", str(state), "--node", "node-01"]
    try:
        assert main(["node", "adopt", "--state", str(state), "--operator", "me"]) == 0
        assert main(["quarantine", "add", "gpu-0", "--reason", "smoke", *where]) in (0, 1)
        (device,) = [d for d in service.view().devices if d.name == "gpu-0"]
        assert "operator" in {reason.code for reason in device.reasons}
        assert main(["quarantine", "clear", "gpu-0", "--reason", "seen to", *where]) in (0, 1)
        (device,) = [d for d in service.view().devices if d.name == "gpu-0"]
        assert not device.reasons
        assert {d.state for d in service.view().devices} == {"DIRTY"}
        assert main(["sweep", "--state", str(state), "--json"]) in (0, 1)
        door = bootstrap.open_door(plan)
        assert door.pulse()["incarnation"] == service.incarnation
        door.close()
    finally:
        service.close()
    assert "smoke" in capsys.readouterr().out


def test_an_owner_that_does_not_answer_is_named(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind a lock that nobody answers for nothing is touched; the error says what to do."""
    plan = bootstrap.plan_fleet(state).nodes[0]
    lock = OwnerLock(bootstrap.lock_path(plan))
    lock.acquire(owner="something mute")
    try:
        assert main(["devices", "--state", str(state)]) == 2
    finally:
        lock.release()
    error = capsys.readouterr().err
    assert "something mute" in error
    assert "does not answer" in error


def test_a_verb_that_ends_gives_leases_back_first(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """D6: a claim torn down just before the verb ends leaves no lease behind for the audit."""
    with reach.fleet(state, address=None) as fleet:
        node = fleet.nodes["node-01"]
        device = next(d for d in node.view().devices if d.name == "gpu-0")
        holder = Holder(HolderKind.CLAIM, "claim-1")
        units = frozenset(UnitId(unit) for unit in device.units)
        (lease,) = fleet.coordinator.acquire([AcquireRequest(units, holder)])
        assert isinstance(lease, Lease)
        node.adopt(devices=[device.uuid], operator="me")
        order = ClaimOrder(
            uid="claim-1",
            node="node-01",
            devices=(device.uuid,),
            token=str(lease.token),
            namespace="n",
            name="c",
            consumers=("c",),
        )
        assert node.prepare(order).certificates
        node.unprepare("claim-1")
        assert node.view().outbox == 1
        assert len(fleet.coordinator.leases()) == 1
    with reach.coordinator(state, address=None) as coordinator:
        assert list(coordinator.leases()) == []
    assert main(["audit", "--state", str(state)]) == 0, capsys.readouterr().out
