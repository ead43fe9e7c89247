"""docs/isolation-tags.md says what the code says: commands, manifest, settings, form."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
import yaml  # type: ignore[import-untyped] # ships no types

from fleet.admission import rules
from fleet.admission.ground import Ground
from fleet.admission.tls import CONNECTION_WAIT_S, CONNECTIONS_MAX
from fleet.admission.webhook import BODY_MAX, PATH
from fleet.cli.main import build
from fleet.core.settings_parse import parse
from fleet.plugin import tags, tags_list
from fleet.plugin.configuration import TAG_MAX, Deallocation
from tests.fleet.admission.rights import tag

PAGE = (Path(__file__).parent.parent / "docs" / "isolation-tags.md").read_text()
APP = typer.main.get_command(build())
COMMANDS = re.findall(r"^\$ (fleet .*)$", PAGE, re.MULTILINE)


def block(language: str) -> str:
    """The first block of a language."""
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_a_verb_with_these_options(line: str) -> None:
    """Every line can be typed as it stands."""
    words = shlex.split(line)[1:]
    command = APP
    context = typer.Context(command, info_name="fleet")
    while hasattr(command, "get_command"):
        name = words.pop(0)
        command = command.get_command(context, name)
        assert command is not None, name
        context = typer.Context(command, info_name=name, parent=context)
    command.make_context("x", words, parent=context)


def test_the_manifest_keeps_the_rules() -> None:
    """C2, C5: the template lints clean."""
    assert rules.judge(yaml.safe_load(block("yaml")), Ground()) == []


def test_the_settings_are_settings() -> None:
    """The table can be put into a settings file."""
    assert parse(tomllib.loads(block("toml"))).admission.required


def test_the_form_is_the_one_that_is_read() -> None:
    """C5: keys, types of what is signed, and limits."""
    table = PAGE.partition("## Canonical form")[2].partition("The signature is")[0]
    named = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    assert sorted(key for cell in named for key in re.findall(r"`(\w+)`", cell)) == sorted(
        tag().as_json()
    )
    for kind in (tags.PAYLOAD_TYPE, tags_list.PAYLOAD_TYPE):
        assert kind in PAGE
    assert f"DSSEv1 {len(tags.PAYLOAD_TYPE)} {tags.PAYLOAD_TYPE} " in PAGE
    assert f"at most {TAG_MAX}" in PAGE
    assert f"1 to {tags.NAMESPACES_MAX} exact names" in PAGE
    assert all(f"| `{policy}` |" in PAGE for policy in Deallocation)


def test_the_limits_of_the_webhook_are_its_own() -> None:
    """B65: size, connections and time."""
    assert f"`POST {PATH}`" in PAGE
    assert f"more than {BODY_MAX >> 20} MiB" in PAGE
    assert f"At most {CONNECTIONS_MAX} connections of at most {CONNECTION_WAIT_S:g} s" in PAGE
