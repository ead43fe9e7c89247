"""Copies in the archive: made in the background, for as long as it takes, each of them once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.evidence import archive_names, layout
from fleet.evidence.ledger_feed import LedgerFeed
from fleet.evidence.replication import AGAIN_S, BACKOFF_MAX_S, REFUSED_S, Replicator
from tests.cloud.archives import MemoryArchive, certificates, doubled
from tests.fleet.evidence.samples import START, Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """node-1 with four certificates."""
    site = Site(tmp_path)
    site.certify("node-1")
    return site


@pytest.fixture
def archive() -> MemoryArchive:
    """An archive."""
    return MemoryArchive()


def replicator(site: Site, archive: MemoryArchive, clock: ManualClock | None = None) -> Replicator:
    """What a process that begins now copies with."""
    feed = LedgerFeed(site.state, "node-1", place="s3://memory/fleet")
    clock = clock or ManualClock(START)
    return Replicator(feed, lambda: archive, clock=clock, chance=lambda: 1.0)


def test_the_whole_ledger_is_copied_once(site: Site, archive: MemoryArchive) -> None:
    """E3, E5: each certificate once, with its rows; what comes later is copied later."""
    copies = replicator(site, archive)
    assert copies.view().backlog == 4
    assert copies.view().oldest_at == START + 13
    assert copies.drain()
    assert (copies.view().backlog, copies.view().oldest_at) == (0, 0.0)
    site.certify("node-1", rounds=1)
    assert copies.view().backlog == 2
    assert copies.drain()
    assert certificates(archive) == 6
    assert set(archive.puts.values()) == {1}
    rows = [archive_names.read_row(one.key) for one in archive.stored(archive_names.LEDGERS)]
    assert [row.number for row in rows] == [1, 2, 3, 4, 5, 6]
    assert len(list(archive.stored(archive_names.by_device("SIM-node-1-a")))) == 3


def test_a_process_that_begins_again_goes_on(site: Site, archive: MemoryArchive) -> None:
    """Promise 7: how far it is, is on disk: nothing is put twice by a successor."""
    assert replicator(site, archive).drain()
    site.certify("node-1", rounds=1)
    assert replicator(site, archive).drain()
    keys = {key: count for key, count in archive.puts.items() if not key.startswith("keys/")}
    assert set(keys.values()) == {1}
    assert certificates(archive) == 6


@pytest.mark.parametrize("puts", [0, 1, 3, 4, 9])
def test_b62_killed_anywhere_the_successor_finishes(
    site: Site, archive: MemoryArchive, puts: int
) -> None:
    """B62: a copy broken off anywhere is finished from what is on disk: nothing lost or doubled."""

    def kill(_: str) -> None:
        if sum(archive.puts.values()) >= puts:
            raise KeyboardInterrupt

    archive.before = kill
    with pytest.raises(KeyboardInterrupt):
        replicator(site, archive).drain()
    archive.before = lambda _: None
    assert replicator(site, archive).drain()
    assert certificates(archive) == 4
    assert len(list(archive.stored(archive_names.LEDGERS))) == 4
    assert doubled(archive) == []


def test_an_archive_that_is_away_is_asked_again_ever_later(
    site: Site, archive: MemoryArchive
) -> None:
    """Nothing waits for it: the pauses grow to five minutes, and the backlog says since when."""
    clock = ManualClock(START)
    copies = replicator(site, archive, clock)
    archive.away = "the line is cut"
    pauses = []
    for _ in range(12):
        assert not copies.drain()
        pauses.append(copies._next_at - clock.now())
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == BACKOFF_MAX_S
    assert "the line is cut" in copies.view().error
    assert copies.view().backlog == 4
    archive.away = ""
    copies.step(clock.now())
    threads: list[object] = [copies._thread]
    assert threads == [None], "it is not time yet"
    clock.advance(BACKOFF_MAX_S)
    copies.step(clock.now())
    assert copies._thread is not None
    copies._thread.join(10.0)
    assert (copies.view().backlog, copies.view().error) == (0, "")


def test_a_ledger_that_cannot_be_read_is_no_proof_that_all_is_copied(
    site: Site, archive: MemoryArchive
) -> None:
    """Promise 5: how much is missing is then unknown, which holds a node as any backlog does."""
    copies = replicator(site, archive)
    path = site.segment()
    path.rename(path.with_suffix(".away"))
    path.symlink_to(path.with_suffix(".away"))
    view = copies.view()
    assert (view.backlog, view.required) == (None, True)
    assert view.error
    assert not copies.drain()


def test_an_archive_that_cannot_keep_gets_nothing(site: Site, archive: MemoryArchive) -> None:
    """B48: what was not proven is not trusted; it is proven again at every try."""
    archive.unfit = "its versioning is off"
    copies = replicator(site, archive)
    assert not copies.drain()
    assert "versioning" in copies.view().error
    assert not archive.objects
    archive.unfit = ""
    assert copies.drain()


def test_b27_one_that_is_refused_holds_up_no_other(site: Site, archive: MemoryArchive) -> None:
    """B27 c, promise 9: another object of its name: told, set aside, and offered again later."""
    clock = ManualClock(START)
    with site.ledger() as ledger:
        second = list(ledger.entries())[1].digest
    archive.lay(archive_names.certificate(second), b"another")
    copies = replicator(site, archive, clock)
    assert not copies.drain()
    view = copies.view()
    assert (view.backlog, view.error) == (1, "")
    assert view.aside[0].startswith("entry 2: ")
    assert [archive_names.read_row(one.key).number for one in archive.stored("ledgers/")] == [
        1,
        3,
        4,
    ]
    successor = replicator(site, archive, clock)
    assert successor.view().backlog == 1
    del archive.objects[archive_names.certificate(second)]
    clock.advance(AGAIN_S)
    copies.step(clock.now())
    copies.close(wait_s=10.0)
    assert copies.view().backlog == 0
    assert replicator(site, archive).view().backlog == 0


def test_another_ledger_is_copied_from_its_beginning(site: Site, archive: MemoryArchive) -> None:
    """Promise 5: what is written down of one ledger, or of one archive, is not believed of
    another."""
    assert replicator(site, archive).drain()
    site.segment().unlink()
    site.certify("node-1", rounds=3)
    assert replicator(site, archive).view().backlog == 6
    other = LedgerFeed(site.state, "node-1", place="s3://elsewhere")
    assert other.waiting()[0] == 6


def test_another_archive_of_the_same_name_is_copied_to_from_the_beginning(
    site: Site, archive: MemoryArchive
) -> None:
    """Promise 5: a bucket made anew, or another service behind the endpoint, has nothing yet."""
    assert replicator(site, archive).drain()
    other = MemoryArchive(name="second")
    copies = replicator(site, other)
    assert copies.drain()
    assert (certificates(other), copies.view().backlog) == (4, 0)
    assert len(list(other.stored("keys/nodes/node-1/"))) == 1
    puts = sum(archive.puts.values())
    assert replicator(site, archive).drain(), "the first again: nothing is lost, nothing doubled"
    assert sum(archive.puts.values()) > puts
    assert doubled(archive) == []


def test_an_archive_that_is_replaced_under_a_running_node_is_noticed(
    site: Site, archive: MemoryArchive
) -> None:
    """Promise 5: every hour the archive is asked which it is, also when nothing is to be copied."""
    clock = ManualClock(START)
    copies = replicator(site, archive, clock)
    assert copies.drain()
    archive.objects.clear()
    archive.name = "second"
    clock.advance(AGAIN_S)
    copies.step(clock.now())
    copies.close(wait_s=10.0)
    assert (certificates(archive), copies.view().backlog) == (4, 0)
    assert len(list(archive.stored("keys/nodes/node-1/"))) == 1


def test_b27_a_key_that_is_refused_holds_up_no_certificate(
    site: Site, archive: MemoryArchive
) -> None:
    """B27 c: other bytes under a key's name: told, counted, remembered, offered again later."""
    clock = ManualClock(START)
    name = archive_names.public_key(site.key("node-1").public().key_id, "node-1")
    archive.lay(name, b"x")
    copies = replicator(site, archive, clock)
    assert not copies.drain()
    view = copies.view()
    assert (view.backlog, view.oldest_at, view.error) == (1, 0.0, "")
    assert view.aside[0].startswith("key ")
    assert certificates(archive) == 4
    assert replicator(site, archive).view().backlog == 1, "also before it was offered again"
    del archive.objects[name]
    clock.advance(AGAIN_S)
    copies.step(clock.now())
    copies.close(wait_s=10.0)
    assert copies.view().backlog == 0
    assert replicator(site, archive).view().backlog == 0


