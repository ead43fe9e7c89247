"""What verification says: in one document, and doubt told twice, for people and for reports."""

from __future__ import annotations

from fleet.core.model import UnitId
from fleet.evidence.findings import Doubt, Report
from tests.fleet.evidence.samples import START


def test_a_report_is_whole_only_with_certificates() -> None:
    """Promise 8: no evidence is not whole evidence; the newest countersignature has its time."""
    report = Report(countersigned_at=START)
    assert not report.ok
    assert report.as_json()["countersigned_at"].startswith("2023-11-14T22:13:20")
    assert Report(certificates=1).ok
    assert Report().as_json()["countersigned_at"] is None


def test_a_doubt_is_a_note_as_well() -> None:
    """E3: what a copy leaves out is told with its node, and is no defect."""
    report = Report(certificates=1)
    report.doubt(Doubt("entry 3 is left out", "node-1", frozenset({UnitId("u")})))
    report.doubt(Doubt("the ledger of node-2 is not here", "node-2"))
    assert report.notes == ["node-1: entry 3 is left out", "the ledger of node-2 is not here"]
    assert report.ok
