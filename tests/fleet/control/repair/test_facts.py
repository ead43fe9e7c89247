"""Facts that are asked for in more than one place."""

from __future__ import annotations

from dataclasses import replace

from fleet.control.repair.facts import Api, accelerator_of, hold_nodes, homes, presumed, records
from fleet.core.messages import ClaimBrief, NodeView
from tests.fleet.control.repair.conftest import MARKS, Site


def test_a_record_shows_in_whichever_way_the_node_tells_it(site: Site) -> None:
    """D6: a record, a device's claim or an attachment: each says it has to do with it."""
    site.n1.claims["u"] = ("PREPARED", site.n1.uuid(0))
    view = site.n1.view()
    assert records(view) == {"u"}
    assert records(view.model_copy(update={"claims": ()})) == {"u"}
    attached = view.devices[1].model_copy(update={"attached": ("looker",)})
    other = NodeView.model_validate(
        {**view.model_dump(), "devices": (attached.model_dump(),), "claims": ()}
    )
    assert records(other) == {"looker"}
    assert ClaimBrief(uid="x", state="PREPARED").uid == "x"


def test_the_node_of_a_lease_is_told_by_its_claim_else_by_the_slices(site: Site) -> None:
    """A7: a silent node's leases are found by what the API has of it; else nothing is guessed."""
    claim = site.make_claim("c", node="n2")
    by_claim, by_slice = site.lease(claim.uid, site.n2), site.lease("gone", site.n1)
    facts = site.facts()
    assert (presumed(by_claim, facts), presumed(by_slice, facts)) == ("n2", "n1")
    assert presumed(by_slice, replace(facts, api=Api())) == ""
    assert presumed(by_slice, replace(facts, api=None)) == ""
    assert homes(facts)[site.n2.unit(1)] == "n2"
    assert accelerator_of(site.n1.unit(0)) == site.n1.uuid(0)


def test_a_hold_names_its_node(site: Site) -> None:
    """A7: also of a claim whose allocation is gone our entry says which node is meant."""
    assert hold_nodes(site.make_claim("c", node="n2"), MARKS) == {"n2"}


def test_devices_are_found_by_node_and_uuid(site: Site) -> None:
    """E7: a device of another node, or of a silent one, is not there."""
    site.n2.away = True
    facts = site.facts()
    assert facts.device("n1", site.n1.uuid(1)) is not None
    assert facts.device("n2", site.n2.uuid(1)) is None
    assert facts.device("n1", site.n2.uuid(1)) is None
