"""Every file, setting and link that a document names exists."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped] # ships no types

from actors.identity import COORDINATOR_LABEL, HOST_LABEL
from fleet.core.settings_parse import SECTIONS, parse
from tests.document import ROOT, anchors, blocks, inline, links, pages

PLACES = ("actors/", "deploy/", "docs/", "fleet/", "jobs/", "node_plugin/", "tests/")
LABELS = {HOST_LABEL, COORDINATOR_LABEL}
SETTING = re.compile(r"^(?:settings\.)?([a-z]+)\.([a-z_]+)(?: ?= ?.*)?$")
VALUES = json.loads((ROOT / "deploy/helm/fleetscrub/values.schema.json").read_text())
FILES = frozenset({"db", "json", "jsonl", "toml", "yaml", "lock", "sock", "key", "pub", "py", "md"})
FIGURES = frozenset({"docs/compliance.md"})
"""Pages whose dotted names are paths into a certificate."""


@pytest.mark.parametrize("page", sorted(pages()))
def test_links_lead_somewhere(page: str) -> None:
    """Each relative link names a file of the repository, each anchor a heading of it."""
    found = []
    for link in links(pages()[page]):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent.joinpath(path).resolve() if path else ROOT / page
        inside = ROOT in target.parents and target.exists()
        if not inside or (anchor and anchor not in anchors(target.read_text())):
            found.append(link)
    assert found == []


def exists(name: str) -> bool:
    """Whether a file, directory or pattern of files of the repository goes by this name."""
    name = re.sub(r"::\w+$", "", name).rstrip("/.")
    choices = [name]
    if braces := re.search(r"\{([^}]*)\}", name):
        choices = [name.replace(braces[0], one.strip()) for one in braces[1].split(",")]
    return all(any(ROOT.glob(one)) if "*" in one else (ROOT / one).exists() for one in choices)


@pytest.mark.parametrize("page", sorted(pages()))
def test_files_named_exist(page: str) -> None:
    """A path in code or a block that begins like one of ours is one of ours."""
    text = pages()[page]
    shown = [*inline(text), *(content for _, content in blocks(text))]
    words = {word.strip("`,;:()'\"") for piece in shown for word in re.split(r"[\s|]+", piece)}
    named = {word for word in words if word.startswith(PLACES)} - LABELS
    assert {
        word for word in named if not re.search(r"[<>]|[A-Z]{3,}", word) and not exists(word)
    } == set()


def in_chart(path: str) -> bool:
    """Whether the chart's schema has this value."""
    found: Any = VALUES
    for key in path.split("."):
        while isinstance(reference := found.get("$ref"), str):
            found = VALUES
            for step in reference.removeprefix("#/").split("/"):
                found = found[step]
        found = found.get("properties", {}).get(key)
        if not isinstance(found, dict):
            return False
    return True


@pytest.mark.parametrize("page", sorted(set(pages()) - FIGURES))
def test_settings_named_exist(page: str) -> None:
    """`section.setting` is a setting, or a value of the chart where that has the same word."""
    found = []
    for piece in inline(pages()[page]):
        match = SETTING.match(piece)
        if match is None or match[1] not in SECTIONS or match[2] in FILES:
            continue
        if match[2] not in SECTIONS[match[1]].model_fields and not in_chart(
            piece.partition("=")[0].strip()
        ):
            found.append(piece)
    assert found == []


@pytest.mark.parametrize("page", sorted(pages()))
def test_examples_are_read_by_what_they_are_for(page: str) -> None:
    """TOML is a valid settings file, YAML and JSON are well-formed."""
    for language, content in blocks(pages()[page]):
        if language == "toml":
            parse(tomllib.loads(content))
        elif language == "yaml":
            list(yaml.safe_load_all(content))
        elif language == "json":
            json.loads(content)


def test_no_document_leads_out_of_the_project() -> None:
    """Nothing is told of a machine that a reader has not: only addresses of the public web."""
    found = [
        f"{page}: {word}"
        for page, text in pages().items()
        for word in re.findall(r"(?:/home/\w+|/work/\w+|/tmp/\w+|\.\./\.\./\.\.)", text)
    ]
    assert found == []


def test_every_document_is_in_the_index() -> None:
    """docs/README.md names each document, so that a reader finds it."""
    index = pages()["docs/README.md"]
    named = {(ROOT / "docs" / link.partition("#")[0]).resolve() for link in links(index)}
    named |= {path for one in named if one.is_dir() for path in Path(one).glob("*.md")}
    there = {ROOT / page for page in pages() if page != "docs/README.md"}
    assert {str(path.relative_to(ROOT)) for path in there - named} == set()
