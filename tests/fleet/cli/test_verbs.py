"""The table of verbs and the reference made from it."""

from __future__ import annotations

from fleet.cli.main import build
from fleet.cli.verbs import VERBS, reference


def test_every_verb_is_in_the_reference() -> None:
    """Documentation is generated from the table the commands are built from."""
    text = reference(build())
    for verb in VERBS:
        assert f"| `fleet {verb.name}` | {verb.line} |" in text
        assert f"## `fleet {verb.name}" in text


def test_every_verb_speaks_json() -> None:
    """--json works on every verb that answers, so that scripts need no exceptions."""
    sections = reference(build()).split("\n## ")[1:]
    assert len(sections) >= len(VERBS)
    silent = [part.splitlines()[0] for part in sections if "`--json`" not in part]
    services = [
        "`fleet admission serve`",
        "`fleet coordinate`",
        "`fleet node standby`",
        "`fleet schema`",
    ]
    assert sorted(silent) == services, "services, which answer nothing, and what is JSON anyway"


def test_every_option_is_explained() -> None:
    """No option or argument is listed without its meaning."""
    rows = [line for line in reference(build()).splitlines() if line.startswith("| `--")]
    assert rows
    assert [row for row in rows if row.endswith("|  |")] == []


def test_hidden_options_stay_hidden() -> None:
    """What is for submitted jobs only is not offered to people."""
    assert "--settings-json" not in reference(build())
