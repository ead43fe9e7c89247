"""The table of verbs and the reference made from it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fleet.cli.main import build, main
from fleet.cli.verbs import PANELS, VERBS, reference


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


def test_f57_verbs_stand_under_what_they_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    """F57: the help begins with what is done every day, and no verb is in no panel or in two."""
    main(["--help"])
    told = capsys.readouterr().out
    places = [told.index(f"{title}:") for title in PANELS]
    assert places == sorted(places)
    assert told.index("  scrub ") < told.index("  quarantine ") < told.index("  coordinate ")
    names = [verb.name for panel in PANELS.values() for verb in panel]
    assert len(names) == len(set(names)) == len(VERBS)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("fleet sta", "status"),
        ("fleet quarantine cl", "clear"),
        ("fleet scrub --sim", "--simulate"),
    ],
)
def test_f57_a_shell_completes_verbs_and_options(line: str, found: str) -> None:
    """F57: what a shell asks is answered with verbs, verbs below them and options."""
    asked = {"_FLEET_COMPLETE": "complete_bash", "COMP_WORDS": line}
    done = subprocess.run(
        [sys.executable, "-m", "fleet.cli.main"],
        env={**os.environ, **asked, "COMP_CWORD": str(len(line.split()) - 1)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found in done.stdout.split()
