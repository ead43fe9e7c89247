"""The rules of ResourceClaims: immutable spec and allocation, who may be reserved, status. Pure.

What the server does not check matters as much: double use of a device, devices that do not exist,
taints. Nothing here does either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fleet.kube.base import Object
from tests.lab.apiserver.conditions import condition_causes, network_causes
from tests.lab.apiserver.gates import BINDING_CONDITIONS, CONSUMABLE, DEVICE_STATUS, Features
from tests.lab.apiserver.refusal import FORBIDDEN, TOO_LONG, Cause
from tests.lab.apiserver.rules import (
    IMMUTABLE,
    LABEL,
    SUBDOMAIN,
    Write,
    duplicate,
    required,
    split_status,
    too_many,
    wrong,
)

RESERVED_MAX = 256
REQUESTS_MAX = 32
RESULTS_MAX = 32
CONFIG_MAX = 64
OPAQUE_MAX_BYTES = 10 * 1024

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Identity = tuple[str, str, str, str]


class ClaimRules:
    """Rules of claims; `features` decides what is dropped."""

    def __init__(self, features: Features) -> None:
        """`features`: gates of the server modelled."""
        self._gates = features.gates

    def prepare(self, write: Write) -> Object:
        """Split status, forget devices that are no longer allocated, drop gated fields."""
        new = split_status(write)
        if write.old is None:
            new["spec"] = with_defaults(new.get("spec", {}))
        status = dict(new.get("status", {}))
        old_status = (write.old or {}).get("status", {})
        if write.subresource == "status" and status:
            status = _without_deallocated(status, old_status)
            status = self._gated(status, old_status)
        new["status"] = status
        if not status:
            new["status"] = {}
        return new

    def judge(self, write: Write) -> Sequence[Cause]:
        """Causes for the spec of a new claim, its immutability, or the status written."""
        if write.old is None:
            return spec_causes(write.new.get("spec", {}), "spec")
        if write.subresource == "status":
            return _status_causes(write.new, write.old)
        if not _same(write.new.get("spec"), write.old.get("spec")):
            return [wrong("spec", write.new.get("spec"), IMMUTABLE)]
        return []

    def _gated(self, status: Object, old: Object) -> Object:
        found = dict(status)
        if DEVICE_STATUS not in self._gates and not old.get("devices"):
            found.pop("devices", None)
        allocation = found.get("allocation")
        if not isinstance(allocation, Mapping):
            return found
        dropped: set[str] = set()
        in_use = json.dumps(old.get("allocation", {}))
        if BINDING_CONDITIONS not in self._gates and "bindingConditions" not in in_use:
            dropped |= {"bindingConditions", "bindingFailureConditions"}
            allocation = {k: v for k, v in allocation.items() if k != "allocationTimestamp"}
        if CONSUMABLE not in self._gates and "shareID" not in in_use:
            dropped |= {"shareID", "consumedCapacity"}
        devices = dict(allocation.get("devices", {}))
        if dropped and "results" in devices:
            devices["results"] = [
                {k: v for k, v in result.items() if k not in dropped}
                for result in devices["results"]
            ]
        found["allocation"] = {**allocation, "devices": devices}
        return found


class TemplateRules:
    """Rules of claim templates: only labels and annotations go to the claim."""

    def prepare(self, write: Write) -> Object:
        """Default the requests."""
        spec = write.new.get("spec", {})
        return {**write.new, "spec": {**spec, "spec": with_defaults(spec.get("spec", {}))}}

    def judge(self, write: Write) -> Sequence[Cause]:
        """Causes for what a template must not set."""
        spec = write.new.get("spec", {})
        found = [
            Cause(FORBIDDEN, f"spec.metadata.{name}", "Forbidden: cannot be set")
            for name in ("finalizers", "ownerReferences", "name", "generateName", "namespace")
            if name in spec.get("metadata", {})
        ]
        if write.old is not None and spec != write.old.get("spec"):
            return [*found, wrong("spec", spec, IMMUTABLE)]
        return [*found, *spec_causes(spec.get("spec", {}), "spec.spec")]


def with_defaults(spec: Mapping[str, Any]) -> Object:
    """The spec with what the server fills in: one device per request unless told otherwise."""
    devices = dict(spec.get("devices", {}))
    requests = []
    for request in devices.get("requests", []):
        filled = dict(request)
        if "exactly" in request:
            filled["exactly"] = _counted(request["exactly"])
        if "firstAvailable" in request:
            filled["firstAvailable"] = [_counted(sub) for sub in request["firstAvailable"]]
        requests.append(filled)
    if requests:
        devices["requests"] = requests
    return {**spec, "devices": devices}


def _counted(request: Mapping[str, Any]) -> Object:
    found = {**request, "allocationMode": request.get("allocationMode", "ExactCount")}
    if found["allocationMode"] == "ExactCount":
        found["count"] = request.get("count", 1)
    return found


def spec_causes(spec: Mapping[str, Any], field: str) -> list[Cause]:
    """What is wrong with the spec of a claim."""
    requests = spec.get("devices", {}).get("requests", [])
    found = []
    if len(requests) > REQUESTS_MAX:
        found.append(too_many(f"{field}.devices.requests", len(requests), REQUESTS_MAX))
    seen = set()
    for index, request in enumerate(requests):
        place = f"{field}.devices.requests[{index}]"
        name = str(request.get("name", ""))
        if not name:
            found.append(required(f"{place}.name"))
        elif not LABEL.fullmatch(name) or len(name) > 63:
            found.append(wrong(f"{place}.name", name, "a lowercase RFC 1123 label is required"))
        if name in seen:
            found.append(duplicate(place, name))
        seen.add(name)
        kinds = [kind for kind in ("exactly", "firstAvailable") if kind in request]
        if len(kinds) != 1:
            found.append(
                required(place, "exactly one of `exactly` or `firstAvailable` is required")
            )
        if "exactly" in request and not request["exactly"].get("deviceClassName"):
            found.append(required(f"{place}.exactly.deviceClassName"))
    for index, config in enumerate(spec.get("devices", {}).get("config", [])):
        found += _opaque_causes(config, f"{field}.devices.config[{index}]")
    return found


def _opaque_causes(config: Mapping[str, Any], place: str) -> list[Cause]:
    opaque = config.get("opaque")
    if opaque is None:
        return [required(f"{place}.opaque")]
    found = [] if opaque.get("driver") else [required(f"{place}.opaque.driver")]
    if "parameters" not in opaque:
        return [*found, required(f"{place}.opaque.parameters")]
    return [*found, *_json_causes(opaque["parameters"], f"{place}.opaque.parameters")]


def _json_causes(value: Any, field: str) -> list[Cause]:
    if not isinstance(value, Mapping):
        return [wrong(field, "<value omitted>", "must be a valid JSON object")]
    if len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()) > (
        OPAQUE_MAX_BYTES
    ):
        told = f"Too long: may not be more than {OPAQUE_MAX_BYTES} bytes"
        return [Cause(TOO_LONG, field, told)]
    return []


def _identity(entry: Mapping[str, Any]) -> Identity:
    return (
        str(entry.get("driver", "")),
        str(entry.get("pool", "")),
        str(entry.get("device", "")),
        str(entry.get("shareID", "")),
    )


def allocated(status: Mapping[str, Any]) -> set[Identity]:
    """The devices a claim's status says are allocated."""
    allocation = status.get("allocation") or {}
    return {_identity(result) for result in allocation.get("devices", {}).get("results", [])}


