"""Facts of one PCI function as the kernel shows them: files below ``<root>/sys``, only read.

Every fact that is not there is None (or empty where said so): absent means unknown, never zero.
``vendor``, ``device`` and ``class`` are cached by the kernel when the function is enumerated and
stay after it has died; whether it lives is read from its configuration space (`Function.life`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from fleet.core.errors import DriverAbsent
from fleet.core.pci import address as canonical

PCI_DEVICES = "sys/bus/pci/devices"
GONE = b"\xff\xff\xff\xff"
DEAD_WIDTH = 63
"""What the kernel prints where the link register reads all ones."""
GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
"""PCIe generation by speed in GT/s."""
EXTENDED_CAPABILITIES = 0x100
CONVENTIONAL_BYTES = 256
"""Configuration space of a function without extended capabilities."""
ERROR_REPORTING_CAPABILITY = 0x0001
SERIAL_NUMBER_CAPABILITY = 0x0003
MEMORY_BAR = 0x200
PREFETCHABLE_BAR = 0x2000
BAR_COUNT = 6


class Life(StrEnum):
    """Whether a function answers."""

    ALIVE = "alive"
    DEAD = "dead"
    """Listed, but its configuration space reads all ones."""
    GONE = "gone"
    """Not on the bus any more."""
    UNKNOWN = "unknown"
    """Its configuration space cannot be read, or it sleeps without power (D3cold)."""


@dataclass(frozen=True, slots=True)
class Ids:
    """What a function is, as the kernel read it at enumeration."""

    vendor: int
    device: int
    class_code: int
    """24 bits: base class, subclass, programming interface."""
    subsystem_vendor: int | None = None
    subsystem_device: int | None = None
    revision: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A function's link. None: unknown. Generations count from 1, widths are lanes."""

    gen: int | None = None
    gen_max: int | None = None
    width: int | None = None
    width_max: int | None = None
    dead: bool = False
    """The width register reads all ones."""


@dataclass(frozen=True, slots=True)
class Aer:
    """Totals of advanced error reporting. None: the file or its total is absent."""

    corrected: int | None = None
    nonfatal: int | None = None
    fatal: int | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """A memory window of a function."""

    index: int
    size_bytes: int
    prefetchable: bool


