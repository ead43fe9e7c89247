"""The coordinator's word in the archive: countersignatures, runs as they ended, lists of keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.core.clock import ManualClock
from fleet.evidence import archive_names, kept_list, key_list, layout
from fleet.evidence.replication import Replicator
from fleet.stores.base import RunRecord, RunState
from fleet.stores.coordinator_feed import CoordinatorFeed
from tests.cloud.archives import MemoryArchive
from tests.fleet.evidence.samples import START, Site

PLACE = "s3://memory"


@pytest.fixture(name="site")
def site_fixture(tmp_path: Path) -> Site:
    """A node, countersigned twice, and a signed list of keys."""
    site = Site(tmp_path)
    site.certify("node-1", rounds=1)
    site.countersign()
    site.certify("node-1", rounds=1)
    site.countersign()
    listed = key_list.sign({}, number=1, previous=None, key=site.coordinator, now=START)
    layout.key_list(tmp_path).write_bytes(listed)
    return site


def run(number: int, state: RunState = RunState.FINISHED, reason: str = "") -> RunRecord:
    """A run."""
    return RunRecord(id=f"run-{number}", state=state, started_at=START + number, exit_reason=reason)


def copied(site: Site, archive: MemoryArchive, *runs: RunRecord) -> Replicator:
    """What a process that begins now has copied."""
    feed = CoordinatorFeed(site.state, lambda: runs, place=PLACE)
    copies = Replicator(feed, lambda: archive, clock=ManualClock(START))
    copies.drain()
    return copies


def test_all_of_it_is_copied_once(site: Site) -> None:
    """E3: heads in order, ended runs whole, the list of keys; running ones are left."""
    archive = MemoryArchive()
    copies = copied(site, archive, run(1), run(2, RunState.RUNNING), run(3, RunState.STOPPED))
    assert copies.view().backlog == 0
    numbers = [archive_names.number_of(one.key) for one in archive.stored(archive_names.HEADS)]
    assert numbers == [1, 2]
    runs = [json.loads(archive.read(one.key)) for one in archive.stored(archive_names.RUNS)]
    assert [one["id"] for one in runs] == ["run-1", "run-3"]
    assert len(list(archive.stored(archive_names.KEY_LISTS))) == 1
    copied(site, archive, run(1), run(3, RunState.STOPPED))
    assert {c for key, c in archive.puts.items() if not key.startswith("keys/coord")} == {1}


def test_a_run_that_ends_again_is_kept_besides(site: Site) -> None:
    """A run resumed after a stop has another record: both are evidence."""
    archive = MemoryArchive()
    copied(site, archive, run(1, RunState.STOPPED))
    copied(site, archive, run(1, RunState.FINISHED, "complete"))
    states = [json.loads(archive.read(one.key))["state"] for one in archive.stored("runs/")]
    assert sorted(states) == ["finished", "stopped"]


def test_what_waits_and_what_is_refused_is_told(site: Site) -> None:
    """Backlog visible: how much, since when, and what the archive would not take."""
    archive = MemoryArchive(away="no line")
    feed = CoordinatorFeed(site.state, lambda: [run(1)], place=PLACE)
    copies = Replicator(feed, lambda: archive, clock=ManualClock(START))
    feed.look()
    assert (copies.view().backlog, copies.view().oldest_at) == (4, START)
    archive.away = ""
    key = next(iter(feed._ended))
    archive.lay(key, b"another")
    assert not copies.drain()
    assert copies.view().backlog == 1
    assert copies.view().aside[0].startswith("run run-1: ")
    del archive.objects[key]
    feed.again()
    assert copies.drain()


def test_a_list_signed_meanwhile_is_seen_and_goes_first(site: Site) -> None:
    """E3: another process signs lists: each is backlog at once, and countersignatures name it."""
    archive = MemoryArchive()
    copies = copied(site, archive)
    site.at = START
    before = kept_list.read(site.state)
    kept_list.signed(site.state, before, {}, key=site.coordinator, now=START + 5)
    assert (copies.view().backlog, copies.view().oldest_at) == (1, START + 5)
    site.certify("node-1", rounds=1)
    site.countersign()
    order: list[str] = []
    archive.before = order.append
    assert copies.drain()
    assert [key.split("/")[0] for key in order] == ["keys", "heads"]
    assert len(list(archive.stored(archive_names.KEY_LISTS))) == 2


def test_a_list_that_cannot_be_read_holds_nothing_up(site: Site) -> None:
    """Promise 9: `verify` names it; countersignatures are copied all the same."""
    layout.key_list(site.state).write_bytes(b"nothing")
    archive = MemoryArchive()
    assert copied(site, archive).view().backlog == 0
    assert len(list(archive.stored(archive_names.HEADS))) == 2
