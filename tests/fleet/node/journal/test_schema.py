"""Schema steps are history: released ones never change."""

from __future__ import annotations

from pathlib import Path

from fleet.node.journal import schema

FIXTURES = Path(__file__).parent / "fixtures"


def test_every_version_has_its_frozen_file() -> None:
    """B26: whoever adds a step adds the file that the version before it wrote."""
    frozen = {path.name for path in FIXTURES.glob("journal-v*.db")}
    assert frozen == {f"journal-v{v}.db" for v in range(1, schema.SCHEMA.version + 1)}
