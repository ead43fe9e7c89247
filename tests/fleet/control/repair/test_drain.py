"""Draining: nobody new, whoever is there finishes, and it is told who that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fleet.control.repair.drain import drain, settled
from fleet.core import errors
from fleet.core.messages import DeviceView, NodeView, ReasonView, Replication
from fleet.rpc.node_api import NodeApi
from tests.fleet.control.repair.conftest import FakeNode


@dataclass
class Drainable(NodeApi):
    """A node that takes devices out of service."""

    fake: FakeNode = field(default_factory=lambda: FakeNode("n1"))
    refused: str = ""
    asked: list[str] = field(default_factory=list)

    def view(self, operations: Sequence[str] = ()) -> NodeView:  # noqa: ARG002 - of the interface
        return self.fake.view()

    def quarantine_add(
        self, device: str, *, detail: str, operator: str, codes: Sequence[str] = ()
    ) -> DeviceView:
        assert not codes
        self.asked.append(device)
        if device == self.refused:
            raise errors.JournalUnreadable("it is broken")
        made = ReasonView(
            code="operator", source="operator", liftable=False, detail=f"{detail} ({operator})"
        )
        self.fake.reasons[device] = (made,)
        return next(one for one in self.view().devices if one.uuid == device)


def test_every_device_goes_out_of_service_once() -> None:
    """E7: free and used devices get the operator's reason; a second drain adds none."""
    node = Drainable()
    node.fake.claims["u"] = ("PREPARED", node.fake.uuid(0))
    done = drain(node, detail="new fans", operator="me")
    assert done.taken == ("gpu-0", "gpu-1")
    assert node.fake.reasons[node.fake.uuid(0)][0].detail == "drained: new fans (me)"
    assert [(one.uid, one.state, one.devices) for one in done.left] == [
        ("u", "PREPARED", ("gpu-0",))
    ]
    assert drain(node, detail="new fans", operator="me").taken == ()
    assert len(node.asked) == 2


def test_a_device_that_refuses_stops_no_other() -> None:
    """E7: what could not be taken out of service is told with the node's error."""
    node = Drainable()
    node.refused = node.fake.uuid(0)
    done = drain(node, detail="x", operator="me")
    assert done.taken == ("gpu-1",)
    assert "broken" in done.failed["gpu-0"]


def test_waiting_ends_when_nobody_is_left_or_time_is_up() -> None:
    """E7: the wait is bounded, and ends early once the last record has gone."""
    node = Drainable()
    node.fake.claims |= {"a": ("PREPARED", node.fake.uuid(0)), "b": ("PREPARED", "")}
    done = drain(node, detail="x", operator="me")
    turns = iter([True, False])
    assert len(settled(node, done, pause=lambda: next(turns)).left) == 2

    def finish() -> bool:
        node.fake.claims.popitem()
        return True

    assert settled(node, done, pause=finish).left == ()


def test_proof_that_is_nowhere_else_is_waited_for_and_named() -> None:
    """E5, E7: with policy `replicated` a node goes only once all its proof is in the archive."""
    node = Drainable()
    node.fake.replication = Replication(backlog=3, error="the line is cut", aside=("entry 2: x",))
    done = drain(node, detail="x", operator="me")
    assert (done.uncopied, done.uncopied_because) == (3, "the line is cut; entry 2: x")
    assert settled(node, done, pause=lambda: False).uncopied == 3

    def pause() -> bool:
        node.fake.replication = Replication()
        return True

    done = settled(node, done, pause=pause)
    assert (done.uncopied, done.uncopied_because) == (0, "")
    node.fake.replication = Replication(backlog=None, error="the ledger cannot be read")
    done = settled(node, drain(node, detail="x", operator="me"), pause=lambda: False)
    assert (done.uncopied, done.uncopied_because) == (None, "the ledger cannot be read")
    node.fake.replication = Replication(backlog=3, required=False)
    assert drain(node, detail="x", operator="me").uncopied == 0
