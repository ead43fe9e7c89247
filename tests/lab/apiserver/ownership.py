"""Paths inside an object, and who owns them: what managedFields records. Pure.

An object is seen as a flat map from path to leaf. The item of a keyed list is a path of its own,
so that an entry stays as long as anybody owns a part of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fleet.kube.base import Object
from tests.lab.apiserver.schema import Free, Series, Shape, Struct, Table

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Item:
    """The entry of a keyed list, by its keys (those present, sorted by name)."""

    keys: tuple[tuple[str, Scalar], ...]


@dataclass(frozen=True, slots=True)
class Member:
    """The entry of a set."""

    value: Scalar


Element = str | Item | Member
Path = tuple[Element, ...]
Flat = dict[Path, Any]

_KEYED = (Struct, Table, Free)
MARK = object()
"""Stands for 'exists' where a path has no value of its own."""

_UNOWNED: frozenset[Path] = frozenset(
    {("apiVersion",), ("kind",), ("metadata",)}
    | {
        ("metadata", name)
        for name in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp",
                     "generation", "selfLink", "managedFields", "generateName",
                     "deletionTimestamp", "deletionGracePeriodSeconds")
    }
)  # fmt: skip


def flatten(value: Object, shape: Shape, *, containers: bool = False) -> Flat:
    """All owned paths of an object with their leaf values.

    An ordinary write that adds a container owns the container too, an apply never does:
    `containers` says whether they count.
    """
    found: Flat = {}
    _walk(value, shape, (), found)
    if containers:
        for path in list(found):
            for length in range(1, len(path)):
                found.setdefault(path[:length], MARK)
    return {path: leaf for path, leaf in found.items() if path[:2] not in _UNOWNED and path}


def key_of(item: Any, keys: tuple[str, ...]) -> Item:
    """The identity of an entry of a keyed list; absent keys are left out."""
    entry = item if isinstance(item, Mapping) else {}
    return Item(tuple((key, entry[key]) for key in sorted(keys) if key in entry))


def _walk(value: Any, shape: Shape, path: Path, found: Flat) -> None:
    if isinstance(shape, _KEYED) and isinstance(value, Mapping):
        if (isinstance(shape, Struct) and shape.atomic) or (not value and path):
            found[path] = value
            return
        for key, item in value.items():
            inner = inner_shape(shape, key)
            if inner is not None and item is None:
                found[(*path, key)] = None
            elif inner is not None:
                if isinstance(shape, Table) and isinstance(inner, Struct):
                    found[(*path, key)] = MARK
                _walk(item, inner, (*path, key), found)
    elif isinstance(shape, Series) and not shape.atomic and isinstance(value, list):
        for item in value:
            if shape.keys:
                inside = (*path, key_of(item, shape.keys))
                found[inside] = MARK
                _walk(item, shape.element, inside, found)
            else:
                found[(*path, Member(item))] = MARK
    else:
        found[path] = value


def inner_shape(shape: Shape, key: str) -> Shape | None:
    """The shape of the field `key`, None where there is no such field."""
    if isinstance(shape, Struct):
        return shape.fields.get(key)
    return shape.element if isinstance(shape, Table) else shape


def changed(old: Flat, new: Flat) -> frozenset[Path]:
    """Paths whose value a write set or changed."""
    return frozenset(
        path
        for path, leaf in new.items()
        if path not in old or (leaf is not MARK and not same(old[path], leaf))
    )


def same(left: Any, right: Any) -> bool:
    """Equality of leaves; True and 1 differ."""
    return type(left) is type(right) and bool(left == right)


@lru_cache(maxsize=8192)
def text(path: Path) -> str:
    """A path as causes name it: ``.status.devices[device="d0"].data``."""
    parts = []
    for element in path:
        if isinstance(element, Item):
            inside = ",".join(f"{key}={json.dumps(value)}" for key, value in element.keys)
            parts.append(f"[{inside}]")
        elif isinstance(element, Member):
            parts.append(f"[={json.dumps(element.value)}]")
        else:
            parts.append(f".{element}")
    return "".join(parts)


def fields_v1(paths: Iterable[Path]) -> Object:
    """A set of paths in the form of managedFields. The answer is shared: not to be changed."""
    return _fields_v1(frozenset(paths))


@lru_cache(maxsize=1024)
def _fields_v1(paths: frozenset[Path]) -> Object:
    root: Object = {}
    owned = sorted(paths, key=text)
    for path in owned:
        _place(root, path)
    for path in owned:
        found = _place(root, path)
        if found or isinstance(path[-1], Item):
            found["."] = {}
    return root


def _place(root: Object, path: Path) -> Object:
    place = root
    for element in path:
        place = place.setdefault(_name(element), {})
    return place


@lru_cache(maxsize=4096)
def _name(element: Element) -> str:
    if isinstance(element, Item):
        return "k:" + json.dumps(dict(element.keys), separators=(",", ":"))
    if isinstance(element, Member):
        return "v:" + json.dumps(element.value)
    return f"f:{element}"
