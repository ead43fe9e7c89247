"""A certificate in the archive: content first, what finds it next, its row last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fleet.evidence import archive_names, layout
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
    row = archive_names.read_row(list(archive.objects)[-1])
    assert (row.node, row.number, row.digest, row.chain) == (
        "node-1",
        1,
        item.digest,
        item.chain,
    )
    assert archive.read(archive_names.certificate(row.digest), row.version) == feed.envelope(item)


def test_all_keys_of_the_node_come_first(tmp_path: Path) -> None:
    """E3: old certificates stay verifiable after a key was replaced."""
    site, archive = Site(tmp_path), MemoryArchive()
    site.certify("node-1", rounds=1)
    layout.node_key(tmp_path, "node-1").unlink()
    site.keys.clear()
    site.key("node-1")
    feed = LedgerFeed(tmp_path, "node-1", place="s3://memory")
    feed.opened(archive)
    for _ in range(3):
        item = feed.next()
        feed.send(archive, item)
        feed.done(item)
    folders = [key.split("/")[0] for key in archive.objects]
    assert folders[:3] == ["keys", "keys", "certificates"]


def test_a_second_row_is_not_written_where_a_copied_bucket_has_one(tmp_path: Path) -> None:
    """E3: a copy's rows name the versions of the bucket it was copied from; they stay the rows."""
    site, archive = Site(tmp_path), MemoryArchive()
    site.certify("node-1", rounds=1)
    feed = LedgerFeed(tmp_path, "node-1", place="s3://memory")
    item = feed.next()
    feed.send(archive, item)
    names = set(archive.objects)
    content = archive.objects[archive_names.certificate(item.digest)]
    content[:] = [(replace(one, version="other"), found) for one, found in content]
    feed.send(archive, item)
    assert set(archive.objects) == names


def test_a_ledger_is_known_by_its_first_entry_also_when_it_is_damaged(tmp_path: Path) -> None:
    """Promise 7: what was filed under a ledger's name goes on there after a restart."""
    site, archive = Site(tmp_path), MemoryArchive()
    first, *_ = site.certify("node-1")
    feed = LedgerFeed(tmp_path, "node-1", place="s3://memory")
    feed.send(archive, feed.next())
    feed.save()
    segment = site.segment()
    segment.write_bytes(b"x" + segment.read_bytes()[1:])
    again = LedgerFeed(tmp_path, "node-1", place="s3://memory")
    again.send(archive, again.next())
    rows = [archive_names.read_row(key) for key in archive.objects if key.startswith("ledgers/")]
    assert [(row.ledger, row.number) for row in rows] == [
        (archive_names.ledger_id(first), 1),
        (archive_names.ledger_id(first), 2),
    ]
