"""Reading specs of others: JSON and YAML, strict where laxness would show another device."""

from __future__ import annotations

import json
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.node.cdi import parser

YAML = """\
# written by hand
cdiVersion: 0.5.0
kind: vendor.com/gpu
devices:
- name: d0
  containerEdits:
    deviceNodes: [{path: /dev/a, fileMode: 0660, major: 195}]
    env: ["A=2024-01-01", B=1]
"""


def test_yaml_reads_as_the_same_spec_as_json() -> None:
    """B68: the YAML form of a spec is a spec; an octal mode is the decimal number it means."""
    tree = parser.tree(YAML, "x.yaml")
    spec = parser.spec(tree)
    assert spec == parser.spec(parser.tree(json.dumps(tree), "x.json"))
    assert spec.devices[0].container_edits.device_nodes is not None
    assert spec.devices[0].container_edits.device_nodes[0].file_mode == 0o660


def test_json_is_yaml_too() -> None:
    """B68: a file that was given JSON content under its YAML name reads the same."""
    text = json.dumps(parser.tree(YAML, "x.yaml"), indent=2)
    assert parser.tree(text, "x.yaml") == parser.tree(text, "x.json")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.json", "", "empty"),
        ("x.json", " \n", "empty"),
        ("x.json", '{"a": 1', "cannot be read"),
        ("x.json", '{"a": 1}{', "cannot be read"),
        ("x.json", '{"a": 1, "a": 2}', "twice"),
        ("x.json", '{"a": NaN}', "NaN"),
        ("x.json", "[]", "no object"),
        ("x.json", YAML, "cannot be read"),
        ("x.json", "[" * 200_000, "cannot be read"),
        ("x.json", " " * parser.SIZE_MAX_BYTES + "{}", "larger"),
        ("x.yaml", "a: [", "cannot be read"),
        ("x.yaml", "a: 1\na: 2", "twice"),
        ("x.yaml", "a: &x [1]\nb: *x", "aliases"),
        ("x.yaml", "1: a", "no text"),
        ("x.yaml", "a: .nan", "cannot be read"),
        ("x.yaml", "a: !!binary aGk=", "JSON does not have"),
        ("x.yaml", "a: !!python/object:os.system x", "cannot be read"),
        ("x.yaml", "a: 1\n---\nb: 2", "cannot be read"),
        ("x.yaml", "just text", "no object"),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_no_object_is_refused_with_the_reason(name: str, text: str, said: str) -> None:
    """Reference 7.2: what a runtime cannot read, or reads otherwise than we, is malformed."""
    with pytest.raises(parser.Malformed, match=said):
        parser.tree(text, name)


def test_bytes_that_are_no_text_are_refused() -> None:
    """B68: a file of any bytes is malformed, never an error of another kind."""
    with pytest.raises(parser.Malformed, match="UTF-8"):
        parser.tree(b"\xff{}", "x.json")


def test_dates_stay_text() -> None:
    """Reference 7.4: what looks like a date is a text in JSON."""
    assert parser.tree("a: 2024-01-01", "x.yaml") == {"a": "2024-01-01"}


@given(st.binary(max_size=200), st.sampled_from(["x.json", "x.yaml"]))
def test_reading_anything_raises_only_malformed(text: bytes, name: str) -> None:
    """B68: whatever is planted in the directory, settling goes on."""
    found: object = {}
    with suppress(parser.Malformed):
        found = parser.tree(text, name)
    assert isinstance(found, dict)


def test_b20_a_file_of_doubled_keys_is_refused_at_once() -> None:
    """B20: 200,000 keys with one doubled cost one pass, not one for each."""
    text = "{" + ",".join(f'"k{n}":0' for n in range(200_000)) + ',"k7":1}'
    began = time.process_time()
    with pytest.raises(parser.Malformed, match="'k7' twice"):
        parser.tree(text, "x.json")
    assert time.process_time() - began < 5.0
