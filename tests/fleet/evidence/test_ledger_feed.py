"""A certificate in the archive: content first, what finds it next, its row last."""

from __future__ import annotations

from pathlib import Path

from fleet.evidence import filing, layout
from fleet.evidence.ledger_feed import LedgerFeed
from tests.cloud.archives import MemoryArchive
from tests.fleet.evidence.samples import Site


def test_the_row_of_the_ledger_is_written_last(tmp_path: Path) -> None:
    """What a row names is complete, whenever the writer is killed."""
    site, archive = Site(tmp_path), MemoryArchive()
    site.certify("node-1", rounds=1)
    feed = LedgerFeed(tmp_path, "node-1", place="s3://memory")
    item = feed.next()
    feed.send(archive, item)
    folders = [key.split("/")[0] for key in archive.objects]
    assert folders == ["certificates", "by-time", "by-device", "ledgers"]
    row = filing.read_row(list(archive.objects)[-1])
    assert (row.node, row.number, row.digest, row.chain) == (
        "node-1",
        1,
        item.digest,
        item.chain,
    )
    assert archive.read(filing.certificate(row.digest), row.version) == feed.envelope(item)


def test_all_keys_of_the_node_come_first(tmp_path: Path) -> None:
    """E3: old certificates stay verifiable after a key was replaced."""
    site, archive = Site(tmp_path), MemoryArchive()
    site.certify("node-1", rounds=1)
    layout.node_key(tmp_path, "node-1").unlink()
    site.keys.clear()
    site.key("node-1")
    LedgerFeed(tmp_path, "node-1", place="s3://memory").opened(archive)
    assert len([key for key in archive.objects if key.startswith("keys/nodes/node-1/")]) == 2
