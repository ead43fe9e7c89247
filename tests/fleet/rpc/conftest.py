"""A node service that only notes what it is asked, and doors to it."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.claim_states import ClaimState
from fleet.core.leases import ClosedBy, Closure
from fleet.core.messages import (
    Acceptance,
    ClaimAnswer,
    ClaimOrder,
    DeviceView,
    NodeView,
    Owed,
    Published,
    ScrubOrder,
    TeardownOrder,
)
from fleet.core.model import Holder, HolderKind, NodeName, Token
from fleet.rpc.client import DoorNode
from fleet.rpc.node_api import BUDGET_S, NodeApi, teardown
from fleet.rpc.socket import Door
from tests.fleet.node.conftest import lab

__all__ = ["lab"]


@dataclass
class Recorder(NodeApi):
    """Answers every call at once, unless `hold` keeps it waiting or `error` is to be raised."""

    incarnation: str = "first"
    error: BaseException | None = None
    hold: threading.Event | None = None
    asked: list[tuple[object, ...]] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)

    def view(self, operations: Sequence[str] = ()) -> NodeView:  # noqa: ARG002 - of the protocol
        """A node without devices."""
        self._do("view")
        return NodeView(
            node="n1",
            incarnation=self.incarnation,
            boot_id="b",
            at=1.5,
            simulated=True,
            backend="x",
        )

    def claims(self) -> Sequence[ClaimAnswer]:
        """One claim."""
        self._do("claims")
        return [self._answer("claim-a", ClaimState.PREPARED)]

    def prepare(self, order: ClaimOrder, *, budget_s: float = BUDGET_S) -> ClaimAnswer:
        """Prepared."""
        self._do("prepare", order, budget_s)
        return self._answer(order.uid, ClaimState.PREPARED)

    def unprepare(self, order: TeardownOrder | str, *, budget_s: float = BUDGET_S) -> ClaimAnswer:
        """Torn down."""
        asked = teardown(order)
        self._do("unprepare", asked.uid, budget_s, asked.consumers, asked.reserved, asked.unheld)
        return self._answer(asked.uid, ClaimState.ABSENT)

    def published(self, published: Published) -> None:
        """Noted."""
        self._do("published", published)

    def owe(self, owed: Owed) -> None:
        """Noted."""
        self._do("owe", owed)

    def paid(self, uids: Sequence[str]) -> None:
        """Noted."""
        self._do("paid", *uids)

    def scrub(self, orders: Sequence[ScrubOrder]) -> Sequence[Acceptance]:
        """Every order accepted."""
        self._do("scrub", *orders)
        return [Acceptance(operation=order.operation, accepted=True) for order in orders]

    def cancel(self, operations: Sequence[str]) -> None:
        """Noted."""
        self._do("cancel", *operations)

    def abandon(self, uid: str, token: str, devices: Sequence[str]) -> Closure:
        """Closed."""
        self._do("abandon", uid, token, *devices)
        holder = Holder(HolderKind.CLAIM, uid)
        return Closure(holder, Token.parse(token), NodeName("n1"), ClosedBy.ABANDON)

    def quarantine_add(
        self, device: str, *, detail: str, operator: str, codes: Sequence[str] = ()
    ) -> DeviceView:
        """Not what these tests are about: `test_server` asks a real node."""
        raise errors.DeviceUnknown(f"{device}: {detail} {codes} ({operator})")

    def _do(self, name: str, *arguments: object) -> None:
        self.asked.append((name, *arguments))
        if self.hold is not None:
            assert self.hold.wait(20.0)
        if self.error is not None:
            raise self.error
        self.finished.append(name)

    def _answer(self, uid: str, state: ClaimState) -> ClaimAnswer:
        return ClaimAnswer(
            uid=uid, state=state, devices=("GPU-1",), cdi={"GPU-1": ("v/c=1",)}, note="its note"
        )


@pytest.fixture
def place() -> Iterator[Path]:
    """Where a door may be."""
    directory = Path(tempfile.mkdtemp(prefix="door-"))
    yield directory / "door.sock"
    shutil.rmtree(directory)


@pytest.fixture
def recorder() -> Recorder:
    """A service that only notes."""
    return Recorder()


@pytest.fixture
def door(recorder: Recorder, place: Path) -> Iterator[Door]:
    """The recorder's door."""
    made = Door(recorder, place, owner="recorder")
    yield made
    made.close()


def refused(kind: type[errors.FleetError], **fields: object) -> errors.FleetError:
    """An error of this kind as a service raises it."""
    return kind("what is wrong", remedy="what to do", **fields)


@pytest.fixture
def caller(place: Path) -> Iterator[DoorNode]:
    """A caller at that place; its connections are closed at the end."""
    made = DoorNode(place)
    yield made
    made.close()
