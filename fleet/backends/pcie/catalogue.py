"""Which PCI functions are accelerators, and what each is: devices.toml, read once."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from fleet.backends.sysfs import Ids

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Part:
    """One row of devices.toml; its head says what the fields mean."""

    name: str
    family: str
    nodes: tuple[str, ...]
    scrub: str
    source: str
    vendor: int | None = None
    devices: frozenset[int] = frozenset()
    classes: frozenset[int] = frozenset()
    memory_bytes: int | None = None
    required: bool = False
    unbinds: bool = False

    def fits(self, ids: Ids) -> bool:
        """Whether a function with these ids is such a part."""
        if self.vendor is not None and ids.vendor != self.vendor:
            return False
        if self.devices:
            return ids.device in self.devices
        return ids.class_code >> 8 in {code >> 8 for code in self.classes}

    def product(self, ids: Ids) -> str:
        """How the product is called; a part known only by its class carries its ids as well."""
        if self.devices:
            return self.name
        return f"{self.name} {ids.vendor:04x}:{ids.device:04x}"


@functools.cache
def parts() -> tuple[Part, ...]:
    """All rows, in the order in which they are tried."""
    text = resources.files(__package__).joinpath("devices.toml").read_text()
    return tuple(_part(row) for row in tomllib.loads(text)["part"])


def part_of(ids: Ids) -> Part | None:
    """The row of a function; None: it is no accelerator."""
    return next((part for part in parts() if part.fits(ids)), None)


def _part(row: Mapping[str, Any]) -> Part:
    gib = row.get("memory_gib")
    return Part(
        name=row["name"],
        family=row["family"],
        nodes=tuple(row["nodes"]),
        scrub=row["scrub"],
        source=row["source"],
        vendor=row.get("vendor"),
        devices=frozenset(row.get("devices", ())),
        classes=frozenset(row.get("classes", ())),
        memory_bytes=None if gib is None else gib * GIB,
        required=row.get("required", False),
        unbinds=row.get("unbinds", False),
    )
