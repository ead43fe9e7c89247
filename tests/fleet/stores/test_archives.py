"""The archive that the settings name, and what copies to it."""

from __future__ import annotations

from pathlib import Path

from fleet.control.campaign.report import ExitReason
from fleet.core.clock import SystemClock
from fleet.core.model import NodeName, RunId
from fleet.core.settings import EvidencePolicy, EvidenceSettings, Settings
from fleet.evidence import archived, layout
from fleet.evidence.ledger_feed import LedgerFeed
from fleet.evidence.verify import verify
from fleet.stores import archives
from fleet.stores.base import RunRecord
from fleet.stores.factory import StorePlace
from fleet.wiring import adapters
from tests.cloud.buckets import make_bucket
from tests.cloud.server import REGION, CloudServer
from tests.fleet.evidence.samples import START, Site


def test_without_an_archive_nothing_is_copied(tmp_path: Path) -> None:
    """E5: one host with its own disk needs no cloud."""
    clock = SystemClock()
    assert archives.of_node(EvidenceSettings(), tmp_path, "n", clock) is None
    assert archives.of_coordinator(EvidenceSettings(), tmp_path, list, clock) is None


def test_the_policy_says_who_waits(tmp_path: Path) -> None:
    """With an archive proof is replicated unless somebody decides otherwise."""
    named = EvidenceSettings(archive="s3://bucket/fleet")
    local = named.model_copy(update={"policy": EvidencePolicy.LOCAL})
    for settings, required in ((named, True), (local, False)):
        copies = archives.of_node(settings, tmp_path, "node-1", SystemClock())
        assert copies is not None
        assert copies.view().required is required


def test_an_archive_that_was_named_before_is_not_forgotten(tmp_path: Path) -> None:
    """Promise 5: settings without an archive do not make of what is missing there nothing."""
    Site(tmp_path).certify("node-1", rounds=1)
    LedgerFeed(tmp_path, "node-1", place="s3://bucket/fleet").save()
    for policy, required in ((EvidencePolicy.REPLICATED, True), (EvidencePolicy.LOCAL, False)):
        settings = EvidenceSettings(policy=policy)
        copies = archives.of_node(settings, tmp_path, "node-1", SystemClock())
        assert copies is not None
        view = copies.view()
        assert (view.archive, view.backlog) == ("s3://bucket/fleet", 2)
        assert view.required is required


def test_a_coordinator_copies_what_it_signs_and_what_ends(
    cloud: CloudServer, tmp_path: Path
) -> None:
    """E3: at the end of a campaign its report and the countersignatures are in the archive."""
    bucket = make_bucket(cloud.endpoint)
    evidence = EvidenceSettings(
        archive=f"s3://{bucket}/fleet", region=REGION, endpoint=cloud.endpoint, timeout_s=5.0
    )
    site = Site(tmp_path)
    site.certify("node-1", rounds=1)
    plan = adapters.CoordinatorPlan(
        state=str(tmp_path), settings=Settings().model_copy(update={"evidence": evidence})
    )
    store = StorePlace(plan.settings, tmp_path).open(SystemClock())
    store.leases.init()
    store.close()
    coordinator = adapters.open_coordinator(plan)
    coordinator.open(RunRecord(id="run-1", started_at=START))
    coordinator.close("run-1", ExitReason.COMPLETE)
    coordinator.sign_heads({NodeName("node-1"): site.ledger().head()})
    view = coordinator.view().replication
    assert view is not None
    assert (view.backlog, view.error) == (0, "")
    copies = archives.of_node(evidence, tmp_path, "node-1", SystemClock())
    assert copies is not None
    assert copies.drain()
    archive = archives.opener(evidence, SystemClock())()
    report = verify(archived.collect(archive))
    assert report.ok, report.defects
    assert (report.countersigned, report.countersignatures) == (2, 1)
    assert len(list(archive.stored("runs/"))) == 1
    assert coordinator.run(RunId("run-1")).exit_reason == ExitReason.COMPLETE
    assert layout.archive_cursor(tmp_path).exists()
