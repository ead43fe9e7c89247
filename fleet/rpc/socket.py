"""The owner's side of the door: a thread per connection, each call handed to the node service.

A caller of the door is who may open the socket: root on this host, like whoever may open the
journal itself. So everything an operator may decide about the node is answered here too, whoever
owns it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.core import errors
from fleet.rpc import socket_paths, wire
from fleet.rpc.calls import served
from fleet.rpc.node_api import HandOver, NodeApi, OwnerApi

BACKLOG = 64
SHORTAGE_PAUSE_S = 0.1
"""Pause, s, after a connection could not be taken for want of descriptors or threads."""
LOOK_S = 1.0
"""Period, s, without a newcomer after which the door looks whether its name still leads to it."""
LOG = logging.getLogger(__name__)


def keep(_: str) -> bool:
    """Hand nothing over."""
    return False


@dataclass(frozen=True)
class _Owner(OwnerApi):
    """What the process says of itself."""

    service: NodeApi
    owner: str
    let_go: HandOver

    def pulse(self) -> Mapping[str, Any]:
        """As `OwnerApi.pulse`."""
        return {
            "pid": os.getpid(),
            "incarnation": self.service.incarnation,
            "owner": self.owner,
        }

    def hand_over(self, by: str = "somebody") -> bool:
        """As `OwnerApi.hand_over`."""
        return self.let_go(by)


class Door:
    """Serves one node's service at a socket until closed."""

    def __init__(
        self, service: NodeApi, path: Path, *, owner: str = "", hand_over: HandOver = keep
    ) -> None:
        """`owner` says what kind of process this is. Raises OSError without a socket."""
        self._path = path
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = threading.Event()
        self._calls = served(NodeApi, service) | served(OwnerApi, _Owner(service, owner, hand_over))
        self._socket, self._inode = self._listening()
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
            except TimeoutError:
                self._keep_name()
                continue
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

    def _listening(self) -> tuple[socket.socket, int]:
        made = socket_paths.listen(self._path, backlog=BACKLOG)
        made.settimeout(LOOK_S)  # of accept alone: what it gives waits for ever
        return made, self._path.stat().st_ino

    def _keep_name(self) -> None:
        """Listen anew where the name was removed, or leads to a socket nobody listens at.

        Whoever is connected notices nothing then and holds the owner to be well, while nobody else
        ever gets in again: not a new plugin, not a verb.
        """
        if self._reached():
            return
        with self._lock:
            if self._closed.is_set():
                return
            try:
                made, self._inode = self._listening()
            except OSError as error:
                LOG.warning("the door at %s is gone and cannot be made: %s", self._path, error)
                return
            lost, self._socket = self._socket, made
        lost.close()
        LOG.warning("the door at %s was gone; it is there again", self._path)

    def _reached(self) -> bool:
        """Whether somebody listens at the name; only a proven absence is a no."""
        try:
            if self._path.stat().st_ino == self._inode:
                return True
            socket_paths.connect(self._path, timeout_s=LOOK_S).close()
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True
        return True

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
        except Exception as error:
            LOG.exception("a call at the node's door failed")
            return wire.refusal(errors.Unforeseen(f"the node service failed: {error!r}"))
