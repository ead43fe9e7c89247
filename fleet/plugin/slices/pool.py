"""The pool protocol: from slices that exist and devices wanted to the writes, in order. Pure.

One pool per node, named after it. A slice carries 64 devices at most, also before any taint exists:
the first taint in a larger one would make the write invalid at the moment of quarantine (B09).

A change of one slice keeps the generation, so that a pool of one slice changes atomically.
Everything else raises it: first each slice is written with the new generation (the pool is
incomplete meanwhile, and nothing is allocated from it), then the old ones are removed. Removal
comes last because of B73: taking a slice of the highest generation away first would make an older
one be believed.

Counter sets (`fleet.plugin.slices.counters`) are in slices of their own, since a slice has either
devices or sets. They count as slices of the pool, their names have an index range of their own, and
they are written last: where the server keeps no counters, the answer for the devices tells so
first.

Every write is guarded (resourceVersion, UID), so that a plan made from an outdated reading changes
nothing. Whatever subset of a plan was carried out, the next plan made from a new reading converges.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet.core import errors
from fleet.kube.base import Object, name_of, objects_in, uid_of, version_of
from fleet.kube.slice_equality import same_slice
from fleet.plugin.slices.counters import SETS_MAX
from fleet.plugin.slices.merge import merged_set, merged_slice
from fleet.plugin.slices.pool_view import (
    carries_counters,
    devices_of,
    generation,
    pool_name,
    spec_of,
)

DEVICES_MAX = 64
"""Devices in a slice: the server's limit as soon as one of them has a taint."""
COUNTERS_FROM = 0xC0000
"""Index of the first slice with counter sets: no number of devices gets there."""
_BASE_MAX = 58
"""Where the server cuts the base of a generated name."""
_INDEX = re.compile(r"^([0-9a-f]{5})-")


@dataclass(frozen=True, slots=True)
class PoolIdentity:
    """Whose pool it is."""

    driver: str
    node: str
    node_uid: str
    """UID of the Node object now; a re-created Node has another one."""

    @property
    def pool(self) -> str:
        """The pool is named after the node: no two nodes share one."""
        return self.node


@dataclass(frozen=True, slots=True)
class Update:
    """Replace a slice; the body carries its resourceVersion."""

    body: Object


