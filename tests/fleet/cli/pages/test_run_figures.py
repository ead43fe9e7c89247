"""The figures of one campaign run."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.cli.pages.run_figures import NOT_FOUND, Read, by_node, figures, quantile, rates, standing
from fleet.control.campaign.verdict import Verdict
from fleet.core.messages import Outcome
from fleet.evidence.judged import judge
from fleet.evidence.sources import collect
from fleet.stores.base import RunState
from tests.fleet.cli.pages.records import BEGIN, certified, failed, lost, mixed, record
from tests.fleet.evidence.samples import Site

UNREAD = Read(why="nobody named any")


def test_devices_are_counted_by_what_they_are_worth() -> None:
    """B51: done, tainted-and-done, busy, failed, missing, unknown: each device is one of them."""
    found = figures(mixed(200), UNREAD, now=BEGIN)
    assert found.counts == {
        Verdict.DONE: 192,
        Verdict.TAINTED_AND_DONE: 2,
        Verdict.BUSY: 2,
        Verdict.FAILED: 2,
        Verdict.MISSING: 2,
        Verdict.UNKNOWN: 1,
    }
    assert found.covered == 194
    assert found.exit_code == 1
    assert sum(counts[Verdict.UNKNOWN] for counts in by_node(found.rows).values()) == 1


def test_reasons_are_grouped_with_remedies_and_the_worst_come_first() -> None:
    """E2: who is not covered stands together by reason, with what to do, unknown first."""
    found = figures(mixed(200), UNREAD, now=BEGIN)
    told = [(gap.verdict, gap.check, len(gap.rows)) for gap in found.gaps]
    assert told == [
        (Verdict.UNKNOWN, "node", 1),
        (Verdict.MISSING, "device-lost", 2),
        (Verdict.FAILED, "ecc", 2),
        (Verdict.BUSY, "", 2),
    ]
    assert found.gaps[2].remedy == "mend ecc"


def test_a_finding_of_a_device_that_is_done_is_told() -> None:
    """DESIGN 5: a warning about a certified device is no gap in coverage, and is not lost."""
    warned = failed(0, Outcome.CERTIFIED, "lease", state="CLEAN", certificate="sha256:1")
    (gap,) = figures(record([warned]), UNREAD, now=BEGIN).gaps
    assert (gap.verdict, gap.check) == (Verdict.DONE, "lease")


def test_a_node_seen_since_is_not_unknown_any_more() -> None:
    """B51: a resumed run that found the node replaces the row for all of it, not the other way."""
    results = [certified(0, ended_at=BEGIN + 50), certified(8, ended_at=BEGIN + 50)]
    gone = [lost("node-0000", ended_at=BEGIN + 10), lost("node-0001", ended_at=BEGIN + 90)]
    found = figures(record([*results, *gone]), UNREAD, now=BEGIN)
    assert [row.place for row in found.rows if row.verdict is Verdict.UNKNOWN] == ["node-0001/*"]


def test_only_a_verified_certificate_proves(tmp_path: Path) -> None:
    """E3: a certificate that is not there, or damaged, leaves the device unproven: exit 1."""
    site = Site(tmp_path / "state")
    site.certify(devices=("a",), rounds=2)
    digest = str(max(site.ledger().heads().values()))
    results = [certified(0, certificate=digest), certified(1, certificate="sha256:none")]
    found = figures(record(results), Read(judge(collect(site.state)), "here"), now=BEGIN)
    first, second = found.rows
    assert first.proof is not None
    assert first.proof.sound
    assert (first.proof.entry, first.proof.chain, len(first.proof.previous)) == (2, 2, 1)
    assert second.proof is not None
    assert second.proof.wrong == (NOT_FOUND,)
    assert [row.place for row in found.unproven] == [second.place]
    assert found.exit_code == 1
    assert figures(record(results), UNREAD, now=BEGIN).exit_code == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "finished: complete"),
        ({"state": RunState.STOPPED, "exit_reason": "breaker"}, "fleet scrub --resume"),
        ({"state": RunState.RUNNING, "exit_reason": "", "finished_at": None}, "still running"),
    ],
)
def test_a_run_says_where_it_stands(changes: dict[str, object], words: str) -> None:
    """E2: a run that ended early or still runs is never shown as complete."""
    one = record([certified(0)], **changes)
    found = figures(one, UNREAD, now=BEGIN + 100)
    assert words in standing(one)
    assert found.exit_code == (0 if not changes else 1)
    assert found.wall_s > 0


def test_no_device_is_no_success() -> None:
    """B51: never "done, 0 devices"."""
    found = figures(record([], exit_reason="no-devices"), UNREAD, now=BEGIN)
    assert (found.covered, found.exit_code) == (0, 2)


def test_rates_are_of_those_that_told_one() -> None:
    """Quantiles are of devices with a rate; of none they are zero."""
    rows = figures(mixed(100), UNREAD, now=BEGIN).rows
    found = rates(rows)
    assert len(found) == 97
    assert quantile(found, 0.0) == found[0]
    assert quantile(found, 1.0) == found[-1]
    assert quantile((), 0.5) == 0.0
