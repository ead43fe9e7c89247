"""Claims at the API against leases and nodes."""

from __future__ import annotations

from fleet.control.repair.audit import Compared, compare
from fleet.control.repair.troubles import Trouble
from fleet.core.messages import ClaimBrief
from fleet.kube.base import CLAIMS
from tests.fleet.control.repair.conftest import SETTLE_S, Site


def troubles(site: Site) -> dict[Trouble, str]:
    """What is found, with its place."""
    facts = site.facts()
    assert facts.api is not None
    found = compare(Compared(facts.at, facts.leases, facts.views, facts.api, SETTLE_S))
    return {one.trouble: one.place for one in found}


def test_claims_with_leases_and_records_agree(site: Site) -> None:
    """B8: a claim in use, leased and recorded is no finding."""
    claim = site.make_claim("c", pods=[site.make_pod("p")])
    site.lease(claim.uid, site.n1)
    site.n1.claims[claim.uid] = ("PREPARED", site.n1.uuid(0))
    assert troubles(site) == {}


def test_a_lease_that_the_store_lost_is_told_as_such(site: Site) -> None:
    """Promise 7: after a loss of the store nobody is accused of binding around us: the node has the
    lease in its record, and the remedy is what puts it back."""
    claim = site.make_claim("c", pods=[site.make_pod("p")])
    site.n1.claims[claim.uid] = ("PREPARED", site.n1.uuid(0))
    facts = site.facts()
    assert facts.api is not None
    briefs = {"claims": (ClaimBrief(uid=claim.uid, state="PREPARED", token="7.3"),)}  # noqa: S106
    views = {node: view.model_copy(update=briefs) for node, view in facts.views.items()}
    (found,) = compare(Compared(facts.at, facts.leases, views, facts.api, SETTLE_S))
    assert (found.trouble, found.place) == (Trouble.LEASE_MISSING, "tenant/c")
    assert "7.3" in found.detail
    assert "fleet store adopt" in found.remedy


def test_an_allocation_without_a_lease_is_found(site: Site) -> None:
    """B8: somebody bound our devices around us: allocated for long, and never leased."""
    site.make_claim("c", marked=False)
    assert troubles(site) == {Trouble.ALLOCATED_WITHOUT_LEASE: "tenant/c"}
    site.make_claim("young", node="n2", marked=False, age_s=1.0)
    assert len(troubles(site)) == 1


def test_memory_allocated_twice_is_found(site: Site) -> None:
    """B8: two claims on one device are found, also while the node does not answer."""
    for name in ("a", "b"):
        site.make_claim(name, marked=False, age_s=1.0)
    assert troubles(site) == {Trouble.ALLOCATED_TWICE: "n1/gpu-0"}
    site.n1.away = True
    assert troubles(site) == {Trouble.ALLOCATED_TWICE: "n1/gpu-0"}


def test_a_free_claim_with_our_marks_is_found(site: Site) -> None:
    """A7: hold or finalizer on a claim that has no device of ours keeps it alive for nobody."""
    claim = site.make_claim("c")
    raw = site.cluster.get(CLAIMS, claim.name)
    raw["status"] = {}
    site.cluster.replace(CLAIMS, raw, subresource="status")
    assert troubles(site) == {Trouble.FREE_BUT_MARKED: "tenant/c"}


def test_holders_that_are_gone_are_found(site: Site) -> None:
    """B8: every holder exists: leases and records of claims that the API does not have."""
    site.lease("gone", site.n1)
    site.n2.claims["old"] = ("PREPARED", site.n2.uuid(0))
    assert troubles(site) == {
        Trouble.LEASE_OF_GONE_CLAIM: "GPU-n1-0/all", Trouble.RECORD_OF_GONE_CLAIM: "n2"
    }  # fmt: skip


def test_an_api_that_does_not_answer_is_said_and_accuses_nobody(site: Site) -> None:
    """Promise 7: nothing is concluded from what could not be read."""
    site.lease("gone", site.n1)
    site.cluster.faults.offline = True
    assert set(troubles(site)) == {Trouble.API_SILENT}
