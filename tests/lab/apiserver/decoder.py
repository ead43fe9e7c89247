"""What the server makes of a body: types checked, unknown fields dropped, values canonical. Pure.

Two strictnesses, as measured: an ordinary write drops unknown fields silently and answers 400 to
wrong types; server-side apply answers 500 to both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from fleet.kube.base import Object, Resource
from tests.lab.apiserver import quantity, times
from tests.lab.apiserver.ownership import inner_shape
from tests.lab.apiserver.refusal import bad_request, malformed, unpatchable
from tests.lab.apiserver.schema import Free, Leaf, Raw, Series, Shape, Struct, Table

_INTEGERS: dict[str, int] = {"int32": 2**31, "int64": 2**63}
_CANONICAL: dict[str, Callable[[str], str]] = {
    "time": times.whole_seconds,
    "microtime": times.microseconds,
    "quantity": quantity.canonical,
}


def decode(body: Object, shape: Shape) -> Object:
    """The body as stored by an ordinary write. Raises `Refusal` 400."""
    try:
        found = _decoded(body, shape, "")
    except _Mismatch as error:
        raise bad_request(f"the object provided is unrecognized: {error}") from error
    return found if isinstance(found, dict) else {}


def converted(body: Object, shape: Shape, resource: Resource) -> Object:
    """The merged object of an apply as stored. Raises `Refusal` 500 for what does not parse."""
    try:
        found = _decoded(body, shape, "")
    except _Mismatch as error:
        target = f"{resource.api_version}, Kind={resource.kind}"
        raise malformed(f"unable to convert unstructured object to {target}: {error}") from error
    return _respelled(found, shape) if isinstance(found, dict) else {}


def patched(body: Object, shape: Shape) -> Object:
    """The object a merge or JSON patch made, as stored. Raises `Refusal` 422."""
    try:
        found = _decoded(body, shape, "")
    except _Mismatch as error:
        raise unpatchable(str(error)) from error
    return found if isinstance(found, dict) else {}


def check_typed(body: Object, shape: Shape, *, label: str) -> None:
    """What an apply demands of its body: declared fields, right types, unique keys; else 500."""
    found: list[str] = []
    _check(body, shape, "", found)
    if found:
        raise malformed(f"failed to create typed patch object ({label}): {'; '.join(found)}")


def _respelled(value: Any, shape: Shape) -> Any:
    """As an apply writes the whole object out: raw JSON with its keys sorted (measured, F61).

    Every other write keeps the order in which the keys were sent.
    """
    if isinstance(shape, Raw):
        return json.loads(json.dumps(value, sort_keys=True))
    if isinstance(shape, Series) and isinstance(value, list):
        return [_respelled(item, shape.element) for item in value]
    if isinstance(shape, Struct | Table) and isinstance(value, Mapping):
        found = {}
        for key, item in value.items():
            inner = inner_shape(shape, key)
            found[key] = item if inner is None else _respelled(item, inner)
        return found
    return value


class _Mismatch(Exception):
    """A value that does not parse as its type."""


def _decoded(value: Any, shape: Shape, path: str) -> Any:
    if isinstance(shape, Raw):
        return value
    if isinstance(shape, Free):
        return _without_nulls(value)
    if isinstance(shape, Leaf):
        return _leaf(value, shape, path)
    if isinstance(shape, Series):
        if not isinstance(value, list):
            raise _Mismatch(f"json: cannot unmarshal {_type(value)} into field {path} of type list")
        return [
            {} if item is None and isinstance(shape.element, Struct) else _decoded(
                item, shape.element, f"{path}[{index}]"
            )
            for index, item in enumerate(value)
        ]  # fmt: skip
    if not isinstance(value, Mapping):
        raise _Mismatch(f"json: cannot unmarshal {_type(value)} into field {path} of type object")
    if isinstance(shape, Table):
        return {
            key: _decoded(item, shape.element, f"{path}.{key}")
            for key, item in value.items()
            if item is not None
        }
    found = {
        key: _decoded(item, shape.fields[key], f"{path}.{key}")
        for key, item in value.items()
        if item is not None and key in shape.fields
    }
    kept = {key: item for key, item in found.items() if item != [] and not _empty_table(item, key)}
    return {**{k: v for k, v in shape.required.items() if k not in kept}, **kept}


def _empty_table(item: Any, key: str) -> bool:
    return item == {} and key in ("labels", "annotations", "attributes", "capacity")


def _leaf(value: Any, shape: Leaf, path: str) -> Any:
    wanted = _python_type(shape)
    if shape.type == "quantity" and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise _Mismatch(
            f"json: cannot unmarshal {_type(value)} into field {path} of type {shape.type}"
        )
    limit = _INTEGERS.get(shape.type)
    if limit is not None and isinstance(value, int) and not -limit <= value < limit:
        raise _Mismatch(
            f"json: cannot unmarshal number {value} into field {path} of type {shape.type}"
        )
    if shape.type in _CANONICAL and isinstance(value, str):
        try:
            return _CANONICAL[shape.type](value)
        except ValueError as error:
            raise _Mismatch(str(error)) from error
    return value


def _check(value: Any, shape: Shape, path: str, found: list[str]) -> None:
    if value is None or isinstance(shape, Raw | Free):
        return
    if isinstance(shape, Leaf):
        wanted = _python_type(shape)
        if shape.type == "quantity" or (
            isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))
        ):
            return
        found.append(
            f"{path}: expected {_wanted(shape)}, got &value.valueUnstructured{{Value:{value!r}}}"
        )
    elif isinstance(shape, Series):
        _check_list(value, shape, path, found)
    elif not isinstance(value, Mapping):
        found.append(f"{path}: expected map, got &value.valueUnstructured{{Value:{value!r}}}")
    else:
        for key, item in value.items():
            inner = shape.element if isinstance(shape, Table) else shape.fields.get(key)
            if inner is None:
                found.append(f"{path}.{key}: field not declared in schema")
            else:
                _check(item, inner, f"{path}.{key}", found)


def _check_list(value: Any, shape: Series, path: str, found: list[str]) -> None:
    if not isinstance(value, list):
        found.append(f"{path}: expected list, got &value.valueUnstructured{{Value:{value!r}}}")
        return
    seen: set[str] = set()
    for index, item in enumerate(value):
        _check(item, shape.element, f"{path}[{index}]", found)
        if shape.keys and isinstance(item, Mapping):
            pairs = ", ".join(f'{key}="{item[key]}"' for key in sorted(shape.keys) if key in item)
            mark = pairs
        elif shape.unique:
            mark = str(item)
        else:
            continue
        if mark in seen:
            found.append(f"{path}: duplicate entries for key [{mark}]")
        seen.add(mark)


_PYTHON_TYPES: Mapping[str, type] = {"boolean": bool, "int32": int, "int64": int}


def _python_type(shape: Leaf) -> type:
    return _PYTHON_TYPES.get(shape.type, str)


def _wanted(shape: Leaf) -> str:
    return {"boolean": "boolean", "int32": "numeric", "int64": "numeric"}.get(shape.type, "string")


def _type(value: Any) -> str:
    names: dict[type, str] = {
        bool: "bool",
        int: "number",
        float: "number",
        str: "string",
        list: "array",
        dict: "object",
    }
    return names.get(type(value), "null")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
