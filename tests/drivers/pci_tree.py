"""A fake machine's PCI bus, driver classes and processes as files, and a kernel that writes them.

Nothing here needs rights: device nodes are empty files, their numbers stand in sysfs, and open
descriptors are links that lead nowhere.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fleet.devices.openers import FIRST_PID_NAMESPACE
from fleet.devices.sysfs import Function

GIB = 1 << 30
ALIVE_HEAD = 64


@dataclass(frozen=True, slots=True)
class Card:
    """What a function says of itself."""

    vendor: int
    device: int
    class_code: int
    driver: str = ""
    group: str = ""
    numa: int = -1
    serial: int = 0
    """0: none in the configuration space."""
    bar_bytes: int = 16 * GIB
    methods: str = "flr bus"
    speed: str = "16.0 GT/s PCIe"
    width: int = 16


TPU_V5E = Card(0x1AE0, 0x0063, 0x120000, driver="vfio-pci", group="7", methods="flr")
TPU_V4 = Card(0x1AE0, 0x005E, 0x120000, driver="gasket", methods="flr")
GAUDI2 = Card(0x1DA3, 0x1020, 0x120000, driver="habanalabs", serial=0x1122334455667788)
MI300X = Card(0x1002, 0x74A1, 0x120000, driver="amdgpu", serial=0x99AABB)
H100 = Card(0x10DE, 0x2330, 0x030200, driver="nvidia")
SWITCH = Card(0x1000, 0xC010, 0x060400, driver="pcieport", bar_bytes=0, methods="")
CONSOLE = Card(0x1A03, 0x2000, 0x030000, bar_bytes=16 << 20)


class PciTree:
    """Files of a fake machine below `root`."""

    def __init__(self, root: Path) -> None:
        """Make an empty bus, seen from the host's PID namespace."""
        self.root = root
        self.cards: dict[str, Card] = {}
        (root / "sys/bus/pci/devices").mkdir(parents=True)
        self.link("proc/1/ns/pid", FIRST_PID_NAMESPACE)
        self.put("proc/1/comm", "init\n")
        self.put("proc/1/maps", "")
        (root / "proc/1/fd").mkdir()

    # --- functions ---

    def add(self, address: str, card: Card, *, below: str = "") -> Function:
        """Plug a card in, below the port at `below` ("" the root bus)."""
        self.cards[address] = card
        above = self._home(below) if below else self.root / "sys/devices/pci0000:00"
        home = above / address
        home.mkdir(parents=True)
        listed = self.root / "sys/bus/pci/devices" / address
        listed.symlink_to(os.path.relpath(home, listed.parent))
        texts = {
            "vendor": f"0x{card.vendor:04x}",
            "device": f"0x{card.device:04x}",
            "class": f"0x{card.class_code:06x}",
            "subsystem_vendor": f"0x{card.vendor:04x}",
            "subsystem_device": "0x0001",
            "revision": "0xa1",
            "numa_node": str(card.numa),
            "power_state": "D0",
            "current_link_speed": card.speed,
            "max_link_speed": card.speed,
            "current_link_width": str(card.width),
            "max_link_width": str(card.width),
            "resource": _resource(card.bar_bytes),
        }
        if card.methods:
            texts |= {"reset_method": card.methods, "reset": ""}
        for name, text in texts.items():
            self.write(address, name, text)
        self.revive(address)
        if card.group:
            self.join(address, card.group)
        if card.driver:
            self.bind(address, card.driver)
        return self.function(address)

    def function(self, address: str) -> Function:
        """The function as the product reads it."""
        return Function(self.root, address)

    def write(self, address: str, name: str, text: str) -> Path:
        """One attribute of a function."""
        return self.put(f"sys/bus/pci/devices/{address}/{name}", f"{text}\n" if text else "")

    def revive(self, address: str) -> None:
        """It answers: configuration space with its ids and, with privilege, its serial number."""
        (self._home(address) / "config").write_bytes(_config(self.cards[address]))

    def errors(self, address: str, corrected: int = 0, nonfatal: int = 0, fatal: int = 0) -> None:
        """Totals of the function's own error counters."""
        counts = {"correctable": corrected, "nonfatal": nonfatal, "fatal": fatal}
        for name, count in counts.items():
            word = "COR" if name == "correctable" else name.upper()
            self.write(address, f"aer_dev_{name}", f"Some Error 0\nTOTAL_ERR_{word} {count}")

    def die(self, address: str) -> None:
        """Configuration space reads all ones; what the kernel cached stays as it is."""
        (self._home(address) / "config").write_bytes(b"\xff" * 4096)

    def unprivileged(self, address: str) -> None:
        """The kernel shows 64 bytes of configuration space and no more."""
        path = self._home(address) / "config"
        path.write_bytes(path.read_bytes()[:ALIVE_HEAD])

    def remove(self, address: str) -> None:
        """Unplug it."""
        home = self._home(address)
        (self.root / "sys/bus/pci/devices" / address).unlink()
        for member in (self.root / "sys/kernel/iommu_groups").glob(f"*/devices/{address}"):
            member.unlink()
        shutil.rmtree(home)

    def join(self, address: str, group: str) -> None:
        """Put it into an IOMMU group, with the group's node."""
        members = self.root / "sys/kernel/iommu_groups" / group / "devices"
        members.mkdir(parents=True, exist_ok=True)
        (members / address).symlink_to(self._home(address))
        (self._home(address) / "iommu_group").symlink_to(members.parent)
        self.node(f"dev/vfio/{group}", f"sys/class/vfio/{group}", (510, int(group)))
        self.node("dev/vfio/vfio", "sys/class/misc/vfio", (10, 196))

    def bind(self, address: str, driver: str) -> None:
        """Bind a driver."""
        home = self.root / "sys/bus/pci/drivers" / driver
        home.mkdir(parents=True, exist_ok=True)
        for name in ("bind", "unbind"):
            (home / name).touch()
        (self._home(address) / "driver").symlink_to(home)

    def unbind(self, address: str) -> None:
        """Take its driver away."""
        (self._home(address) / "driver").unlink()

    # --- nodes, modules, processes ---

    def node(self, path: str, registered: str, numbers: tuple[int, int]) -> None:
        """A device node and the ``dev`` file that tells its numbers."""
        self.put(path, "")
        self.put(f"{registered}/dev", f"{numbers[0]}:{numbers[1]}\n")

    def nodes_of(self, address: str) -> None:
        """The nodes the card's driver makes."""
        base = f"sys/bus/pci/devices/{address}"
        minor = sorted(self.cards).index(address)
        driver = self.cards[address].driver
        if driver == "gasket":
            self.node(f"dev/accel{minor}", f"{base}/gasket/accel{minor}", (120, minor))
        elif driver == "habanalabs":
            for number, name in ((2 * minor, "accel"), (2 * minor + 1, "accel_controlD")):
                path = f"{base}/accel/{name}{minor}"
                self.node(f"dev/accel/{name}{minor}", path, (261, number))
        elif driver == "amdgpu":
            for name, number in ((f"renderD{128 + minor}", 128 + minor), (f"card{minor}", minor)):
                self.node(f"dev/dri/{name}", f"{base}/drm/{name}", (226, number))
                self._classed(name, self._home(address) / "drm" / name)
            self.node("dev/kfd", "sys/class/kfd/kfd", (235, 0))
            self.topology(address, 128 + minor, number=minor + 1)

    def topology(self, address: str, minor: int, *, number: int, part: int = 0) -> None:
        """What the compute driver says of one card, or of one part of a card."""
        bus, device, function = address.replace(".", ":").split(":")[1:]
        place = int(bus, 16) << 8 | int(device, 16) << 3 | int(function) | part << 28
        facts = {"simd_count": 304, "domain": int(address.split(":", maxsplit=1)[0], 16)}
        facts |= {"location_id": place, "drm_render_minor": minor}
        text = "".join(f"{name} {value}\n" for name, value in facts.items())
        self.put(f"sys/class/kfd/kfd/topology/nodes/{number}/properties", text)

    def partition(self, address: str, *minors: int, mode: str = "CPX", told: bool = True) -> None:
        """Switch a partition mode on: further parts have nodes below no PCI function."""
        self.write(address, "current_compute_partition", mode)
        for part, minor in enumerate(minors, start=1):
            home = f"sys/devices/platform/amdgpu_xcp_{minor - 128}/drm"
            for name, number in ((f"renderD{minor}", minor), (f"card{minor - 128}", minor - 128)):
                self.node(f"dev/dri/{name}", f"{home}/{name}", (226, number))
                self._classed(name, self.root / home / name)
            if told:
                self.topology(address, minor, number=minor, part=part)

    def _classed(self, name: str, home: Path) -> None:
        entry = self.root / "sys/class/drm" / name
        entry.parent.mkdir(parents=True, exist_ok=True)
        entry.symlink_to(os.path.relpath(home, entry.parent))

    def module(self, name: str, version: str, parameters: Mapping[str, str]) -> None:
        """A loaded driver."""
        self.put(f"sys/module/{name}/version", f"{version}\n")
        for parameter, value in parameters.items():
            self.put(f"sys/module/{name}/parameters/{parameter}", f"{value}\n")

    def process(self, pid: int, name: str, *targets: str, maps: str = "") -> None:
        """A process with descriptors that lead to `targets`."""
        self.put(f"proc/{pid}/comm", f"{name}\n")
        self.put(f"proc/{pid}/maps", maps)
        (self.root / f"proc/{pid}/fd").mkdir(exist_ok=True)
        for number, target in enumerate(targets):
            self.link(f"proc/{pid}/fd/{number}", target)

    def end(self, pid: int) -> None:
        """The process is gone."""
        shutil.rmtree(self.root / f"proc/{pid}")

    def put(self, name: str, text: str) -> Path:
        """Write one file, with its directories."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def link(self, name: str, target: str) -> None:
        """Make a link, with its directories; it need not lead anywhere."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def _home(self, address: str) -> Path:
        return Path(os.path.realpath(self.root / "sys/bus/pci/devices" / address))


