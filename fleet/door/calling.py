"""The caller's side of the door: `DoorNode` has the node service's methods for one node.

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
from typing import Any, TypeVar

from pydantic import ValidationError

from fleet import errors
from fleet.door import paths, wire
from fleet.messages import ClaimAnswer, ClaimOrder, Message, NodeView, Published, TeardownOrder

_Answer = TypeVar("_Answer", bound=Message)

CALL_TIMEOUT_S = 10.0
"""Time, s, a call that only looks may take."""
MARGIN_S = 3.0
"""Time, s, a call may take beyond the budget it names."""


@dataclass
class DoorNode:
    """One node behind its door. Every method raises the node's own errors, or `NotOwner`."""

    path: Path
    timeout_s: float = CALL_TIMEOUT_S
    _idle: list[socket.socket] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pulse(self, *, timeout_s: float = 2.0) -> Mapping[str, Any]:
        """Proof of life: ``pid``, ``incarnation`` and kind (``owner``) of the owner."""
        found: Mapping[str, Any] = self._call("pulse", {}, timeout_s)
        return found

    def view(self) -> NodeView:
        """The node now."""
        return _read(NodeView, self._call("view", {}, self.timeout_s))

    def claims(self) -> tuple[ClaimAnswer, ...]:
        """Claim records on the node."""
        found = self._call("claims", {}, self.timeout_s)
        return tuple(_read(ClaimAnswer, claim) for claim in found)

    def prepare(self, order: ClaimOrder, *, budget_s: float) -> ClaimAnswer:
        """Prepare devices for a claim; the node waits up to `budget_s` seconds for its work."""
        arguments = {"order": order.model_dump(mode="json"), "budget_s": budget_s}
        return _read(ClaimAnswer, self._call("prepare", arguments, budget_s + MARGIN_S))

    def unprepare(self, order: TeardownOrder, *, budget_s: float) -> ClaimAnswer:
        """Tear a claim down; the node waits up to `budget_s` seconds for its work."""
        arguments = {"order": order.model_dump(mode="json"), "budget_s": budget_s}
        return _read(ClaimAnswer, self._call("unprepare", arguments, budget_s + MARGIN_S))

    def published(self, published: Published) -> None:
        """Tell what was read back from the node's slices."""
        self._call("published", {"published": published.model_dump(mode="json")}, self.timeout_s)

    def hand_over(self, by: str) -> bool:
        """Ask the owner for the journal; whether it lets go of it soon."""
        return bool(self._call("hand_over", {"by": by}, self.timeout_s))

    def close(self) -> None:
        """Close the connections kept."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _call(self, name: str, arguments: Mapping[str, Any], timeout_s: float) -> Any:
        line = wire.call(name, arguments)
        kept = self._kept()
        if kept is not None:
            try:
                return self._converse(kept, line, timeout_s)
            except _Stale:
                pass  # the owner it led to has gone, and nothing was asked of it
        try:
            fresh = paths.connect(self.path, timeout_s=min(timeout_s, CALL_TIMEOUT_S))
        except OSError as error:
            raise errors.NotOwner(
                f"nobody answers for this node at {self.path}: {os.strerror(error.errno or 0)}",
                remedy="the node service or its standby takes over within seconds; see their logs",
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


def _read(kind: type[_Answer], found: object) -> _Answer:
    """The answer as a message. Raises `InputInvalid` for one of another version's."""
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        raise errors.InputInvalid(
            f"the owner of the node's journal answers in a way this process does not know: {error}",
            remedy="run node service, standby and plugin in one version; an update ends this",
        ) from error


class _Stale(Exception):
    """The connection leads nowhere any more."""
