"""Several doors asked in one batch, each answering for itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.clock import SystemClock
from fleet.core.leases import Closure
from fleet.core.messages import NodeView, ScrubOrder
from fleet.rpc.client import DoorNode
from fleet.rpc.nodes import HUNG_S, Abandonment, DoorNodes
from fleet.rpc.socket import Door
from tests.fleet.rpc.conftest import Recorder, refused

ORDER = ScrubOrder.model_validate(
    {"operation": "claim/c/1.1/gpu-0/1", "node": "a", "device": "GPU-1", "token": "1.1"}
)


class Host:
    """Three nodes; at the third one's door nobody answers."""

    def __init__(self, place: Path) -> None:
        self.services = {"a": Recorder("a"), "b": Recorder("b")}
        where = {name: place.with_name(f"{name}.sock") for name in ("a", "b", "dead")}
        self.served = [Door(service, where[name]) for name, service in self.services.items()]
        self.nodes = DoorNodes({name: DoorNode(path, 0.3) for name, path in where.items()})

    def close(self) -> None:
        """End it."""
        self.nodes.close()
        for door in self.served:
            door.close()


@pytest.fixture
def host(place: Path) -> Iterator[Host]:
    """A host with three nodes."""
    made = Host(place)
    yield made
    made.close()


def test_each_node_answers_for_itself(host: Host) -> None:
    """DESIGN 5: a node that is away, refuses or is unknown is an error in its place."""
    host.services["b"].error = refused(errors.NodeDegraded)
    asked: dict[str, tuple[str, ...]] = {"a": ("op",), "b": (), "dead": (), "elsewhere": ()}
    found = host.nodes.views(asked)
    assert list(found) == list(asked)
    assert isinstance(found["a"], NodeView)
    assert isinstance(found["b"], errors.NodeDegraded)
    assert isinstance(found["dead"], errors.NotOwner)
    assert isinstance(found["elsewhere"], errors.NotOwner)
    assert set(host.nodes.names()) == {"a", "b", "dead"}
    assert host.nodes.views({}) == {}


def test_orders_go_to_their_nodes(host: Host) -> None:
    """Pre-bind: one batch reaches many nodes, each with its own orders."""
    found = host.nodes.scrub({"a": [ORDER, ORDER], "b": [], "dead": [ORDER]})
    assert isinstance(found["dead"], errors.NotOwner)
    answers = {node: len(told) for node, told in found.items() if isinstance(told, tuple)}
    assert answers == {"a": 2, "b": 0}
    assert host.services["a"].asked == [("scrub", ORDER, ORDER)]


def test_abandonments_are_answered_in_their_order(host: Host) -> None:
    """A refusal of one token is no refusal of the others, wherever in the batch it stands."""
    host.services["b"].error = refused(errors.IllegalTransition)
    asked = [
        Abandonment(node, f"claim-{number}", f"1.{number}", ("GPU-1",))
        for number, node in enumerate(("a", "b", "dead", "a", "b"))
    ]
    found = host.nodes.abandon(asked)
    kinds = [type(one) for one in found]
    refusal, away = errors.IllegalTransition, errors.NotOwner
    assert kinds == [Closure, refusal, away, Closure, refusal]
    closures = [one for one in found if isinstance(one, Closure)]
    assert [(one.holder.name, str(one.token)) for one in closures] == [
        ("claim-0", "1.0"),
        ("claim-3", "1.3"),
    ]


def test_a_silent_node_costs_the_others_nothing(host: Host) -> None:
    """Doors are asked at one time: the silent one has its time-out, the other has answered."""
    silent = threading.Event()
    host.services["a"].hold = silent
    found = host.nodes.views({"a": (), "b": ()})
    assert isinstance(found["a"], errors.NotOwner)
    assert isinstance(found["b"], NodeView)
    assert host.services["b"].finished == ["view"]
    silent.set()


class Fast(SystemClock):
    """A hundred times as fast as time."""

    def monotonic(self) -> float:
        """Seconds of it."""
        return 100.0 * super().monotonic()


def test_a_node_that_hangs_keeps_a_batch_waiting_once(host: Host) -> None:
    """B59: a door whose owner says nothing costs its time-out once, not with every batch."""
    clock = Fast()
    nodes = DoorNodes(host.nodes._doors, clock=clock)
    silent = threading.Event()
    host.services["a"].hold = silent
    assert isinstance(nodes.views({"a": ()})["a"], errors.NotOwner)
    assert isinstance(nodes.views({"a": (), "b": ()})["a"], errors.NotOwner)
    abandonment = Abandonment("a", "claim", "1.1", ("GPU-1",))
    assert isinstance(nodes.abandon([abandonment])[0], errors.NotOwner)
    with pytest.raises(errors.NotOwner):
        nodes.node("a").quarantine_add("gpu-0", detail="smoke", operator="me")
    assert [name for name, *_ in host.services["a"].asked] == ["view"]
    silent.set()
    deadline = clock.monotonic() + 10 * HUNG_S
    while not isinstance(nodes.views({"a": ()})["a"], NodeView):
        assert clock.monotonic() < deadline
    nodes.close()


def test_a_decision_reaches_its_node_or_raises(host: Host) -> None:
    """Quarantine is asked of one node, whose own errors come out."""
    with pytest.raises(errors.DeviceUnknown, match="smoke"):
        host.nodes.node("a").quarantine_add("gpu-9", detail="smoke", operator="me")
    with pytest.raises(errors.NotOwner, match="no node 'elsewhere'"):
        host.nodes.node("elsewhere").quarantine_add("gpu-9", detail="smoke", operator="me")
