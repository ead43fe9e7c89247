"""Server-side apply: merge by the shape of the kind, ownership per path, conflicts. Pure.

The rules the product lives by: each writer must send its full set every time (what it leaves out
and alone owned is removed), and what a merge patch or PUT wrote belongs to somebody else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet.kube.base import Object
from tests.lab.apiserver.ownership import (
    Flat,
    Item,
    Member,
    Path,
    changed,
    flatten,
    inner_shape,
    key_of,
    same,
    text,
)
from tests.lab.apiserver.refusal import CONFLICT, Cause, Refusal
from tests.lab.apiserver.schema import Free, Series, Shape, Struct, Table

APPLY = "Apply"
UPDATE = "Update"


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """Who owns paths: a field manager, by which kind of write, through which subresource."""

    manager: str
    operation: str
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """What an owner owns, and since when (API time)."""

    paths: frozenset[Path]
    time: str


Owners = dict[Owner, Holding]


@dataclass(frozen=True, slots=True)
class Applied:
    """An apply worked out: the merged object and the ownership if it is stored."""

    object: Object
    owners: Owners


def applied(
    live: Object, owners: Owners, config: Object, *, shape: Shape, owner: Owner, force: bool
) -> Applied:
    """Merge `config` into `live` for `owner`. Raises `Refusal` 409 on conflicts without force."""
    wanted = flatten(config, shape)
    there = flatten(live, shape)
    others = {other: holding for other, holding in owners.items() if other != owner}
    conflicts = _conflicts(others, wanted, there)
    if conflicts and not force:
        raise _refused(conflicts)
    kept = {
        other: Holding(holding.paths - conflicts.get(other, frozenset()), holding.time)
        for other, holding in others.items()
    }
    merged = merge(live, config, shape)
    mine = owners.get(owner)
    if mine is not None:
        merged = _pruned(merged, shape, mine.paths, frozenset(wanted), kept)
    same_set = mine is not None and mine.paths == frozenset(wanted)
    since = mine.time if same_set and mine is not None else ""
    kept[owner] = Holding(frozenset(wanted), since)
    return Applied(merged, kept)


def updated(old: Flat, new: Flat, owners: Owners, owner: Owner) -> Owners:
    """Ownership after an ordinary write: what it set or changed is the writer's alone."""
    taken = changed(old, new)
    found = {
        other: Holding(holding.paths - taken, holding.time) if other != owner else holding
        for other, holding in owners.items()
    }
    mine = found.get(owner)
    if taken:
        found[owner] = Holding((mine.paths if mine else frozenset()) | taken, "")
    return found


def settled(owners: Owners, old: Flat, new: Flat, now: str) -> Owners:
    """Ownership without what the write removed; `now` dates what just changed.

    `new` is what the writer made of the object, before the rules of its kind: what they drop
    (entries of devices that are deallocated) stays owned though it is gone (measured).
    """
    found = {}
    for owner, holding in owners.items():
        paths = frozenset(path for path in holding.paths if path in new or path not in old)
        if paths:
            found[owner] = Holding(paths, holding.time or now)
    return found


def merge(live: Any, config: Any, shape: Shape) -> Any:
    """`config` over `live`, list entries by key."""
    if isinstance(shape, Struct | Table | Free) and isinstance(config, Mapping):
        if not isinstance(live, Mapping) or (isinstance(shape, Struct) and shape.atomic):
            return config
        found = dict(live)
        for key, item in config.items():
            inner = inner_shape(shape, key)
            if inner is not None and item is not None:
                found[key] = merge(live.get(key), item, inner)
        return found
    if isinstance(shape, Series) and not shape.atomic and isinstance(config, list):
        return _merged_list(live if isinstance(live, list) else [], config, shape)
    return config


def _merged_list(live: list[Any], config: list[Any], shape: Series) -> list[Any]:
    """Both lists as one, in the server's order.

    Entries of both come in the order of `config`; those of `live` alone stay before what follows
    them there.
    """
    old, new = (
        [_identity(item, shape) for item in live],
        [_identity(item, shape) for item in config],
    )
    values, asked = dict(zip(old, live, strict=True)), dict(zip(new, config, strict=True))
    shared = [key for key in new if key in values]
    found, left, right = [], 0, 0
    while left < len(old) or right < len(new):
        if left < len(old) and (right == len(new) or old[left] != new[right]):
            key = old[left]
            if key not in asked:
                found.append(values[key])
                left += 1
                continue
            if not shared or shared[0] != key:
                left += 1
                continue
        key = new[right]
        if left < len(old) and old[left] == key:
            left += 1
        if shared and shared[0] == key:
            shared.pop(0)
        item = asked[key]
        found.append(merge(values[key], item, shape.element) if key in values else item)
        right += 1
    return found


def _identity(item: Any, shape: Series) -> Item | Member:
    return Member(item) if shape.unique else key_of(item, shape.keys)


def _conflicts(others: Owners, wanted: Flat, there: Flat) -> dict[Owner, frozenset[Path]]:
    differing = frozenset(
        path for path, leaf in wanted.items() if path not in there or not same(there[path], leaf)
    )
    found = {other: holding.paths & differing for other, holding in others.items()}
    return {other: paths for other, paths in found.items() if paths}


def _refused(conflicts: dict[Owner, frozenset[Path]]) -> Refusal:
    causes = []
    for owner, paths in sorted(conflicts.items()):
        whose = f'conflict with "{owner.manager}"'
        if owner.subresource:
            whose += f' with subresource "{owner.subresource}"'
        if owner.operation == UPDATE:
            whose += " using an update"
        causes += [Cause(CONFLICT, text(path), whose) for path in sorted(paths, key=text)]
    many = f"{len(causes)} conflict{'s' if len(causes) > 1 else ''}"
    told = ", ".join(f"{cause.message}: {cause.field}" for cause in causes)
    return Refusal(409, "Conflict", f"Apply failed with {many}: {told}", causes=causes)


def _pruned(
    merged: Any, shape: Shape, before: frozenset[Path], wanted: frozenset[Path], others: Owners
) -> Any:
    """Without what the owner owned alone and no longer asks for.

    An entry goes with everything in it, even what others own inside: who owns no more than a field
    of it (by a patch of that field) does not keep the entry (measured).
    """
    held = wanted.union(*(holding.paths for holding in others.values()))
    found = json.loads(json.dumps(merged))
    for path in sorted(before - held, key=len):
        _remove(found, shape, path)
    return found


def _remove(value: Any, shape: Shape, path: Path) -> None:
    head, rest = path[0], path[1:]
    if isinstance(head, str):
        if isinstance(value, dict) and head in value:
            inner = inner_shape(shape, head)
            if not rest:
                del value[head]
            elif inner is not None:
                _remove(value[head], inner, rest)
                if value[head] == {}:
                    del value[head]
    elif isinstance(value, list) and isinstance(shape, Series):
        for index, item in enumerate(value):
            if _identity(item, shape) == head:
                if rest:
                    _remove(item, shape.element, rest)
                else:
                    del value[index]
                return
