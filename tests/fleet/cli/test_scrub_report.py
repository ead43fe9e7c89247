"""The final report of a campaign."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from fleet.cli.scrub_report import render
from fleet.control.campaign.report import ExitReason, RunReport, Sums
from fleet.core.messages import ByteFigures, DeviceResult, Finding, Outcome

GOOD_RESULT = DeviceResult(
    node="node-0",
    device="gpu-0",
    uuid="u0",
    outcome=Outcome.CERTIFIED,
    state="CLEAN",
    bytes=ByteFigures(total=64 << 20, reserved=1 << 20, covered=63 << 20),
    seconds=0.5,
    rate=5e8,
    certificate="sha256:" + "ab" * 32,
)
BAD_RESULT = DeviceResult(
    node="node-1",
    device="gpu-3",
    uuid="u1",
    outcome=Outcome.QUARANTINED,
    state="QUARANTINED",
    findings=(
        Finding(
            check="ecc", verdict="fail", detail="7 uncorrectable errors", remedy="replace the card"
        ),
    ),
)


def rendered(*results: DeviceResult, reason: ExitReason = ExitReason.COMPLETE) -> str:
    """The text of a report over `results`."""
    sums = Sums()
    for result in results:
        sums.add(result)
    report = RunReport(
        run="run-1",
        simulated=True,
        started_at=0.0,
        ended_at=2.0,
        wall_s=2.0,
        devices=results,
        totals=sums.totals(2.0),
        exit_reason=reason,
        exit_code=0,
        detail="three of three failed",
        remedy="look at the racks",
    )
    console = Console(file=io.StringIO(), width=220)
    render(console, report, state=Path("/srv/fleet state"))
    stream = console.file
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


def test_a_good_device_is_one_row_with_its_certificate() -> None:
    """A certified device shows bytes covered, rate and the digest that finds its certificate."""
    row = next(line for line in rendered(GOOD_RESULT).splitlines() if "gpu-0" in line)
    for part in ("certified", "CLEAN", "63.0 MiB / 64.0 MiB", "1.0 MiB", "0.50 GB/s", "ab" * 6):
        assert part in row


def test_a_bad_device_comes_with_reason_and_remedy() -> None:
    """Every device that is not certified says why and what to do."""
    text = rendered(GOOD_RESULT, BAD_RESULT)
    assert "node-1/gpu-3: fail: ecc: 7 uncorrectable errors" in text
    assert "do: replace the card" in text


def test_the_report_says_how_to_verify_it() -> None:
    """The exact command that checks the evidence is the last line, quoted for a shell."""
    text = rendered(GOOD_RESULT)
    assert text.splitlines()[-1].endswith("fleet evidence verify --state '/srv/fleet state'")


def test_a_report_without_certificates_claims_no_evidence() -> None:
    """Where nothing was certified nothing is offered for verification."""
    assert "evidence verify" not in rendered(BAD_RESULT)


def test_simulated_is_the_first_word() -> None:
    """Promise 10: the report of a simulated fleet says so before anything else."""
    assert "SIMULATED" in rendered(GOOD_RESULT).splitlines()[0]


def test_an_early_end_says_how_to_go_on() -> None:
    """A run that ended early names the reason, the remedy and the command that resumes it."""
    text = rendered(BAD_RESULT, reason=ExitReason.BREAKER)
    assert "ended early: breaker: three of three failed" in text
    assert "do: look at the racks" in text
    assert "fleet scrub --resume run-1" in text


def test_a_process_cannot_write_to_the_terminal_by_its_name() -> None:
    """The name of a holder stands in a finding as text: one line, nothing acted upon."""
    finding = Finding(
        check="holders",
        verdict="fail",
        detail="held by t\x1b[2J\n\x1b]0;pwn [red]\u202e",
        remedy="end t\x1b[2J\n\x1b]0;pwn",
    )
    text = rendered(BAD_RESULT.model_copy(update={"findings": (finding,)}))
    assert r"held by t\x1b[2J\n\x1b]0;pwn [red]\u202e" in text
    assert r"do: end t\x1b[2J\n\x1b]0;pwn" in text
    assert not {"\x1b", "\u202e"} & set(text)
