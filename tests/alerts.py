"""The alert rules as the chart has them, and docs/alerts.md made from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped] # ships no types

ROOT = Path(__file__).parent.parent
RULES = ROOT / "deploy" / "helm" / "fleetscrub" / "prometheus" / "rules.yaml"
PAGE = ROOT / "docs" / "alerts.md"
RUNBOOKS = ROOT / "docs" / "runbooks"
HEAD = """\
# Alerts

Generated from the rules in `deploy/helm/fleetscrub/prometheus/rules.yaml`; `make docs` writes it
anew. Each is tested to fire, to be silent while all is well, and to end
(`make test-observability`).

`critical` means that tenants wait or that you are blind: somebody gets up. `warning` can wait for
the morning. `runbook_url` is a path in this repository; put your own address before it where the
rules are installed, with the chart by `prometheusRule.runbookBaseUrl`. Without Ray there is no
coordinator that exports anything: leave FleetCoordinatorMissing out there, as the chart does with
`ray.enabled=false`. Metrics: [metrics.md](metrics.md).

No alert looks at the expiry of isolation tags or signing keys: no metric has it.
"""


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule."""

    name: str
    group: str
    expr: str
    wait: str
    """How long it must hold before it fires; "" for at once."""
    severity: str
    summary: str
    description: str
    runbook_url: str


def alerts() -> list[Alert]:
    """All rules, in order. Raises KeyError where one lacks what every rule has to have."""
    return [_alert(group["name"], rule) for group in _groups() for rule in group["rules"]]


def page() -> str:
    """docs/alerts.md as it should be."""
    lines = [HEAD]
    for group in dict.fromkeys(alert.group for alert in alerts()):
        lines += [f"## {group.removeprefix('fleetscrub-').capitalize()}", ""]
        lines += ["| alert | severity | after | what it means |", "|---|---|---|---|"]
        lines += [_row(alert) for alert in alerts() if alert.group == group]
        lines.append("")
    return "\n".join(lines)


def _row(alert: Alert) -> str:
    link = f"[{alert.name}](runbooks/{alert.name}.md)"
    return f"| {link} | {alert.severity} | {alert.wait or 'at once'} | {alert.description} |"


def _groups() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
    return found


def _alert(group: str, rule: dict[str, Any]) -> Alert:
    told = rule["annotations"]
    return Alert(
        name=rule["alert"],
        group=group,
        expr=rule["expr"],
        wait=rule.get("for", ""),
        severity=rule["labels"]["severity"],
        summary=told["summary"],
        description=told["description"],
        runbook_url=told["runbook_url"],
    )
