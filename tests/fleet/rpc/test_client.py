"""The caller's side: owners come and go, and whoever calls need not know which one it is."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.messages import ClaimOrder, TeardownOrder
from fleet.core.model import State, Uuid
from fleet.devices.simulated import faults
from fleet.devices.simulated.registers import Fault
from fleet.rpc import socket_paths, wire
from fleet.rpc.client import DoorNode
from fleet.rpc.socket import Door
from fleet.wiring import adapters
from tests.fleet.node.conftest import Lab, wait_for
from tests.fleet.node.owning import owner
from tests.fleet.rpc.conftest import Recorder

TEARDOWN = TeardownOrder(uid="claim-a")


def test_a_connection_is_kept_and_a_new_owner_is_not_noticed(place: Path, caller: DoorNode) -> None:
    """A stale connection after a change of owner is transparent, also when there are several."""
    first = Door(Recorder("first"), place)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: caller.pulse()["incarnation"], range(16)))
    assert set(found) == {"first"}
    assert 1 <= len(caller._idle) <= 4
    kept = list(caller._idle)
    assert caller.pulse()["incarnation"] == "first"
    assert caller._idle[-1] in kept
    first.close()
    second = Door(Recorder("second"), place)
    for _ in range(6):
        assert caller.pulse()["incarnation"] == "second"
    caller.close()
    assert caller._idle == []
    second.close()


def test_nobody_there_is_not_owner_and_retryable(caller: DoorNode) -> None:
    """With neither owner nor standby alive every call answers a retryable error."""
    calls = (
        caller.pulse,
        caller.view,
        caller.claims,
        lambda: caller.unprepare(TEARDOWN, budget_s=1.0),
        lambda: caller.hand_over("me"),
    )
    for call in calls:
        with pytest.raises(errors.NotOwner, match="nobody answers") as raised:
            call()
        assert isinstance(raised.value, errors.Retryable)


@pytest.mark.usefixtures("door")
def test_an_owner_that_stays_silent_is_left_after_the_time_allowed(
    recorder: Recorder, caller: DoorNode
) -> None:
    """A stopped owner: the call ends in time, and its connection is not used again."""
    recorder.hold = threading.Event()
    caller.timeout_s = 0.1
    with pytest.raises(errors.NotOwner, match=r"within 0.1 s"):
        caller.view()
    assert caller._idle == []
    recorder.hold.set()
    wait_for(lambda: recorder.finished == ["view"])
    assert caller.pulse()["incarnation"] == "first"


def test_an_answer_cut_short_is_not_owner_and_its_rest_is_no_answer(
    place: Path, caller: DoorNode
) -> None:
    """The next call must not read what is left of the last one's answer."""
    whole = wire.answer({"pid": 1, "incarnation": "x", "owner": "y"})
    listening = socket_paths.listen(place, backlog=4)

    def serve() -> None:
        for sent in (whole[:9], whole):
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(sent)

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(errors.NotOwner, match="mid-answer"):
        caller.pulse()
    assert caller._idle == []
    assert caller.pulse()["incarnation"] == "x"
    thread.join(10.0)
    listening.close()


def test_an_owner_killed_in_mid_call_is_not_owner_and_the_retried_call_goes_on(lab: Lab) -> None:
    """Promise 7: kill -9 in a prepare; the same call to the next owner ends it, once."""
    order = lab.claim("claim-a", "gpu-0")
    lab.node.close()
    lab.backend.set_fault(Uuid(order.devices[0]), _hang(lab))
    caller = adapters.open_door(lab.plan)
    with owner(lab.plan) as actor, ThreadPoolExecutor(1) as pool:
        assert caller.pulse()["pid"] == actor.pid
        waiting = pool.submit(caller.prepare, order, budget_s=20.0)
        wait_for(lambda: "WIPING" in {d.state for d in caller.view().devices})
        actor.kill()
        with pytest.raises(errors.NotOwner, match=r"nobody answers|went away"):
            waiting.result(20.0)
    lab.backend.clear_fault(Uuid(order.devices[0]), "hang")
    lab.open()
    first = caller.prepare(order, budget_s=20.0)
    assert (first.state, caller.prepare(order, budget_s=20.0)) == ("PREPARED", first)
    assert (lab.device().state, lab.ledger.count) == (State.IN_USE, 1)
    assert caller.unprepare(TEARDOWN, budget_s=20.0).quarantined == ()
    caller.close()


def _hang(lab: Lab) -> Fault:
    units: list[str] = [*lab.backend.inventory()[0].device.units]
    return faults.make("hang", units=units, parameters={}, times=None, seed=7)


def test_a_call_that_outlasts_its_budget_is_joined_by_the_next(lab: Lab) -> None:
    """B03: one wipe however often the door is asked, on whatever connection."""
    order = lab.claim("claim-a", "gpu-0")
    callers = [adapters.open_door(lab.plan) for _ in range(3)]
    with pytest.raises(errors.DeviceBusy, match="longer than"):
        callers[0].prepare(order, budget_s=0.0)
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda one: one.prepare(order, budget_s=20.0), callers))
    assert len({answer.model_dump_json() for answer in answers}) == 1
    assert lab.ledger.count == 1
    for one in callers:
        one.close()


def test_a_handed_over_service_answers_not_owner_until_its_door_shuts(lab: Lab) -> None:
    """DESIGN 5: while the owner drains, callers are sent away retryably, never left hanging."""
    caller = adapters.open_door(lab.plan)
    order = ClaimOrder(uid="claim-a", node="n1", devices=("gpu-0",))
    lab.node.drain()
    with pytest.raises(errors.NotOwner, match="handing over"):
        caller.prepare(order, budget_s=1.0)
    assert caller.pulse()["incarnation"] == lab.node.incarnation
    lab.node.close()
    with pytest.raises(errors.NotOwner, match="nobody answers"):
        caller.prepare(order, budget_s=1.0)
    lab.open()
    assert caller.prepare(order, budget_s=20.0).state == "PREPARED"
    caller.close()


def test_an_answer_of_another_version_is_an_error_of_ours(place: Path, caller: DoorNode) -> None:
    """B60: during an update the keeper goes on, for what it catches is one tree of errors."""

    door = Door(Recorder(), place)
    grown = {"uid": "claim-a", "state": "PREPARED", "colour": "red"}
    door._calls["claims"] = lambda _: [grown]
    with pytest.raises(errors.InputInvalid, match="colour") as raised:
        caller.claims()
    assert "one version" in raised.value.remedy
    door.close()


def test_nothing_is_left_open_after_many_changes_of_owner(place: Path, caller: DoorNode) -> None:
    """A plugin lives for months: descriptors are bounded by the calls at one time."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        door = Door(Recorder(str(number)), place)
        assert caller.pulse()["incarnation"] == str(number)
        door.close()
    caller.close()
    wait_for(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before)
