"""Finding out what a directory holds, and never following an index out of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core.errors import InputInvalid
from fleet.evidence import layout
from fleet.evidence.export import export
from fleet.evidence.sources import collect, heads_log
from fleet.evidence.verify import verify
from tests.fleet.evidence.samples import Site


@pytest.fixture(name="site")
def site_fixture(tmp_path: Path) -> Site:
    """Two nodes, countersigned."""
    site = Site(tmp_path / "state")
    site.certify("node-1")
    site.certify("node-2")
    site.countersign()
    return site


def test_each_kind_of_directory_is_recognised(site: Site, tmp_path: Path) -> None:
    """A state directory, an export and a single ledger are told apart by what lies in them."""
    export(collect(site.state), tmp_path / "export")
    ledger = layout.ledger_directory(site.state, "node-1")
    shapes = [
        ([log.node for log in found.ledgers], found.heads is not None, found.complete)
        for found in (collect(site.state), collect(tmp_path / "export"), collect(ledger))
    ]
    assert shapes == [
        (["node-1", "node-2"], True, True),
        (["node-1", "node-2"], True, True),
        (["node-1"], False, False),
    ]


def test_single_ledger_finds_the_keys_beside_it(site: Site) -> None:
    """A ledger in its place verifies without naming keys, and with heads kept elsewhere."""
    found = collect(layout.ledger_directory(site.state, "node-1"))
    found.heads = heads_log(layout.heads_directory(site.state))
    report = verify(found)
    assert report.defects == []
    assert report.countersigned == 4


def test_directory_without_evidence_is_reported(tmp_path: Path) -> None:
    """Nothing to verify is an error (exit 2), never "all is well"."""
    with pytest.raises(InputInvalid, match="holds no evidence"):
        collect(tmp_path)
    with pytest.raises(InputInvalid, match="no countersignatures"):
        heads_log(tmp_path)


def test_state_without_ledgers_says_so(tmp_path: Path) -> None:
    """A fleet that certified nothing is told as such, and is not whole."""
    layout.node_directory(tmp_path, "node-1").mkdir(parents=True)
    report = verify(collect(tmp_path))
    assert not report.ok
    assert report.defects == []
    assert any("nothing was certified" in note for note in report.notes)
