"""The port to the nodes, as its stand-in in these tests keeps it."""

from __future__ import annotations

from fleet.core import errors
from fleet.rpc.nodes import Abandonment, Nodes
from tests.fleet.control.binding.benches import Bench


def test_a_node_that_is_silent_is_an_error_in_its_place() -> None:
    """One node without an answer never hides the others."""
    bench = Bench()
    nodes: Nodes = bench.nodes
    bench.nodes.silent.add("n2")
    found = nodes.views({"n1": (), "n2": ()})
    assert isinstance(found["n2"], errors.FleetError)
    assert not isinstance(found["n1"], errors.FleetError)
    asked = [Abandonment(node, "u", "1.1", (f"GPU-{node}-a/all",)) for node in ("n2", "n1")]
    answers = nodes.abandon(asked)
    assert [isinstance(one, errors.FleetError) for one in answers] == [True, False]
