"""The report of a step."""

from __future__ import annotations

import dataclasses

import pytest

from fleet.slices.reporting import PublishReport, Trouble


def test_an_empty_report_confirms_nothing() -> None:
    """Promise 6: a step that could not read confirms no quarantine and is not settled."""
    report = PublishReport()
    assert not report.settled
    assert dict(report.confirmed_quarantine) == {}


def test_a_report_cannot_be_changed_later() -> None:
    """What a step found is a fact for whoever reads it from another thread."""
    report = PublishReport(trouble=(Trouble("ApiInvalid", "why", "what to do"),))
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.settled = True  # type: ignore[misc]
