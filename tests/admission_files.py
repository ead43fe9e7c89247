"""``python -m tests.admission_files``: what is generated from the rules of admission.

The policies of the chart, and the table in docs/admission.md; `make docs` writes them too.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fleet.admission.ground import Ground
from tests.policy_text import rendered, table

ROOT = Path(__file__).parent.parent
POLICIES = ROOT / "deploy" / "helm" / "fleetscrub" / "policies"
PAGE = ROOT / "docs" / "admission.md"


def generated() -> dict[Path, str]:
    """Every generated file as it should be."""
    ground = Ground()
    policies = {POLICIES / name: text for name, text in rendered(ground).items()}
    return {**policies, PAGE: with_rules(PAGE.read_text(), ground)}


def with_rules(page: str, ground: Ground) -> str:
    """The page with the table of rules between its marks."""
    begin, end = "<!-- table:rules -->\n", "<!-- /table:rules -->"
    head, _, rest = page.partition(begin)
    return "".join([head, begin, table(ground), end, rest.partition(end)[2]])


def main() -> int:
    """Write them; 0."""
    for path, text in generated().items():
        path.write_text(text)
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
