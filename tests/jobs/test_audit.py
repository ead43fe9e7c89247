"""What an audit finds, and what it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.control.binding import pledge
from fleet.control.repair.facts import Api
from fleet.control.repair.troubles import REMEDIES, Trouble
from fleet.core.messages import DeviceView, NodeView
from fleet.core.model import Holder, HolderKind, Lease, Token, UnitId
from fleet.evidence.segments import Damage, Place
from fleet.kube.claim import read
from fleet.kube.marks import Marks
from fleet.node.lost import lost_unit
from jobs.audit import Evidence, compare

NOW = 1000.0
DRIVER = "gpu.example.com"
CERTIFICATE = "sha256:" + "ab" * 32
CLAIM = Holder(HolderKind.CLAIM, "claim-1")
RUN = Holder(HolderKind.CAMPAIGN, "run-1")


def device(**changes: object) -> DeviceView:
    """A device in use by claim-1, certified, under token 7.3."""
    found = {
        "uuid": "u0",
        "name": "gpu-0",
        "accelerator": "u0",
        "units": ("u0/0",),
        "memory_bytes": 64,
        "state": "IN_USE",
        "claim": "claim-1",
        "certificate": CERTIFICATE,
        "floor": "7.3",
    }
    return DeviceView.model_validate({**found, **changes})


def evidence(*devices: DeviceView, lease: Lease | None = None) -> Evidence:
    """One node with `devices`, and the lease that fits `device()` unless another is given."""
    view = NodeView(
        node="node-0",
        incarnation="1",
        boot_id="b",
        at=NOW,
        simulated=True,
        backend="simulated",
        devices=devices or (device(),),
    )
    return Evidence(
        at=NOW,
        views=(view,),
        leases=(lease or Lease(frozenset({UnitId("u0/0")}), CLAIM, Token(7, 3)),),
        newest=Token(7, 9),
        open_runs=frozenset({"run-1"}),
        certificates=frozenset({CERTIFICATE}),
        silent={},
    )


def troubles(found: Evidence) -> set[Trouble]:
    """What the audit says is wrong."""
    return {finding.trouble for finding in compare(found).findings}


def test_a_fleet_in_order_has_no_finding() -> None:
    """B8: a leased, certified device in use by its claim is no finding."""
    assert troubles(evidence()) == set()


def test_b49_a_lease_in_force_by_the_store_is_no_finding_whatever_our_clock_says() -> None:
    """B49: the store says which leases are over; an end before our own time is another's clock."""
    lease = Lease(frozenset({UnitId("u0/0")}), RUN, Token(7, 3), expires_at=NOW - 5)
    free = device(state="CLEAN", claim="")
    assert troubles(evidence(free, lease=lease)) == set()


def test_a_lease_of_units_nobody_has_is_found() -> None:
    """A lease on units no node reports is reported, with the units as its place."""
    found = evidence(device(state="CLEAN", claim=""))
    lease = Lease(frozenset({UnitId("gone/0")}), RUN, Token(7, 3), NOW + 60)
    (finding,) = compare(replace(found, leases=(lease,))).findings
    assert (finding.trouble, finding.place) == (Trouble.LEASE_UNKNOWN_UNIT, "gone/0")


def test_silence_of_a_node_is_not_taken_for_absence() -> None:
    """Units of a node that does not answer are unknown, not gone."""
    lease = Lease(frozenset({UnitId("gone/0")}), RUN, Token(7, 3), NOW + 60)
    found = replace(
        evidence(device(state="CLEAN", claim="")), leases=(lease,), silent={"node-1": "no answer"}
    )
    assert troubles(found) == {Trouble.NODE_SILENT}


def test_a_claim_lease_without_a_record_is_found() -> None:
    """A claim's lease on a device whose node has no record of the claim is reported."""
    free = device(state="CLEAN", claim="")
    assert troubles(evidence(free)) == {Trouble.LEASE_WITHOUT_HOLDER}


