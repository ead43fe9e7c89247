"""Manifests as text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.admission.documents import RENDER_FIRST, Broken, Document, documents

POD = """apiVersion: v1
kind: Pod
metadata:
  name: a
spec:
  containers:
  - name: x
    image: y
"""


def one(text: str) -> Document:
    """The only document of a text."""
    (found,) = documents(text)
    assert isinstance(found, Document)
    return found


def broken(text: str) -> Broken:
    """The only thing in a text, which cannot be read."""
    (found,) = documents(text)
    assert isinstance(found, Broken)
    return found


def test_every_field_has_its_line() -> None:
    """B20: the line of the field itself; of something missing that of what is around it."""
    found = one(f"# first\n---\n{POD}")
    assert found.line == 3
    assert found.line_of(("spec", "containers", 0, "image")) == 10
    assert found.line_of(("spec", "containers", 0, "securityContext")) == 9
    assert found.line_of(("spec", "volumes", 4)) == 7
    assert found.line_of(("nothing",)) == 3


def test_a_broken_document_costs_nobody_else() -> None:
    """B20: it is one finding with its line; those before and after it are read."""
    before, middle, after = documents(f"{POD}---\na: [b\n---\n{POD}")
    assert isinstance(before, Document)
    assert isinstance(middle, Broken)
    assert middle.line == 10 + 1
    assert isinstance(after, Document)
    assert after.line_of(("kind",)) == 13


def test_members_of_a_list_are_objects_of_their_own() -> None:
    """B20: with the lines they have in the text, in a list of lists as well."""
    inner = "".join(f"  {line}\n" for line in POD.splitlines()).replace("  api", "- api", 1)
    found = one(f"apiVersion: v1\nkind: PodList\nitems:\n{inner}")
    assert found.value["kind"] == "Pod"
    assert found.line_of(("metadata", "name")) == 7


def test_members_of_a_typed_list_are_of_its_kind() -> None:
    """B20: as a server writes lists; what a member says of itself counts, of a plain List nothing
    is known."""
    members = "items:\n- metadata: {name: a}\n- {kind: Other, metadata: {name: b}}\n- 1\n"
    found = documents(f"apiVersion: apps/v1\nkind: DeploymentList\n{members}")
    values = [one.value for one in found if isinstance(one, Document)]
    assert [(one["apiVersion"], one["kind"], one["metadata"]["name"]) for one in values] == [
        ("apps/v1", "Deployment", "a"),
        ("apps/v1", "Other", "b"),
    ]
    assert list(documents(f"apiVersion: v1\nkind: List\n{members}")) == []


def test_json_is_read_with_tabs_and_all() -> None:
    """B20: as `kubectl -o json` writes it, or indented with tabs."""
    value = {"apiVersion": "v1", "kind": "Pod", "spec": {"x": [1, "a\tb", None, True, 1.5]}}
    assert one(json.dumps(value)).value == value
    found = one(json.dumps(value, indent="\t"))
    assert found.value == value
    assert found.line_of(("spec", "x", 1)) == 7


def test_what_helm_printed_names_its_template() -> None:
    """B20: as Helm writes it above each document."""
    found = one(f"---\n# Source: chart/templates/pod.yaml\n{POD}")
    assert found.source == "chart/templates/pod.yaml"


@pytest.mark.parametrize("text", ["a: {{ .Values.x }}\n", "{{- if .x }}\na: 1\n{{- end }}\n"])
def test_a_template_is_to_be_rendered_first(text: str) -> None:
    """B20: what Helm has yet to render is told as that, not as broken YAML."""
    found = broken(text)
    assert found.is_template
    assert found.remedy == RENDER_FIRST


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a: 1\na: 2\n", "a is there twice"),
        ("? [x]\n: 1\n", "a key is no text"),
        ("a: !!int x\n", "x is no value"),
        ("a: *nobody\n", "found undefined alias"),
        ("a: &b\n  c: *b\n", "too large or too deep"),
        ("a: \x00\n", "not readable"),
    ],
)
def test_what_cannot_be_meant_is_broken(text: str, wrong: str) -> None:
    """B20: a key that is there twice hides one of its values; nothing is guessed."""
    assert wrong in broken(text).wrong


def test_aliases_and_merges_are_followed_and_bounded() -> None:
    """B20: as Kubernetes reads them; a text that unfolds without end is refused."""
    text = "apiVersion: v1\nkind: Pod\nx: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\nz: *x\n"
    assert one(text).value["y"] == {"a": 1, "b": 3}
    assert one(text).value["z"] == {"a": 1, "b": 2}
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "too large" in broken("\n".join(lines)).wrong


def test_texts_stay_texts() -> None:
    """B20: dates are texts to Kubernetes; numbers and truths are what they look like."""
    found = one("apiVersion: v1\nkind: Pod\na: 2026-01-01\nb: 012\nc: '012'\nd: yes\ne: ~\nf: .5\n")
    kept = {key: found.value[key] for key in "abcdef"}
    assert kept == {"a": "2026-01-01", "b": 10, "c": "012", "d": True, "e": None, "f": 0.5}


@pytest.mark.parametrize(
    ("letter", "value"),
    [("y", True), ("Y", True), ("n", False), ("N", False), ("&a y", True), ("!!bool n", False)],
)
def test_a_letter_is_a_truth_where_kubernetes_reads_it_as_one(letter: str, value: bool) -> None:
    """A5: `privileged: y` is privileged; what is quoted or longer, and a key, stays a text."""
    text = f"apiVersion: v1\nkind: Pod\np: {letter}\ny: '{letter[-1]}'\nz: !!str y\nw: yy\n"
    found = one(text).value
    assert [found[key] for key in "pyzw"] == [value, letter[-1], "y", "yy"]


@pytest.mark.parametrize(
    "text", ["", "---\n---\n", "# only words\n", "just: values\n", "- 1\n", "x"]
)
def test_what_is_no_object_is_left_out(text: str) -> None:
    """B20: values, lists and words are not judged."""
    assert list(documents(text)) == []


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab:-{}[]&*!|>'\"#%@ \n\t0", max_size=40))
def test_any_text_is_read_or_broken(text: str) -> None:
    """B20: no text makes the reader fail."""
    assert all(isinstance(found, Document | Broken) for found in documents(text))