def test_without_an_archive_what_is_missing_is_told_and_nothing_is_copied(
    site: Site, archive: MemoryArchive
) -> None:
    """Promise 5: who was not told of the archive cannot say that all is there."""
    archive.away = "the line is cut"
    assert not replicator(site, archive).drain()
    feed = LedgerFeed(site.state, "node-1", place="s3://memory/fleet")
    copies = Replicator(feed, None, clock=ManualClock(START), place="s3://memory/fleet")
    copies.step(START)
    copies.close(wait_s=1.0)
    view = copies.view()
    assert (view.archive, view.backlog) == ("s3://memory/fleet", 4)
    assert "name no archive" in view.error
    assert not copies.drain()


@pytest.mark.parametrize("content", [b"", b"{", b'{"through":"x"}', b"[1]"])
def test_what_cannot_be_read_says_nothing(
    site: Site, archive: MemoryArchive, content: bytes
) -> None:
    """A file that is damaged costs puts that change nothing, and no proof."""
    assert replicator(site, archive).drain()
    layout.archive_cursor(site.state, "node-1").write_bytes(content)
    copies = replicator(site, archive)
    assert copies.view().backlog == 4
    assert copies.drain()
    assert doubled(archive) == []


def test_who_was_told_to_stop_writes_nothing(site: Site, archive: MemoryArchive) -> None:
    """The next owner may be at work already."""
    copies = replicator(site, archive)
    archive.before = lambda key: copies._stop.set() if key.startswith("ledgers/") else None
    copies.drain()
    written = json.loads(layout.archive_cursor(site.state, "node-1").read_text())
    assert written["through"] == 0


def test_b77_what_no_later_try_changes_is_tried_seldom_and_told(
    site: Site, archive: MemoryArchive
) -> None:
    """B77: a permanent refusal is told apart from an archive that is away, and not tried at the
    pace of one for ever; once it is repaired the copies go on."""
    clock = ManualClock(START)
    refused: list[Exception] = [errors.SettingsInvalid("no such header")]

    def opened() -> MemoryArchive:
        if refused:
            raise refused[0]
        return archive

    feed = LedgerFeed(site.state, "node-1", place="s3://memory/fleet")
    copies = Replicator(feed, opened, clock=clock, chance=lambda: 1.0)
    tries = 0
    for _ in range(24 * 60):
        copies.step(clock.now())
        if copies._thread is not None:
            copies._thread.join(10.0)
            tries += copies._thread.name == "archive"
            copies._thread = None
        clock.advance(60.0)
    assert tries <= 24 * 3600 / REFUSED_S + 1
    assert copies.view().refused
    refused.clear()
    assert copies.drain()
    assert (copies.view().refused, copies.view().error) == (False, "")
