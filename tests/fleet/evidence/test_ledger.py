"""A node's ledger: durable, idempotent, never forked."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import fleet
from fleet.core.errors import (
    EvidenceInvalid,
    EvidenceRefused,
    InputInvalid,
    LedgerUnavailable,
    NotOwner,
)
from fleet.core.model import Device, Digest, UnitId
from fleet.evidence import parsed
from fleet.evidence.ledger import Ledger, LedgerHead
from tests.fleet.evidence.samples import Site, codes, device_named, rewrite, speed


@pytest.fixture(name="site")
def site_fixture(tmp_path: Path) -> Site:
    """An empty site."""
    return Site(tmp_path / "state")


def test_appended_is_there_for_the_next_process(site: Site) -> None:
    """E3: what append returned is found by digest, in order, by any later reader."""
    digests = site.certify(rounds=2)
    ledger = site.ledger()
    assert [entry.digest for entry in ledger.entries()] == digests
    assert ledger.count == 4
    assert all(digest in ledger for digest in digests)
    assert [ledger.certificate(digest).digest for digest in digests] == digests
    assert ledger.heads() == {
        UnitId("SIM-node-1-a/0"): digests[2],
        UnitId("SIM-node-1-b/0"): digests[3],
    }
    assert set(ledger.sequences().values()) == {2}


def test_appending_again_stores_once(site: Site) -> None:
    """Promise 7: the same certificate appended again gives the same digest and one entry."""
    device = device_named("a")
    with site.ledger() as ledger:
        done = site.issue(ledger, device)
        assert ledger.append(done.envelope) == done.digest
        assert ledger.append(done.envelope) == done.digest
    with site.ledger() as later:
        assert later.append(done.envelope) == done.digest
        assert later.count == 1


def test_fork_is_refused(site: Site) -> None:
    """A certificate that does not continue its units' chains is refused; nothing is stored."""
    device = device_named("a")
    with site.ledger() as ledger:
        one, other = site.issue(ledger, device), site.issue(ledger, device)
        ledger.append(one.envelope)
        with pytest.raises(EvidenceRefused, match="continues None as number 1"):
            ledger.append(other.envelope)
        assert ledger.count == 1
        ledger.append(site.issue(ledger, device).envelope)
        assert ledger.sequences() == {device.units[0]: 2}


def test_partition_and_parent_share_chains(site: Site) -> None:
    """A whole accelerator's certificate continues the chains of all its units."""
    whole = device_named("a", ("0", "1"))
    part = device_named("a-0", ("0",), accelerator="a")
    with site.ledger() as ledger:
        for device in (whole, part, whole):
            ledger.append(site.issue(ledger, device).envelope)
        assert ledger.sequences() == {whole.units[0]: 3, whole.units[1]: 2}
    assert codes(site.state) == set()


def test_only_certificates_are_taken(site: Site) -> None:
    """Anything that is not a well-formed certificate is refused."""
    with site.ledger() as ledger, pytest.raises(EvidenceInvalid):
        ledger.append(b"{}")


def test_unknown_digest_is_reported(site: Site) -> None:
    """Asking for a certificate that is not there names the remedy."""
    site.certify(rounds=1)
    with pytest.raises(InputInvalid, match="no certificate"):
        site.ledger().get(Digest("sha256:00"))


def test_change_after_indexing_is_noticed(site: Site) -> None:
    """A certificate changed under a running service is not returned as genuine."""
    digest = site.certify(rounds=1)[0]
    ledger = site.ledger()
    assert digest in ledger
    path = site.segment()
    path.write_bytes(path.read_bytes().replace(b'"payload":"ey', b'"payload":"fy', 1))
    with pytest.raises(EvidenceInvalid, match="was changed on disk"):
        ledger.get(digest)


def test_damaged_entry_does_not_stop_the_node(site: Site) -> None:
    """B07: with a damaged entry in the middle, the ledger opens and takes further certificates."""
    site.certify(rounds=2)
    rewrite(
        site.segment(), lambda lines: [lines[0], lines[1][:50] + b"X" + lines[1][51:], *lines[2:]]
    )
    site.certify(rounds=1)
    assert site.ledger().count == 6
    assert "unreadable-entry" in codes(site.state) or "altered-entry" in codes(site.state)


def test_second_owner_is_refused_until_the_first_closes(site: Site) -> None:
    """One owner writes; readers are never refused."""
    device = device_named("a")
    with site.ledger() as first:
        first.append(site.issue(first, device).envelope)
        second = site.ledger()
        assert second.count == 1
        with pytest.raises(NotOwner):
            second.append(site.issue(second, device).envelope)
    second.append(site.issue(second, device).envelope)
    second.close()
    assert first.count == 2