def _without_deallocated(status: Object, old: Object) -> Object:
    gone = allocated(old) - allocated(status)
    kept = [entry for entry in status.get("devices", []) if _identity(entry) not in gone]
    found = {key: value for key, value in status.items() if key != "devices"}
    return {**found, **({"devices": kept} if kept else {})}


def _status_causes(new: Object, old: Object) -> list[Cause]:
    status, before = new.get("status", {}), old.get("status", {})
    allocation, previous = status.get("allocation"), before.get("allocation")
    found = _reserved_causes(new, before)
    if allocation is not None and previous is not None:
        if not _same(allocation, previous):
            found.append(wrong("status.allocation", allocation, IMMUTABLE))
    elif allocation is not None:
        found += _allocation_causes(allocation, new.get("spec", {}))
    return found + _device_causes(status)


def spaced_causes(write: Write) -> list[Cause]:
    """What has changed though nobody named it: JSON is written without the spaces it came with."""
    assert write.old is not None  # there is something to change
    if write.subresource != "status":
        return [wrong("spec", write.new.get("spec"), IMMUTABLE)]
    before = (write.old.get("status") or {}).get("allocation")
    after = (write.new.get("status") or {}).get("allocation")
    kept = before is not None and after is not None
    return [wrong("status.allocation", after, IMMUTABLE)] if kept else []


def _same(left: Any, right: Any) -> bool:
    """Equal, opaque parameters byte by byte: {"a","b"} is not {"b","a"} (measured, F61)."""
    return left == right and _raw(left) == _raw(right)


