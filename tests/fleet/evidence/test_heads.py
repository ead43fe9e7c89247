"""Countersignatures: numbered, chained, written only when something moved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.core.clock import ManualClock
from fleet.core.errors import EvidenceInvalid, InputInvalid, NotOwner
from fleet.core.model import Digest, NodeName, UnitId
from fleet.evidence import dsse, heads, layout
from fleet.evidence.heads import HeadsLog, countersign
from fleet.evidence.key_list import Named
from fleet.evidence.ledger import LedgerHead
from tests.fleet.evidence.samples import START, Site, codes, rewrite

HEAD = LedgerHead(1, "a" * 64, {UnitId("u"): Digest("sha256:" + "1" * 64)})
ENDS = {NodeName("node-1"): HEAD}


@pytest.fixture(name="site")
def site_fixture(tmp_path: Path) -> Site:
    """An empty site."""
    return Site(tmp_path / "state")


def test_countersignature_reads_back(site: Site) -> None:
    """A countersignature names number, predecessor, time and every ledger's end."""
    content = countersign(ENDS, None, number=1, key=site.coordinator, now=START)
    found = heads.read(content)
    assert (found.number, found.previous, found.issued_at) == (1, None, START)
    assert found.heads == ENDS
    assert found.digest == dsse.digest_of(content)
    assert found.envelope.signed_by(site.coordinator.public())


def test_numbers_that_contradict_are_refused(site: Site) -> None:
    """Only the first has no predecessor, and there must be something to sign."""
    for ends, previous, number in (({}, Digest("x"), 2), (ENDS, None, 2), (ENDS, Digest("x"), 1)):
        with pytest.raises(InputInvalid):
            countersign(ends, previous, number=number, key=site.coordinator, now=START)


def test_a_log_is_begun_once(site: Site, tmp_path: Path) -> None:
    """E3: the beginning is signed before the first certificate, so that removal shows."""
    log = HeadsLog(tmp_path / "begun")
    for _ in range(2):
        log.begin(key=site.coordinator, now=START)
    assert log.count == 1
    assert log.latest() == {}
    assert log.record(ENDS, key=site.coordinator, now=START + 1) is not None
    assert log.latest() == ENDS
    log.close()


MALFORMED: dict[str, Callable[[dict[str, Any]], object]] = {
    "type": lambda s: s.update(predicateType="x"),
    "heads": lambda s: s["predicate"]["heads"].update(other=HEAD.as_json()),
    "head": lambda s: s["predicate"].update(heads={"n": {"count": "1"}}),
    "number": lambda s: s["predicate"].update(number="1"),
    "list of keys": lambda s: s["predicate"].pop("key_list"),
    "time": lambda s: s["predicate"].pop("issued_at"),
    "subject": lambda s: s["subject"].clear(),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_countersignatures_are_refused(site: Site, what: str) -> None:
    """A statement that is not exactly a countersignature is refused, whoever signed it."""
    genuine = countersign(ENDS, None, number=1, key=site.coordinator, now=START)
    statement = dsse.parse(dsse.open_envelope(genuine).payload)
    MALFORMED[what](statement)
    changed = dsse.seal(
        statement["predicateType"],
        statement["subject"],
        statement["predicate"],
        key=site.coordinator,
    )
    with pytest.raises(EvidenceInvalid):
        heads.read(changed)


def test_only_what_moved_is_countersigned(site: Site) -> None:
    """Nothing is written when no ledger moved; otherwise only the ledgers that did."""
    site.certify("node-1")
    site.certify("node-2")
    site.countersign()
    site.countersign()
    site.certify("node-2", rounds=1)
    site.countersign()
    log = HeadsLog(layout.heads_directory(site.state))
    assert log.count == 2
    assert [sorted(one.heads) for one in log.entries()] == [["node-1", "node-2"], ["node-2"]]
    assert log.latest() == {
        NodeName(name): site.ledger(name).head() for name in ("node-1", "node-2")
    }
    first, second = log.entries()
    assert second.previous == first.digest


def test_empty_ledger_is_not_countersigned(site: Site) -> None:
    """A node without certificates has no end to sign."""
    with HeadsLog(layout.heads_directory(site.state)) as log:
        empty = {NodeName("n"): LedgerHead()}
        assert log.record(empty, key=site.coordinator, now=START) is None


def test_one_coordinator_writes(site: Site) -> None:
    """A second coordinator is refused while the first holds the log."""
    directory = layout.heads_directory(site.state)
    with HeadsLog(directory) as log:
        assert log.record(ENDS, key=site.coordinator, now=START)
        with pytest.raises(NotOwner):
            HeadsLog(directory).record(ENDS, key=site.coordinator, now=START)


def test_a_list_of_keys_is_named_once_and_never_an_older_one(site: Site) -> None:
    """E3: a new list is countersigned though no ledger moved; the newest is named ever after."""
    first, second = (Named(n, Digest(f"sha256:{n:064}")) for n in (1, 2))
    with HeadsLog(layout.heads_directory(site.state)) as log:
        log.begin(key=site.coordinator, now=START)
        for listed in (first, first, second, first):
            log.record({}, key=site.coordinator, now=START, listed=listed)
        log.record(ENDS, key=site.coordinator, now=START)
        assert [one.listed for one in log.entries()] == [None, first, second, second]
        assert log.listed() == second
    for wrong in ({"number": 0, "digest": "x"}, {"number": True, "digest": "x"}, {"number": 1}):
        with pytest.raises((KeyError, ValueError)):
            Named.from_json(wrong)
    with pytest.raises(TypeError):
        Named.from_json({"number": 1, "digest": 2})


def test_damaged_predecessor_is_named_not_hidden(site: Site) -> None:
    """After damage the log goes on without pretending to start anew."""
    directory = layout.heads_directory(site.state)
    with HeadsLog(directory) as log:
        log.record(ENDS, key=site.coordinator, now=START)
    rewrite(directory / "000000000001.jsonl", lambda lines: [b"X" + lines[0][1:]])
    with HeadsLog(directory) as log:
        log.record(ENDS, key=site.coordinator, now=START + 1)
        (found,) = log.entries()
    assert found.number == 2
    assert found.previous == "unreadable:1"


def test_countersigner_leaves_the_log_to_its_successor(site: Site) -> None:
    """A coordinator that idles or hangs does not keep its successor from countersigning."""
    site.certify()
    directory, clock = layout.heads_directory(site.state), ManualClock(START)
    first = heads.Countersigner(HeadsLog(directory), site.coordinator, clock)
    second = heads.Countersigner(HeadsLog(directory), site.coordinator, clock)
    for signer in (first, second, first):
        site.certify(rounds=1)
        signer.sign({NodeName("node-1"): site.ledger().head()})
    assert [one.number for one in HeadsLog(directory).entries()] == [1, 2, 3]
    assert codes(site.state) == set()
