"""What a back end answers, as JSON and back: for the border between the node and its children.

Pure. Everything is rebuilt by type, so that a field that is missing or unknown is an error here and
not a surprise later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fleet.core.model import Accelerator, Device, Process, ProcessKind, UnitId, UnitSpec, Uuid
from fleet.devices.base import DeviceNode, Grant, Instance, Mount, ResetOutcome, Unfit

Json = dict[str, Any]


def accelerators(found: Sequence[Accelerator]) -> list[Json]:
    """Accelerators as JSON."""
    return [asdict(accelerator) for accelerator in found]


def accelerators_from(found: Sequence[Mapping[str, Any]]) -> tuple[Accelerator, ...]:
    """Rebuild from `accelerators`. Raises KeyError or TypeError when malformed."""
    return tuple(
        Accelerator(
            uuid=Uuid(one["uuid"]),
            units=tuple(UnitSpec(**unit) for unit in one["units"]),
            devices=tuple(device_from(device) for device in one["devices"]),
        )
        for one in found
    )


def unfit(found: Sequence[Unfit]) -> list[Json]:
    """What keeps accelerators from being wiped, as JSON."""
    return [asdict(one) for one in found]


def unfit_from(found: Sequence[Mapping[str, Any]]) -> tuple[Unfit, ...]:
    """Rebuild from `unfit`. Raises KeyError or TypeError when malformed."""
    return tuple(
        Unfit(one["detail"], one["remedy"], tuple(Uuid(uuid) for uuid in one["accelerators"]))
        for one in found
    )


def device(found: Device) -> Json:
    """A device as JSON."""
    return asdict(found)


def device_from(found: Mapping[str, Any]) -> Device:
    """Rebuild from `device`."""
    return Device(**{**found, "units": tuple(found["units"])})


def processes(found: Sequence[Process]) -> list[Json]:
    """Processes as JSON."""
    return [asdict(process) for process in found]


def processes_from(found: Sequence[Mapping[str, Any]]) -> tuple[Process, ...]:
    """Rebuild from `processes`."""
    return tuple(Process(one["pid"], one["name"], ProcessKind(one["kind"])) for one in found)


def grant(found: Grant) -> Json:
    """A grant as JSON."""
    return {
        "nodes": [asdict(node) for node in found.nodes],
        "mounts": [asdict(mount) for mount in found.mounts],
        "environment": dict(found.environment),
    }


def grant_from(found: Mapping[str, Any]) -> Grant:
    """Rebuild from `grant`."""
    return Grant(
        nodes=tuple(DeviceNode(**node) for node in found["nodes"]),
        mounts=tuple(Mount(**mount) for mount in found["mounts"]),
        environment=found["environment"],
    )


def reset(found: ResetOutcome) -> Json:
    """What a reset did, as JSON."""
    return {**asdict(found), "holders": processes(found.holders)}


def reset_from(found: Mapping[str, Any]) -> ResetOutcome:
    """Rebuild from `reset`."""
    return ResetOutcome(**{**found, "holders": processes_from(found["holders"])})


def instance(found: Instance) -> Json:
    """A partition's instance as JSON."""
    return asdict(found)


def instance_from(found: Mapping[str, Any]) -> Instance:
    """Rebuild from `instance`."""
    units = tuple(UnitId(unit) for unit in found["units"])
    return Instance(**{**found, "units": units})
