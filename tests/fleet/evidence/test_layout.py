"""Names below a state directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core.errors import InputInvalid
from fleet.evidence import layout


def test_paths_are_the_documented_ones() -> None:
    """Ledgers, keys and heads lie where operators are told they lie."""
    state = Path("s")
    assert str(layout.ledger_directory(state, "n-1.example")) == "s/nodes/n-1.example/ledger"
    assert str(layout.node_key(state, "n")) == "s/nodes/n/keys/node.key"
    assert str(layout.coordinator_key(state)) == "s/coordinator/keys/coordinator.key"
    assert str(layout.heads_directory(state)) == "s/coordinator/heads"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "-a", "a\n", "ä", "a" * 300])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    """A node name is one path component, never a way out of the state directory."""
    with pytest.raises(InputInvalid):
        layout.node_directory(Path("s"), name)


def test_nodes_are_listed_sorted(tmp_path: Path) -> None:
    """Every node that left a directory is listed."""
    assert layout.nodes(tmp_path) == ()
    for name in ("b", "a"):
        layout.node_directory(tmp_path, name).mkdir(parents=True)
    (tmp_path / "nodes" / ".lost+found").mkdir()
    assert layout.nodes(tmp_path) == ("a", "b")
