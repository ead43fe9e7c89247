"""The caller's side of the door: `DoorNode` has the node service's methods for one node.

A connection is used by one call at a time and kept for the next. Nobody there, or an owner that
went away in mid-call, is `NotOwner`: every call is idempotent and is to be repeated.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from fleet.core import errors
from fleet.core.leases import Closure
from fleet.core.messages import (
    Acceptance,
    ClaimAnswer,
    ClaimOrder,
    DeviceView,
    Message,
    NodeView,
    Owed,
    Published,
    ScrubOrder,
    Swept,
    TeardownOrder,
)
from fleet.rpc import socket_paths, trouble, wire

_Answer = TypeVar("_Answer", bound=Message)
_CLOSURE = TypeAdapter(Closure)
_PULSE = TypeAdapter(dict[str, Any])
_LIST = TypeAdapter(list[Any])

CALL_TIMEOUT_S = 10.0
"""Time, s, a call that only looks may take."""
DECISION_TIMEOUT_S = 30.0
"""Time, s, an operator's decision may take: work on the device is stopped first."""
SWEEP_TIMEOUT_S = 120.0
PARTITION_TIMEOUT_S = 300.0
"""Time, s, switching partitioning may take: readings, instances removed, a reset, an inventory."""
BUDGET_S = 40.0
"""Time, s, a claim call waits for its work where nothing else is said."""
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
        with _understood():
            return _PULSE.validate_python(self._call("pulse", {}, timeout_s))

    def view(self, operations: Sequence[str] = ()) -> NodeView:
        """The node now, with the results of `operations` that are finished."""
        arguments = {"operations": list(operations)}
        return _read(NodeView, self._call("view", arguments, self.timeout_s))

    def claims(self) -> tuple[ClaimAnswer, ...]:
        """Claim records on the node."""
        return _all(ClaimAnswer, self._call("claims", {}, self.timeout_s))

    def prepare(self, order: ClaimOrder, *, budget_s: float = BUDGET_S) -> ClaimAnswer:
        """Prepare devices for a claim; the node waits up to `budget_s` seconds for its work."""
        arguments = {"order": order.model_dump(mode="json"), "budget_s": budget_s}
        return _read(ClaimAnswer, self._call("prepare", arguments, budget_s + MARGIN_S))

    def unprepare(self, order: TeardownOrder | str, *, budget_s: float = BUDGET_S) -> ClaimAnswer:
        """Tear a claim (or just its uid) down, waiting up to `budget_s` seconds for the work."""
        order = TeardownOrder(uid=order) if isinstance(order, str) else order
        arguments = {"order": order.model_dump(mode="json"), "budget_s": budget_s}
        return _read(ClaimAnswer, self._call("unprepare", arguments, budget_s + MARGIN_S))

    def published(self, published: Published) -> None:
        """Tell what was read back from the node's slices."""
        # An owner of an earlier version refuses a field that it does not know: only where it says
        # something.
        told = published.model_dump(mode="json", exclude_defaults=True)
        self._call("published", {"published": told}, self.timeout_s)

    def owe(self, owed: Owed) -> None:
        """Tell that our marks may be on a claim that no burial owes."""
        self._call("owe", {"owed": owed.model_dump(mode="json")}, self.timeout_s)

    def paid(self, uids: Sequence[str]) -> None:
        """Tell which of the claims owed were let go at the API."""
        self._call("paid", {"uids": list(uids)}, self.timeout_s)

    def scrub(self, orders: Sequence[ScrubOrder]) -> tuple[Acceptance, ...]:
        """Hand orders in, idempotent by operation id; one answer for each."""
        given = {"orders": [order.model_dump(mode="json") for order in orders]}
        return _all(Acceptance, self._call("scrub", given, self.timeout_s))

    def cancel(self, operations: Sequence[str]) -> None:
        """Stop the operations named; what is unknown or finished is left alone."""
        self._call("cancel", {"operations": list(operations)}, self.timeout_s)

    def abandon(self, uid: str, token: str, devices: Sequence[str]) -> Closure:
        """Close the token of a claim without a record: a wipe made for it is stopped first."""
        given = {"uid": uid, "token": token, "devices": list(devices)}
        with _understood():
            return _CLOSURE.validate_python(self._call("abandon", given, DECISION_TIMEOUT_S))

    def quarantine_add(
        self, device: str, *, detail: str, operator: str, codes: Sequence[str] = ()
    ) -> DeviceView:
        """Take a device out of service; with `codes`, for these reasons by others' word."""
        given = {"device": device, "detail": detail, "operator": operator, "codes": list(codes)}
        return _read(DeviceView, self._call("quarantine_add", given, DECISION_TIMEOUT_S))

    def quarantine_clear(
        self, device: str, *, codes: Sequence[str] = (), operator: str, detail: str = ""
    ) -> DeviceView:
        """Lift reasons by an operator's decision; `detail` is kept with it."""
        given = {"device": device, "codes": list(codes), "operator": operator, "detail": detail}
        return _read(DeviceView, self._call("quarantine_clear", given, DECISION_TIMEOUT_S))

    def adopt(self, *, devices: Sequence[str] = (), operator: str) -> Sequence[DeviceView]:
        """Record that HELD devices are free."""
        given = {"devices": list(devices), "operator": operator}
        return _all(DeviceView, self._call("adopt", given, DECISION_TIMEOUT_S))

    def retire(self, device: str, *, detail: str, operator: str) -> str:
        """Take a device out of the slices for good; its UUID."""
        given = {"device": device, "detail": detail, "operator": operator}
        return str(self._call("retire", given, DECISION_TIMEOUT_S))

    def partition(self, device: str, *, on: bool, operator: str) -> DeviceView:
        """Switch partitioning of a free accelerator, which the driver may reset for it."""
        given = {"device": device, "on": on, "operator": operator}
        return _read(DeviceView, self._call("partition", given, PARTITION_TIMEOUT_S))

    def follow_epoch(self, epoch: int, *, operator: str) -> None:
        """Follow a new store epoch."""
        self._call("follow_epoch", {"epoch": epoch, "operator": operator}, DECISION_TIMEOUT_S)

    def sweep(self) -> Sequence[Swept]:
        """Read all health now."""
        return _all(Swept, self._call("sweep", {}, SWEEP_TIMEOUT_S))

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


def _read(kind: type[_Answer], found: object) -> _Answer:
    with _understood():
        return kind.model_validate(found)


def _all(kind: type[_Answer], found: object) -> tuple[_Answer, ...]:
    with _understood():
        listed = _LIST.validate_python(found)
    return tuple(_read(kind, one) for one in listed)


@contextmanager
def _understood() -> Iterator[None]:
    """An answer of another version's is `InputInvalid`."""
    try:
        yield
    except ValidationError as error:
        raise errors.InputInvalid(
            f"the owner of the node's journal answers in a way this process does not know: {error}",
            remedy="run node service, standby and plugin in one version; an update ends this",
        ) from error


class _Stale(Exception):
    """The connection leads nowhere any more."""
