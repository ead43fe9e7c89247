"""What a device's health is to whoever has a pod on it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleet.core.messages import DeviceView, NodeView
from fleet.plugin.slices.device_attributes import names


class Health(StrEnum):
    """The verdicts kubelet knows."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """Health of one device, with a short reason where it is not healthy."""

    health: Health
    message: str
    checked_at: float
    """Seconds since the epoch; 0.0: not since the node service started."""


def verdict(device: DeviceView) -> HealthVerdict:
    """The verdict on one device: open reasons make it unhealthy, silence unknown."""
    if device.reasons:
        told = "; ".join(_told(r.code, r.detail) for r in device.reasons)
        # What was judged stays judged: a fault does not grow stale, a good verdict does.
        at = max(device.checked_at, device.since)
        return HealthVerdict(Health.UNHEALTHY, told, at)
    if not device.checked_at:
        return HealthVerdict(Health.UNKNOWN, "not checked yet", 0.0)
    return HealthVerdict(Health.HEALTHY, "", device.checked_at)


def verdicts(view: NodeView) -> Mapping[str, HealthVerdict]:
    """Verdicts on all devices of the view by the names they are published under."""
    published = names(view.devices)
    return {published[device.uuid]: verdict(device) for device in view.devices}


def _told(code: str, detail: str) -> str:
    return f"{code}: {detail}" if detail else code
