"""`fleet report RUN`: from the store and the evidence to a page, a table, a document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.cli.main import main
from fleet.control.campaign.report import ExitReason
from fleet.core.messages import DeviceResult, Outcome
from fleet.evidence.judged import judge
from fleet.evidence.sources import collect
from fleet.stores.base import RunRecord
from fleet.wiring import adapters
from tests.fleet.cli.fleets import certify
from tests.fleet.cli.pages.records import BEGIN, certified, failed

Capture = pytest.CaptureFixture[str]


def record_of(state: Path, run: str, results: list[DeviceResult]) -> None:
    """A complete run of these results in the store."""
    coordinator = adapters.open_coordinator(adapters.plan_fleet(state).coordinator)
    coordinator.open(RunRecord(id=run, started_at=BEGIN, simulated=True))
    coordinator.append(run, results)
    coordinator.close(run, ExitReason.COMPLETE)


def test_a_run_is_told_in_three_ways(state: Path, tmp_path: Path, capsys: Capture) -> None:
    """E2, E3: the same run as text, as JSON and as a page, its certificates verified; a record
    that says "certified" of a device without its certificate proves nothing: exit 1."""
    certify(state)
    digests = [str(c.certificate.digest) for c in judge(collect(state)).certificates]
    good = [certified(n, certificate=digest) for n, digest in enumerate(digests)]
    record_of(state, "run-1", [*good, failed(99, Outcome.QUARANTINED, "ecc")])
    asked = ["report", "run-1", "--state", str(state)]
    assert main(asked) == 1
    told = capsys.readouterr().out
    for words in ("SIMULATED", "done", "failed: ecc: ecc of 99", "do: mend ecc"):
        assert words in told
    page = tmp_path / "run.html"
    assert main([*asked, "--html", str(page), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["verdicts"] == {"done": len(digests), "failed": 1}
    assert document["unproven"] == []
    assert document["bytes"] == page.stat().st_size
    text = page.read_text()
    assert all(digest in text for digest in digests)
    assert "Every certificate named here was found and verified." in text
    record_of(state, "run-2", good)
    assert main(["report", "run-2", "--state", str(state)]) == 0
    record_of(state, "run-3", [*good, certified(50)])
    capsys.readouterr()
    assert main(["report", "run-3", "--state", str(state)]) == 1
    assert "not proven: node-0006/gpu-2: not in the evidence that was read" in (
        capsys.readouterr().out
    )


def test_without_evidence_the_page_says_so(state: Path, tmp_path: Path, capsys: Capture) -> None:
    """A report that could not verify anything says so on top, and is no failure by that."""
    record_of(state, "run-1", [certified(0)])
    code = main(["report", "run-1", "--state", str(state), "--html", "-"])
    told = capsys.readouterr().out
    assert code in (0, 1)
    assert "No evidence was read" in told or "do not prove it" in told
    nowhere = ["--directory", str(tmp_path / "nowhere")]
    assert main(["report", "run-1", "--state", str(state), *nowhere]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing is named"),
        (["run-1", "--requirement", "E3"], "two reports"),
        (["--requirement", "E3", "--neutral"], "record of one requirement"),
        (["run-1", "--since", "2026-01-01"], "are for --requirement"),
        (["run-1", "--csv", "x.csv"], "are for --requirement"),
        (["run-1", "--html", "-", "--json"], "cannot both go"),
        (["run-9"], "run-9"),
    ],
)
def test_what_does_not_go_together_is_exit_2(
    state: Path, arguments: list[str], words: str, capsys: Capture
) -> None:
    """Every mistake says what to write instead, and nothing is written."""
    assert main(["report", *arguments, "--state", str(state)]) == 2
    assert words in capsys.readouterr().err.replace("\n", " ")