def test_a_lease_the_node_has_closed_is_told_apart() -> None:
    """A lease whose token the node has closed waits for its release; that is another trouble."""
    free = device(state="CLEAN", claim="", floor="7.4")
    assert troubles(evidence(free)) == {Trouble.LEASE_CLOSED}
    found = evidence(device(state="CLEAN", claim=""))
    sending = found.views[0].model_copy(update={"outbox": 1})
    assert troubles(replace(found, views=(sending,))) == {Trouble.LEASE_CLOSED}


def test_a_foreign_lease_is_found_from_both_sides() -> None:
    """Promise 2: store and node naming different holders is reported as both of its halves."""
    other = Lease(frozenset({UnitId("u0/0")}), Holder(HolderKind.CLAIM, "claim-2"), Token(7, 3))
    assert troubles(evidence(lease=other)) == {
        Trouble.LEASE_FOREIGN,
        Trouble.IN_USE_WITHOUT_LEASE,
    }


def test_a_device_in_use_without_a_lease_is_found() -> None:
    """B8: an exposed device without a lease of its claim is reported."""
    assert troubles(replace(evidence(), leases=())) == {Trouble.IN_USE_WITHOUT_LEASE}


def test_a_lease_of_an_ended_run_is_found() -> None:
    """A campaign's lease outlives its run only by mistake."""
    lease = Lease(frozenset({UnitId("u0/0")}), RUN, Token(7, 3), NOW + 60)
    free = device(state="CLEAN", claim="")
    found = replace(evidence(free, lease=lease), open_runs=frozenset())
    assert troubles(found) == {Trouble.LEASE_RUN_ENDED}


@pytest.mark.parametrize(
    ("floor", "trouble"),
    [("7.10", Trouble.TOKEN_AHEAD), ("8.1", Trouble.EPOCH_FOREIGN)],
)
def test_a_store_behind_its_nodes_is_found(floor: str, trouble: Trouble) -> None:
    """A token the store never issued shows a restored copy; another epoch, another store."""
    free = device(state="CLEAN", claim="", floor=floor)
    assert trouble in troubles(replace(evidence(free), leases=()))


def test_floors_that_an_adopt_put_behind_are_no_finding() -> None:
    """Promise 7: an idle device keeps its old floor until its next act; its node follows the store
    that was adopted. One that does not, and one that has seen a newer, are foreign still."""
    free = device(state="CLEAN", claim="")
    adopted = replace(evidence(free), leases=(), newest=Token(9, 9))

    def follows(epoch: int, floor: str) -> Evidence:
        (view,) = adopted.views
        shown = device(state="CLEAN", claim="", floor=floor)
        return replace(
            adopted, views=(view.model_copy(update={"epoch": epoch, "devices": (shown,)}),)
        )

    assert troubles(follows(9, "7.3")) == set()
    assert troubles(follows(7, "7.3")) == {Trouble.EPOCH_FOREIGN}
    assert troubles(follows(9, "10.1")) == {Trouble.EPOCH_FOREIGN}
    assert troubles(follows(9, "9.10")) == {Trouble.TOKEN_AHEAD}


@pytest.mark.parametrize("certificate", ["", "sha256:" + "cd" * 32])
def test_clean_without_a_certificate_in_the_ledger_is_found(certificate: str) -> None:
    """Promise 8: CLEAN or IN_USE under no certificate, or under one in no ledger, is reported."""
    free = device(state="CLEAN", claim="", certificate=certificate)
    assert troubles(replace(evidence(free), leases=())) == {Trouble.CERTIFICATE_MISSING}


def test_unreadable_ledgers_accuse_nobody() -> None:
    """Where the ledgers cannot be read, certificates are not judged."""
    free = device(state="CLEAN", claim="", certificate="")
    assert troubles(replace(evidence(free), leases=(), certificates=None)) == set()


def test_every_trouble_has_a_remedy() -> None:
    """Nothing is reported without saying what to do."""
    assert set(REMEDIES) == set(Trouble)
    assert all(REMEDIES.values())


