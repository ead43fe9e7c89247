"""The owner's side: every call handed on, every error told, no caller able to hurt another."""

from __future__ import annotations

import contextlib
import json
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from fleet.core import errors
from fleet.core.messages import ClaimOrder, Owed, Published, TeardownOrder
from fleet.rpc import socket_paths, wire
from fleet.rpc.client import DoorNode
from fleet.rpc.socket import Door
from fleet.wiring import adapters
from tests.fleet.node.conftest import Lab, wait_for
from tests.fleet.rpc.conftest import Recorder, refused

ORDER = ClaimOrder(uid="claim-a", node="n1", devices=("GPU-1",), consumers=("pod-1",), note="n")


def said(path: Path, *lines: bytes) -> list[dict[str, Any]]:
    """The answers to raw lines on one connection."""
    with socket_paths.connect(path, timeout_s=10.0) as caller, caller.makefile("rb") as found:
        answers = []
        for line in lines:
            caller.sendall(line)
            answers.append(json.loads(found.readline()))
        return answers


@pytest.mark.usefixtures("door")
def test_every_call_reaches_the_service_with_all_it_carries(
    recorder: Recorder, caller: DoorNode
) -> None:
    """The door adds nothing and leaves nothing out."""
    assert caller.pulse()["owner"] == "recorder"
    assert caller.view().at == 1.5
    assert [claim.uid for claim in caller.claims()] == ["claim-a"]
    assert caller.prepare(ORDER, budget_s=2.5).note == "its note"
    teardown = TeardownOrder(uid="claim-a", consumers=("p1", "p2"), reserved=("p3",))
    assert caller.unprepare(teardown, budget_s=3.5).state == "ABSENT"
    published = Published(quarantined={"GPU-1": 12.25})
    caller.published(published)
    owed = Owed(uid="a", namespace="team", name="job")
    caller.owe(owed)
    caller.paid(["a", "b"])
    assert recorder.asked == [
        ("view",),
        ("claims",),
        ("prepare", ORDER, 2.5),
        ("unprepare", "claim-a", 3.5, ("p1", "p2"), ("p3",), False),
        ("published", published),
        ("owe", owed),
        ("paid", "a", "b"),
    ]


@pytest.mark.usefixtures("door")
def test_a_refusal_of_the_service_arrives_as_it_was_raised(
    recorder: Recorder, caller: DoorNode
) -> None:
    """B01, B60: class, remedy and the holder named cross the door; the connection stays good."""
    recorder.error = refused(errors.DeviceBusy, holder="claim:claim-b")
    with pytest.raises(errors.DeviceBusy, match="what is wrong — what to do") as raised:
        caller.prepare(ORDER, budget_s=1.0)
    assert raised.value.holder == "claim:claim-b"
    recorder.error = None
    assert caller.prepare(ORDER, budget_s=1.0).uid == "claim-a"


@pytest.mark.usefixtures("door")
def test_a_fault_of_the_service_is_told_and_ends_no_connection(
    recorder: Recorder, caller: DoorNode
) -> None:
    """No call is left without an answer, whatever breaks (promise 7)."""
    recorder.error = ZeroDivisionError("a fault")
    with pytest.raises(errors.Unforeseen, match="a fault"):
        caller.view()
    recorder.error = None
    assert caller.view().node == "n1"


@pytest.mark.usefixtures("door")
@pytest.mark.parametrize(
    "line",
    [
        b"no json\n",
        b"[]\n",
        b'{"call":"reboot"}\n',
        b'{"call":"prepare"}\n',
        b'{"call":"prepare","with":{"order":{"uid":"","node":"n1"},"budget_s":1}}\n',
        b'{"call":"unprepare","with":{"budget_s":1}}\n',
        b'{"call":"unprepare","with":{"order":{"uid":"a"},"budget_s":"soon"}}\n',
        b'{"call":"unprepare","with":{"order":{"uid":"a"},"budget_s":NaN}}\n',
        b'{"call":"unprepare","with":{"order":{"uid":"a"},"budget_s":-1}}\n',
        b'{"call":"unprepare","with":{"order":{"uid":"a","force":true},"budget_s":1}}\n',
        b'{"call":"published","with":{"published":{"quarantined":[1]}}}\n',
        b'{"call":"published"}\n',
    ],
)
def test_a_call_that_cannot_be_understood_is_refused_and_reaches_nobody(
    recorder: Recorder, place: Path, line: bytes
) -> None:
    """Unknown calls, bad JSON, missing and wrong arguments: an answer, and the next call works."""
    bad, good = said(place, line, wire.call("pulse", {}))
    assert bad["error"]["kind"] == "InputInvalid"
    assert good["answer"]["incarnation"] == "first"
    assert recorder.asked == []


