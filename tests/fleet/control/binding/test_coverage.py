"""Nodes that no coordinator is responsible for, or several, are named where anybody looks."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from fleet.control.binding.coverage import EVENTS_MAX, NAMED_MAX, REASON, Coverage
from fleet.control.binding.object_cache import Cached
from fleet.core import errors
from fleet.core.labels import selector
from fleet.kube.base import NODES
from fleet.kube.events import Kind, Regarding
from tests.fleet.control.binding.test_loop import Some, view
from tests.lab.apiserver.cluster import MemoryCluster


@dataclass
class Heard:
    """Events as they were told."""

    told: list[tuple[str, str]] = field(default_factory=list)

    def record(
        self, about: Regarding, reason: str, message: str, *, kind: Kind = Kind.NORMAL
    ) -> None:
        """Keep it."""
        assert (about.resource, reason, kind) == (NODES, REASON, Kind.WARNING)
        self.told.append((about.name.name, message))


def coverage(labels: dict[str, str], *more: str) -> tuple[Coverage, Heard]:
    """Nodes by name and pool, all known; `more`: nodes without a Node object."""
    cluster = MemoryCluster()
    for name, pool in labels.items():
        metadata = {"name": name, "labels": {"pool": pool} if pool else {}}
        cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    known, heard = Cached(cluster, NODES), Heard()
    known.refresh()
    nodes = Some({name: view(name) for name in (*labels, *more)})
    selectors = (selector("pool=a"), selector("pool in (b,c)"))
    return Coverage(nodes, known, selectors, heard), heard


def test_nodes_that_are_selected_once_are_no_trouble() -> None:
    """Nothing is said while every node has its coordinator."""
    found, heard = coverage({"n1": "a", "n2": "b", "n3": "c"})
    found.step({}, 1.0)
    assert heard.told == []


def test_a_node_without_a_coordinator_is_named_with_what_would_select_it() -> None:
    """E7: its claims wait, and the Node says why."""
    found, heard = coverage({"n1": "a", "n2": "", "n3": "x"}, "n4")
    with pytest.raises(errors.SettingsInvalid) as caught:
        found.step({}, 1.0)
    assert caught.value.detail == (
        "no coordinator is responsible for n2, n3, n4: claims there wait"
    )
    assert "coordinator_nodes" in caught.value.remedy
    told = dict(heard.told)
    assert told.keys() == {"n2", "n3", "n4"}
    assert "it is not `pool=a` or `pool in (b,c)`" in told["n2"]
    assert "there is no Node object" in told["n4"]


def test_a_node_of_several_is_named() -> None:
    """B4: harmless, and meant by nobody."""
    found, heard = coverage({"n1": "a"})
    twice = Coverage(found.nodes, found.known, (*found.selectors, selector("pool")), heard)
    with pytest.raises(errors.SettingsInvalid, match="several coordinators are responsible for n1"):
        twice.step({}, 1.0)
    assert heard.told == []


def test_a_whole_fleet_without_labels_is_told_in_few_words() -> None:
    """B50: each survey costs a bounded number of writes, and the trouble is a sentence."""
    found, heard = coverage({f"n{number:02}": "" for number in range(40)})
    with pytest.raises(errors.SettingsInvalid, match=f"and {40 - NAMED_MAX} more: claims"):
        found.step({}, 1.0)
    assert len(heard.told) == EVENTS_MAX


def test_before_all_nodes_are_known_nothing_is_said() -> None:
    """An empty cache is no empty cluster."""
    found, heard = coverage({"n1": ""})
    early = Cached(MemoryCluster(), NODES)
    Coverage(found.nodes, early, found.selectors, heard).step({}, 1.0)
    assert heard.told == []
