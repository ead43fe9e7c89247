"""Defects find their certificate, or their node, or all; chains are followed back."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.evidence import layout
from fleet.evidence.export import export
from fleet.evidence.judged import Judged, judge
from fleet.evidence.sources import collect
from tests.fleet.evidence.samples import Site, device_named, rewrite


@pytest.fixture(name="site")
def site_fixture(tmp_path: Path) -> Site:
    """Two nodes of two devices, two certificates each, countersigned."""
    site = Site(tmp_path / "state")
    for node in ("node-1", "node-2"):
        site.certify(node)
    site.countersign()
    return site


def test_whole_evidence_speaks_against_nobody(site: Site) -> None:
    """E3: every certificate of untouched ledgers is sound, in the order of its ledger."""
    found = judge(collect(site.state))
    assert [one.entry.number for one in found.certificates] == [1, 2, 3, 4, 1, 2, 3, 4]
    assert all(one.sound for one in found.certificates)
    assert found.against("node-1") == found.against("node-2") == ()


def test_a_forged_certificate_is_the_only_one_blamed(site: Site) -> None:
    """E3: a signature that does not hold is that certificate's defect and no neighbour's."""
    rewrite(site.segment(), lambda ls: [*ls[:3], ls[3].replace(b'"sig":"', b'"sig":"AAAA', 1)])
    found = judge(collect(site.state))
    blamed = [(one.node, one.entry.number) for one in found.certificates if not one.sound]
    assert blamed == [("node-1", 4)]
    assert found.against("node-2") == ()


def test_a_cut_tail_speaks_against_its_node_alone(site: Site) -> None:
    """Promise 9: what is gone from one ledger is doubt about that node and about no other."""
    rewrite(site.segment(), lambda ls: ls[:2])
    found = judge(collect(site.state))
    assert {damage.code for damage in found.against("node-1")} == {
        "tail-cut",
        "missing-certificate",
    }
    assert found.against("node-2") == ()
    assert all(one.sound for one in found.certificates)


def test_what_is_nobodys_speaks_against_all(site: Site) -> None:
    """E3: countersignatures that are gone are doubt about every node."""
    (layout.heads_directory(site.state) / "000000000001.jsonl").unlink()
    found = judge(collect(site.state))
    for node in ("node-1", "node-2"):
        assert [damage.code for damage in found.against(node)] == ["missing-heads"]


def test_a_changed_file_of_an_export_is_its_certificates(site: Site, tmp_path: Path) -> None:
    """E3: in an export a defect of a file is the certificate's in it."""
    export(collect(site.state), tmp_path / "export")
    file = sorted((tmp_path / "export" / "certificates" / "node-2").iterdir())[3]
    file.write_bytes(file.read_bytes().replace(b'"sig":"', b'"sig":"AAAA', 1))
    found = judge(collect(tmp_path / "export"))
    blamed = {(one.node, one.entry.number): one for one in found.certificates if not one.sound}
    assert set(blamed) == {("node-2", 4)}
    assert "altered-file" in {damage.code for damage in blamed["node-2", 4].defects}


def test_the_lineage_leads_back_to_the_first(site: Site, tmp_path: Path) -> None:
    """E3: newest first to the first of every unit; what is not here is known by its digest."""
    whole = device_named("node-1-c", ("0", "1"))
    half = device_named("node-1-d", ("1",), accelerator="node-1-c")
    with site.ledger() as ledger:
        for device in (whole, half, whole):
            newest = ledger.append(site.issue(ledger, device).envelope)
    found = judge(collect(site.state)).lineage(newest)
    assert [one.entry.number for one in found if isinstance(one, Judged)] == [7, 6, 5]
    assert judge(collect(site.state)).lineage(whole.uuid) == ()  # type: ignore[arg-type]
    rewrite(site.segment(), lambda ls: [*ls[:4], *ls[5:]])
    *known, lost = judge(collect(site.state)).lineage(newest)
    assert [one.entry.number for one in known if isinstance(one, Judged)] == [7, 6]
    assert isinstance(lost, str)
