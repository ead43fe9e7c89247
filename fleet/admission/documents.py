"""Manifests as text: their documents, each with the line of every field. Pure.

Texts are cut into documents before they are parsed, so that a broken one costs nobody else. JSON is
read as the YAML it is. Kubernetes' own reader is followed where readers differ: dates are texts,
and a key that is there twice is an error, since nobody could say which of the two is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml  # type: ignore[import-untyped] # ships no types

from fleet.core import errors
from fleet.kube.shapes import Object, Path

REPEATED_MAX = 20_000
"""Nodes of one document that aliases may add; what has more is no manifest."""
DEPTH_MAX = 100
_START = re.compile(r"^---(?:\s|$)")
_SOURCE = re.compile(r"^# Source: (\S+)", re.MULTILINE)
_LIST = "List"
"""Kind of a list whose members each say what they are; behind a kind, a list of that kind."""
_TEMPLATED = "{{"
RENDER_FIRST = "render it first: `helm template CHART | fleet lint -`"
_STRING = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"
_BOOL = "tag:yaml.org,2002:bool"
_LETTERS = {"y": True, "Y": True, "n": False, "N": False}
"""What Kubernetes' reader takes for a truth value besides, where it is not quoted."""
_TYPED = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float")}


class _Loader(yaml.CSafeLoader):  # type: ignore[misc] # the library ships no types
    """Reads truth values as Kubernetes does."""


_Loader.add_implicit_resolver(_BOOL, re.compile(r"[yYnN]\Z"), list(_LETTERS))


@dataclass(frozen=True, slots=True)
class Broken:
    """A document that is no manifest."""

    wrong: str
    remedy: str
    line: int
    is_template: bool = False
    """It has yet to be rendered."""


@dataclass(frozen=True)
class Document:
    """One object of a text."""

    value: Object
    lines: Mapping[Path, int]
    """Line of each field and list entry, by its path in `value`."""
    line: int
    """Where it begins."""
    source: str = ""
    """The chart's template it was rendered from, as Helm says it."""

    def line_of(self, path: Path) -> int:
        """The line of a path, or of the nearest thing around it that is there."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return self.line


def documents(text: str) -> Iterator[Document | Broken]:
    """The objects of a text in order; members of a List are objects of their own, those of a
    `PodList` pods, as a server hands them out: without kind and apiVersion.

    What is no Kubernetes object (no kind and apiVersion) is left out; what cannot be read is given
    as `Broken`, and the rest goes on.
    """
    source = ""
    for first, part in _parts(text):
        if said := _SOURCE.search(part):
            source = said[1]
        try:
            yield from _objects(part, first, source)
        except errors.InputInvalid as found:
            template = found.remedy == RENDER_FIRST
            yield Broken(found.detail, found.remedy, found.line, is_template=template)


def values(text: str) -> Mapping[str, Any]:
    """The values of a chart. Raises `InputInvalid` where they are no mapping."""
    node = _composed(text, 1)
    found = _Reading(0).value(node, ()) if node is not None else {}
    if not isinstance(found, Mapping):
        raise _broken("values of a chart are a mapping", "name the chart's values file", 1)
    return found


def _broken(wrong: str, remedy: str, line: int) -> errors.InputInvalid:
    return errors.InputInvalid(wrong, remedy=remedy, line=line)


def _parts(text: str) -> Iterator[tuple[int, str]]:
    """The documents of a text, each with the number of its first line."""
    first, lines = 1, list[str]()
    for number, line in enumerate(text.split("\n"), start=1):
        if _START.match(line):
            yield first, "\n".join(lines)
            first, lines = number, []
        lines.append(line)
    yield first, "\n".join(lines)


def _objects(part: str, first: int, source: str) -> Iterator[Document]:
    if part.lstrip().startswith(("{", "[")):
        part = part.replace("\t", " ")  # between the tokens of JSON; inside them it cannot be
    node = _composed(part, first)
    if node is not None:
        reading = _Reading(first - 1)
        value = reading.value(node, ())
        yield from _unpacked(value, reading.lines, source)


def _composed(part: str, first: int) -> yaml.Node | None:
    try:
        return yaml.compose(part, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = first + (mark.line if mark else 0)
        if _TEMPLATED in part:
            raise _broken("this is a template, not a manifest", RENDER_FIRST, line) from None
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise _broken(f"not readable: {problem}", "correct the YAML", line) from None
    except RecursionError:
        raise _broken("nested too deep", "correct the YAML", first) from None


def _unpacked(value: Any, lines: Mapping[Path, int], source: str) -> Iterator[Document]:
    """The objects in a value; `lines`: those of its paths."""
    if not isinstance(value, Mapping):
        return
    kind, version = value.get("kind"), value.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str):
        return
    items = value.get("items")
    if not kind.endswith(_LIST) or not isinstance(items, list):
        yield Document(value, lines, lines[()], source)
        return
    inside: dict[str | int, dict[Path, int]] = {}
    for path, line in lines.items():
        if len(path) > 1 and path[0] == "items":
            inside.setdefault(path[1], {})[path[2:]] = line
    told = {} if kind == _LIST else {"apiVersion": version, "kind": kind.removesuffix(_LIST)}
    for index, one in enumerate(items):
        member = {**told, **_said(one)} if isinstance(one, Mapping) else one
        yield from _unpacked(member, inside[index], source)


def _said(member: Mapping[str, Any]) -> Mapping[str, Any]:
    """A member of a list without a kind or apiVersion that is empty: that says nothing."""
    return {
        name: value for name, value in member.items() if value or name not in ("apiVersion", "kind")
    }


@dataclass
class _Reading:
    """Values of nodes, with the line of each path on the way."""

    offset: int
    lines: dict[Path, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    repeated: int = 0

    def value(self, node: yaml.Node, path: Path) -> Any:
        """What a node stands for. Raises `InputInvalid` with the field ``line``."""
        self.repeated += id(node) in self.seen
        self.seen.add(id(node))
        line = self.offset + node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if self.repeated > REPEATED_MAX or len(path) > DEPTH_MAX:
            raise _broken(
                "too large or too deep with its aliases", "write it without aliases", line
            )
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(one, (*path, index)) for index, one in enumerate(node.value)]
        return self._scalar(node, line)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key, value in node.value:
            line = self.offset + key.start_mark.line + 1
            if key.tag == _MERGE:
                parts = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for part in parts:
                    if isinstance(inherited := self.value(part, path), Mapping):
                        merged = {**inherited, **merged}
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise self._no_key(node, line)
            if key.value in found:
                raise _broken(f"{key.value} is there twice", "keep the one that is meant", line)
            self.lines[(*path, key.value)] = line
            found[key.value] = self.value(value, (*path, key.value))
        return {**merged, **found}

    @staticmethod
    def _no_key(node: yaml.MappingNode, line: int) -> errors.InputInvalid:
        if node.flow_style:
            return _broken("this is a template, not a manifest", RENDER_FIRST, line)
        return _broken("a key is no text", "correct the YAML", line)

    @staticmethod
    def _scalar(node: yaml.ScalarNode, line: int) -> Any:
        if node.tag not in _TYPED:
            return node.value
        if node.tag == _BOOL and node.value in _LETTERS:
            return _LETTERS[node.value]
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (yaml.YAMLError, ValueError, OverflowError, KeyError):
            raise _broken(f"{node.value[:40]} is no value", "correct the YAML", line) from None
