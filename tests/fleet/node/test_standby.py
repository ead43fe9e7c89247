"""The standby owns the node when nobody better does, and two owners never exist (DESIGN 5, Ray)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock, SystemClock
from fleet.core.messages import ClaimOrder
from fleet.core.model import State, Uuid
from fleet.core.processes import start_time
from fleet.core.settings import NodeSettings
from fleet.devices.simulated import clients, faults
from fleet.node.journal.lock import Owner as Named
from fleet.node.journal.lock import OwnerLock, read_owner
from fleet.node.service import NodeService
from fleet.node.standby import Standby
from fleet.rpc.client import DoorNode
from fleet.rpc.node_api import HandOver
from fleet.wiring import adapters
from tests.fleet.node.conftest import Lab, quick_settings, wait_for
from tests.fleet.node.owning import owner
from tests.fleet.node.standbys import QUICK, TEARDOWN, owns, standby, step_until, steps


def test_it_takes_over_from_an_owner_killed_and_goes_on_with_its_claims(away: Lab) -> None:
    """DESIGN 5: teardown goes on with no Ray at all; claim, spec and lease are those of before."""
    door = adapters.open_door(away.plan)
    with owner(away.plan) as actor, standby(away) as standing:
        order = ClaimOrder(uid="claim-a", node="n1", devices=("gpu-0",), consumers=("pod-1",))
        answer = door.prepare(order, budget_s=20.0)
        steps(standing, seconds=0.2)
        assert not owns(standing)
        actor.kill()
        step_until(standing, lambda: owns(standing))
        assert door.pulse()["pid"] == os.getpid()
        assert door.prepare(order, budget_s=20.0) == answer
        assert door.unprepare(TEARDOWN, budget_s=20.0).quarantined == ()
        step_until(standing, lambda: away.coordinator.leases() == [])
    assert away.specs == []
    door.close()


def test_it_leaves_an_owner_alone_that_answers(away: Lab) -> None:
    """Whatever its age: who answers at the door owns the node."""
    with owner(away.plan) as actor, standby(away) as standing:
        steps(standing, seconds=QUICK.silence_s * 3)
        assert (owns(standing), actor.running, standing.trouble) == (False, True, "")


def test_a_stopped_owner_is_left_alone_until_the_silence_has_lasted(away: Lab) -> None:
    """An owner that hangs for less than `silence_s` keeps the node: nobody is killed early."""
    with owner(away.plan) as actor, standby(away, replace(QUICK, silence_s=30.0)) as standing:
        actor.stop()
        steps(standing, seconds=0.5)
        assert (owns(standing), actor.running) == (False, True)
        assert f"node actor of n1 (pid {actor.pid})" in standing.trouble


def test_a_stopped_owner_is_killed_by_name_after_the_silence(away: Lab) -> None:
    """DESIGN 5: an owner that holds the lock and answers nothing is killed; the node is served."""
    with owner(away.plan) as actor, standby(away) as standing:
        actor.stop()
        step_until(standing, lambda: owns(standing))
        assert actor.wait() == -9
        found = read_owner(adapters.lock_path(away.plan))
        assert found is not None
        assert (found.pid, found.owner) == (os.getpid(), "standby of n1")


@pytest.mark.parametrize("wanted", ["wipe", "prepare"])
def test_the_workers_of_a_stopped_owner_are_proven_gone(away: Lab, wanted: str) -> None:
    """Stopped in the middle of a wipe: killed with its worker; the memory is dirty, not clean."""
    eager = quick_settings(deadline_base_s=20.0).model_copy(
        update={"node": NodeSettings(idle_delay_s=0.1 if wanted == "wipe" else 30.0)}
    )
    away.plan = away.plan.model_copy(update={"settings": eager})
    backend = away.backend
    device = backend.inventory()[0].device
    units: list[str] = [*device.units]
    backend.set_fault(
        Uuid(device.uuid), faults.make("hang", units=units, parameters={}, times=None, seed=7)
    )
    door = adapters.open_door(away.plan)
    with owner(away.plan) as actor, standby(away) as standing:
        if wanted == "prepare":
            order = ClaimOrder(uid="claim-a", node="n1", devices=(device.uuid,))
            with pytest.raises(errors.DeviceBusy, match="longer than"):
                door.prepare(order, budget_s=0.0)
        wait_for(lambda: {d.state for d in door.view().devices} >= {"WIPING"})
        registers = backend.registers(device.accelerator)
        wait_for(lambda: bool(clients.alive(registers.read(), units)))
        actor.stop()
        (worker,) = clients.alive(registers.read(), units)
        step_until(standing, lambda: owns(standing))
        assert actor.wait() == -9
        assert clients.alive(registers.read(), units) == []
        assert start_time(worker.pid) is None
        assert standing.service is not None
        assert standing.service._registry.journal.workers() == []
        backend.clear_fault(Uuid(device.uuid), "hang")
        if wanted == "prepare":
            answer = door.prepare(order, budget_s=20.0)
            assert (answer.state, len(away.coordinator.leases())) == ("PREPARED", 1)
            door.unprepare(TEARDOWN, budget_s=20.0)
        step_until(standing, lambda: state_of(door, device.uuid) == State.CLEAN)
    door.close()


def state_of(door: DoorNode, uuid: str) -> str:
    return next(device.state for device in door.view().devices if device.uuid == uuid)


HOLD = """
import sys
from pathlib import Path
from fleet.node.journal.lock import OwnerLock
OwnerLock(Path(sys.argv[1])).acquire(owner="silent")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that has said something, ended with the block."""
    found = subprocess.Popen(
        [sys.executable, "-c", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert found.stdout is not None
    assert found.stdin is not None
    try:
        assert found.stdout.readline()
        yield found
    finally:
        found.kill()
        found.wait()
        found.stdin.close()
        found.stdout.close()


@pytest.mark.parametrize("change", ["start_time", "boot_id", "own", "absent", "garbage"])
def test_nobody_is_killed_on_a_guess(away: Lab, change: str) -> None:
    """A recycled pid is never killed: pid, start time and boot must name a living process."""
    lock = adapters.lock_path(away.plan)
    bystander_code = "import sys; print('up', flush=True); sys.stdin.read()"
    with process(HOLD, str(lock)) as holder, process(bystander_code) as bystander:
        named = read_owner(lock)
        assert named is not None
        assert named.pid == holder.pid
        wrong = {
            "start_time": replace(named, pid=bystander.pid),
            "boot_id": replace(named, boot_id="another boot"),
            "own": Named.current("standby of n1"),
            "absent": replace(named, start_time=0),
        }
        text = json.dumps(asdict(wrong[change])) if change in wrong else "{"
        lock.write_text(text)
        with standby(away) as standing:
            steps(standing, seconds=QUICK.silence_s * 2)
            assert not owns(standing)
            assert (holder.poll(), bystander.poll()) == (None, None)
            lock.write_text(json.dumps(asdict(named)))
            step_until(standing, lambda: owns(standing))
            assert (holder.wait(10.0), bystander.poll()) == (-9, None)


def test_a_standby_that_stood_still_itself_kills_nobody(tmp_path: Path) -> None:
    """Its own pause is nobody's silence: after one it listens anew for the whole time."""
    lock = tmp_path / "journal.lock"
    clock = ManualClock(1000.0)
    answers = [True]

    class Heard:
        def pulse(self, *, timeout_s: float = 2.0) -> Mapping[str, Any]:  # noqa: ARG002
            if not answers[0]:
                raise errors.NotOwner("nobody answers")
            return {}

    def refuse(_: HandOver) -> NodeService:
        raise errors.NotOwner("owned by another process")

    with process(HOLD, str(lock)) as holder:
        standing = Standby(open=refuse, door=Heard(), lock=lock, clock=clock)
        standing.step()
        answers[0] = False
        clock.advance(3600.0)
        for _ in range(29):
            standing.step()
            clock.advance(1.0)
        with pytest.raises(subprocess.TimeoutExpired):
            holder.wait(0.3)
        for _ in range(3):
            standing.step()
            clock.advance(1.0)
        assert holder.wait(10.0) == -9


