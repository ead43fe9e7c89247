"""How far a log is copied, by a file that is believed of one log and one archive only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.core.errors import EvidenceInvalid
from fleet.evidence import layout
from fleet.evidence.ledger_feed import LedgerFeed
from fleet.evidence.log_feed import read_cursor
from tests.fleet.evidence.samples import START, Site

PLACE = "s3://memory"


@pytest.fixture(name="site")
def site_fixture(tmp_path: Path) -> Site:
    """node-1 with six certificates in several files."""
    site = Site(tmp_path)
    site.certify("node-1", rounds=3, segment_bytes=16_000)
    return site


def feed(site: Site) -> LedgerFeed:
    """As a process that begins now has it."""
    return LedgerFeed(site.state, "node-1", place=PLACE)


def passed(found: LedgerFeed, count: int) -> LedgerFeed:
    """The same, so many entries further, and written down."""
    for _ in range(count):
        found.done(found.next())
    found.save()
    return found


def test_a_feed_begins_in_the_middle_of_the_files(site: Site) -> None:
    """A ledger of years is not read from its beginning at every start."""
    assert len(list(layout.ledger_directory(site.state, "node-1").glob("*.jsonl"))) > 2
    passed(feed(site), 5)
    again = feed(site)
    assert again.next().number == 6
    assert again.waiting() == (1, START + 63)


def test_what_is_added_is_offered_and_what_is_read_is_checked(site: Site) -> None:
    """A feed follows the ledger; an entry changed under it is not copied."""
    found = passed(feed(site), 6)
    assert found.next() is None
    assert found.waiting() == (0, 0.0)
    site.certify("node-1", rounds=1)
    item = found.next()
    assert item.number == 7
    assert found.envelope(item).startswith(b'{"payload"')
    path = layout.ledger_directory(site.state, "node-1") / item.file
    path.write_bytes(path.read_bytes().replace(b'"sig":"', b'"gis":"'))
    with pytest.raises(EvidenceInvalid, match="was changed on disk"):
        found.envelope(item)


def test_what_was_set_aside_is_remembered_and_offered_by_the_next_process(site: Site) -> None:
    """No state is a trap: it counts as backlog, also after a restart, and is tried again."""
    found = feed(site)
    found.done(found.next())
    found.done(found.next(), "entry 2: another is there")
    passed(found, 4)
    assert found.waiting()[0] == 1
    again = feed(site)
    assert [again.next().number, again.waiting()[0]] == [2, 1]
    again.done(again.next())
    again.save()
    assert feed(site).waiting() == (0, 0.0)


def test_what_was_set_aside_is_remembered_by_those_who_could_not_offer_it(site: Site) -> None:
    """B62, promise 7: starts while the archive is away forget no entry that is not copied."""
    found = feed(site)
    found.done(found.next(), "entry 1: another is there")
    passed(found, 5)
    for _ in range(3):
        found = feed(site)
        assert (found.next().number, found.waiting()[0]) == (1, 1)
        found.save()
    passed(found, 1)
    assert feed(site).waiting() == (0, 0.0)


def test_a_damaged_entry_stops_nothing(site: Site) -> None:
    """What cannot be read is told by `verify`, here and in the archive; the rest is copied."""
    paths = sorted(layout.ledger_directory(site.state, "node-1").glob("*.jsonl"))
    paths[0].write_bytes(b"x" + paths[0].read_bytes()[1:])
    found = feed(site)
    numbers = []
    while (item := found.next()) is not None:
        numbers.append(item.number)
        found.done(item)
    assert numbers[-1] == 6
    assert 1 not in numbers


def test_the_file_is_believed_of_its_archive_only(tmp_path: Path) -> None:
    """Another archive has nothing of what this one has."""
    path = tmp_path / "archive.json"
    path.write_text(json.dumps({"place": PLACE, "through": 3}))
    assert read_cursor(path, PLACE)["through"] == 3
    assert read_cursor(path, "s3://other") == {}
    assert read_cursor(tmp_path / "none", PLACE) == {}
