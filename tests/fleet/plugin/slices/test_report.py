"""The report of a step."""

from __future__ import annotations

import dataclasses

import pytest

from fleet.core.errors import ApiInvalid
from fleet.kube.slice_equality import Feature
from fleet.plugin.slices.report import PublishReport, Trouble


def test_an_empty_report_confirms_nothing() -> None:
    """Promise 6: a step that could not read confirms no quarantine and is not settled."""
    report = PublishReport()
    assert not report.settled
    assert dict(report.confirmed_quarantine) == {}


def test_trouble_says_what_is_wrong_and_what_to_do() -> None:
    """D10: an error, a dropped field and unreadable objects are told the same way."""
    error = ApiInvalid("no such taint", remedy="look at the policy")
    of = Trouble.of(error, devices=("gpu-0",))
    assert of == Trouble("ApiInvalid", "no such taint", "look at the policy", ("gpu-0",))
    dropped = Trouble.dropped(Feature.COUNTERS, "switch it on")
    assert (dropped.kind, dropped.remedy) == ("dropped-field", "switch it on")
    assert "consumesCounters" in dropped.detail
    assert "3 entries" in Trouble.skipped(3).detail


def test_a_report_cannot_be_changed_later() -> None:
    """What a step found is a fact for whoever reads it from another thread."""
    report = PublishReport(trouble=(Trouble("ApiInvalid", "why", "what to do"),))
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.settled = True  # type: ignore[misc]
