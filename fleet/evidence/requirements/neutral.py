"""The record of host lifecycles that the check of SEC21-05 reads, from evidence and views. Pure.

The check is of NVIDIA's AI Cloud Ready test suite (BmGpuMemorySanitizationCheck). It audits that a
host that served a tenant was sanitized before it is offered again. What it is told here is stricter
than its own reading of states: sanitized is a host all of whose devices evidence answers for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleet.core.model import State
from fleet.evidence.requirements.report import ComplianceReport, DeviceAnswer

IN_USE, SANITIZING, AVAILABLE, MAINTENANCE = "in_use", "sanitizing", "available", "maintenance"


def record(found: ComplianceReport, claims: Mapping[str, str], *, site: str) -> dict[str, Any]:
    """The record. `claims`: who has each device by its node's word, by UUID; "" for nobody."""
    of_nodes: dict[str, list[DeviceAnswer]] = {}
    for device in found.devices:
        of_nodes.setdefault(device.node, []).append(device)
    machines = [
        _machine(node, devices, claims, whole=not found.missing)
        for node, devices in sorted(of_nodes.items())
    ]
    return {
        "success": bool(machines),
        "platform": "fleetscrub (simulated)" if found.simulated else "fleetscrub",
        "site_id": site,
        "machines_checked": len(machines),
        "machines": machines,
        **({} if machines else {"error": "there is no device"}),
    }


def _machine(
    node: str, devices: Sequence[DeviceAnswer], claims: Mapping[str, str], *, whole: bool
) -> dict[str, Any]:
    states = {device.state for device in devices}
    available = State.CLEAN in states
    status = (
        IN_USE if State.IN_USE in states else AVAILABLE if available
        else SANITIZING if State.WIPING in states else MAINTENANCE
    )  # fmt: skip
    wiped = any(device.certificates for device in devices)
    return {
        "machine_id": node,
        "status": status,
        "available": available,
        "in_use": status == IN_USE,
        "has_gpu": True,
        # Nothing here proves that nobody ever had a device: who says so passes unaudited.
        "served_tenant": True,
        "sanitized": whole and all(device.answered for device in devices),
        "stale_tenant_binding": any(
            device.state == State.CLEAN and claims.get(device.uuid) for device in devices
        ),
        "transitions": [IN_USE, SANITIZING, status] if wiped else [IN_USE, status],
    }
