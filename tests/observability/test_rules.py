"""Every alert fires, ends, and is silent while all is well: by Prometheus' own test tool."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.alerts import RULES, alerts
from tests.debian import Program
from tests.observability.cases import CASES, SLOW_CASES, Case, series
from tests.observability.prometheus import promtool as run

pytestmark = pytest.mark.observability
FIRING = 'count by (alertname) (ALERTS{alertstate="firing"})'


def _test(case: Case | None, unit: str, looks: Sequence[int] = ()) -> dict[str, Any]:
    """One test of promtool; `looks` are further times at which nothing fires."""
    asked: list[dict[str, Any]] = [
        {"expr": FIRING, "eval_time": f"{at}{unit}", "exp_samples": []} for at in looks
    ]
    if case is not None:
        fired = {"labels": f'{{alertname="{case.alert}"}}', "value": case.count}
        asked += [
            {"expr": FIRING, "eval_time": f"{case.fires}{unit}", "exp_samples": [fired]},
            {"expr": FIRING, "eval_time": f"{case.over}{unit}", "exp_samples": []},
        ]
    found = series(case)
    return {
        "interval": f"1{unit}",
        "input_series": [{"series": name, "values": values} for name, values in found.items()],
        "promql_expr_test": asked,
    }


def _file(path: Path, unit: str, tests: list[dict[str, Any]]) -> str:
    content = {"rule_files": [str(RULES)], "evaluation_interval": f"1{unit}", "tests": tests}
    path.write_text(json.dumps(content))  # which is YAML, and quick
    return str(path)


def test_every_alert_has_a_case() -> None:
    """An alert that nothing was shown to set off is a hope."""
    assert {case.alert for case in (*CASES, *SLOW_CASES)} == {alert.name for alert in alerts()}


def test_the_rules_are_sound(promtool: Program) -> None:
    """promtool reads every expression and template."""
    assert f"{len(alerts())} rules found" in run(promtool, "check", "rules", str(RULES))


def test_each_alert_fires_ends_and_is_otherwise_silent(promtool: Program, tmp_path: Path) -> None:
    """E4: in each case its alert fires and no other does; after it, and without it, none does."""
    minutes = [_test(None, "m", looks=range(0, 90, 10)), *(_test(case, "m") for case in CASES)]
    hours = [_slow(case) for case in SLOW_CASES]
    run(promtool, "test", "rules", _file(tmp_path / "minutes.yaml", "m", minutes))
    run(promtool, "test", "rules", _file(tmp_path / "hours.yaml", "h", hours))


def _slow(case: Case) -> dict[str, Any]:
    """By the hour, only with the series it is about: time stamps stand still for the others."""
    test = _test(case, "h")
    (name,) = case.changes
    kept = (name, *case.added)
    test["input_series"] = [one for one in test["input_series"] if one["series"].startswith(kept)]
    return test
