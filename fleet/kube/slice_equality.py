"""When two slice devices, or two slices, mean the same to Kubernetes. Pure.

The server rewrites what it is given: quantities get their shortest spelling ("1024Mi" reads back
as "1Gi"), a taint without `timeAdded` gets one, empty lists vanish, fields behind a switched-off
gate are dropped silently. A byte comparison would see a difference for ever and write for ever
(reference 6, invariant 31).

Fields that we do not know are left out of the comparison: the server may default them, and nothing
of ours depends on them. What others wrote is in both, since `fleet.plugin.slices.merge` starts from
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from fractions import Fraction
from typing import Any

from fleet.kube.base import Object

_QUANTITY = re.compile(
    r"^([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([eE][+-]?[0-9]+)|([KMGTPE]i|[numkMGTPE]))?$"
)
QUANTITY_MAX, EXPONENT_MAX = 256, 400
"""Length and power of ten of a quantity: the server keeps none beyond, and a tenant's selector can
name a power that no memory holds."""
_BINARY = {suffix: Fraction(1024) ** power for power, suffix in enumerate("KMGTPE", 1)}
_DECIMAL = {
    suffix: Fraction(10) ** power for suffix, power in zip("num", (-9, -6, -3), strict=True)
}
_DECIMAL |= {suffix: Fraction(1000) ** power for power, suffix in enumerate("kMGTPE", 1)}

TIME_SLACK_S = 1.0
"""The server stores whole seconds: a `timeAdded` one second off is the same."""

_PLAIN = (
    "bindsToNode",
    "allowMultipleAllocations",
    "allNodes",
    "nodeName",
    "nodeSelector",
    "bindingConditions",
    "bindingFailureConditions",
    "consumesCounters",
    "nodeAllocatableResourceMappings",
)
_SLICE_PLAIN = (
    "driver",
    "nodeName",
    "nodeSelector",
    "allNodes",
    "perDeviceNodeSelection",
    "sharedCounters",
)


class Feature(StrEnum):
    """Fields that a server may drop because a gate is off (reference 0)."""

    TAINTS = "taints"
    BINDING_CONDITIONS = "bindingConditions"
    ALLOCATION_LIMIT = "allowMultipleAllocations"
    COUNTERS = "consumesCounters"


def quantity(text: object) -> Fraction | None:
    """The number behind a Kubernetes quantity, or None when it is none."""
    found = _QUANTITY.fullmatch(str(text)[: QUANTITY_MAX + 1])
    if found is None or len(found[0]) > QUANTITY_MAX:
        return None
    if found[2] and abs(int(found[2][1:])) > EXPONENT_MAX:
        return None
    number = Fraction(found[1])
    if found[2]:
        return number * Fraction(10) ** int(found[2][1:])
    suffix = found[3] or ""
    if suffix.endswith("i"):
        return number * _BINARY[suffix[0]]
    return number * _DECIMAL.get(suffix, Fraction(1))


def same_device(one: Object, other: Object) -> bool:
    """Whether two slice devices mean the same, whatever their spelling."""
    return (
        one.get("name") == other.get("name")
        and _same_plain(one, other, _PLAIN)
        and (one.get("attributes") or {}) == (other.get("attributes") or {})
        and _same_capacity(one.get("capacity") or {}, other.get("capacity") or {})
        and _same_taints(one.get("taints") or (), other.get("taints") or ())
    )


def same_devices(ones: Sequence[Object], others: Sequence[Object]) -> bool:
    """Whether two lists of devices mean the same; their order is their priority."""
    return len(ones) == len(others) and all(map(same_device, ones, others))


def same_slice(one: Object, other: Object) -> bool:
    """Whether two slices mean the same: owner, pool and devices."""
    mine, theirs = one.get("spec", {}), other.get("spec", {})
    return (
        _owners(one) == _owners(other)
        and _same_plain(mine, theirs, _SLICE_PLAIN)
        and mine.get("pool") == theirs.get("pool")
        and same_devices(mine.get("devices") or (), theirs.get("devices") or ())
    )


def dropped(sent: Object, stored: Object) -> frozenset[Feature]:
    """What the server did not keep of a slice sent, by its answer.

    A server whose gate was switched off keeps counters of a slice that has some, and drops those of
    a new one: the sets are looked at as well as the devices.
    """
    mine, theirs = sent.get("spec", {}), stored.get("spec", {})
    kept = {device.get("name"): device for device in theirs.get("devices") or ()}
    lost = set()
    if mine.get("sharedCounters") and not theirs.get("sharedCounters"):
        lost.add(Feature.COUNTERS)
    for device in mine.get("devices") or ():
        answer = kept.get(device.get("name"), {})
        lost |= {
            feature
            for feature in Feature
            if device.get(feature) not in (None, []) and answer.get(feature) in (None, [])
        }
    return frozenset(lost)


def _taint(taint: Mapping[str, Any]) -> tuple[str, str, str]:
    return (str(taint.get("key")), str(taint.get("value") or ""), str(taint.get("effect")))


def _same_plain(one: Object, other: Object, names: Iterable[str]) -> bool:
    return all((one.get(name) or None) == (other.get(name) or None) for name in names)


def _same_capacity(one: Object, other: Object) -> bool:
    return one.keys() == other.keys() and all(map(_same_amount, one.values(), map(other.get, one)))


def _same_amount(one: Any, other: Any) -> bool:
    if one.get("requestPolicy") != other.get("requestPolicy"):
        return False
    mine, theirs = quantity(one.get("value")), quantity(other.get("value"))
    return mine == theirs if mine is not None else one.get("value") == other.get("value")


def _same_taints(ones: Sequence[Object], others: Sequence[Object]) -> bool:
    mine, theirs = sorted(ones, key=_taint), sorted(others, key=_taint)
    return [_taint(taint) for taint in mine] == [_taint(taint) for taint in theirs] and all(
        _same_time(one.get("timeAdded"), other.get("timeAdded"))
        for one, other in zip(mine, theirs, strict=True)
    )


def _same_time(one: str | None, other: str | None) -> bool:
    if not one or not other or one == other:
        return True
    try:
        apart = datetime.fromisoformat(one) - datetime.fromisoformat(other)
    except (ValueError, TypeError):
        return False
    return abs(apart.total_seconds()) <= TIME_SLACK_S


def _owners(found: Object) -> list[tuple[str, ...]]:
    """The owners that decide about garbage collection."""
    return sorted(
        (
            str(owner.get("apiVersion")),
            str(owner.get("kind")),
            str(owner.get("name")),
            str(owner.get("uid")),
            str(bool(owner.get("controller"))),
        )
        for owner in found.get("metadata", {}).get("ownerReferences") or ()
    )
