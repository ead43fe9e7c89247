"""The door between standby, plugin and owner of a node: raw bytes on either side of its socket."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.core import errors
from fleet.core.claim_states import ClaimState
from fleet.core.leases import ClosedBy, Closure
from fleet.core.messages import ClaimAnswer, ClaimOrder, Published, ScrubOrder, TeardownOrder
from fleet.core.model import Holder, HolderKind, NodeName, Token
from fleet.rpc import socket_paths, wire
from fleet.rpc.client import DoorNode
from fleet.rpc.socket import Door
from tests.fleet.rpc.conftest import Recorder
from tests.fuzz.mutations import HOSTILE, documents, spelled, texts
from tests.fuzz.running import bounded, fuzzed, told

WAIT_S = 20.0
"""Time, s, either side waits for the other before the test fails."""
TOKEN = str(Token(1, 2))
CLAIM = ClaimOrder(uid="claim-a", node="n1", devices=("GPU-1",), token=TOKEN, name="c")
SCRUB = ScrubOrder(operation="op/1", node="n1", device="GPU-1", token=TOKEN)
CALLS: tuple[dict[str, Any], ...] = (
    {"call": "pulse", "with": {}},
    {"call": "view", "with": {"operations": ["a", "b"]}},
    {"call": "claims"},
    {"call": "prepare", "with": {"order": CLAIM.model_dump(mode="json"), "budget_s": 1.0}},
    {
        "call": "unprepare",
        "with": {"order": TeardownOrder(uid="a").model_dump(mode="json"), "budget_s": 1},
    },
    {"call": "published", "with": {"published": Published().model_dump(mode="json")}},
    {"call": "owe", "with": {"owed": {"uid": "a", "namespace": "b", "name": "c"}}},
    {"call": "paid", "with": {"uids": ["a"]}},
    {"call": "scrub", "with": {"orders": [SCRUB.model_dump(mode="json")]}},
    {"call": "abandon", "with": {"uid": "a", "token": "1.2", "devices": ["GPU-1"]}},
    {
        "call": "quarantine_add",
        "with": {"device": "a", "detail": "d", "operator": "o", "codes": []},
    },
    {"call": "adopt", "with": {"devices": [], "operator": "o"}},
    {"call": "follow_epoch", "with": {"epoch": 2, "operator": "o"}},
    {"call": "partition", "with": {"device": "a", "on": True, "operator": "o"}},
    {"call": "hand_over", "with": {"by": "me"}},
)


@pytest.fixture(scope="module", name="served")
def served_fixture(place: Path) -> Iterator[Path]:
    """A door that records what it is asked."""
    path = place / "door.sock"
    door = Door(Recorder(), path, owner="recorder")
    yield path
    door.close()


def exchanged(path: Path, sent: bytes) -> bytes:
    """What the door answers to these bytes before it, or we, close."""
    with socket_paths.connect(path, timeout_s=WAIT_S) as connection:
        with suppress(OSError):  # it need not listen to the end
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
        parts = []
        with suppress(ConnectionResetError):
            while part := connection.recv(1 << 16):
                parts.append(part)
    return b"".join(parts)


@fuzzed(60)
@given(call=st.sampled_from(CALLS), rest=st.data())
def test_whatever_is_sent_to_the_door_is_answered(
    served: Path, call: dict[str, Any], rest: st.DataObject
) -> None:
    """B20, B60: bytes at the door get an error in words, and the next caller is served."""
    sent = rest.draw(texts(call)) + rest.draw(st.sampled_from([b"\n", b"", b"\n\n", b"\x00\n"]))
    with bounded():
        answered = exchanged(served, sent)
    lines = answered.splitlines()
    for line in lines:
        found = json.loads(line)
        assert found.keys() <= {"answer", "error"}
        if "error" in found:
            assert found["error"]["kind"] != "Unforeseen", found
            assert found["error"]["detail"].strip()
            assert len(line) < 200_000
    assert len(lines) == sum(1 for part in sent.split(b"\n")[:-1]) + (
        not sent.endswith(b"\n") and sent != b""
    )
    node = DoorNode(served)
    assert node.pulse()["owner"] == "recorder"
    node.close()


def _answers() -> tuple[Any, ...]:
    view = json.loads(wire.answer(Recorder().view().model_dump(mode="json")))
    claim = ClaimAnswer(uid="claim-a", state=ClaimState.PREPARED, devices=("GPU-1",), cdi={})
    closure = Closure(Holder(HolderKind.CLAIM, "a"), Token(1, 2), NodeName("n1"), ClosedBy.ABANDON)
    error = errors.LeaseHeld("gpu-0 is held", remedy="wait", holder="claim:a", unit="u")
    return (
        view,
        {"answer": [claim.model_dump(mode="json")]},
        {"answer": claim.model_dump(mode="json")},
        {"answer": [{"operation": "a", "accepted": True}]},
        {"answer": {"holder": str(closure.holder), "token": "1.2", "node": "n1", "by": "abandon"}},
        {"answer": {"pid": 1, "incarnation": "i", "owner": "o"}},
        {"answer": None},
        json.loads(wire.refusal(error)),
    )


ASKED: tuple[Callable[[DoorNode], object], ...] = (
    lambda node: node.pulse(timeout_s=WAIT_S),
    lambda node: node.view(["a"]),
    lambda node: node.claims(),
    lambda node: node.prepare(CLAIM),
    lambda node: node.unprepare("a"),
    lambda node: node.scrub([SCRUB]),
    lambda node: node.abandon("a", "1.2", ["GPU-1"]),
    lambda node: node.adopt(operator="o"),
    lambda node: node.sweep(),
    lambda node: node.retire("a", detail="d", operator="o"),
    lambda node: node.hand_over("me"),
)


class _Owner:
    """Somebody behind the door who answers each call with the bytes he was given."""

    def __init__(self, path: Path) -> None:
        self.answer = b""
        self._socket = socket_paths.listen(path, backlog=8)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines, suppress(OSError):
                lines.readline()
                connection.sendall(self.answer)

    def close(self) -> None:
        """End, once what is being answered is."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(WAIT_S)


