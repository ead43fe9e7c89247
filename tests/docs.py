"""``python -m tests.docs``: regenerate what the documents take from the code.

The diagrams of the README from the state tables, docs/cli.md from the verb table, docs/settings.md
from the settings. tests/test_docs.py fails when one of them is stale.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fleet import diagrams, settings_parse
from fleet.cli import verbs

ROOT = Path(__file__).parent.parent


def generated() -> dict[Path, str]:
    """Every generated document as it should be."""
    readme = ROOT / "README.md"
    return {
        readme: diagrams.embed(readme.read_text()),
        ROOT / "docs" / "cli.md": verbs.reference(verbs.build()),
        ROOT / "docs" / "settings.md": settings_parse.reference(),
    }


def main() -> int:
    """Write them; 0."""
    for path, text in generated().items():
        path.write_text(text)
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
