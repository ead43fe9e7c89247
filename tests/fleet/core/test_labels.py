"""Label selectors mean here what they mean at an API server."""

from __future__ import annotations

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.labels import selector
from fleet.kube.base import NODES, Selection
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine

NODES_BY_LABELS = {
    "n1": {"pool": "a"},
    "n2": {"pool": "b", "fleet.example/rack": "r-1"},
    "n3": {"pool": ""},
    "n4": {},
}
MEANT = {
    "pool=a": {"n1"},
    "pool==a": {"n1"},
    "pool = a": {"n1"},
    "pool=": {"n3"},
    "pool!=a": {"n2", "n3", "n4"},
    "pool in (a,b)": {"n1", "n2"},
    "pool in ( a , b ), fleet.example/rack": {"n2"},
    "pool notin (a,b)": {"n3", "n4"},
    "pool": {"n1", "n2", "n3"},
    "!pool": {"n4"},
    "pool,pool!=a": {"n2", "n3"},
    "fleet.example/rack=r-1": {"n2"},
}


@pytest.mark.parametrize("text", MEANT)
def test_a_selector_means_what_it_does_at_a_server(text: str) -> None:
    """B20: of one Node the coordinator and the API server think alike, a missing label included;
    the server in memory asks the same parser."""
    cluster = MemoryCluster(Engine(clock=ManualClock(1.0)))
    for name, labels in NODES_BY_LABELS.items():
        metadata = {"name": name, "labels": labels}
        cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    found = {name for name, labels in NODES_BY_LABELS.items() if selector(text).matches(labels)}
    assert found == MEANT[text]
    listed = cluster.list(NODES, Selection(labels=text)).items
    assert found == {one["metadata"]["name"] for one in listed}


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "pool=a,",
        "pool=a b",
        "pool in a",
        "pool in (a",
        "pool in (a,(b))",
        "pool in (a b)",
        "pool > 3",
        "=a",
        "-pool",
        "Pool.Example/x=a",
        "a/b/c",
        f"{'d' * 260}/x",
        "x" * 64,
        f"pool={'x' * 64}",
        "pool=\0",
    ],
)
def test_what_is_no_selector_is_refused_by_name(text: str) -> None:
    """E7: a slip of the pen is an error with the term in it, and never selects every node."""
    with pytest.raises(errors.InputInvalid, match="no term of a label selector"):
        selector(text)


def test_selectors_are_equal_by_their_text() -> None:
    """Two plans that say the same have the same coordinator."""
    assert selector("pool=a") == selector("pool=a") != selector("pool=b")
    assert len({selector("pool=a"), selector("pool=a")}) == 1