def test_what_keeps_it_from_opening_is_told_and_tried_again(tmp_path: Path) -> None:
    """No state is a trap: a full disk, a missing driver or a missing directory end nothing."""
    troubles: list[BaseException] = [
        errors.DriverAbsent("no driver answers"),
        OSError(28, "No space left on device"),
        errors.JournalUnreadable("permission"),
    ]
    tried = []

    def failing(_: HandOver) -> NodeService:
        tried.append(standing.trouble)
        raise troubles[len(tried) - 1]

    door = DoorNode(tmp_path / "door.sock")
    standing = Standby(
        open=failing, door=door, lock=tmp_path / "lock", clock=SystemClock(), patience=QUICK
    )
    step_until(standing, lambda: len(tried) == len(troubles))
    assert tried == ["", "no driver answers", "[Errno 28] No space left on device"]
    assert standing.trouble == "permission"


def test_hand_over_on_request_drains_unlocks_and_keeps_away(away: Lab) -> None:
    """DESIGN 5: the newcomer asks, the standby drains and unlocks, the newcomer serves."""
    door = adapters.open_door(away.plan)
    patient = replace(QUICK, yield_s=1.0)
    with standby(away, patient) as standing:
        step_until(standing, lambda: owns(standing))
        order = ClaimOrder(uid="claim-a", node="n1", devices=("gpu-0",))
        answer = door.prepare(order, budget_s=20.0)
        assert door.hand_over("node actor")
        standing.step()
        assert not owns(standing)
        steps(standing, seconds=0.2)
        assert not owns(standing)
        with owner(away.plan) as actor:
            assert door.pulse()["pid"] == actor.pid
            assert door.prepare(order, budget_s=20.0) == answer
            assert door.hand_over("another") is False
            steps(standing, seconds=0.3)
            assert not owns(standing)
        step_until(standing, lambda: owns(standing))
        assert door.prepare(order, budget_s=20.0) == answer
        door.unprepare(TEARDOWN, budget_s=20.0)
    door.close()


