"""Accelerators of the PCI bus: which there are, who each is, and how much memory it has.

Decisions:

1. Identity is the card's serial number where it can be read (DESIGN: it survives a move to another
   slot), else slot and ids together: another kind of card in that slot is another device. A serial
   number that two cards claim identifies neither.
2. A card that is dead, asleep or unplugged cannot tell its serial number: what it was when it last
   answered is remembered (`Identities`), so that it keeps its name and a new card gets its own.
3. A size that nobody tells is not told: not taken from a window onto the card, which may be larger
   or smaller than its memory (F46), and never from the host's memory (B64). The card is listed all
   the same, and what it is certified for is "size unknown".
4. Graphics that are a part of the processor are no accelerator: devices.toml says which.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet.core.model import Accelerator, Device, UnitId, UnitSpec, Uuid
from fleet.devices.nvidia.identity import Identities, Known, marks, unnamed
from fleet.devices.pcie.catalogue import Part, is_integrated, part_of
from fleet.devices.sysfs import Function, Ids, Life, discover, read_text

_SERIALS = uuid.UUID("3f1a7f57-4f0c-5b5e-8b1c-7b6f8f6c2d94")
"""Namespace of identities made from serial numbers."""
_SERIAL_FILES = ("serial_number", "unique_id")
_MEANINGLESS = frozenset({"", "0", "N/A", "unknown"})
HASH_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Slot:
    """One accelerator and the function it is reached by."""

    function: Function
    part: Part
    accelerator: Accelerator


def slots(root: Path, identities: Identities) -> tuple[Slot, ...]:
    """All accelerators on the bus, dead ones included, by address. Raises `DriverAbsent`.

    What answers is remembered.
    """
    found = [
        (function, ids, part)
        for function in discover(root)
        if (ids := function.ids) is not None
        and (part := part_of(ids)) is not None
        and not is_integrated(ids, function.address)
        and function.physical() is None
    ]
    alive = [one for one in found if one[0].life() is Life.ALIVE]
    serials = {function.address: _serial(function) for function, _, _ in alive}
    claimed = Counter(
        (marks(function), serials[function.address], _number(function)) for function, _, _ in alive
    )
    seen, listed = [], []
    for function, ids, part in alive:
        serial = serials[function.address]
        if claimed[(marks(function), serial, _number(function))] > 1:
            serial = ""
        accelerator = _accelerator(function, ids, part, serial)
        seen.append(Known(function.address, marks(function), serial, accelerator))
        listed.append(Slot(function, part, accelerator))
    known = {one.accelerator.uuid for one in seen}
    dead = [
        Slot(function, part, _dead(function, ids, part, identities, known))
        for function, ids, part in found
        if function.address not in serials
    ]
    identities.remember(seen)
    return tuple(sorted([*listed, *dead], key=lambda slot: slot.function.address))


def slot_of(root: Path, known: Known) -> Slot | None:
    """The accelerator `known`, if it is still where it was seen; None: look at all of them.

    Touches no other function: the kernel keeps readers of a configuration space waiting while that
    function is reset, and one card's reset must not hold up the others (B29).
    """
    function = Function(root, known.address)
    ids = function.ids
    part = part_of(ids) if ids is not None else None
    if part is None or marks(function) != known.ids:
        return None
    if known.serial and function.life() is Life.ALIVE:
        serial = _serial(function)
        if serial and serial != known.serial:
            return None
    return Slot(function, part, known.accelerator)


def _dead(
    function: Function, ids: Ids, part: Part, identities: Identities, alive: set[Uuid]
) -> Accelerator:
    known = identities.at(function, alive=alive)
    return known.accelerator if known else _accelerator(function, ids, part, "")


def _serial(function: Function) -> str:
    for name in _SERIAL_FILES:
        found = read_text(function.path / name) or ""
        if found.strip("0x") and found not in _MEANINGLESS:
            return found
    return function.serial or ""


def _number(function: Function) -> str:
    """Functions of one card share its serial number."""
    return function.address.rpartition(".")[2]


def _accelerator(function: Function, ids: Ids, part: Part, serial: str) -> Accelerator:
    size, source = _memory(function, part)
    if serial:
        text = f"{ids.vendor:04x}:{ids.device:04x}/{serial}/{_number(function)}"
        own = Uuid(f"PCI-{uuid.uuid5(_SERIALS, text)}")
    else:
        own = unnamed(function.address, marks(function))
    unit = UnitSpec(UnitId(f"{own}/all"), size)
    device = Device(
        uuid=own,
        name=_name(part, function.address, own),
        accelerator=own,
        units=(unit.id,),
        memory_bytes=size,
        attributes={
            **_attributes(function, ids, part),
            "serial": serial,
            "identity": "serial" if serial else "slot",
            "memory_source": source,
        },
    )
    return Accelerator(own, (unit,), (device,))


def _memory(function: Function, part: Part) -> tuple[int, str]:
    """Size in bytes and who says so; 0 where nobody does."""
    told = read_text(function.path / "mem_info_vram_total") or ""
    if told.isdecimal() and int(told):
        return int(told), "driver"
    if part.memory_bytes:
        return part.memory_bytes, "catalogue"
    return 0, "nobody"


def _attributes(function: Function, ids: Ids, part: Part) -> Mapping[str, str]:
    numa = function.numa
    return {
        "product": part.product(ids),
        "family": part.family,
        "pci": function.address,
        "pci_ids": f"{ids.vendor:04x}:{ids.device:04x}",
        "architecture": part.family,
        "driver": driver_version(function) or "",
        "type": "accelerator",
        "driver_name": function.driver or "",
        "numa": "" if numa is None else str(numa),
        "iommu": function.iommu_group or "",
        "pcie_root": function.pcie_root or "",
    }


def driver_version(function: Function) -> str | None:
    """Version of the driver bound; of the kernel where the driver is part of it. None: none."""
    driver = function.driver
    if driver is None:
        return None
    own = read_text(function.root / "sys/module" / driver.replace("-", "_") / "version")
    return own or read_text(function.root / "proc/sys/kernel/osrelease")


def _name(part: Part, address: str, own: Uuid) -> str:
    """``tpu-3b-00-1a2b3c4d``: slot and identity, so that a card gives its name to no other."""
    domain, _, place = address.partition(":")
    slot, _, function = place.partition(".")
    return "-".join(
        word
        for word in (
            part.family,
            domain if domain.strip("0") else "",
            slot.replace(":", "-"),
            f"f{function}" if function != "0" else "",
            own.rpartition("-")[2][:HASH_DIGITS],
        )
        if word
    )