@pytest.mark.usefixtures("door")
def test_a_line_without_end_is_refused_once_and_its_rest_is_no_call(
    recorder: Recorder, place: Path, caller: DoorNode
) -> None:
    """Memory is bounded, and what follows the cut is never taken for a call of its own."""
    hidden = wire.call("unprepare", {"order": {"uid": "claim-a"}, "budget_s": 1})
    with socket_paths.connect(place, timeout_s=20.0) as raw:
        with contextlib.suppress(OSError):  # the door may have hung up already
            raw.sendall(b"x" * wire.LINE_MAX + hidden)
        with raw.makefile("rb") as found:
            assert json.loads(found.readline())["error"]["kind"] == "InputInvalid"
            with contextlib.suppress(ConnectionResetError):
                assert found.read() == b""
    assert recorder.asked == []
    assert caller.view().node == "n1"


@pytest.mark.usefixtures("door")
def test_a_caller_that_dies_in_mid_sentence_has_asked_nothing(
    recorder: Recorder, place: Path
) -> None:
    """Half a call is never performed, also when its JSON happens to be whole."""
    line = wire.call("unprepare", {"order": {"uid": "claim-a"}, "budget_s": 1})
    with socket_paths.connect(place, timeout_s=5.0) as caller:
        caller.sendall(line[:-1])
        caller.shutdown(socket.SHUT_WR)
        assert b"InputInvalid" in caller.recv(4096)
    assert recorder.asked == []


@pytest.mark.usefixtures("door")
def test_the_work_goes_on_when_the_caller_goes_away(recorder: Recorder, place: Path) -> None:
    """B03: a plugin that is killed in a prepare cuts no device work in half."""
    recorder.hold = threading.Event()
    with socket_paths.connect(place, timeout_s=5.0) as caller:
        caller.sendall(
            wire.call("prepare", {"order": ORDER.model_dump(mode="json"), "budget_s": 1})
        )
        wait_for(lambda: bool(recorder.asked))
    recorder.hold.set()
    wait_for(lambda: recorder.finished == ["prepare"])


@pytest.mark.usefixtures("door")
def test_a_slow_call_holds_up_nobody_else(recorder: Recorder, caller: DoorNode) -> None:
    """Promise 9, B59: the pulse answers while a prepare waits for its wipe."""
    recorder.hold = threading.Event()
    thread = threading.Thread(target=caller.prepare, args=(ORDER,), kwargs={"budget_s": 20.0})
    thread.start()
    wait_for(lambda: bool(recorder.asked))
    assert caller.pulse(timeout_s=5.0)["incarnation"] == "first"
    recorder.hold.set()
    thread.join(20.0)
    assert recorder.finished == ["prepare"]


def test_the_door_is_private_and_goes_when_closed(
    recorder: Recorder, place: Path, caller: DoorNode
) -> None:
    """0600 while open; afterwards nothing is left, and closing twice is harmless."""
    door = Door(recorder, place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert caller.hand_over("somebody") is False
    door.close()
    door.close()
    assert not place.exists()
    with pytest.raises(errors.NotOwner, match="nobody answers"):
        caller.pulse()


def test_closing_removes_only_its_own_socket(place: Path, caller: DoorNode) -> None:
    """A late old owner must not shut the new owner's door."""
    old = Door(Recorder("old"), place)
    new = Door(Recorder("new"), place)
    old.close()
    assert caller.pulse()["incarnation"] == "new"
    new.close()
    assert not place.exists()


@pytest.mark.usefixtures("door")
@pytest.mark.parametrize("stale", [False, True])
def test_a_door_whose_name_is_gone_is_there_again(
    place: Path, caller: DoorNode, *, stale: bool
) -> None:
    """Promise 7: who is connected holds the owner to be well, so nobody else would ever get in."""
    assert caller.pulse()["owner"] == "recorder"  # keeps its connection, as a standby does
    place.unlink()
    if stale:  # as of a directory that was put back
        with socket.socket(socket.AF_UNIX) as dead, socket_paths.short(place) as name:
            dead.bind(name)

    def reached() -> bool:
        newcomer = DoorNode(place)
        try:
            return str(newcomer.pulse()["owner"]) == "recorder"
        except errors.NotOwner:
            return False
        finally:
            newcomer.close()

    wait_for(reached)
    assert caller.pulse()["owner"] == "recorder"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


def test_two_services_on_one_node_are_impossible(lab: Lab) -> None:
    """Promise 2: the second is refused before it touches the door of the first."""
    door = adapters.door_path(lab.plan)
    inode = door.stat().st_ino
    for _ in range(2):
        with pytest.raises(errors.NotOwner, match=r"node service of n1 \(pid \d+\)"):
            adapters.open_node(lab.plan)
    assert door.stat().st_ino == inode
    caller = adapters.open_door(lab.plan)
    assert caller.pulse()["incarnation"] == lab.node.incarnation
    caller.close()
