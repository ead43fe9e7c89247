"""The generated files."""

from __future__ import annotations

import yaml  # type: ignore[import-untyped] # ships no types

from fleet.admission.ground import Ground
from fleet.admission.policies import files
from fleet.admission.rules import TABLE
from tests import admission_files
from tests.policy_text import HEAD, rendered, table


def test_the_files_are_those_of_the_table() -> None:
    """B20: what the chart installs, and what the documentation says, are the rules of today."""
    for path, text in admission_files.generated().items():
        assert path.read_text() == text, f"{path}: run python -m tests.admission_files"
    kept = {path.name for path in admission_files.POLICIES.glob("*")}
    assert kept == set(rendered(Ground()))


def test_the_text_says_what_the_objects_say() -> None:
    """B20: read back, each file is the policy and its binding."""
    for name, text in rendered(Ground()).items():
        assert text.startswith(HEAD)
        assert list(yaml.safe_load_all(text)) == files(Ground())[name]


def test_the_table_has_a_row_for_every_rule() -> None:
    """A5 C1 C2 C3 C4 C5 D1 D2: id, what is wrong, what to write, and who judges."""
    text = table(Ground())
    for rule in (rule for rules in TABLE.values() for rule in rules):
        assert f"| `{rule.id}` |" in text
    assert "<driver>" not in text
