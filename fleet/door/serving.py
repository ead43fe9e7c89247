"""The owner's side of the door: a thread per connection, each call handed to the node service."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from fleet import errors
from fleet.door import paths, wire
from fleet.messages import ClaimAnswer, ClaimOrder, NodeView, Published, TeardownOrder

BACKLOG = 64
BUDGET_MAX_S = 3600.0
"""Longest time, s, a call may ask to be kept waiting; kubelet's calls end after 45 s."""
SHORTAGE_PAUSE_S = 0.1
"""Pause, s, after a connection could not be taken for want of descriptors or threads."""
LOG = logging.getLogger(__name__)

HandOver = Callable[[str], bool]
"""Asked by a newcomer, named in words, for the journal; True: this owner lets go of it soon."""


class Service(Protocol):
    """What is served of `fleet.node.service.NodeService`."""

    incarnation: str

    def view(self, operations: Sequence[str] = ()) -> NodeView: ...

    def claims(self) -> Sequence[ClaimAnswer]: ...

    def prepare(self, order: ClaimOrder, *, budget_s: float) -> ClaimAnswer: ...

    def unprepare(
        self,
        uid: str,
        *,
        budget_s: float,
        consumers: Sequence[str],
        reserved: Sequence[str],
    ) -> ClaimAnswer: ...

    def published(self, published: Published) -> None: ...


def keep(_: str) -> bool:
    """Hand nothing over."""
    return False


class Door:
    """Serves one node's service at a socket until closed."""

    def __init__(
        self, service: Service, path: Path, *, owner: str = "", hand_over: HandOver = keep
    ) -> None:
        """`owner` says what kind of process this is. Raises OSError without a socket."""
        self._owner = owner
        self._service = service
        self._path = path
        self._hand_over = hand_over
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = threading.Event()
        self._calls: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
            "pulse": self._pulse,
            "view": self._view,
            "claims": self._claims,
            "prepare": self._prepare,
            "unprepare": self._unprepare,
            "published": self._published,
            "hand_over": self._asked,
        }
        self._socket = paths.listen(path, backlog=BACKLOG)
        self._inode = path.stat().st_ino
        threading.Thread(target=self._accept, name="door", daemon=True).start()

    def close(self) -> None:
        """Take no more calls; connections end, work they started goes on in the service."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            connections = list(self._open)
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        # Closing alone does not wake a thread that waits in accept or recv; shutting down does.
        for connection in (self._socket, *connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._closed.is_set():
                    return
                LOG.exception("the door at %s cannot take a connection", self._path)
                self._closed.wait(SHORTAGE_PAUSE_S)
                continue
            with self._lock:
                if self._closed.is_set():
                    connection.close()
                    return
                self._open.add(connection)
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        """Converse on a thread of its own. Without one the caller is let go: it asks again."""
        try:
            threading.Thread(
                target=self._converse, args=(connection,), name="door call", daemon=True
            ).start()
        except RuntimeError:
            LOG.exception("the door at %s has no thread for a connection", self._path)
            with self._lock:
                self._open.discard(connection)
            connection.close()
            self._closed.wait(SHORTAGE_PAUSE_S)

    def _converse(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as lines:
                while line := lines.readline(wire.LINE_MAX):
                    connection.sendall(self._answered(line))
                    if not line.endswith(b"\n"):
                        return  # the rest of it is no call
        except OSError:
            return  # who asked has gone; the work goes on
        finally:
            with self._lock:
                self._open.discard(connection)

    def _answered(self, line: bytes) -> bytes:
        try:
            name, arguments = wire.parse_call(line)
            call = self._calls.get(name)
            if call is None:
                unknown = errors.InputInvalid(f"the node's door knows no call {name!r}")
                return wire.refusal(unknown)
            return wire.answer(call(arguments))
        except errors.FleetError as error:
            return wire.refusal(error)
        except ValidationError as error:
            return wire.refusal(errors.InputInvalid(f"a call at the node's door: {error}"))
        except Exception as error:
            LOG.exception("a call at the node's door failed")
            return wire.refusal(errors.Unforeseen(f"the node service failed: {error!r}"))

    def _pulse(self, _: Mapping[str, Any]) -> Any:
        return {
            "pid": os.getpid(),
            "incarnation": self._service.incarnation,
            "owner": self._owner,
        }

    def _view(self, _: Mapping[str, Any]) -> Any:
        return self._service.view().model_dump(mode="json")

    def _claims(self, _: Mapping[str, Any]) -> Any:
        return [claim.model_dump(mode="json") for claim in self._service.claims()]

    def _prepare(self, arguments: Mapping[str, Any]) -> Any:
        order = ClaimOrder.model_validate(arguments.get("order"))
        answer = self._service.prepare(order, budget_s=_budget_s(arguments))
        return answer.model_dump(mode="json")

    def _unprepare(self, arguments: Mapping[str, Any]) -> Any:
        order = TeardownOrder.model_validate(arguments.get("order"))
        answer = self._service.unprepare(
            order.uid,
            budget_s=_budget_s(arguments),
            consumers=order.consumers,
            reserved=order.reserved,
        )
        return answer.model_dump(mode="json")

    def _published(self, arguments: Mapping[str, Any]) -> Any:
        self._service.published(Published.model_validate(arguments.get("published")))

    def _asked(self, arguments: Mapping[str, Any]) -> Any:
        return self._hand_over(str(arguments.get("by", "somebody")))


def _budget_s(arguments: Mapping[str, Any]) -> float:
    """How long the caller waits, s. Raises `InputInvalid`."""
    found = arguments.get("budget_s")
    if isinstance(found, int | float) and 0 <= found <= BUDGET_MAX_S:
        return float(found)
    raise errors.InputInvalid(
        f"budget_s is {found!r}", remedy=f"give seconds from 0 to {BUDGET_MAX_S:g}"
    )
