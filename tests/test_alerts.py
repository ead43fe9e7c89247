"""Alerts, their page and their runbooks belong together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import typer
from typer.core import TyperArgument, TyperGroup

from fleet.cli import verbs
from tests.alerts import RUNBOOKS, Alert, alerts
from tests.promql import faults, undoubled

ALERTS = alerts()
SECTIONS = ["What it means", "What is at risk", "Look", "Decide", "Do", "Over when"]
COMMAND = re.compile(r"`fleet ([^`]*)`")


@cache
def _root() -> TyperGroup:
    found = typer.main.get_command(verbs.build())
    assert isinstance(found, TyperGroup)
    return found


def _fault(words: Sequence[str]) -> str:
    """Why the command line would not take these words; "" where it would."""
    command: Any = _root()
    left = list(words)
    while isinstance(command, TyperGroup):
        found = command.commands.get(left[0]) if left else None
        if found is None:
            return f"no verb {' '.join(words)}" if left else ""
        command, left = found, left[1:]
    options = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    unknown = [word for word in left if word.startswith("-") and word not in options]
    takes = any(isinstance(param, TyperArgument) for param in command.params)
    if left and not takes and not left[0].startswith("-"):
        return f"{' '.join(words)}: takes no argument"
    return f"{' '.join(words)}: no option {' '.join(unknown)}" if unknown else ""


def commands(text: str) -> Iterator[list[str]]:
    """Every command of ours in a page, in words."""
    for found in COMMAND.findall(text):
        yield found.split()


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_has_all_that_who_is_woken_needs(alert: Alert) -> None:
    """E4: severity, one line, what it means, and a runbook of its own."""
    assert alert.name.startswith("Fleet")
    assert alert.severity in {"critical", "warning"}
    assert 10 < len(alert.summary) < 100
    assert alert.description.endswith(".")
    assert alert.runbook_url == f"docs/runbooks/{alert.name}.md"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_asks_for_what_there_is(alert: Alert) -> None:
    """E4: metrics, labels and values of the catalogue, each fact counted once."""
    assert list(faults(alert.expr)) == []
    assert undoubled(alert.expr)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_a_runbook_answers_its_questions_with_commands_that_exist(alert: Alert) -> None:
    """What it means, what is at risk, look, decide, do, over: at night nobody guesses a verb."""
    page = (RUNBOOKS / f"{alert.name}.md").read_text()
    assert page.startswith(f"# {alert.name}\n")
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == SECTIONS
    told = list(commands(page))
    assert told, "a command to look or to act with"
    assert [fault for words in told if (fault := _fault(words))] == []
    assert list(faults(page)) == []
    assert set(re.findall(r"\bFleet[A-Z]\w+", page)) <= {known.name for known in ALERTS}


def test_every_runbook_has_its_alert() -> None:
    """A page that nothing leads to would go stale unseen."""
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == {alert.name for alert in ALERTS}
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)


def test_a_verb_that_is_not_there_is_seen() -> None:
    """The reader of commands is no rubber stamp."""
    assert _fault(["quarantine", "lift"]) == "no verb quarantine lift"
    assert _fault(["status", "--loud"]) == "status --loud: no option --loud"
    assert _fault(["node", "drain", "NODE", "--reason", "WHY"]) == ""
