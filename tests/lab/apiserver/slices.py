"""The rules of ResourceSlices: sizes, names, taints, binding conditions, dropped fields. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fleet.kube.base import Object
from tests.lab.apiserver import counters
from tests.lab.apiserver.gates import (
    BINDING_CONDITIONS,
    CONSUMABLE,
    PARTITIONABLE,
    TAINTS,
    Features,
)
from tests.lab.apiserver.refusal import NOT_SUPPORTED, Cause
from tests.lab.apiserver.rules import (
    IMMUTABLE,
    LABEL,
    SUBDOMAIN,
    Write,
    duplicate,
    is_label_value,
    is_qualified,
    required,
    too_long,
    too_many,
    wrong,
)

BINDING_MAX = 4
ATTRIBUTES_MAX = 32
TEXT_MAX = 64
_EFFECTS = ("NoExecute", "NoSchedule", "None")
_BINDING_FIELDS = ("bindingConditions", "bindingFailureConditions", "bindsToNode")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_VERSION = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?"
)


class SliceRules:
    """Rules of slices; `features` gives gates and limits."""

    def __init__(self, features: Features) -> None:
        """`features`: gates and limits of the server modelled."""
        self._gates = features.gates
        self._limits = features.limits

    def prepare(self, write: Write) -> Object:
        """Drop gated fields, date new taints (a rewrite that omits timeAdded restarts it)."""
        new = dict(write.new)
        spec = dict(new.get("spec", {}))
        dropped = self._dropped((write.old or {}).get("spec", {}))
        devices = [
            _dated({k: v for k, v in device.items() if k not in dropped}, write.now)
            for device in spec.get("devices", [])
        ]
        if devices:
            spec["devices"] = devices
        if "consumesCounters" in dropped:
            spec.pop("sharedCounters", None)
            spec.pop("perDeviceNodeSelection", None)
        return {**new, "spec": spec}

    def _dropped(self, spec: Mapping[str, Any]) -> set[str]:
        """Fields of devices behind a gate that is off, unless the stored slice uses its feature."""
        old = [*spec.get("devices", ())]
        if spec.get("sharedCounters") or spec.get("perDeviceNodeSelection"):
            old.append({"consumesCounters": spec})
        groups = {
            TAINTS: ("taints",),
            BINDING_CONDITIONS: _BINDING_FIELDS,
            CONSUMABLE: ("allowMultipleAllocations",),
            PARTITIONABLE: ("consumesCounters", "nodeName", "nodeSelector", "allNodes"),
        }
        return {
            field
            for gate, fields in groups.items()
            for field in fields
            if gate not in self._gates
            and not any(name in device for device in old for name in fields)
        }

    def judge(self, write: Write) -> Sequence[Cause]:
        """Causes for this slice; the server sees one slice at a time, never the pool."""
        spec = write.new.get("spec", {})
        found = _top_causes(spec)
        if write.old is not None:
            found += _immutable_causes(spec, write.old.get("spec", {}))
        found += counters.causes(spec, apart=self._limits.counters_apart)
        devices = spec.get("devices", [])
        found += self._size_causes(devices)
        seen = set()
        for index, device in enumerate(devices):
            place = f"spec.devices[{index}]"
            name = str(device.get("name", ""))
            if name in seen:
                found.append(duplicate(place, name))
            seen.add(name)
            found += self._device_causes(device, place)
        return found

    def _size_causes(self, devices: Sequence[Mapping[str, Any]]) -> list[Cause]:
        limit = self._limits.devices
        heavy = any("taints" in device or "consumesCounters" in device for device in devices)
        if heavy and self._limits.devices_tainted is not None:
            limit = min(limit, self._limits.devices_tainted)
        return [too_many("spec.devices", len(devices), limit)] if len(devices) > limit else []

    def _device_causes(self, device: Mapping[str, Any], place: str) -> list[Cause]:
        name = str(device.get("name", ""))
        found = []
        if not LABEL.fullmatch(name) or len(name) > 63:
            found.append(wrong(f"{place}.name", name, "a lowercase RFC 1123 label is required"))
        taints = device.get("taints", [])
        if len(taints) > self._limits.taints:
            found.append(too_many(f"{place}.taints", len(taints), self._limits.taints))
        for index, taint in enumerate(taints):
            found += _taint_causes(taint, f"{place}.taints[{index}]")
        return found + _binding_causes(device, place) + _attribute_causes(device, place)


def _dated(device: Object, now: str) -> Object:
    if "taints" not in device:
        return device
    return {**device, "taints": [{"timeAdded": now, **taint} for taint in device["taints"]]}


def _top_causes(spec: Mapping[str, Any]) -> list[Cause]:
    found = []
    driver = str(spec.get("driver", ""))
    if not driver:
        found.append(required("spec.driver"))
    elif len(driver) > 63 or not SUBDOMAIN.fullmatch(driver):
        found.append(wrong("spec.driver", driver, "a lowercase RFC 1123 subdomain is required"))
    pool = spec.get("pool", {})
    name = str(pool.get("name", ""))
    if not name:
        found.append(required("spec.pool.name"))
    elif len(name) > 253 or not all(SUBDOMAIN.fullmatch(part) for part in name.split("/")):
        found.append(wrong("spec.pool.name", name, "subdomains separated by slashes are required"))
    if int(pool.get("generation", 0)) < 0:
        found.append(wrong("spec.pool.generation", pool["generation"], "must not be negative"))
    if int(pool.get("resourceSliceCount", 0)) <= 0:
        count = pool.get("resourceSliceCount", 0)
        found.append(wrong("spec.pool.resourceSliceCount", count, "must be greater than zero"))
    choices = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
    chosen = [choice for choice in choices if spec.get(choice)]
    if not chosen:
        found.append(required("spec", f"exactly one of {', '.join(choices)} is required"))
    elif len(chosen) > 1:
        told = f"exactly one of {', '.join(choices)} is required, but multiple fields are set"
        found.append(wrong("spec", "{" + ", ".join(chosen) + "}", told))
    return found


def _immutable_causes(spec: Mapping[str, Any], old: Mapping[str, Any]) -> list[Cause]:
    found = [
        wrong(f"spec.{name}", spec.get(name, ""), IMMUTABLE)
        for name in ("driver", "nodeName")
        if spec.get(name) != old.get(name)
    ]
    name, before = spec.get("pool", {}).get("name"), old.get("pool", {}).get("name")
    return found if name == before else [*found, wrong("spec.pool.name", name, IMMUTABLE)]


def _taint_causes(taint: Mapping[str, Any], place: str) -> list[Cause]:
    found = []
    key, value, effect = (str(taint.get(name, "")) for name in ("key", "value", "effect"))
    if not is_qualified(key):
        found.append(wrong(f"{place}.key", key, "must be a qualified name"))
    if not is_label_value(value):
        found.append(wrong(f"{place}.value", value, "must be a label value"))
    if not effect:
        found.append(required(f"{place}.effect"))
    elif effect not in _EFFECTS:
        values = ", ".join(f'"{known}"' for known in _EFFECTS)
        told = f'Unsupported value: "{effect}": supported values: {values}'
        found.append(Cause(NOT_SUPPORTED, f"{place}.effect", told))
    return found


def _binding_causes(device: Mapping[str, Any], place: str) -> list[Cause]:
    wanted, failing = (device.get(name, []) for name in _BINDING_FIELDS[:2])
    found = []
    for name, conditions in zip(_BINDING_FIELDS[:2], (wanted, failing), strict=True):
        if len(conditions) > BINDING_MAX:
            found.append(too_many(f"{place}.{name}", len(conditions), BINDING_MAX))
        for index, condition in enumerate(conditions):
            if not is_qualified(condition):
                told = "must be a qualified name"
                found.append(wrong(f"{place}.{name}[{index}]", condition, told))
            if condition in conditions[:index]:
                found.append(duplicate(f"{place}.{name}[{index}]", condition))
    if wanted and not failing:
        told = "bindingFailureConditions are required to use bindingConditions"
        found.append(wrong(f"{place}.bindingFailureConditions", failing, told))
    if failing and not wanted:
        told = "bindingConditions are required to use bindingFailureConditions"
        found.append(wrong(f"{place}.bindingConditions", wanted, told))
    for index, condition in enumerate(failing):
        if condition in wanted:
            told = "bindingFailureConditions must not overlap with bindingConditions"
            found.append(wrong(f"{place}.bindingFailureConditions[{index}]", condition, told))
    return found


def _attribute_causes(device: Mapping[str, Any], place: str) -> list[Cause]:
    attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
    found = []
    if len(attributes) + len(capacity) > ATTRIBUTES_MAX:
        count = len(attributes) + len(capacity)
        told = f"the total number of attributes and capacities must not exceed {ATTRIBUTES_MAX}"
        found.append(wrong(place, count, told))
    for kind, table in (("attributes", attributes), ("capacity", capacity)):
        for key in table:
            if not _is_attribute_name(key):
                told = "must be a C identifier, with an optional domain before a slash"
                found.append(wrong(f"{place}.{kind}", key, told))
    for key, value in attributes.items():
        field = f"{place}.attributes[{key}]"
        if len(value) != 1:
            found.append(wrong(field, dict(value), "exactly one value must be specified"))
        found += [
            too_long(f"{field}.{kind}", TEXT_MAX)
            for kind in ("string", "version")
            if len(str(value.get(kind, "")).encode()) > TEXT_MAX
        ]
        if "version" in value and not _VERSION.fullmatch(value["version"]):
            told = "must be a string compatible with semver.org spec 2.0.0"
            found.append(wrong(f"{field}.version", value["version"], told))
    return found


def _is_attribute_name(key: str) -> bool:
    domain, slash, identifier = key.rpartition("/")
    if slash and (len(domain) > 63 or not SUBDOMAIN.fullmatch(domain)):
        return False
    return _IDENTIFIER.fullmatch(identifier) is not None
