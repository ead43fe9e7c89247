"""The campaign benchmark reads the node's own time from the node's own journal."""

from __future__ import annotations

from pathlib import Path

from fleet.core import sqlite
from fleet.core.model import OperationId
from fleet.evidence import layout
from fleet.node.journal import schema
from fleet.node.journal.journal import Journal, OperationRow
from tests.lab.bench import campaign


def test_a_nodes_own_time_is_first_order_to_last_result_of_the_run(tmp_path: Path) -> None:
    """Operations of other runs do not count."""
    path = layout.node_directory(tmp_path, "n1") / "journal.db"
    journal = Journal(sqlite.open_database(path, schema=schema.SCHEMA, timeout_s=5))
    for run, begun, ended in (("r1", 10.0, 13.0), ("r1", 11.0, 15.5), ("r2", 1.0, 99.0)):
        op = OperationId(f"{run}/dev/{begun}")
        with journal.commit() as commit:
            commit.put_operation(OperationRow(op, "scrub", "dev", {}, None, begun))
            commit.finish_operation(op, {}, ended)
    journal.close()
    assert campaign.own_s(tmp_path, "n1", "r1") == 5.5


def test_the_figures_name_their_yardstick() -> None:
    """A figure stands beside what it is compared with, and says of how many runs it is."""
    text = campaign.render(campaign.Figures(5.0, 4.0, 1.25, 16, 256, 5))
    assert "slowest node      4.00 s" in text
    assert "medians of 5, 16 x 256 MiB" in text