def test_index_follows_other_writers(site: Site) -> None:
    """An owner that comes back continues where another left, not where its memory ends."""
    device = device_named("a")
    old = site.ledger()
    old.append(site.issue(old, device).envelope)
    old.close()
    with site.ledger() as other:
        other.append(site.issue(other, device).envelope)
    old.append(site.issue(old, device).envelope)
    old.close()
    assert codes(site.state) == set()


def test_threads_append_without_loss(site: Site) -> None:
    """Wipes that end at the same moment all get their certificate stored."""
    ledger = site.ledger()
    ledger.append(site.issue(ledger, device_named("start")).envelope)
    failures: list[Exception] = []

    def work(device: Device) -> None:
        try:
            for _ in range(5):
                ledger.append(site.issue(ledger, device).envelope)
        except Exception as error:  # noqa: BLE001  reported by the test below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(device_named(f"d{n}"),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.close()
    assert failures == []
    assert ledger.count == 21
    assert codes(site.state) <= {"token-backwards"}


def test_head_crosses_processes(site: Site) -> None:
    """The end of a ledger reads back from JSON; anything else is refused."""
    site.certify()
    head = site.ledger().head()
    assert LedgerHead.from_json(head.as_json()) == head
    assert head.count == 4
    wrong: list[dict[str, object]] = [{"count": True}, {"count": "1"}, {"chain": 1}, {"units": []}]
    for bad in wrong:
        with pytest.raises((TypeError, ValueError, AttributeError)):
            LedgerHead.from_json({**head.as_json(), **bad})


def test_segments_rotate(site: Site) -> None:
    """Files stay bounded, and everything is found across them."""
    digests = site.certify(rounds=6, segment_bytes=20_000)
    ledger = site.ledger()
    assert len(list(ledger.directory.glob("*.jsonl"))) > 3
    assert all(parsed.read(ledger.get(digest)).digest == digest for digest in digests)
    assert codes(site.state) == set()


_APPEND = """
import sys
from pathlib import Path
from tests.fleet.evidence.samples import Site, device_named
site = Site(Path(sys.argv[1]))
site.at += 1e6 * int(sys.argv[2])
site.counter = 1_000_000 * int(sys.argv[2])
device = device_named("a")
with site.ledger() as ledger:
    while True:
        sys.stdout.write(ledger.append(site.issue(ledger, device).envelope) + "\\n")
        sys.stdout.flush()
"""


def test_killed_at_any_moment_loses_nothing_acknowledged(site: Site) -> None:
    """Promises 7 and 8: after kill -9 every certificate `append` returned is there and verifies."""
    acknowledged: list[str] = []
    for start in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", _APPEND, str(site.state), str(start)],
            stdout=subprocess.PIPE,
            cwd=Path(fleet.__file__).parents[1],
            text=True,
        ) as process:
            assert process.stdout is not None
            acknowledged += [process.stdout.readline().strip() for _ in range(7 + 5 * start)]
            process.kill()
            acknowledged += [line.strip() for line in process.stdout if line.endswith("\n")]
    ledger = site.ledger()
    assert len(acknowledged) >= 36
    assert all(digest in ledger for digest in acknowledged)
    assert codes(site.state) <= {"truncated"}


def test_five_hundred_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Five hundred certificates are issued, stored durably and verified; the speed is printed."""
    stored, verified = speed(tmp_path / "state", 500)
    with capsys.disabled():
        sys.stdout.write(f"\n{stored:.0f} certificates/s stored, {verified:.0f}/s verified\n")
    assert min(stored, verified) > 0
    assert Ledger(tmp_path / "state/nodes/node-1/ledger").count == 500


@pytest.mark.parametrize("renamed", [True, False])
def test_ledger_removed_under_a_service_is_noticed(site: Site, *, renamed: bool) -> None:
    """Promise 8: `append` raises or stores anew; a digest it returned is on disk."""
    device = device_named("a")
    with site.ledger() as ledger:
        first = ledger.append(site.issue(ledger, device).envelope)
        second = site.issue(ledger, device)
        if renamed:
            ledger.directory.rename(ledger.directory.with_name("moved"))
        else:
            shutil.rmtree(ledger.directory)
        assert first not in ledger
        assert (ledger.heads(), ledger.count) == ({}, 0)
        with pytest.raises((EvidenceRefused, LedgerUnavailable)):
            ledger.append(second.envelope)
        stored = []
        for _ in range(2):
            envelope = site.issue(ledger, device).envelope
            try:
                stored.append(ledger.append(envelope))
            except LedgerUnavailable:
                stored.append(ledger.append(envelope))
            assert stored == [entry.digest for entry in site.ledger().entries()]


def test_unreadable_segment_is_no_shorter_chain(site: Site) -> None:
    """Promise 8: with a file that cannot be read the ledger answers nothing, not half."""
    site.certify(rounds=6, segment_bytes=20_000)
    path = sorted(site.segment().parent.glob("*.jsonl"))[1]
    path.rename(path.with_suffix(".aside"))
    path.mkdir()
    with pytest.raises(LedgerUnavailable):
        site.ledger().heads()