@dataclass(frozen=True, slots=True)
class Function:
    """One PCI function. `address` is in the form of sysfs (`fleet.core.pci.address`)."""

    root: Path
    address: str

    @property
    def path(self) -> Path:
        """Its directory, which is a link into the tree of buses."""
        return self.root / PCI_DEVICES / self.address

    @property
    def present(self) -> bool:
        """Whether the kernel lists it."""
        return self.path.is_dir()

    # --- what it is ---

    @property
    def ids(self) -> Ids | None:
        """Cached identity; None where vendor, device or class cannot be read."""
        vendor, device = self._hex("vendor"), self._hex("device")
        class_code = self._hex("class")
        if vendor is None or device is None or class_code is None:
            return None
        more = (self._hex(name) for name in ("subsystem_vendor", "subsystem_device", "revision"))
        return Ids(vendor, device, class_code, *more)

    @property
    def serial(self) -> str | None:
        """Serial number of the card from its configuration space, 16 hex digits.

        Needs CAP_SYS_ADMIN: for others the kernel cuts the file before it, and then it is None.
        """
        found = self._extended() or {}
        if SERIAL_NUMBER_CAPABILITY not in found:
            return None
        number = self.config()[found[SERIAL_NUMBER_CAPABILITY] + 4 :][:8]
        usable = len(number) == 8 and number.strip(b"\0") and number.strip(b"\xff")
        return f"{int.from_bytes(number, 'little'):016x}" if usable else None

    def _extended(self) -> dict[int, int] | None:
        """Offsets of its extended capabilities by id, the first of each. None: not readable."""
        config, offset = self.config(), EXTENDED_CAPABILITIES
        found: dict[int, int] = {}
        seen: set[int] = set()
        while offset >= EXTENDED_CAPABILITIES and offset not in seen:
            head = config[offset : offset + 4]
            if len(head) < 4 or head == GONE:
                return found or None
            seen.add(offset)
            value = int.from_bytes(head, "little")
            if not value:
                break
            found.setdefault(value & 0xFFFF, offset)
            offset = value >> 20
        return found

    # --- whether it lives ---

    def config(self) -> bytes:
        """Configuration space, live; empty where it cannot be read, 64 bytes without privilege."""
        try:
            return (self.path / "config").read_bytes()
        except OSError:
            return b""

    def life(self) -> Life:
        """Whether the function answers, from the first four bytes of its configuration space.

        A virtual function's own bytes always read ones: there the physical one's count.
        """
        if not self.present:
            return Life.GONE
        physical = self.physical()
        if physical is not None:
            return physical.life()
        head = self.config()[:4]
        if len(head) < 4:
            return Life.UNKNOWN
        if head != GONE:
            return Life.ALIVE
        return Life.UNKNOWN if self.power_state == "D3cold" else Life.DEAD

    def config_alive(self) -> bool | None:
        """True: answers. False: dead or gone. None: unknown."""
        found = self.life()
        return None if found is Life.UNKNOWN else found is Life.ALIVE

    @property
    def power_state(self) -> str | None:
        """``D0``, ``D3hot``, ``D3cold`` ..."""
        return self._text("power_state")

    # --- link and errors ---

    def link(self) -> Link:
        """Speed and width, current and maximal. An idle device may run slow to save power."""
        width = self._number("current_link_width")
        width_max = self._number("max_link_width")
        return Link(
            gen=_generation(self._text("current_link_speed")),
            gen_max=_generation(self._text("max_link_speed")),
            width=_lanes(width),
            width_max=_lanes(width_max),
            dead=DEAD_WIDTH in (width, width_max),
        )

    def aer(self) -> Aer:
        """The function's own error totals since enumeration; only differences mean anything."""
        kinds = ("correctable", "nonfatal", "fatal")
        return Aer(*(_total(self._text(f"aer_dev_{kind}")) for kind in kinds))

    def reports_errors(self) -> bool | None:
        """Whether it has the capability of advanced error reporting. None: unknown.

        Who may not read its extended configuration space sees at least whether it has one.
        """
        if (self.path / "aer_dev_fatal").exists():
            return True  # the kernel keeps totals only where there is something to count
        try:
            whole = (self.path / "config").stat().st_size
        except OSError:
            return None
        if whole <= EXTENDED_CAPABILITIES:
            return None if whole < CONVENTIONAL_BYTES else False
        found = self._extended()
        return None if found is None else ERROR_REPORTING_CAPABILITY in found

    def root_port_aer(self) -> Aer:
        """Totals a root port counted of everything below it; only root ports have them."""
        kinds = ("cor", "nonfatal", "fatal")
        return Aer(*(self._number(f"aer_rootport_total_err_{kind}") for kind in kinds))

    # --- where it is ---

    def parent(self) -> Function | None:
        """The port it is plugged into; None: on the root bus, or unknown."""
        above = canonical(self._real().parent.name)
        found = Function(self.root, above) if above else None
        return found if found and found.present else None

    @property
    def pcie_root(self) -> str | None:
        """The root complex it hangs on, as ``pci0000:3a``."""
        for above in self._real().parents:
            if above.name.startswith("pci") and ":" in above.name:
                return above.name
        return None

    @property
    def numa(self) -> int | None:
        """NUMA node; None: none, or unknown."""
        found = self._number("numa_node")
        return None if found is None or found < 0 else found

    @property
    def iommu_group(self) -> str | None:
        """Number of its IOMMU group: what VFIO opens, and all of it at once."""
        return _target(self.path / "iommu_group")

    def group_members(self) -> tuple[Function, ...]:
        """Every function of its IOMMU group, itself included; empty without a group."""
        try:
            names = [found.name for found in (self.path / "iommu_group" / "devices").iterdir()]
        except OSError:
            return ()
        return tuple(
            Function(self.root, found) for name in sorted(names) if (found := canonical(name))
        )

    # --- who drives it ---

    @property
    def driver(self) -> str | None:
        """Name of the driver bound; None: none."""
        return _target(self.path / "driver")

    def physical(self) -> Function | None:
        """The physical function of a virtual one; None: it is none."""
        name = canonical(_target(self.path / "physfn") or "")
        return Function(self.root, name) if name else None

    @property
    def virtual_functions(self) -> int:
        """Virtual functions that are switched on: guests may use the device through them."""
        return self._number("sriov_numvfs") or 0

    def reset_methods(self) -> tuple[str, ...] | None:
        """Methods the kernel offers; empty: none (or switched off). None: unknown."""
        found = self._text("reset_method")
        return None if found is None else tuple(found.split())

    @property
    def resettable(self) -> bool:
        """Whether the kernel has a way to reset it."""
        return (self.path / "reset").exists()

    # --- its memory ---

    def bars(self) -> tuple[Bar, ...]:
        """Its memory windows, as far as they have a size; empty where that is unknown, too.

        A window is how much the processor can see at once, and no measure of a card's memory.
        """
        found = []
        for index, line in enumerate((self._text("resource") or "").splitlines()[:BAR_COUNT]):
            try:
                start, end, flags = (int(word, 16) for word in line.split())
            except ValueError:
                continue
            if flags & MEMORY_BAR and end > start:
                found.append(Bar(index, end - start + 1, bool(flags & PREFETCHABLE_BAR)))
        return tuple(found)

    @property
    def windowless(self) -> bool:
        """Whether the kernel tells its windows, and none of them has a size."""
        return bool(self._text("resource")) and not self.bars()

    def memory_only_node(self) -> int | None:
        """Bytes of its NUMA node where that has memory and no processor: the device's own memory,
        which the kernel hands out to anybody (case B64). None: it has no such node."""
        if self.numa is None:
            return None
        node = self.root / "sys/devices/system/node" / f"node{self.numa}"
        if read_text(node / "cpulist") != "":
            return None
        for line in (read_text(node / "meminfo") or "").splitlines():
            words = line.split()
            if "MemTotal:" in words and words[-2].isdecimal() and int(words[-2]):
                return int(words[-2]) * 1024
        return None

    # --- reading ---

    def _real(self) -> Path:
        return Path(os.path.realpath(self.path))

    def _text(self, name: str) -> str | None:
        return read_text(self.path / name)

    def _number(self, name: str) -> int | None:
        return _number(self._text(name))

    def _hex(self, name: str) -> int | None:
        try:
            return int(self._text(name) or "", 16)
        except ValueError:
            return None


