"""The Grafana dashboards ask for metrics that exist, and show all that matter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.metrics.catalogue import METRICS, of_series
from tests.alerts import alerts
from tests.promql import SELECTOR, faults, undoubled

DIRECTORY = Path(__file__).parent.parent / "deploy" / "helm" / "fleetscrub" / "grafana"
BOARDS = sorted(DIRECTORY.glob("*.json"))


def read(path: Path) -> dict[str, Any]:
    """A dashboard."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def queries(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Title of the panel and query, of panels and variables."""
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_every_query_asks_for_what_there_is(path: Path) -> None:
    """E4: a panel over a name that does not exist is empty, and looks like peace."""
    wrong = [(title, fault) for title, query in queries(read(path)) for fault in faults(query)]
    assert wrong == []
    panels = [query for title, query in queries(read(path)) if "label_values" not in query]
    assert [query for query in panels if not undoubled(query)] == []


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_dashboard_can_be_imported(path: Path) -> None:
    """Its data source is a variable, ids do not repeat, panels do not overlap."""
    board = read(path)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    assert board["templating"]["list"][0]["name"] == "datasource"
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
            legends = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert all(re.search(rf"\b{legend}\b", target["expr"]) for legend in legends)


def test_dashboards_have_addresses_of_their_own() -> None:
    """Links and updates find a dashboard by its uid."""
    uids = [read(path)["uid"] for path in BOARDS]
    assert len(BOARDS) == 3
    assert len(set(uids)) == len(uids)
    assert all(len(uid) <= 40 for uid in uids)


def test_what_is_measured_is_shown() -> None:
    """E4: nearly every metric has a panel or an alert; those that have none are named here."""
    asked = [query for path in BOARDS for _, query in queries(read(path))]
    asked += [alert.expr for alert in alerts()]
    found = [of_series(name) for query in asked for name, _ in SELECTOR.findall(query)]
    shown = {metric.name for metric in found if metric is not None}
    missing = {metric.name for metric in METRICS} - shown
    assert missing == {
        "fleet_coordinator_evidence_archive",
        "fleet_coordinator_evidence_failing",
        "fleet_coordinator_step_seconds",
        "fleet_plugin_node_blocked",
        "fleet_plugin_registrations_total",
        "fleet_plugin_slices_confirmed_timestamp_seconds",
    }