@pytest.fixture(scope="module", name="owner")
def owner_fixture(place: Path) -> Iterator[_Owner]:
    """An owner at another door."""
    made = _Owner(place / "owner.sock")
    yield made
    made.close()


@fuzzed(60)
@given(ask=st.sampled_from(ASKED), answer=st.sampled_from(_answers()), rest=st.data())
def test_whatever_the_owner_answers_is_an_answer_or_an_error(
    place: Path,
    owner: _Owner,
    ask: Callable[[DoorNode], object],
    answer: Any,
    rest: st.DataObject,
) -> None:
    """B60, B20: an owner of another version, or a broken one, is an error of ours in words."""
    owner.answer = rest.draw(texts(answer)) + rest.draw(st.sampled_from([b"\n", b"\n", b""]))
    node = DoorNode(place / "owner.sock", timeout_s=WAIT_S)
    try:
        with bounded():
            ask(node)
    except errors.Unforeseen as error:
        crossed(error)  # told so by the owner
    except errors.FleetError as error:
        crossed(told(error, most=300_000))
    finally:
        node.close()


def crossed(error: errors.FleetError) -> None:
    """An error that was told can be told again."""
    with pytest.raises(errors.FleetError):
        wire.parse_answer(wire.refusal(error))


@fuzzed(60)
@given(kept=documents(_answers()[-1]))
def test_an_error_from_the_door_is_always_one_of_ours(kept: Any) -> None:
    """B60: an error that crossed, however it is spelled, is raised as a FleetError."""
    line = spelled(kept) + b"\n"
    if isinstance(kept, dict) and "error" in kept:
        with pytest.raises(errors.FleetError) as caught, bounded():
            wire.parse_answer(line)
        assert str(caught.value).strip()


def test_texts_that_no_reader_takes_are_refused_as_calls() -> None:
    """B20: depth, numbers and encodings that the reader of JSON gives up on."""
    for text in HOSTILE:
        try:
            wire.parse_call(text.replace(b"\n", b"") + b"\n")
        except errors.InputInvalid as error:
            told(error, "door")
