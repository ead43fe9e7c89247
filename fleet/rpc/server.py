"""What is answered at the door: each call by name, its arguments read and checked.

A caller of the door is who may open the socket: root on this host, like whoever may open the
journal itself. So everything an operator may decide about the node is answered here too, whoever
owns it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pydantic import TypeAdapter

from fleet.core import errors
from fleet.core.leases import Closure
from fleet.core.messages import (
    Acceptance,
    ClaimAnswer,
    ClaimOrder,
    DeviceView,
    NodeView,
    Owed,
    Published,
    ScrubOrder,
    Swept,
    TeardownOrder,
)

BUDGET_MAX_S = 3600.0
"""Longest time, s, a call may ask to be kept waiting; kubelet's calls end after 45 s."""

ORDERS = TypeAdapter(tuple[ScrubOrder, ...])
CLOSURE = TypeAdapter(Closure)

Arguments = Mapping[str, Any]
Call = Callable[[Arguments], Any]
HandOver = Callable[[str], bool]
"""Asked by a newcomer, named in words, for the journal; True: this owner lets go of it soon."""


class ServesClaims(Protocol):
    """What kubelet's side asks."""

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
        unheld: bool,
    ) -> ClaimAnswer: ...

    def published(self, published: Published) -> None: ...

    def owe(self, owed: Owed) -> None: ...

    def paid(self, uids: Sequence[str]) -> None: ...


class ServesOperators(Protocol):
    """What people ask and decide."""

    def quarantine_add(
        self, device: str, *, detail: str, operator: str, codes: Sequence[str]
    ) -> DeviceView: ...

    def quarantine_clear(
        self, device: str, *, codes: Sequence[str], operator: str, detail: str
    ) -> DeviceView: ...

    def adopt(self, *, devices: Sequence[str], operator: str) -> Sequence[DeviceView]: ...

    def retire(self, device: str, *, detail: str, operator: str) -> str: ...

    def partition(self, device: str, *, on: bool, operator: str) -> DeviceView: ...

    def follow_epoch(self, epoch: int, *, operator: str) -> None: ...

    def sweep(self) -> Sequence[Swept]: ...


class ServesCoordinators(Protocol):
    """What the coordinator of the cluster's claims asks."""

    def scrub(self, orders: Sequence[ScrubOrder]) -> Sequence[Acceptance]: ...

    def cancel(self, operations: Sequence[str]) -> None: ...

    def abandon(self, uid: str, token: str, devices: Sequence[str]) -> Closure: ...


class Service(ServesClaims, ServesCoordinators, ServesOperators, Protocol):
    """What is served of `fleet.node.service.NodeService`."""


def calls(service: Service, *, owner: str, hand_over: HandOver) -> Mapping[str, Call]:
    """The calls by name. Each answers a JSON value or raises a `FleetError`."""
    answers = _Answers(service, owner, hand_over)
    return {
        "pulse": answers.pulse,
        "view": answers.view,
        "claims": answers.claims,
        "prepare": answers.prepare,
        "unprepare": answers.unprepare,
        "published": answers.published,
        "owe": answers.owe,
        "paid": answers.paid,
        "scrub": answers.scrub,
        "cancel": answers.cancel,
        "abandon": answers.abandon,
        "quarantine_add": answers.quarantine_add,
        "quarantine_clear": answers.quarantine_clear,
        "adopt": answers.adopt,
        "retire": answers.retire,
        "partition": answers.partition,
        "follow_epoch": answers.follow_epoch,
        "sweep": answers.sweep,
        "hand_over": answers.hand_over,
    }


