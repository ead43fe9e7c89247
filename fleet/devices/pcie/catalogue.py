"""Which PCI functions are accelerators, and what each is: devices.toml, read once."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from fleet.devices.sysfs import Ids

GIB = 1 << 30
DISPLAY = 0x03
"""Base class of everything that drives a display."""


@dataclass(frozen=True, slots=True)
class Part:
    """One row of devices.toml; its head says what the fields mean."""

    name: str
    family: str
    nodes: tuple[str, ...]
    source: str
    vendor: int | None = None
    devices: frozenset[int] = frozenset()
    classes: frozenset[int] = frozenset()
    memory_bytes: int | None = None
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
    return tuple(_part(row) for row in _table()["part"])


@functools.cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("devices.toml").read_text())


@dataclass(frozen=True, slots=True)
class Vendor:
    """What a vendor's memory keeps through a reset: of all its devices, listed or not."""

    scrub: str = "none"
    required: bool = False
    cleared_from: int = 0


@functools.cache
def _vendors() -> Mapping[int, Vendor]:
    return {
        row["vendor"]: Vendor(
            scrub=row["scrub"],
            required=row.get("required", False),
            cleared_from=row.get("cleared_from", 0),
        )
        for row in _table()["vendor"]
    }


def vendor_of(ids: Ids) -> Vendor:
    """The rule of a function's vendor; without one, that no switch is known."""
    return _vendors().get(ids.vendor, Vendor())


def is_integrated(ids: Ids, address: str) -> bool:
    """Whether a function is graphics of the processor itself, which shares the host's memory."""
    return any(_is_such(row, ids, address) for row in _table()["integrated"])


def _is_such(row: Mapping[str, Any], ids: Ids, address: str) -> bool:
    if ids.vendor != row["vendor"] or ids.class_code >> 16 != DISPLAY:
        return False
    if "devices" in row:
        return ids.device in row["devices"]
    cards = any(first <= ids.device <= last for first, last in row["but"])
    return address == row["place"] and not cards


def part_of(ids: Ids) -> Part | None:
    """The row of a function; None: it is no accelerator."""
    return next((part for part in parts() if part.fits(ids)), None)


def _part(row: Mapping[str, Any]) -> Part:
    gib = row.get("memory_gib")
    return Part(
        name=row["name"],
        family=row["family"],
        nodes=tuple(row["nodes"]),
        source=row["source"],
        vendor=row.get("vendor"),
        devices=frozenset(row.get("devices", ())),
        classes=frozenset(row.get("classes", ())),
        memory_bytes=None if gib is None else gib * GIB,
        unbinds=row.get("unbinds", False),
    )