def test_a_newcomer_that_never_comes_gets_the_node_lost_again(away: Lab) -> None:
    """After a hand-over nobody took up, the standby serves again: no state is a trap."""
    door = adapters.open_door(away.plan)
    with standby(away) as standing:
        step_until(standing, lambda: owns(standing))
        first = door.pulse()["incarnation"]
        assert door.hand_over("node actor")
        step_until(standing, lambda: not owns(standing))
        step_until(standing, lambda: owns(standing))
        assert door.pulse()["incarnation"] != first
    door.close()


def test_a_failing_step_of_the_service_does_not_end_the_standby(away: Lab) -> None:
    """One device's trouble, or a journal that cannot be written now, is the next step's."""
    with standby(away) as standing:
        step_until(standing, lambda: owns(standing))
        journal = away.directory / "journal.db"
        journal.rename(journal.with_suffix(".moved"))
        for _ in range(3):
            standing.step()
        journal.with_suffix(".moved").rename(journal)
        assert owns(standing)
        standing.step()


def test_an_owner_of_another_lock_file_is_found_by_its_directory(away: Lab) -> None:
    """A removed lock file makes nobody a second owner: the standby waits, and kills nobody."""
    lock = adapters.lock_path(away.plan)
    with owner(away.plan) as actor, standby(away) as standing:
        actor.stop()
        lock.unlink()
        steps(standing, seconds=QUICK.silence_s * 2)
        assert (owns(standing), actor.running) == (False, True)
        with pytest.raises(errors.NotOwner):
            OwnerLock(lock).acquire(owner="third")
