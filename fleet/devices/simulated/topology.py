"""What a simulated node has: accelerators, their units and devices, written down once.

The file lists everything with its UUID, so that a later release which names things differently
still finds the same devices in an old directory. A directory is never reshaped: evidence and leases
name its units.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fleet.core.errors import DriverAbsent, InputInvalid
from fleet.core.model import Accelerator, Device, UnitId, UnitSpec, Uuid

GRAIN = 64 * 1024
"""Sizes and offsets of units are multiples of this, bytes: the smallest block drivers hand out."""
SLICES = 8
FIRST_GROUP = 32
"""IOMMU group of the first accelerator."""
ARCHITECTURE = "simulated"
PRODUCT = "SIMULATED accelerator"
_NAMESPACE = uuid.UUID("7b1f3a54-3f0e-5b1c-9d0c-6c1a5f0e2d11")
_PLACEMENTS = {
    "1g": ((0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)),
    "2g": ((0, 2), (2, 2), (4, 2)),
    "3g": ((0, 4), (4, 4)),
}
"""Profile -> (first slice, slices), as the first generation of partitionable parts places them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What `create` was asked for; a second call must ask for the same."""

    node: str
    accelerators: int
    memory_bytes: int
    partitionable: int
    seed: int

    def check(self) -> None:
        """Raises InputInvalid naming the figure that is wrong."""
        least = GRAIN * (SLICES + 1)
        if self.accelerators < 1 or not 0 <= self.partitionable <= self.accelerators:
            raise InputInvalid(
                f"{self.accelerators} accelerators, {self.partitionable} of them partitionable",
                remedy="ask for at least one, and for no more partitionable ones than there are",
            )
        if self.memory_bytes % GRAIN or self.memory_bytes < (
            least if self.partitionable else GRAIN
        ):
            raise InputInvalid(
                f"memory of {self.memory_bytes} B is not a multiple of {GRAIN} B"
                f" of at least {least if self.partitionable else GRAIN} B",
                remedy="ask for whole MiB, for example 256MiB",
            )


@dataclass(frozen=True, slots=True)
class Topology:
    """The content of the topology file."""

    shape: Shape
    accelerators: tuple[Accelerator, ...]


def build(shape: Shape) -> Topology:
    """All accelerators of a shape; the last `partitionable` of them have slices."""
    shape.check()
    first = shape.accelerators - shape.partitionable
    return Topology(
        shape,
        tuple(
            _accelerator(shape, index, sliced=index >= first) for index in range(shape.accelerators)
        ),
    )


def write(path: Path, topology: Topology) -> None:
    """Write the file complete or not at all."""
    document = {
        "schema": 1,
        "simulated": True,
        "shape": asdict(topology.shape),
        "accelerators": [asdict(found) for found in topology.accelerators],
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(document, indent=1))
    temporary.replace(path)


def read(path: Path) -> Topology:
    """Read the file. Raises DriverAbsent when there is none, InputInvalid when it is damaged."""
    try:
        document = json.loads(path.read_text())
        return Topology(
            Shape(**document["shape"]),
            tuple(
                _accelerator_from(found, index)
                for index, found in enumerate(document["accelerators"])
            ),
        )
    except FileNotFoundError:
        raise DriverAbsent(
            f"there is no simulated node at {path.parent}",
            remedy="make one with `fleet scrub --simulate 2x8`, or name its state directory",
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputInvalid(
            f"the topology file {path} cannot be understood: {error}",
            remedy="restore the file, or start over with an empty state directory",
        ) from error


def differences(old: Shape, new: Shape) -> str:
    """What a second `create` would change, as text; "" when nothing."""
    was, asked = asdict(old), asdict(new)
    return ", ".join(
        f"{name} is {was[name]}, asked for {asked[name]}"
        for name in was
        if was[name] != asked[name]
    )


def _uuid(shape: Shape, *parts: str) -> Uuid:
    return Uuid(f"SIM-{uuid.uuid5(_NAMESPACE, '/'.join((str(shape.seed), shape.node, *parts)))}")


def _accelerator(shape: Shape, index: int, *, sliced: bool) -> Accelerator:
    name = f"gpu-{index}"
    parent = _uuid(shape, name)
    numa = index * 2 // shape.accelerators
    units = _slices(parent, shape.memory_bytes) if sliced else _whole(parent, shape.memory_bytes)
    identity = {
        "simulated": "true",
        "product": PRODUCT,
        "vendor": "simulated",
        "driver": "simulated",
        "architecture": ARCHITECTURE,
        "serial": f"SIM{shape.seed:04d}{index:04d}",
        "pci": f"{index // 16:04x}:{0x10 + index % 16:02x}:00.0",
        "numa": str(numa),
        **_bus(index, numa),
    }
    whole = Device(
        uuid=parent,
        name=name,
        accelerator=parent,
        units=tuple(unit.id for unit in units),
        memory_bytes=shape.memory_bytes,
        attributes={**identity, "partitionable": str(sliced).lower()},
    )
    parts = _partitions(shape, whole, units, identity) if sliced else ()
    return Accelerator(parent, units, (whole, *parts))


def _bus(index: int, numa: int) -> dict[str, str]:
    """A root port for each NUMA node of a domain, and an IOMMU group for each accelerator."""
    return {
        "pcie_root": f"pci{index // 16:04x}:{numa * 0x80:02x}",
        "iommu": str(FIRST_GROUP + index),
    }


def _whole(parent: Uuid, size_bytes: int) -> tuple[UnitSpec, ...]:
    return (UnitSpec(UnitId(f"{parent}/all"), size_bytes),)


def _slices(parent: Uuid, size_bytes: int) -> tuple[UnitSpec, ...]:
    """Equal slices, and the rest: memory no partition reaches is a unit too (DESIGN 4)."""
    grains = size_bytes // GRAIN
    rest = max(1, grains // 32)
    size = (grains - rest) // SLICES * GRAIN
    slices = tuple(
        UnitSpec(UnitId(f"{parent}/m{place}"), size, place * size) for place in range(SLICES)
    )
    used = SLICES * size
    return (*slices, UnitSpec(UnitId(f"{parent}/rest"), size_bytes - used, used))


def _partitions(
    shape: Shape, whole: Device, units: tuple[UnitSpec, ...], identity: Mapping[str, str]
) -> tuple[Device, ...]:
    size = units[0].size_bytes
    return tuple(
        Device(
            uuid=_uuid(shape, whole.name, profile, str(first)),
            name=f"{whole.name}-{profile}-{first}",
            accelerator=whole.uuid,
            units=tuple(unit.id for unit in units[first : first + count]),
            memory_bytes=count * size,
            profile=f"{profile}.{_size(count * size)}",
            attributes={
                **identity,
                "product": f"{PRODUCT} partition",
                "parent": whole.uuid,
                "placement": f"{first}:{count}",
            },
        )
        for profile, placements in _PLACEMENTS.items()
        for first, count in placements
    )


def _size(size_bytes: int) -> str:
    for unit, letters in ((1 << 30, "gb"), (1 << 20, "mb")):
        if size_bytes >= unit:
            return f"{size_bytes // unit}{letters}"
    return f"{size_bytes // 1024}kb"


def _accelerator_from(found: Mapping[str, Any], index: int) -> Accelerator:
    return Accelerator(
        uuid=Uuid(found["uuid"]),
        units=tuple(UnitSpec(**unit) for unit in found["units"]),
        devices=tuple(
            Device(
                **{
                    **device,
                    "units": tuple(device["units"]),
                    "attributes": _complete(device["attributes"], index),
                }
            )
            for device in found["devices"]
        ),
    )


def _complete(attributes: Mapping[str, str], index: int) -> dict[str, str]:
    """What a file of an earlier release does not have yet is added; what it has stays."""
    added = {"architecture": ARCHITECTURE, **_bus(index, int(attributes["numa"]))}
    return {**added, **attributes}
