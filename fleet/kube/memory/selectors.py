"""Field and label selectors as the server reads them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from fleet.kube.base import Object, Resource
from fleet.kube.memory.refusal import bad_request

Match = Callable[[Object], bool]

_SET = re.compile(r"\s*([^\s!=,()]+)\s+(in|notin)\s+\(([^)]*)\)\s*")
_EQUAL = re.compile(r"\s*([^\s!=,()]+)\s*(==|=|!=)\s*([^\s!=,()]*)\s*")
_EXISTS = re.compile(r"\s*(!?)\s*([^\s!=,()]+)\s*")


def field_match(text: str, resource: Resource, selectable: Sequence[str]) -> Match:
    """A field selector; `selectable` are the paths the kind allows. Raises `Refusal` 400."""
    terms = []
    for part in filter(None, text.split(",")):
        match = _EQUAL.fullmatch(part)
        if match is None:
            raise bad_request(f"invalid selector: {text!r}; can't understand {part!r}")
        if match[1] not in selectable:
            raise bad_request(
                f'"{match[1]}" is not a known field selector of {resource.plural}: only '
                + ", ".join(f'"{name}"' for name in selectable)
            )
        terms.append((match[1], match[2] != "!=", match[3]))
    return lambda found: all(
        (_value(found, path) == value) is wanted for path, wanted, value in terms
    )


def label_match(text: str) -> Match:
    """A label selector. Raises `Refusal` 400."""
    terms = [_label_term(part, text) for part in _split(text)]
    return lambda found: all(term(found.get("metadata", {}).get("labels") or {}) for term in terms)


def _value(found: Object, path: str) -> str:
    value: object = found
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else str(value)


def _split(text: str) -> list[str]:
    return [part for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _label_term(part: str, text: str) -> Callable[[dict[str, str]], bool]:
    if match := _SET.fullmatch(part):
        name, within = match[1], match[2] == "in"
        values = {value.strip() for value in match[3].split(",")}
        if within:
            return lambda labels: name in labels and labels[name] in values
        return lambda labels: labels.get(name) not in values
    if match := _EQUAL.fullmatch(part):
        name, value, wanted = match[1], match[3], match[2] != "!="
        return lambda labels: (labels.get(name) == value) is wanted
    if match := _EXISTS.fullmatch(part):
        name, present = match[2], not match[1]
        return lambda labels: (name in labels) is present
    raise bad_request(f"unable to parse requirement: {text!r}")