@dataclass(slots=True)
class Kernel:
    """Writes attributes as the kernel does: `pci_reset.Write`."""

    tree: PciTree
    failing: set[str] = field(default_factory=set)
    """Reset methods that end with ENOTTY."""
    users: int = 0
    """Usage count of the nvidia driver."""
    clings: bool = False
    """Whether unbinding any driver fails."""
    struck: Callable[[str], None] | None = None
    """What a reset by the method given does to the machine."""
    log: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, path: Path, text: str) -> None:
        """One write to one attribute."""
        self.log.append((path.name, text))
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        act = {
            "reset": self._reset,
            "unbind": self._unbind,
            "bind": self._bind,
            "unbindLock": self._lock,
        }.get(path.name)
        if act is None:
            path.write_text(text + "\n")
        else:
            act(path, text)

    def _reset(self, path: Path, _text: str) -> None:
        method = (path.parent / "reset_method").read_text().split()[0]
        if method in self.failing:
            raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")
        if self.struck is not None:
            self.struck(method)

    def _unbind(self, _path: Path, text: str) -> None:
        if self.clings:
            raise OSError(errno.EBUSY, "Device or resource busy")
        self.tree.unbind(text)

    def _bind(self, path: Path, text: str) -> None:
        self.tree.bind(text, path.parent.name)

    def _lock(self, path: Path, text: str) -> None:
        path.write_text("0" if self.users else text)


def _config(card: Card) -> bytes:
    space = bytearray(4096)
    struct.pack_into("<HH", space, 0, card.vendor, card.device)
    # Two extended capabilities: error reporting first, then the serial number.
    struct.pack_into("<I", space, 0x100, 0x0001 | 1 << 16 | 0x148 << 20)
    if card.serial:
        struct.pack_into("<IQ", space, 0x148, 0x0003 | 1 << 16, card.serial)
    return bytes(space)


def _resource(bar_bytes: int) -> str:
    lines = [
        (0xF6000000, 0xF6FFFFFF, 0x40200),
        (0x22000000000, 0x22000000000 + bar_bytes - 1, 0x14220C) if bar_bytes else (0, 0, 0),
        (0x3000, 0x307F, 0x40101),
        *[(0, 0, 0)] * 4,
    ]
    shown = lines if bar_bytes else [(0, 0, 0)] * len(lines)
    return "\n".join(f"0x{start:016x} 0x{end:016x} 0x{flags:016x}" for start, end, flags in shown)
