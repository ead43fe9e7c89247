"""Data-loss records are verified: each tampering is found and located, wherever they lie."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core.clock import ManualClock
from fleet.core.errors import LedgerUnavailable
from fleet.core.model import ClaimUid, NodeName
from fleet.evidence import archived, layout
from fleet.evidence.export import export
from fleet.evidence.ledger_feed import LedgerFeed
from fleet.evidence.losses import LossLog, file_name
from fleet.evidence.replication import Replicator
from fleet.evidence.sources import collect
from fleet.evidence.verify import Report, verify
from tests.cloud.archives import MemoryArchive
from tests.crowding import exhausted
from tests.fleet.evidence.samples import Site
from tests.fleet.evidence.test_losses import LOSS, NOW


def record(site: Site, node: str, claim: str) -> None:
    """One record of that node."""
    loss = replace(LOSS, node=NodeName(node), claim=ClaimUid(claim))
    log = LossLog(layout.losses_directory(site.state, node))
    log.append(loss, key=site.key(node), now=NOW, version="1.0")


@pytest.fixture(name="site")
def site_fixture(tmp_path: Path) -> Site:
    """node-1 with three records, node-2 with one, each with a certificate."""
    site = Site(tmp_path / "state")
    for node in ("node-1", "node-2"):
        site.certify(node, rounds=1)
    for claim in ("claim-a", "claim-b", "claim-c"):
        record(site, "node-1", claim)
    record(site, "node-2", "claim-d")
    return site


def at(site: Site, number: int, node: str = "node-1") -> Path:
    """The file of a record."""
    return layout.losses_directory(site.state, node) / file_name(number)


def codes(report: Report) -> list[tuple[str, int | None]]:
    """Codes and records of what was found."""
    return [(one.code, one.place.entry) for one in report.defects]


def test_records_verify_and_are_told(site: Site) -> None:
    """D3, E3: signatures and order hold; how many there are is said, and what cannot be."""
    report = verify(collect(site.state))
    assert (report.defects, report.losses) == ([], 4)
    assert report.as_json()["losses"] == 4
    assert [one for one in report.notes if one.startswith("node-1: 3 data-loss records")]


def _edit(site: Site) -> None:
    at(site, 2).write_bytes(at(site, 2).read_bytes().replace(b'"sig":"', b'"sig":"AAAA'))


TAMPERINGS: dict[str, tuple[Callable[[Site], object], list[tuple[str, int | None]]]] = {
    "edited": (_edit, [("forged", 2), ("missing-record", 3)]),
    "cut": (
        lambda s: at(s, 2).write_bytes(at(s, 2).read_bytes()[:-9]),
        [("unreadable-record", 2), ("missing-record", 3)],
    ),
    "taken out": (lambda s: at(s, 1).unlink(), [("missing-record", 2)]),
    "moved": (lambda s: at(s, 3).rename(at(s, 9)), [("out-of-order", 9)]),
    "of another node": (
        lambda s: shutil.copy(at(s, 1, "node-2"), at(s, 4)),
        [("foreign-key", 4), ("foreign-record", 4), ("out-of-order", 4)],
    ),
    "a directory": (lambda s: at(s, 4).mkdir(), [("unreadable-record", 4)]),
}


@pytest.mark.parametrize("kind", TAMPERINGS)
def test_tampering_is_found_and_located(site: Site, kind: str) -> None:
    """E3: whoever changes a record contradicts its signature or the one after it."""
    tamper, expected = TAMPERINGS[kind]
    tamper(site)
    assert codes(verify(collect(site.state))) == expected


def test_an_export_takes_the_records_along(site: Site, tmp_path: Path) -> None:
    """E3: a copy for somebody else verifies by itself; a choice of devices may leave some out."""
    export(collect(site.state), tmp_path / "whole")
    report = verify(collect(tmp_path / "whole"))
    assert (report.defects, report.losses) == ([], 4)
    export(collect(site.state), tmp_path / "one", node="node-2")
    assert (verify(collect(tmp_path / "one")).losses, codes(report)) == (1, [])
    at(site, 1).unlink()
    export(collect(site.state), tmp_path / "some")
    assert codes(verify(collect(tmp_path / "some"))) == []


def test_the_archive_keeps_the_records(site: Site) -> None:
    """E5: a lost node loses no proof; records made while it is copied follow, each once."""
    archive, clock = MemoryArchive(), ManualClock(NOW)
    feed = LedgerFeed(site.state, "node-1", place="s3://memory")
    copies = Replicator(feed, lambda: archive, clock=clock)
    assert copies.drain()
    record(site, "node-1", "claim-e")
    assert feed.waiting()[0] == 1
    assert copies.drain()
    names = [key for key in archive.objects if key.startswith("losses/node-1/")]
    assert [name.split("/")[2] for name in names] == [f"{n:08d}" for n in range(1, 5)]
    report = verify(archived.collect(archive))
    assert (report.defects, report.losses) == ([], 4)
    del archive.objects[names[0]]
    archive.keep("losses/node-1/nothing", b"x")
    found = codes(verify(archived.collect(archive)))
    assert found == [("extra-object", None), ("missing-record", 2)]


def test_no_archive_is_given_a_record_that_was_not_read(site: Site) -> None:
    """E5: what an archive keeps for good is the record, also when it could not be read at first."""
    archive = MemoryArchive()
    feed = LedgerFeed(site.state, "node-1", place="s3://memory")
    feed.waiting()
    record(site, "node-1", "claim-e")
    at(site, 5).write_bytes(b"")
    with exhausted(), pytest.raises(LedgerUnavailable):
        feed.next()
    assert Replicator(feed, lambda: archive, clock=ManualClock(NOW)).drain()
    kept = {key: archive.read(key) for key in archive.objects if key.startswith("losses/")}
    assert len(kept) == 4
    assert all(kept.values())


def test_an_export_takes_the_records_of_a_node_without_certificates_along(
    site: Site, tmp_path: Path
) -> None:
    """E3: what calls itself complete leaves no record out, and its keys are there to verify it."""
    record(site, "node-3", "claim-f")
    export(collect(site.state), tmp_path / "whole")
    report = verify(collect(tmp_path / "whole"))
    assert (report.defects, report.losses) == ([], 5)