@dataclass(frozen=True, slots=True)
class Create:
    """Create a slice; the server completes its name."""

    body: Object


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a slice if it is still the one that was read."""

    name: str
    uid: str
    resource_version: str


Write = Update | Create | Delete
Contents = Mapping[int, Object]
"""What each slice of the pool carries, by index: ``devices`` or ``sharedCounters`` of its spec."""


def plan(
    existing: Sequence[Object],
    devices: Sequence[Object],
    *,
    identity: PoolIdentity,
    last: int = 0,
    counter_sets: Sequence[Object] = (),
    outrun: bool = False,
) -> tuple[Write, ...]:
    """The writes that make the pool say exactly `devices` and `counter_sets`; none when it does.

    `existing`: all slices of our driver on the node, whatever their pool. `last`: the highest
    generation this writer ever sent; a pool below it was cut or wiped, and is written above it.
    `outrun`: raise the generation in any case, because a write of ours may still land.
    Raises `InputInvalid` when two devices, or two sets, have one name.
    """
    ours = [found for found in existing if _is_ours(found, identity)]
    top = max(map(generation, ours), default=0)
    wanted = [
        *range(max(1, -(-len(devices) // DEVICES_MAX))),
        *range(COUNTERS_FROM, COUNTERS_FROM - (-len(counter_sets) // SETS_MAX)),
    ]
    matched = _match(ours, wanted, identity)
    contents = _contents(devices, counter_sets, matched)
    kept = {uid_of(found) for found in matched.values()}
    obsolete = [found for found in existing if uid_of(found) not in kept]

    target = max(top, 1)
    changed = _changed(matched, contents, identity, target)
    missing = [index for index in wanted if index not in matched]
    rival = any(generation(found) >= target for found in obsolete if found in ours)
    if outrun or last > top or missing or len(changed) > 1 or (changed and rival):
        target = max(top, last) + 1
        changed = dict.fromkeys(sorted(matched), None)
    writes: list[Update | Create] = [
        Update(_body(identity, target, contents, at, matched[at])) for at in changed
    ]
    writes += [Create(_body(identity, target, contents, at, None)) for at in missing]
    return (
        *sorted(writes, key=lambda write: carries_counters(write.body)),
        *(_delete(found) for found in sorted(obsolete, key=generation)),
    )


def arrange(
    items: Sequence[Object], homes: Mapping[int, Iterable[Object]], *, most: int = DEVICES_MAX
) -> Sequence[Sequence[Object]]:
    """The devices (or counter sets) of each slice: whoever has one stays there while there is room.

    A device that comes or goes so changes one slice only. New ones that consume of one counter set
    go into one slice where there is room: a claim taints and untaints them together, and a change
    of two slices is one of the whole pool. Within a slice the order is that of `items`, of which
    it has `most` at most. Raises `InputInvalid` when two have one name.
    """
    count = max(1, -(-len(items) // most))
    wanted = {str(item["name"]) for item in items}
    if len(wanted) != len(items):
        raise errors.InputInvalid(
            f"{len(items)} devices have only {len(wanted)} names",
            remedy="names of devices and of counter sets are unique within a pool",
        )
    place: dict[str, int] = {}
    room = [most] * count
    for index in sorted(home for home in homes if home < count):
        for item in homes[index]:
            name = str(item.get("name"))
            if name in wanted and name not in place and room[index]:
                place[name] = index
                room[index] -= 1
    for group in _groups(item for item in items if str(item["name"]) not in place):
        together = [index for index in range(count) if room[index] >= len(group)]
        for name in group:
            place[name] = next(at for at in (*together, *range(count)) if room[at])
            room[place[name]] -= 1
    chunks: list[list[Object]] = [[] for _ in range(count)]
    for item in items:
        chunks[place[str(item["name"])]].append(item)
    return chunks


def _groups(items: Iterable[Object]) -> Sequence[Sequence[str]]:
    """Names of those that go together, in the order of the first of each."""
    groups: dict[str, list[str]] = {}
    for item in items:
        consumed = item.get("consumesCounters") or ()
        label = f"set {consumed[0].get('counterSet')}" if consumed else f"item {item['name']}"
        groups.setdefault(label, []).append(str(item["name"]))
    return list(groups.values())


def _contents(
    devices: Sequence[Object], counter_sets: Sequence[Object], matched: Mapping[int, Object]
) -> Contents:
    homes = {at: devices_of(found) for at, found in matched.items() if at < COUNTERS_FROM}
    found: dict[int, Object] = {
        at: {"devices": list(chunk)} for at, chunk in enumerate(arrange(devices, homes))
    }
    if counter_sets:
        homes = {
            at - COUNTERS_FROM: objects_in(spec_of(part).get("sharedCounters"))
            for at, part in matched.items()
            if at >= COUNTERS_FROM
        }
        chunks = arrange(counter_sets, homes, most=SETS_MAX)
        found |= {COUNTERS_FROM + at: {"sharedCounters": list(c)} for at, c in enumerate(chunks)}
    return found


def slice_index(found: Object, identity: PoolIdentity) -> int | None:
    """The index in a slice's name, None when the name is none of ours."""
    name = name_of(found).name
    index = _INDEX.match(name)
    if index is None or not name.startswith(_base(int(index[1], 16), identity)):
        return None
    return int(index[1], 16)


def _base(index: int, identity: PoolIdentity) -> str:
    return f"{index:05x}-{identity.driver}-{identity.node}-"[:_BASE_MAX]


def _is_ours(found: Object, identity: PoolIdentity) -> bool:
    return pool_name(found) == identity.pool


def _match(
    ours: Sequence[Object], wanted: Iterable[int], identity: PoolIdentity
) -> Mapping[int, Object]:
    """The slice that stands for each index: of the highest generation, else of the lowest UID."""
    found: dict[int, Object] = {}
    indexes = frozenset(wanted)
    for candidate in sorted(ours, key=lambda item: (-generation(item), uid_of(item))):
        index = slice_index(candidate, identity)
        if index is not None and index in indexes:
            found.setdefault(index, candidate)
    return found


def _changed(
    matched: Mapping[int, Object],
    contents: Contents,
    identity: PoolIdentity,
    target: int,
) -> dict[int, None]:
    return {
        index: None
        for index in sorted(matched)
        if not same_slice(_body(identity, target, contents, index, matched[index]), matched[index])
    }


def _body(
    identity: PoolIdentity,
    target: int,
    contents: Contents,
    index: int,
    stored: Object | None,
) -> Object:
    """The whole slice as it is to be, with what others wrote into the stored one."""
    content = contents[index]
    if sets := content.get("sharedCounters"):
        before = objects_in(spec_of(stored or {}).get("sharedCounters"))
        content = {"sharedCounters": [merged_set(one, before) for one in sets]}
    return merged_slice(
        {
            "driver": identity.driver,
            "nodeName": identity.node,
            "pool": {
                "name": identity.pool,
                "generation": target,
                "resourceSliceCount": len(contents),
            },
            **content,
        },
        stored,
        owner={
            "apiVersion": "v1",
            "kind": "Node",
            "name": identity.node,
            "uid": identity.node_uid,
            "controller": True,
        },
        generated=_base(index, identity),
    )


def _delete(found: Object) -> Delete:
    return Delete(name_of(found).name, uid_of(found), version_of(found))
