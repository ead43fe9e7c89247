"""The coordinator's list of keys on disk: the newest one, or an error that says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core.clock import ManualClock
from fleet.core.errors import EvidenceInvalid
from fleet.evidence import kept_list, layout
from fleet.evidence.heads import Countersigner, HeadsLog
from fleet.evidence.key_list import Listed
from tests.fleet.evidence.samples import START, Site


@pytest.fixture(name="site")
def site_fixture(tmp_path: Path) -> Site:
    """A coordinator that signed one list and countersigned it."""
    site = Site(tmp_path)
    site.certify("node-1", rounds=1)
    put(site)
    site.countersign()
    return site


def put(site: Site, **keys: Listed) -> bytes:
    """Sign the next list; what the file held before."""
    path = layout.key_list(site.state)
    old = path.read_bytes() if path.exists() else b""
    before = kept_list.present(site.state)
    kept_list.signed(site.state, before, keys, key=site.coordinator, now=site.at)
    return old


def test_lists_are_numbered_and_follow_each_other(site: Site) -> None:
    """E3: each list names the one before it, and is countersigned though no ledger moved."""
    first = kept_list.read(site.state)
    assert first is not None
    put(site)
    second = kept_list.read(site.state)
    assert second is not None
    assert (second.listed.number, second.listed.previous) == (2, first.name.digest)
    log = HeadsLog(layout.heads_directory(site.state))
    signer = Countersigner(
        log, site.coordinator, ManualClock(START), lambda: kept_list.named(site.state)
    )
    signer.sign({})
    signer.sign({})
    assert (log.count, log.listed()) == (2, second.name)


def test_an_older_list_is_refused_and_never_countersigned(site: Site) -> None:
    """E3: put back or taken away, nothing is signed on top of it, and the newest stays named."""
    old = put(site)
    site.countersign()
    log = HeadsLog(layout.heads_directory(site.state))
    newest, path = log.listed(), layout.key_list(site.state)
    path.write_bytes(old)
    with pytest.raises(EvidenceInvalid, match="list 2 was countersigned already"):
        kept_list.read(site.state)
    site.certify("node-1", rounds=1)
    site.countersign()
    assert log.listed() == newest
    path.unlink()
    with pytest.raises(EvidenceInvalid, match="is not here"):
        kept_list.read(site.state)
    path.write_bytes(b"{}")
    with pytest.raises(EvidenceInvalid, match="keep the file"):
        kept_list.read(site.state)
    assert kept_list.named(site.state) is None


def test_a_host_that_only_began_a_log_has_no_coordinator(site: Site, tmp_path: Path) -> None:
    """A node's host signs the beginning of a log: its key lists nobody's keys."""
    assert kept_list.has_worked(site.state)
    state = tmp_path / "node"
    key = Site(state).coordinator
    with HeadsLog(layout.heads_directory(state)) as log:
        log.begin(key=key, now=START)
    assert not kept_list.has_worked(state)
    assert [one.key_id for one in kept_list.ring(state)] == [key.key_id]
