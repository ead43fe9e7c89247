"""`fleet node standby` as a process: it owns, hands over and ends as it is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.messages import ClaimOrder, TeardownOrder
from fleet.node.journal.lock import OwnerLock
from fleet.rpc.client import DoorNode
from fleet.wiring import adapters, plugin
from fleet.wiring.adapters import NodePlan
from tests.fleet.node.conftest import Lab, away, lab, wait_for
from tests.fleet.node.owning import owner

__all__ = ["away", "lab"]
END_S = 20.0


@contextmanager
def standby(plan: Path | str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command over a plan file; killed at the end unless it has ended by then."""
    found = subprocess.Popen(
        [sys.executable, "-m", "fleet.cli.main", "node", "standby", "--plan", str(plan), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert found.stdin is not None
    assert found.stdout is not None
    assert found.stderr is not None
    try:
        yield found
    finally:
        found.kill()
        found.wait()
        for stream in (found.stdin, found.stdout, found.stderr):
            stream.close()


def pulse(door: DoorNode) -> int:
    """Pid of whoever owns the node; 0: nobody."""
    try:
        return int(door.pulse()["pid"])
    except errors.NotOwner:
        return 0


def owns(process: subprocess.Popen[bytes], door: DoorNode) -> bool:
    """Whether the process owns the node; one that has ended says why."""
    assert process.poll() is None, process.communicate()
    return pulse(door) == process.pid


def released(plan: NodePlan) -> bool:
    """Whether the journal is free for anybody."""
    lock = OwnerLock(adapters.lock_path(plan))
    try:
        lock.acquire(owner="test")
    except errors.NotOwner:
        return False
    lock.release()
    return True


def test_it_owns_the_node_after_a_kill_and_ends_with_its_parent(away: Lab) -> None:
    """DESIGN 5: owner killed -9, claims go on; stdin closed, journal given back, exit 0."""
    plan = plugin.write_plan(away.plan)
    door = adapters.open_door(away.plan)
    order = ClaimOrder(uid="claim-a", node="n1", devices=("gpu-0",), consumers=("pod-1",))
    with owner(away.plan) as actor, standby(plan, "--supervised") as process:
        answer = door.prepare(order, budget_s=20.0)
        assert pulse(door) == actor.pid
        actor.kill()
        wait_for(lambda: owns(process, door))
        assert door.prepare(order, budget_s=20.0) == answer
        teardown = TeardownOrder(uid="claim-a")
        assert door.unprepare(teardown, budget_s=20.0).quarantined == ()
        wait_for(lambda: away.coordinator.leases() == [])
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(END_S) == 0
    assert released(away.plan)
    assert not adapters.door_path(away.plan).exists()
    door.close()


def test_a_signal_ends_it_with_the_journal_given_back(away: Lab) -> None:
    """As a container: no standard input ends nothing, SIGTERM ends all with nothing to mend."""
    plan = plugin.write_plan(away.plan)
    door = adapters.open_door(away.plan)
    with standby(plan) as process:
        assert process.stdin is not None
        process.stdin.close()
        wait_for(lambda: owns(process, door))
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(END_S) == 0
    assert released(away.plan)
    assert not adapters.door_path(away.plan).exists()
    door.close()


@pytest.mark.parametrize("content", [None, "\xff\xfe"])
def test_a_plan_that_is_none_is_a_clear_error(tmp_path: Path, content: str | None) -> None:
    """Exit 2 naming the file and what to do; no traceback, nothing opened."""
    plan = tmp_path / "plan.json"
    if content is not None:
        plan.write_bytes(content.encode("latin-1"))
    with standby(plan, "--supervised") as process:
        said = process.communicate(timeout=END_S)
        assert process.returncode == 2
    shown = " ".join(said[1].decode().split())
    assert "plan.json" in shown.replace(" ", "")
    assert "is no plan of a node" in shown
    assert "name the plan.json that the node plugin wrote" in shown
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == ([plan] if content is not None else [])
