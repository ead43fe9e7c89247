"""Field and label selectors as the server reads them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from fleet.core.errors import InputInvalid
from fleet.core.labels import selector
from fleet.kube.base import Object, Resource
from tests.lab.apiserver.refusal import bad_request

Match = Callable[[Object], bool]

_EQUAL = re.compile(r"\s*([^\s!=,()]+)\s*(==|=|!=)\s*([^\s!=,()]*)\s*")


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
    """A label selector; an empty one selects all. Raises `Refusal` 400."""
    if not text:
        return lambda _: True
    try:
        chosen = selector(text)
    except InputInvalid as error:
        raise bad_request(f"unable to parse requirement: {error.detail}") from error
    return lambda found: chosen.matches(found.get("metadata", {}).get("labels") or {})


def _value(found: Object, path: str) -> str:
    value: object = found
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else str(value)
