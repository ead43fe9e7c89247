"""The alert rules as the chart installs them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.alerts import alerts
from tests.deploy.chart import rendering

pytestmark = pytest.mark.chart
RULE: rendering.Values = {"enabled": True}


def rules(values: rendering.Values) -> dict[str, Any]:
    """Rules by the name of their alert."""
    groups = rendering.one("PrometheusRule", "fleetscrub", values)["spec"]["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def test_e4_the_rules_are_those_that_are_tested() -> None:
    """E4: expression, time, severity and texts arrive as they stand in the file."""
    found = rules({"prometheusRule": RULE})
    assert [
        (name, rule["expr"], rule.get("for", ""), rule["labels"]["severity"], rule["annotations"])
        for name, rule in found.items()
    ] == [
        (
            alert.name,
            alert.expr,
            alert.wait,
            alert.severity,
            {
                "summary": alert.summary,
                "description": alert.description,
                "runbook_url": alert.runbook_url,
            },
        )
        for alert in alerts()
    ]


@pytest.mark.parametrize("slash", ["", "/"])
def test_e4_a_runbook_is_found_where_the_installation_has_it(slash: str) -> None:
    """E4: the address that is given stands before the path, with one slash between."""
    base = "https://example.com/fleetscrub"
    found = rules({"prometheusRule": {**RULE, "runbookBaseUrl": base + slash}})
    for name, rule in found.items():
        assert rule["annotations"]["runbook_url"] == f"{base}/docs/runbooks/{name}.md"


def test_e4_no_coordinator_is_missed_where_there_is_none() -> None:
    """E4: without Ray the alert would fire for ever."""
    without: rendering.Values = {"prometheusRule": RULE, **rendering.VARIANTS["without-ray"]}
    assert rules({"prometheusRule": RULE}).keys() - rules(without).keys() == {
        "FleetCoordinatorMissing"
    }