def _raw(found: Any) -> list[str]:
    devices = found.get("devices") if isinstance(found, Mapping) else None
    configs = devices.get("config", []) if isinstance(devices, Mapping) else []
    return [json.dumps((one.get("opaque") or {}).get("parameters")) for one in configs]


def _reserved_causes(new: Object, before: Object) -> list[Cause]:
    status = new.get("status", {})
    reserved = status.get("reservedFor", [])
    found = []
    if len(reserved) > RESERVED_MAX:
        found.append(too_many("status.reservedFor", len(reserved), RESERVED_MAX))
    seen = set()
    for index, entry in enumerate(reserved):
        place = f"status.reservedFor[{index}]"
        found += [
            required(f"{place}.{name}")
            for name in ("resource", "name", "uid")
            if not entry.get(name)
        ]
        if entry.get("uid") in seen:
            found.append(duplicate(place, entry.get("uid")))
        seen.add(entry.get("uid"))
    if not reserved:
        return found
    if status.get("allocation") is None:
        told = "Forbidden: may not be specified when `allocated` is not set"
        return [*found, Cause(FORBIDDEN, "status.reservedFor", told)]
    known = {entry.get("uid") for entry in before.get("reservedFor", [])}
    if new["metadata"].get("deletionTimestamp") and seen - known:
        told = (
            "Forbidden: new entries may not be added while `deallocationRequested` or"
            " `deletionTimestamp` are set"
        )
        found.append(Cause(FORBIDDEN, "status.reservedFor", told))
    return found


def _allocation_causes(allocation: Mapping[str, Any], spec: Mapping[str, Any]) -> list[Cause]:
    requests = spec.get("devices", {}).get("requests", [])
    names = {str(request.get("name")) for request in requests} | {
        f"{request.get('name')}/{sub.get('name')}"
        for request in requests
        for sub in request.get("firstAvailable", [])
    }
    results = allocation.get("devices", {}).get("results", [])
    found = []
    if len(results) > RESULTS_MAX:
        found.append(too_many("status.allocation.devices.results", len(results), RESULTS_MAX))
    for index, result in enumerate(results):
        place = f"status.allocation.devices.results[{index}]"
        if result.get("request") not in names:
            told = "must be the name of a request in the claim"
            found.append(wrong(f"{place}.request", result.get("request", ""), told))
        found += _identity_causes(result, place)
    selector = allocation.get("nodeSelector")
    if selector is not None and not selector.get("nodeSelectorTerms"):
        told = "must have at least one node selector term"
        found.append(required("status.allocation.nodeSelector.nodeSelectorTerms", told))
    config = allocation.get("devices", {}).get("config", [])
    if len(config) > CONFIG_MAX:
        found.append(too_many("status.allocation.devices.config", len(config), CONFIG_MAX))
    for index, entry in enumerate(config):
        found += _opaque_causes(entry, f"status.allocation.devices.config[{index}]")
    return found


def _device_causes(status: Mapping[str, Any]) -> list[Cause]:
    there, seen = allocated(status), set()
    found = []
    for index, entry in enumerate(status.get("devices", [])):
        place = f"status.devices[{index}]"
        identity = _identity(entry)
        if identity in seen:
            found.append(duplicate(place, identity))
        seen.add(identity)
        found += _identity_causes(entry, place)
        if identity not in there:
            found.append(wrong(place, dict(entry), "must be an allocated device in the claim"))
        found += condition_causes(entry.get("conditions") or [], f"{place}.conditions")
        if "data" in entry:
            found += _json_causes(entry["data"], f"{place}.data")
        found += network_causes(entry.get("networkData", {}), f"{place}.networkData")
    return found


def _identity_causes(entry: Mapping[str, Any], place: str) -> list[Cause]:
    """What is wrong with driver, pool, device and shareID of a result or status entry."""
    driver, pool, device, share = _identity(entry)
    found = [required(f"{place}.{name}") for name in ("driver", "pool") if not entry.get(name)]
    if driver and not SUBDOMAIN.fullmatch(driver):
        found.append(wrong(f"{place}.driver", driver, "a lowercase RFC 1123 subdomain is required"))
    if pool and not all(SUBDOMAIN.fullmatch(part) for part in pool.split("/")):
        told = "subdomains separated by slashes are required"
        found.append(wrong(f"{place}.pool", pool, told))
    if not LABEL.fullmatch(device):
        found.append(wrong(f"{place}.device", device, "a lowercase RFC 1123 label is required"))
    if share and not _UUID.fullmatch(share):
        found.append(wrong(f"{place}.shareID", share, "error validating uid: invalid UUID"))
    return found
