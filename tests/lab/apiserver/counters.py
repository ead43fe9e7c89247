"""The rules of counters in slices: sizes, names, and where they may stand. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.lab.apiserver.refusal import Cause
from tests.lab.apiserver.rules import LABEL, duplicate, required, too_many, wrong

SETS_MAX = 8
"""Counter sets of a slice."""
COUNTERS_MAX = 32
"""Counters of a set, and those a device consumes of one."""
CONSUMED_MAX = 2
"""Counter sets a device consumes of."""
_NO_LABEL = "a lowercase RFC 1123 label is required"


def causes(spec: Mapping[str, Any], *, apart: bool) -> list[Cause]:
    """What is wrong with the counters of a slice.

    `apart`: it has either devices or sets (1.35 and newer); else its devices consume its own sets
    only. Whether a set that is consumed exists anywhere in the pool nobody checks but the
    scheduler.
    """
    found = []
    if apart and spec.get("devices") and spec.get("sharedCounters"):
        told = "only one of `sharedCounters` or `devices` is allowed"
        found.append(wrong("spec", "", told))
    offered = spec.get("sharedCounters") or ()
    if len(offered) > SETS_MAX:
        found.append(too_many("spec.sharedCounters", len(offered), SETS_MAX))
    found += _named(offered, "name", "spec.sharedCounters")
    own = {str(one.get("name", "")): one.get("counters") or {} for one in offered}
    for at, device in enumerate(spec.get("devices") or ()):
        place = f"spec.devices[{at}].consumesCounters"
        consumed = device.get("consumesCounters") or ()
        if len(consumed) > CONSUMED_MAX:
            found.append(too_many(place, len(consumed), CONSUMED_MAX))
        found += _named(consumed, "counterSet", place)
        if not apart:
            found += _own_only(consumed, own, place)
    return found


def _named(entries: Sequence[Mapping[str, Any]], key: str, place: str) -> list[Cause]:
    found = []
    seen = set()
    for at, entry in enumerate(entries):
        name, here = str(entry.get(key, "")), f"{place}[{at}]"
        if not name:
            found.append(required(f"{here}.{key}"))
        elif not _is_label(name):
            found.append(wrong(f"{here}.{key}", name, _NO_LABEL))
        if name in seen:
            found.append(duplicate(here, name))
        seen.add(name)
        counters = entry.get("counters") or {}
        if not counters:
            found.append(required(f"{here}.counters"))
        if len(counters) > COUNTERS_MAX:
            found.append(too_many(f"{here}.counters", len(counters), COUNTERS_MAX))
        found += [
            wrong(f"{here}.counters", counter, _NO_LABEL)
            for counter in counters
            if not _is_label(counter)
        ]
    return found


def _own_only(
    consumed: Iterable[Mapping[str, Any]], own: Mapping[str, Mapping[str, Any]], place: str
) -> list[Cause]:
    found = []
    for at, entry in enumerate(consumed):
        name = str(entry.get("counterSet", ""))
        if name and name not in own:
            told = "must reference a counterSet defined in the ResourceSlice sharedCounters"
            found.append(wrong(f"{place}[{at}].counterSet", name, told))
        found += [
            wrong(
                f"{place}[{at}].counters",
                counter,
                "must reference a counter defined in the ResourceSlice sharedCounters",
            )
            for counter in entry.get("counters") or ()
            if name in own and counter not in own[name]
        ]
    return found


def _is_label(name: str) -> bool:
    return len(name) <= 63 and LABEL.fullmatch(name) is not None
