"""Countersignatures are compared with ledgers and lists of keys; what they name must be there."""

from __future__ import annotations

from pathlib import Path

from fleet.core.model import Digest, NodeName
from fleet.evidence import layout
from fleet.evidence.export import export
from fleet.evidence.heads import HeadsLog
from fleet.evidence.key_list import Named
from fleet.evidence.sources import collect
from fleet.evidence.verify import verify
from tests.fleet.evidence.samples import START, Site


def site_of(state: Path) -> Site:
    """Two nodes, countersigned."""
    site = Site(state)
    for node in ("node-1", "node-2"):
        site.certify(node, rounds=1)
    site.countersign()
    return site


def test_ledgers_named_and_not_here_are_told(tmp_path: Path) -> None:
    """E3: a copy of one node says that the other is missing in it, and until when it is proven."""
    site = site_of(tmp_path / "state")
    export(collect(site.state), tmp_path / "one", node="node-2")
    report = verify(collect(tmp_path / "one"))
    assert report.ok
    assert [(one.node, len(one.units)) for one in report.doubts] == [("node-1", 0)]
    assert report.countersigned_at == site.at
    assert report.proven == {"node-2": 2}


def test_two_lists_of_one_number_are_a_fork(tmp_path: Path) -> None:
    """E3: a coordinator names one list of each number, and never goes back."""
    site = site_of(tmp_path)
    ends = {NodeName("node-1"): site.ledger().head()}
    for digest in ("1", "2"):  # two logs that do not know of each other
        site.certify("node-1", rounds=1)
        ends = {NodeName("node-1"): site.ledger().head()}
        with HeadsLog(layout.heads_directory(tmp_path)) as log:
            log._follow()
            log._listed = None
            named = Named(1, Digest("sha256:" + digest * 64))
            log.record(ends, key=site.coordinator, now=START + 99, listed=named)
    found = {damage.code for damage in verify(collect(tmp_path)).defects}
    assert found == {"forked-key-list", "missing-key-list"}