class _Answers:
    def __init__(self, service: Service, owner: str, hand_over: HandOver) -> None:
        self._service = service
        self._owner = owner
        self._hand_over = hand_over

    def pulse(self, _: Arguments) -> Any:
        return {
            "pid": os.getpid(),
            "incarnation": self._service.incarnation,
            "owner": self._owner,
        }

    def view(self, given: Arguments) -> Any:
        return self._service.view(_texts(given, "operations")).model_dump(mode="json")

    def claims(self, _: Arguments) -> Any:
        return [claim.model_dump(mode="json") for claim in self._service.claims()]

    def prepare(self, given: Arguments) -> Any:
        order = ClaimOrder.model_validate(given.get("order"))
        answer = self._service.prepare(order, budget_s=_budget_s(given))
        return answer.model_dump(mode="json")

    def unprepare(self, given: Arguments) -> Any:
        order = TeardownOrder.model_validate(given.get("order"))
        answer = self._service.unprepare(
            order.uid,
            budget_s=_budget_s(given),
            consumers=order.consumers,
            reserved=order.reserved,
            unheld=order.unheld,
        )
        return answer.model_dump(mode="json")

    def published(self, given: Arguments) -> Any:
        self._service.published(Published.model_validate(given.get("published")))

    def owe(self, given: Arguments) -> Any:
        self._service.owe(Owed.model_validate(given.get("owed")))

    def paid(self, given: Arguments) -> Any:
        self._service.paid(_texts(given, "uids"))

    def scrub(self, given: Arguments) -> Any:
        accepted = self._service.scrub(ORDERS.validate_python(given.get("orders")))
        return [one.model_dump(mode="json") for one in accepted]

    def cancel(self, given: Arguments) -> Any:
        self._service.cancel(_texts(given, "operations"))

    def abandon(self, given: Arguments) -> Any:
        closure = self._service.abandon(
            _text(given, "uid"), _text(given, "token"), _texts(given, "devices")
        )
        return CLOSURE.dump_python(closure, mode="json")

    def quarantine_add(self, given: Arguments) -> Any:
        found = self._service.quarantine_add(
            _text(given, "device"),
            detail=_text(given, "detail"),
            operator=_text(given, "operator"),
            codes=_texts(given, "codes"),
        )
        return found.model_dump(mode="json")

    def quarantine_clear(self, given: Arguments) -> Any:
        found = self._service.quarantine_clear(
            _text(given, "device"),
            codes=_texts(given, "codes"),
            operator=_text(given, "operator"),
            detail=str(given.get("detail", "")),
        )
        return found.model_dump(mode="json")

    def adopt(self, given: Arguments) -> Any:
        found = self._service.adopt(
            devices=_texts(given, "devices"), operator=_text(given, "operator")
        )
        return [device.model_dump(mode="json") for device in found]

    def retire(self, given: Arguments) -> Any:
        return self._service.retire(
            _text(given, "device"), detail=_text(given, "detail"), operator=_text(given, "operator")
        )

    def partition(self, given: Arguments) -> Any:
        on = given.get("on")
        if not isinstance(on, bool):
            raise errors.InputInvalid(f"on is {on!r}", remedy="give true or false")
        found = self._service.partition(
            _text(given, "device"), on=on, operator=_text(given, "operator")
        )
        return found.model_dump(mode="json")

    def follow_epoch(self, given: Arguments) -> Any:
        epoch = given.get("epoch")
        if not isinstance(epoch, int) or isinstance(epoch, bool):
            raise errors.InputInvalid(f"epoch is {epoch!r}", remedy="give a whole number")
        self._service.follow_epoch(epoch, operator=_text(given, "operator"))

    def sweep(self, _: Arguments) -> Any:
        return [seen.model_dump(mode="json") for seen in self._service.sweep()]

    def hand_over(self, given: Arguments) -> Any:
        return self._hand_over(str(given.get("by", "somebody")))


def _budget_s(given: Arguments) -> float:
    """How long the caller waits, s. Raises `InputInvalid`."""
    found = given.get("budget_s")
    if isinstance(found, int | float) and 0 <= found <= BUDGET_MAX_S:
        return float(found)
    raise errors.InputInvalid(
        f"budget_s is {found!r}", remedy=f"give seconds from 0 to {BUDGET_MAX_S:g}"
    )


def _text(given: Arguments, name: str) -> str:
    found = given.get(name)
    if isinstance(found, str):
        return found
    raise errors.InputInvalid(f"{name} is {found!r}", remedy=f"give {name} as a text")


def _texts(given: Arguments, name: str) -> tuple[str, ...]:
    found = given.get(name, ())
    if isinstance(found, list | tuple) and all(isinstance(one, str) for one in found):
        return tuple(found)
    raise errors.InputInvalid(f"{name} is {found!r}", remedy=f"give {name} as a list of texts")
