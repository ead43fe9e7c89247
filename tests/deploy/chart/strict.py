"""Whether an object has only fields that Kubernetes knows, of the types it knows.

The API's own description comes with its Python client; a field that is not in it would be dropped
by the API server in silence. Kinds that are not Kubernetes' own have closed schemas in `custom`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

from kubernetes import client

from tests.deploy.chart import custom

_LIST = re.compile(r"^[Ll]ist\[(.+)\]$")
_MAP = re.compile(r"^[Dd]ict\(str, (.+)\)$|^[Dd]ict\[str, (.+)\]$")
_SIMPLE: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "object": (object,),
    "datetime": (str,),
    "bytearray": (str,),
    "bytes": (str,),
}


def problems(found: dict[str, Any]) -> list[str]:
    """What is wrong with an object, each with its path; empty: nothing."""
    kind, version = found["kind"], found["apiVersion"]
    if version in custom.GROUPS:
        return custom.problems(found)
    model = f"{_prefix(version)}{kind}"
    if not hasattr(client, model):
        return [f"{kind}: {version} has no such kind"]
    return list(_checked(found, model, kind))


def _prefix(version: str) -> str:
    name = version.rpartition("/")[2]
    return name[0].upper() + name[1:]


def _checked(value: Any, model: str, path: str) -> Iterator[str]:
    if listed := _LIST.match(model):
        yield from _in_list(value, listed[1], path)
    elif mapped := _MAP.match(model):
        inner = mapped[1] or mapped[2]
        if not isinstance(value, dict):
            yield f"{path}: {value!r} is no map"
            return
        for key, each in value.items():
            if not isinstance(key, str):
                yield f"{path}: key {key!r} is no text"
            yield from _checked(each, inner, f"{path}.{key}")
    elif model in _SIMPLE:
        right = isinstance(value, _SIMPLE[model])
        if model == "int" and isinstance(value, bool):
            right = False
        if not right:
            yield f"{path}: {value!r} is no {model}"
    else:
        yield from _in_model(value, model, path)


def _in_list(value: Any, model: str, path: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{path}: {value!r} is no list"
        return
    for number, each in enumerate(value):
        yield from _checked(each, model, f"{path}[{number}]")


def _in_model(value: Any, model: str, path: str) -> Iterator[str]:
    described = getattr(client, model)
    if not isinstance(value, dict):
        yield f"{path}: {value!r} is no {model}"
        return
    types: dict[str, str] = described.openapi_types
    names: dict[str, str] = {wire: name for name, wire in described.attribute_map.items()}
    for key, each in value.items():
        if key not in names:
            yield f"{path}.{key}: {model} has no such field"
            continue
        if each is None:
            yield f"{path}.{key}: is empty"
            continue
        yield from _checked(each, types[names[key]], f"{path}.{key}")
    yield from (f"{path}.{wire}: is required" for wire in _required(model) if wire not in value)


@functools.cache
def _required(model: str) -> tuple[str, ...]:
    """Fields, as written in a manifest, that the model is nothing without."""
    described = getattr(client, model)
    # Python's own words have other names among the fields; none of them is required.
    wires: dict[str, str] = described.attribute_map
    needed = [name for name, field in described.model_fields.items() if field.is_required()]
    return tuple(wires[name] for name in needed)
