"""F56: what verbs answer with --json has the shape that `fleet schema` tells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from jsonschema import Draft202012Validator

from fleet.cli import schema, verbs
from fleet.cli.main import main
from tests.fleet.evidence.samples import Site

SCHEMA = schema.document()
SHAPES = Draft202012Validator(SCHEMA)
OTHERS = {"error", "run", "claim receipts", "evidence page", "scrub plan", "sim faults"}
"""Kinds that are a second answer of a verb, and the error of any."""
Ask = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a verb with --json; its exit code and the one document it printed, which is in shape."""

    def call(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
        code = main([*(str(argument) for argument in arguments), "--json"])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert [error.message for error in SHAPES.iter_errors(found)] == []
        return code, found

    return call


@pytest.fixture
def state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A simulated fleet of one node and two devices, of which one is out of service."""
    place = ["--state", str(tmp_path / "state")]
    shape = ["--simulate", "1x2", "--memory", "1MiB"]
    assert main(["scrub", "--dry-run", *shape, *place]) == 0
    assert main(["quarantine", "add", "gpu-0", "--reason", "smells", *place]) == 0
    capsys.readouterr()
    return tmp_path / "state"


def _commands(app: Any, path: tuple[str, ...] = ()) -> list[str]:
    found = []
    for name, command in getattr(app, "commands", {}).items():
        here = (*path, name)
        if any("--json" in parameter.opts for parameter in command.params):
            found.append(" ".join(here))
        found += _commands(command, here)
    return found


def test_f56_every_verb_has_a_shape_of_its_own() -> None:
    """F56: no verb answers with --json what the schema does not tell, and nothing else is told."""
    commands = set(_commands(typer.main.get_command(verbs.build())))
    kinds = set(schema.answers()) - OTHERS
    families = {kind: [one for one in commands if one.startswith(kind)] for kind in kinds}
    without = {
        command
        for command in commands
        if not any(command.startswith(kind) or kind.startswith(command) for kind in kinds)
    }
    assert without == set()
    stray = {
        kind
        for kind, found in families.items()
        if not found and not any(kind.startswith(command) for command in commands)
    }
    assert stray == set()


@pytest.mark.parametrize(
    "line",
    [
        "devices", "status", "runs", "audit", "sweep", "reconcile --dry-run", "uninstall --plan",
        "quarantine list",
        "quarantine add gpu-1 --reason loud", "devices retire gpu-1 --reason old",
        "node adopt", "store init", "report --requirement SEC21-05",
        "sim write --device gpu-1 --text x", "sim read --device gpu-1", "sim search --text x",
        "sim fault hang --device gpu-1", "sim reboot", "evidence list", "evidence losses",
        "scrub --dry-run",
    ],
)  # fmt: skip
def test_f56_what_a_verb_answers_is_in_shape(ask: Ask, state: Path, line: str) -> None:
    """F56: the documents of a fleet validate against the schema, version and kind first."""
    code, found = ask(*line.split(), "--state", state)
    assert code in (0, 1), found
    assert list(found)[:2] == ["version", "kind"]
    assert found["version"] == 1
    words = " ".join(word for word in line.split() if not word.startswith("-"))
    assert words.startswith(found["kind"].split()[0])


@pytest.mark.parametrize(
    "line",
    [
        "devices --node", "scrub --select colour=red", "evidence show 00", "runs nowhere",
        "quarantine clear gpu-9 --reason x", "lint /nowhere.yaml", "tag verify nonsense",
    ],
)  # fmt: skip
def test_f56_what_could_not_run_says_so_in_shape(ask: Ask, state: Path, line: str) -> None:
    """F56: on exit 2 the document is the error with its remedy, or an answer that tells it."""
    place = () if line.split(maxsplit=1)[0] in ("lint", "tag") else ("--state", state)
    code, found = ask(*line.split(), *place)
    assert code == 2
    if found["kind"] == "error":
        assert found["remedy"]
    else:
        assert found["unread"]


def test_f56_evidence_is_told_in_shape(ask: Ask, tmp_path: Path) -> None:
    """F56: certificates, verification, keys, copies and pages have a shape each."""
    site = Site(tmp_path / "state")
    (digest, *_) = site.certify("node-1")
    site.countersign()
    place = ("--state", site.state)
    kinds = [
        ask("evidence", "list", *place)[1]["kind"],
        ask("evidence", "show", digest, *place)[1]["kind"],
        ask("evidence", "show", digest, "--html", tmp_path / "page.html", *place)[1]["kind"],
        ask("evidence", "verify", *place)[1]["kind"],
        ask("evidence", "keys", "list", *place)[1]["kind"],
        ask("evidence", "export", tmp_path / "copy", *place)[1]["kind"],
    ]
    assert kinds == [
        "evidence list", "evidence show", "evidence page", "evidence verify", "evidence keys",
        "evidence export",
    ]  # fmt: skip


def test_f56_times_are_text_and_nothing_else(ask: Ask, state: Path) -> None:
    """F56: a time is RFC 3339 in UTC, null for never, and no number of seconds in any document."""
    _, found = ask("status", "--state", state)
    (node,) = found["nodes"]
    assert node["at"].endswith("Z")
    (device, _) = sorted(node["devices"], key=lambda one: str(one["name"]))
    assert device["reasons"][0]["since"].endswith("Z")
    assert device["checked_at"] is None or device["checked_at"].endswith("Z")
    told = json.dumps(SCHEMA)
    for name in ("since", "started_at", "ended_at", "checked_at", "allocated_at", "issued_at"):
        assert f'"{name}": {{"type": "number"' not in told
