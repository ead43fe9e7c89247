"""A health sweep of all nodes."""

from __future__ import annotations

from pathlib import Path

from fleet.cli import reach
from fleet.core import errors
from fleet.core.messages import NodeView
from fleet.rpc.node_api import NodeApi
from fleet.wiring import adapters
from jobs.sweep import SweepReport, each, run


def test_every_node_is_swept(tmp_path: Path) -> None:
    """E1: healthy simulated devices are all seen and nothing is found."""
    adapters.plan_fleet(tmp_path, simulate="2x1", memory_bytes=8 << 20)
    with reach.nodes(tmp_path, address=None) as nodes:
        report = run(nodes)
    assert [node for node, _ in report.rows()] == ["node-01", "node-02"]
    assert report.simulated
    assert not report.found


def test_an_error_of_one_node_hides_no_other(tmp_path: Path) -> None:
    """A node that fails stands in the answer with its error beside the others' answers."""
    adapters.plan_fleet(tmp_path, simulate="2x1", memory_bytes=8 << 20)

    def ask(node: NodeApi) -> NodeView:
        view = node.view()
        if view.node == "node-01":
            raise errors.NodeDegraded("x")
        return view

    with reach.nodes(tmp_path, address=None) as nodes:
        found = each(nodes, ask)
    assert isinstance(found["node-01"], errors.NodeDegraded)
    assert isinstance(found["node-02"], NodeView)


def test_silence_is_something_found() -> None:
    """A node that does not answer is unknown, and unknown is not well."""
    assert SweepReport(simulated=True, silent={"node-01": "no answer"}).found
    assert not SweepReport(simulated=True).found
