"""The caller's side of the door: `DoorNode` asks what `fleet.rpc.node_api` has.

A connection is used by one call at a time and kept for the next. Nobody there, or an owner that
went away in mid-call, is `NotOwner`: every call is idempotent and is to be repeated.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.core import errors
from fleet.rpc import socket_paths, trouble, wire
from fleet.rpc.calls import Verb, verbs
from fleet.rpc.node_api import NodeApi, OwnerApi

CALL_TIMEOUT_S = 10.0
"""Time, s, a call may take that names no time of its own."""
PULSE_S = 2.0


@dataclass
class DoorNode(NodeApi, OwnerApi):
    """One node behind its door. Every method raises the node's own errors, or `NotOwner`."""

    path: Path
    timeout_s: float = CALL_TIMEOUT_S
    _idle: list[socket.socket] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pulse(self, *, timeout_s: float = PULSE_S) -> Mapping[str, Any]:
        """As `OwnerApi.pulse`, within `timeout_s` seconds."""
        pulse = verbs(OwnerApi)["pulse"]
        answer: Mapping[str, Any] = pulse.load(self.ask(pulse, {}, timeout_s))
        return answer

    def close(self) -> None:
        """Close the connections kept."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def ask(self, verb: Verb, given: Mapping[str, Any], timeout_s: float | None) -> Any:
        """As `Interface.ask`, at the door."""
        return self._call(verb.name, given, self.timeout_s if timeout_s is None else timeout_s)

    def _call(self, name: str, given: Mapping[str, Any], timeout_s: float) -> Any:
        line = wire.call(name, given)
        kept = self._kept()
        if kept is not None:
            try:
                return self._converse(kept, line, timeout_s)
            except _Stale:
                pass  # the owner it led to has gone, and nothing was asked of it
        try:
            fresh = socket_paths.connect(self.path, timeout_s=min(timeout_s, CALL_TIMEOUT_S))
        except OSError as error:
            if (told := trouble.read(self.path)) is not None:
                raise errors.NotOwner(
                    f"the node cannot be opened: {told.detail}", remedy=told.remedy
                ) from error
            raise errors.NotOwner(
                f"nobody answers for this node at {self.path}: {os.strerror(error.errno or 0)}",
                remedy="where a node service or a standby runs on this host it takes over within"
                " seconds, see its log; where none does, run the command again",
            ) from error
        try:
            return self._converse(fresh, line, timeout_s)
        except _Stale as error:
            raise errors.NotOwner("the owner of the node's journal went away") from error

    def _converse(self, connection: socket.socket, line: bytes, timeout_s: float) -> Any:
        try:
            connection.settimeout(timeout_s)
            connection.sendall(line)
            with connection.makefile("rb") as lines:
                answered = lines.readline(wire.LINE_MAX)
        except TimeoutError as error:
            connection.close()
            raise errors.NotOwner(
                f"the owner of the node's journal does not answer within {timeout_s:g} s",
                remedy="repeat the call; a standby takes over from an owner that stays silent",
            ) from error
        except OSError as error:
            connection.close()
            raise _Stale from error
        if not answered:
            connection.close()
            raise _Stale
        if not answered.endswith(b"\n"):
            connection.close()  # what is left of the answer is no answer to the next call
            return wire.parse_answer(answered)
        with self._lock:
            self._idle.append(connection)
        return wire.parse_answer(answered)

    def _kept(self) -> socket.socket | None:
        with self._lock:
            return self._idle.pop() if self._idle else None


class _Stale(Exception):
    """The connection leads nowhere any more."""
