"""``python -m tests.docs``: regenerate what the documents take from the code.

The diagrams of docs/concepts.md from the state tables, docs/cli.md from the verb table,
docs/answers.schema.json from what verbs answer, docs/settings.md from the settings,
docs/compliance.md from the requirements, the table of checks in
docs/hardware.md from the checks, docs/metrics.md from the metric catalogue, docs/alerts.md from the
alert rules, docs/admission.md and the chart's policies from the admission rules.
tests/test_docs.py fails when one of them is stale.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fleet.cli import schema, verbs
from fleet.core import settings_parse
from fleet.devices.health.checks import CHECKS
from fleet.evidence.requirements import mapping
from tests import admission_files, alerts, diagrams, metrics_page

ROOT = Path(__file__).parent.parent


def generated() -> dict[Path, str]:
    """Every generated document as it should be."""
    concepts = ROOT / "docs" / "concepts.md"
    hardware = ROOT / "docs" / "hardware.md"
    return {
        concepts: diagrams.embed(concepts.read_text()),
        hardware: with_checks(hardware.read_text()),
        ROOT / "docs" / "cli.md": verbs.reference(verbs.build()),
        ROOT / "docs" / "answers.schema.json": json.dumps(schema.document(), indent=2) + "\n",
        ROOT / "docs" / "settings.md": settings_parse.reference(),
        ROOT / "docs" / "compliance.md": mapping.reference(),
        ROOT / "docs" / "metrics.md": metrics_page.reference(),
        alerts.PAGE: alerts.page(),
        **admission_files.generated(),
    }


def with_checks(page: str) -> str:
    """The page with the table of checks between its marks."""
    begin, end = "<!-- table:checks -->\n", "<!-- /table:checks -->"
    head, _, rest = page.partition(begin)
    rows = [
        f"| {check.name} | {check.reason or 'only shown'} | {'yes' if check.mandatory else 'no'}"
        f" | {check.action or '-'} | {check.remedy} |\n"
        for check in CHECKS
    ]
    title = "| check | out of service as | unknown blocks | clears it first | what to do |\n"
    return (
        "".join([head, begin, title, "|---|---|---|---|---|\n", *rows, end])
        + (rest.partition(end)[2])
    )


def main() -> int:
    """Write them; 0."""
    for path, text in generated().items():
        path.write_text(text)
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
