"""Everything is read in the order that makes no orphans, and what was not read is said."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.control.repair.survey import gather, is_ready
from fleet.core import errors
from fleet.kube.base import NODES, Name
from tests.fleet.control.repair.conftest import FakeSpecs, Site


@dataclass
class Broken(FakeSpecs):
    """A directory that cannot be read."""

    def listed(self) -> tuple[()]:
        raise errors.SpecUnavailable("no permission")


def test_all_sources_are_read(site: Site) -> None:
    """E7: leases, views, specs, claims, pods, nodes and slices of our driver."""
    claim = site.make_claim("c", pods=[site.make_pod("p")])
    site.lease(claim.uid, site.n1)
    site.specs["n1"].there.add("u")
    facts = site.facts()
    assert facts.api is not None
    assert (set(facts.api.claims), len(facts.api.pods)) == ({claim.uid}, 1)
    assert facts.api.nodes == facts.api.ready == {"n1", "n2"}
    assert len(facts.api.slices) == 2
    assert facts.specs == {"n1": ("u",), "n2": ()}
    assert set(facts.views) == {"n1", "n2"}
    assert len(facts.leases) == 1
    assert facts.silent == {}


def test_nodes_with_slices_and_no_way_to_them_count_as_silent(site: Site) -> None:
    """Promise 7: a node that this host cannot ask has not said that it has no record."""
    del site.nodes.nodes["n2"]
    assert set(site.facts().silent) == {"n2"}


def test_specs_that_cannot_be_read_hide_no_others(site: Site) -> None:
    """E7: the node's specs are not judged; the rest is."""
    site.specs["n1"] = Broken()
    assert set(site.facts().specs) == {"n2"}


def test_a_kind_that_cannot_be_listed_is_unknown(site: Site) -> None:
    """B19: an error of the API is no empty list: nothing is proven of that kind."""
    site.cluster.faults.fail_next("list", errors.ApiForbidden("no right to list claims"))
    facts = gather(site.sources, 0.0)
    assert facts.api is not None
    assert set(facts.api.unknown) == {"resourceclaims"}
    assert "no right" in facts.api.trouble("resourceclaims", "pods")
    assert facts.api.trouble("pods") == ""


def test_a_node_is_ready_by_its_condition_alone(site: Site) -> None:
    """E7: only a condition Ready=True says that a node lives."""
    assert is_ready(site.cluster.get(NODES, Name("n1")))
    assert not is_ready({"metadata": {"name": "n1"}})
    assert not is_ready({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})