def test_a_quarantine_lease_without_a_reason_is_found() -> None:
    """B8: the store keeps a device out of service that its node finds fit."""
    holder = Holder(HolderKind.QUARANTINE, "u0")
    lease = Lease(frozenset({UnitId("u0/0")}), holder, Token(7, 3))
    free = device(state="CLEAN", claim="")
    assert troubles(evidence(free, lease=lease)) == {Trouble.QUARANTINE_WITHOUT_REASON}
    bad = device(state="QUARANTINED", claim="", certificate="")
    assert troubles(evidence(bad, lease=lease)) == set()


def test_the_mark_of_a_lost_node_is_no_lease_of_an_unknown_unit() -> None:
    """A node that was forgotten takes its mark off itself when it is back."""
    lease = Lease(frozenset({lost_unit("n9")}), Holder(HolderKind.OPERATOR, "me"), Token(7, 3))
    free = device(state="CLEAN", claim="")
    assert troubles(evidence(free, lease=lease)) == set()


def test_the_right_to_allocate_a_claim_is_no_lease_of_an_unknown_unit() -> None:
    """T3: `fleet claim bind` holds it while it works; it is of no device."""
    right = Lease(frozenset({pledge.unit("u")}), pledge.holder("me"), Token(7, 4), NOW + 30)
    found = evidence()
    assert troubles(replace(found, leases=(*found.leases, right))) == set()


@pytest.mark.parametrize("used", [True, False])
def test_a_lease_is_without_a_holder_only_where_nobody_waits_for_it(*, used: bool) -> None:
    """T9: a claim that is made ready for its pod has a lease and no record yet."""
    entry = {"driver": DRIVER, "pool": "node-0", "device": "gpu-0", "request": "r"}
    body = {
        "metadata": {"name": "c", "namespace": "n", "uid": "claim-1", "resourceVersion": "1"},
        "status": {
            "allocation": {"devices": {"results": [entry]}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "pod"}],
        },
    }
    marks = Marks(DRIVER)
    api = Api(
        claims={"claim-1": read(body, marks)},
        nodes=frozenset({"node-0"}),
        pods=frozenset({"pod"} if used else ()),
    )
    found = replace(evidence(device(state="CLEAN", claim="")), api=api, marks=marks)
    assert (Trouble.LEASE_WITHOUT_HOLDER in troubles(found)) is not used


def test_broken_evidence_is_found_with_its_place() -> None:
    """B8: a chain that is not whole is a finding that names file and entry."""
    defect = Damage("forged", "the signature is not that of key ab", Place("ledger", entry=3))
    (finding,) = compare(replace(evidence(), defects=(defect,))).findings
    assert finding.trouble is Trouble.EVIDENCE_BROKEN
    assert finding.place == str(defect.place)


def test_what_was_not_compared_is_said() -> None:
    """B8: without a cluster, or ledgers, the report says so."""
    assert "no cluster" in compare(evidence()).skipped[0]
    found = compare(replace(evidence(), api=Api(), certificates=None))
    assert "ledgers" in found.skipped[0]
    assert {one.trouble for one in found.findings} == {Trouble.LEASE_OF_GONE_CLAIM}


def test_a_coordinator_that_stands_still_is_found() -> None:
    """E5: strict pods wait for it; where none reports that is only said."""
    told = "no coordinator has stepped for 83 s"
    found = compare(replace(evidence(), coordinator=(told,)))
    assert [one.detail for one in found.findings] == [told]
    found = compare(replace(evidence(), uncoordinated=(told,)))
    assert (found.findings, found.skipped[-1], found.exit_code) == ((), told, 0)


def test_what_could_not_be_asked_is_found() -> None:
    """Promise 7: silence is exit 1, and 2 where nobody at all answered."""
    assert compare(replace(evidence(), unasked="no file")).exit_code == 1
    mute = replace(evidence(), views=(), silent={"node-0": "away"})
    assert compare(mute).exit_code == 2
    some = replace(mute, api=Api())
    assert compare(some).exit_code == 1
