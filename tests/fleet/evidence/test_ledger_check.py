"""What a partial copy of a ledger can tell of the newest wipe of each unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fleet.evidence.findings import Report
from fleet.evidence.ledger import LedgerHead
from fleet.evidence.ledger_check import LedgerCheck
from fleet.evidence.segments import Damage, Entry, Sequence
from fleet.evidence.sources import Log, collect
from tests.fleet.evidence.samples import Site

A, B = "SIM-node-1-a/0", "SIM-node-1-b/0"


@pytest.fixture(name="site")
def site_fixture(tmp_path: Path) -> Site:
    """node-1 with a, b, a, b."""
    site = Site(tmp_path)
    site.certify("node-1")
    return site


def doubts(site: Site, head: LedgerHead, *omitted: int) -> dict[str, set[str]]:
    """What is doubted, by its first words, of a copy without these entries."""
    (log,) = collect(site.state).ledgers

    @dataclass(slots=True)
    class Partial(Log):
        def scan(self, sequence: Sequence) -> Iterator[Entry | Damage]:
            for found in log.scan(sequence):
                assert isinstance(found, Entry)
                yield replace(found, envelope=None) if found.number in omitted else found

    check = LedgerCheck(Partial(log.directory, log.keys, log.node), Report())
    check.run()
    return {doubt.words: set(doubt.units) for doubt in check.left_out(head)}


def test_what_a_head_names_must_be_there(site: Site) -> None:
    """E3: the newest of a unit, one in its middle, and all of another device's are told apart."""
    head = site.ledger().head()
    assert doubts(site, head) == {}
    out = "is left out of this copy"
    assert doubts(site, head, 3) == {f"the newest certificate of unit {A}, entry 3, {out}": {A}}
    assert doubts(site, head, 1) == {f"a certificate of unit {A} {out}": {A}}
    assert list(doubts(site, head, 2, 4).values()) == [{B}]


def test_what_no_head_names_may_be_anybodys(site: Site) -> None:
    """E3: an entry left out behind the newest countersignature may be any older unit's."""
    found = doubts(site, LedgerHead(), 4)
    assert list(found.values()) == [{A, B}]
    assert doubts(site, site.ledger().head(), 4).keys() != found.keys()
