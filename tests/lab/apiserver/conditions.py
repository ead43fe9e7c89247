"""The rules of what drivers report of a device: conditions and network addresses. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.lab.apiserver.refusal import NOT_SUPPORTED, Cause
from tests.lab.apiserver.rules import (
    duplicate,
    is_qualified,
    required,
    too_long,
    too_many,
    wrong,
)

CONDITIONS_MAX = 8
MESSAGE_MAX_BYTES = 32768
REASON_MAX_BYTES = 1024
INTERFACE_MAX_BYTES = 256
HARDWARE_MAX_BYTES = 128
ADDRESSES_MAX = 16
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_STATUSES = ("False", "True", "Unknown")


def condition_causes(conditions: Sequence[Mapping[str, Any]], field: str) -> list[Cause]:
    """What is wrong with the conditions of one device; `field` is the list's path."""
    found = []
    if len(conditions) > CONDITIONS_MAX:
        found.append(too_many(field, len(conditions), CONDITIONS_MAX))
    seen = set()
    for index, condition in enumerate(conditions):
        place = f"{field}[{index}]"
        kind = str(condition.get("type", ""))
        if kind in seen:
            found.append(duplicate(f"{place}.type", kind))
        seen.add(kind)
        found += _one(condition, place, kind)
    return found


def _one(condition: Mapping[str, Any], place: str, kind: str) -> list[Cause]:
    found = []
    if not kind:
        found.append(required(f"{place}.type"))
    elif not is_qualified(kind):
        found.append(wrong(f"{place}.type", kind, "must be a qualified name"))
    status = condition.get("status", "")
    if status not in _STATUSES:
        values = ", ".join(f'"{value}"' for value in _STATUSES)
        message = f'Unsupported value: "{status}": supported values: {values}'
        found.append(Cause(NOT_SUPPORTED, f"{place}.status", message))
    if int(condition.get("observedGeneration", 0)) < 0:
        found.append(wrong(f"{place}.observedGeneration", condition["observedGeneration"], "< 0"))
    if not condition.get("lastTransitionTime"):
        found.append(required(f"{place}.lastTransitionTime", "must be set"))
    reason = str(condition.get("reason", ""))
    if not reason:
        found.append(required(f"{place}.reason", "must be set"))
    elif len(reason) > REASON_MAX_BYTES:
        found.append(too_long(f"{place}.reason", REASON_MAX_BYTES))
    elif not _REASON.fullmatch(reason):
        found.append(
            wrong(
                f"{place}.reason",
                reason,
                "a condition reason must start with alphabetic character, optionally followed by a"
                " string of alphanumeric characters or '_,:', and must end with an alphanumeric"
                " character or '_'",
            )
        )
    if len(str(condition.get("message", "")).encode()) > MESSAGE_MAX_BYTES:
        found.append(too_long(f"{place}.message", MESSAGE_MAX_BYTES))
    return found


def network_causes(network: Mapping[str, Any], field: str) -> list[Cause]:
    """What is wrong with the networkData of one device."""
    limits = {"interfaceName": INTERFACE_MAX_BYTES, "hardwareAddress": HARDWARE_MAX_BYTES}
    found = [
        too_long(f"{field}.{name}", limit)
        for name, limit in limits.items()
        if len(str(network.get(name, "")).encode()) > limit
    ]
    addresses = network.get("ips", [])
    if len(addresses) > ADDRESSES_MAX:
        found.append(too_many(f"{field}.ips", len(addresses), ADDRESSES_MAX))
    for index, address in enumerate(addresses):
        if not _is_cidr(address):
            told = "must be a valid address in CIDR form"
            found.append(wrong(f"{field}.ips[{index}]", address, told))
    return found


def _is_cidr(text: str) -> bool:
    if "/" not in text:
        return False
    try:
        ipaddress.ip_interface(text)
    except ValueError:
        return False
    return True
