"""The generated policies and the table of rules as text. Pure.

`make docs` writes them to deploy/helm/fleetscrub/policies/ and docs/admission.md; a test holds the
files to the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml  # type: ignore[import-untyped] # ships no types

from fleet.admission.ground import Ground, told
from fleet.admission.policies import files
from fleet.admission.rules import TABLE

HEAD = "# Generated from fleet/admission by `make docs`; do not edit.\n"
WIDTH = 100


class _Dumper(yaml.SafeDumper):  # type: ignore[misc] # the library ships no types
    """Texts of several lines as blocks, so that CEL can be read."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Never: an alias in a manifest surprises whoever reads it."""
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def rendered(ground: Ground) -> Mapping[str, str]:
    """The text of each policy file, by its name."""
    return {
        name: HEAD
        + yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=WIDTH, allow_unicode=True)
        for name, objects in files(ground).items()
    }


def table(ground: Ground) -> str:
    """The rules as a Markdown table."""
    lines = ["| rule | over | what is wrong | what to write instead | judged by |"]
    lines.append("|---|---|---|---|---|")
    for subject, rules in TABLE.items():
        for rule in rules:
            where = "lint and admission" if rule.cel else f"lint only: {rule.why_lint_only}"
            row = (f"`{rule.id}`", subject, told(rule.says, ground), told(rule.remedy, ground))
            lines.append(f"| {' | '.join(row)} | {where} |")
    return "\n".join(lines) + "\n"
