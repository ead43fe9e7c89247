"""The final document's arithmetic and exit code."""

from __future__ import annotations

import pytest

from fleet.control.campaign.report import REMEDIES, ExitReason, RunReport, Sums, exit_code
from fleet.core.messages import ByteFigures, DeviceResult, Outcome


def row(outcome: Outcome, uuid: str = "g") -> DeviceResult:
    return DeviceResult(
        node="n", device="d", uuid=uuid, outcome=outcome, state="CLEAN",
        bytes=ByteFigures(total=100, reserved=10, covered=80, residual=10),
    )  # fmt: skip


def sums(*rows: DeviceResult) -> Sums:
    found = Sums()
    for one in rows:
        found.add(one)
    return found


@pytest.mark.parametrize(
    ("outcomes", "reason", "code"),
    [
        ([Outcome.CERTIFIED], ExitReason.COMPLETE, 0),
        ([Outcome.CERTIFIED, Outcome.IN_USE], ExitReason.COMPLETE, 0),
        ([Outcome.IN_USE], ExitReason.COMPLETE, 0),
        *(
            ([Outcome.CERTIFIED, outcome], ExitReason.COMPLETE, 1)
            for outcome in set(Outcome) - {Outcome.CERTIFIED, Outcome.IN_USE}
        ),
        ([Outcome.CERTIFIED], ExitReason.STOPPED, 1),
        ([Outcome.CERTIFIED], ExitReason.BREAKER, 1),
        ([Outcome.CERTIFIED], ExitReason.LIMITS, 1),
        ([], ExitReason.COMPLETE, 2),
        ([], ExitReason.NO_DEVICES, 2),
        ([Outcome.UNREACHABLE], ExitReason.UNREACHABLE, 2),
    ],
)
def test_the_exit_code(outcomes: list[Outcome], reason: ExitReason, code: int) -> None:
    """0 all good and something seen, 1 something found or left, 2 could not run."""
    assert exit_code([row(outcome) for outcome in outcomes], reason) == code


def test_totals_add_up() -> None:
    """Bytes are sums, outcomes counts, the rate counts all four passes over the wall time."""
    found = sums(row(Outcome.CERTIFIED, "a"), row(Outcome.FAILED, "b")).totals(4.0)
    assert (found.devices, found.bytes.covered, found.bytes.residual) == (2, 160, 20)
    assert found.outcomes == {Outcome.CERTIFIED: 1, Outcome.FAILED: 1}
    assert found.rate == 160.0
    assert sums().totals(0.0).rate == 0.0


def test_a_copy_goes_on_by_itself() -> None:
    """A report made while the campaign runs changes nothing of it."""
    ours = sums(row(Outcome.CERTIFIED))
    ours.copy().add(row(Outcome.FAILED))
    assert ours.totals(1.0) == sums(row(Outcome.CERTIFIED)).totals(1.0)


def test_the_document_reads_back() -> None:
    """What ``--json`` prints is the whole report."""
    report = RunReport(
        run="r", simulated=True, started_at=0, ended_at=1, wall_s=1,
        devices=(row(Outcome.CERTIFIED),), totals=sums(row(Outcome.CERTIFIED)).totals(1),
        exit_reason=ExitReason.COMPLETE, exit_code=0,
    )  # fmt: skip
    assert RunReport.model_validate_json(report.model_dump_json()) == report


def test_every_early_end_has_a_remedy() -> None:
    """Whoever reads why a run ended reads how to go on."""
    assert set(REMEDIES) == set(ExitReason)
    assert all(REMEDIES[reason] for reason in ExitReason if reason is not ExitReason.COMPLETE)