def discover(
    root: Path, *, vendors: Collection[int] | None = None, classes: Collection[int] | None = None
) -> tuple[Function, ...]:
    """Functions of these vendors and of these classes, by address. None: any.

    A class is given as 24 bits of which the last 8 are not compared (0x030200: 3D controller).
    Raises `DriverAbsent` where no PCI bus is visible: unknown is not "no devices".
    """
    wanted = None if classes is None else {code >> 8 for code in classes}
    found = []
    for function in _listed(root):
        ids = function.ids
        if ids is None or (vendors is not None and ids.vendor not in vendors):
            continue
        if wanted is None or ids.class_code >> 8 in wanted:
            found.append(function)
    return tuple(found)


def _listed(root: Path) -> Iterator[Function]:
    try:
        names = sorted(found.name for found in (root / PCI_DEVICES).iterdir())
    except OSError as error:
        raise DriverAbsent(
            f"the PCI bus cannot be listed at {root / PCI_DEVICES}: {error.strerror}",
            remedy="show the host's /sys to the node service, or set hardware.root",
        ) from error
    for name in names:
        if found := canonical(name):
            yield Function(root, found)


def device_numbers(path: Path) -> tuple[int, int] | None:
    """(major, minor) from a ``dev`` file, as every character device has one in sysfs."""
    major, colon, minor = (read_text(path) or "").partition(":")
    if colon and major.isdecimal() and minor.isdecimal():
        return int(major), int(minor)
    return None


def read_text(path: Path) -> str | None:
    """Contents of a small file, stripped; None where it is absent or its read fails."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _target(path: Path) -> str | None:
    """Last part of a link's target."""
    try:
        return path.readlink().name
    except OSError:
        return None


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _generation(text: str | None) -> int | None:
    """PCIe generation of ``16.0 GT/s PCIe``, ``8 GT/s``; None: ``Unknown`` or no speed we know."""
    words = (text or "").split()
    try:
        return GENERATIONS.get(float(words[0])) if words[1:2] == ["GT/s"] else None
    except (IndexError, ValueError):
        return None


def _lanes(width: int | None) -> int | None:
    return None if width in (None, 0, DEAD_WIDTH) else width


def _total(text: str | None) -> int | None:
    """The total of an AER file: names have one word or several, the count is the last."""
    for line in (text or "").splitlines():
        words = line.split()
        if len(words) > 1 and words[0].startswith("TOTAL_ERR"):
            return _number(words[-1])
    return None
