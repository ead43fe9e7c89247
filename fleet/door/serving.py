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
        self._closed = False
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
            if self._closed:
                return
            self._closed = True
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
                if self._closed:
                    return
                LOG.exception("the door at %s cannot take a connection", self._path)
                continue
            with self._lock:
                if self._closed:
                    connection.close()
                    return
                self._open.add(connection)
            threading.Thread(
                target=self._converse, args=(connection,), name="door call", daemon=True
            ).start()

    def _converse(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as lines:
                while line := lines.readline(wire.LINE_MAX):
                    connection.sendall(self._answered(line))
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
        order = ClaimOrder.model_validate(arguments["order"])
        answer = self._service.prepare(order, budget_s=float(arguments["budget_s"]))
        return answer.model_dump(mode="json")

    def _unprepare(self, arguments: Mapping[str, Any]) -> Any:
        order = TeardownOrder.model_validate(arguments["order"])
        answer = self._service.unprepare(
            order.uid,
            budget_s=float(arguments["budget_s"]),
            consumers=order.consumers,
            reserved=order.reserved,
        )
        return answer.model_dump(mode="json")

    def _published(self, arguments: Mapping[str, Any]) -> Any:
        self._service.published(Published.model_validate(arguments["published"]))

    def _asked(self, arguments: Mapping[str, Any]) -> Any:
        return self._hand_over(str(arguments.get("by", "somebody")))
