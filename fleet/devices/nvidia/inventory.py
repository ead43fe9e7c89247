"""Which GPUs there are, by UUID: what NVML lists, checked against what is on the PCI bus.

Decisions:

1. NVML's index is used to walk and forgotten: it changes with every card that comes or goes (B13).
   A GPU is opened by its PCI address and must answer with its UUID; opening by UUID would make the
   library look into every GPU, also one that hangs.
2. One GPU's failure is its own. A card on the bus that NVML does not list, or that fails when
   asked, stays an accelerator under the identity remembered for its slot, and its readings are
   `DeviceLost` (B24). Without a driver nothing is known of any card: `DriverAbsent`.
3. A UUID that is empty, or that two cards claim, identifies neither: both get one of their slot.
4. Memory of the host (no framebuffer, or a NUMA node the kernel hands out) has no size here: what
   it would be is a plausible number from elsewhere (B64).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.core import pci
from fleet.core.errors import BackendFailed, DeviceLost, DriverAbsent, DriverRefused, FleetError
from fleet.core.model import Accelerator, Uuid
from fleet.devices import sysfs
from fleet.devices.nvidia import attributes, identity, layout, nodes, nvml
from fleet.devices.nvidia.identity import Identities, Known
from fleet.devices.nvidia.probe import Probe

LOG = logging.getLogger(__name__)
VENDOR = 0x10DE
CLASSES = (0x030000, 0x030200)
"""VGA controller and 3D controller."""
GONE = frozenset({nvml.NOT_FOUND, nvml.INVALID_ARGUMENT, 28, 999})
"""Codes that mean as much as "lost" when a GPU is only asked who it is."""
STALE = frozenset({1, nvml.DRIVER_NOT_LOADED, nvml.MISMATCH})
"""Codes that mean that the driver went away under us, or is another one: it is opened anew."""


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU that answers. Good until the next reset or change of its MIG mode."""

    uuid: Uuid
    handle: Any
    address: str
    """In the form of sysfs; "" for one that is on no PCI bus."""
    architecture: int | None = None


Shape = Callable[[Card, Accelerator], Accelerator]
"""Units and devices of a GPU in its present MIG mode, from the accelerator it is as a whole."""


class Inventory:
    """The GPUs of this machine. Not safe for several threads at once."""

    def __init__(
        self, library: nvml.Library, root: Path, identities: Identities, shape: Shape
    ) -> None:
        self._library = library
        self._root = root
        self._identities = identities
        self._shape = shape
        self._addresses: dict[Uuid, str] = {}

    def accelerators(self) -> tuple[Accelerator, ...]:
        """All GPUs, by PCI address. Raises `DriverAbsent`, or `BackendFailed` for all of them."""
        bus = self._bus()
        count = self._counted(bus)
        cards, contested, unlisted = self._walk(count)
        seen: list[Known] = []
        for card in cards:
            try:
                seen.append(self._seen(card))
            except FleetError as error:
                LOG.info("%s at %s: %s", card.uuid, card.address, error.detail)
                unlisted += 1
        self._identities.remember(seen)
        taken = {*contested, *(known.accelerator.uuid for known in seen)}
        found = [(known.address, known.accelerator) for known in seen]
        listed = {known.address for known in seen}
        for function in bus or ():
            if function.address not in listed:
                found.append((function.address, self._dead(function, taken)))
                taken.add(found[-1][1].uuid)
        if bus is None and unlisted:
            found += [
                (known.address, known.accelerator)
                for known in self._identities.all()
                if known.accelerator.uuid not in taken
            ]
        return tuple(accelerator for _, accelerator in sorted(found, key=lambda one: one[0]))

    def card(self, accelerator: Uuid) -> Card:
        """The GPU with that UUID, opened alone. Raises `DeviceLost`, `DriverRefused`."""
        address = self.address(accelerator)
        found = self._card(self._handle(accelerator, address))
        if found.uuid != accelerator and address:
            found = self._card(self._handle(accelerator, ""))  # it may have moved
        if found.uuid != accelerator:
            raise DeviceLost(f"{accelerator} is gone: {found.uuid} answers in its place")
        function = sysfs.Function(self._root, found.address)
        if found.address and function.life() is sysfs.Life.DEAD:
            raise DeviceLost(
                f"{accelerator} at {found.address} is dead: its configuration space reads all ones"
            )
        self._addresses[accelerator] = found.address
        return found

    def accelerator(self, card: Card) -> Accelerator:
        """One GPU with its units and devices, looking into no other. Raises `DeviceLost`."""
        return self._seen(card).accelerator

    def roll(self) -> tuple[Uuid, ...]:
        """UUIDs of the cards that the kernel module lists, without any call into the driver."""
        return tuple(Uuid(gpu.uuid) for gpu in _driven(self._root) if gpu.uuid)

    def minor(self, uuid: Uuid) -> int | None:
        """Device minor of a card by the kernel module's word; None: no module is loaded.

        Raises `BackendFailed` where the module has cards and not this one.
        """
        if not nodes.is_loaded(self._root):
            return None
        address = self.address(uuid)
        for gpu in _driven(self._root):
            if uuid == gpu.uuid or (address and gpu.address == address):
                return gpu.minor
        raise BackendFailed(f"the kernel module does not list {uuid}: who has it open is unknown")

    def silent(self, uuid: Uuid) -> Accelerator:
        """A card that does not answer, as it is remembered; else as its slot shows it."""
        known = self._identities.of(uuid)
        if known is not None:
            return known.accelerator
        address = self.address(uuid)
        told = {}
        if address:
            function = sysfs.Function(self._root, address)
            told = attributes.of_slot(function, product="unidentified device")
        name = identity.name(address, uuid)
        return layout.undivided(uuid, name, total_bytes=0, attributes=told)

    def address(self, accelerator: Uuid) -> str:
        """In which slot a GPU is, as far as can be told without asking it; "" unknown."""
        return self._addresses.get(accelerator) or self._address(accelerator)

    def slots(self) -> tuple[str, ...]:
        """PCI addresses of all cards, dead and remembered ones too, asking no driver."""
        bus = [function.address for function in self._bus() or ()]
        listed = [gpu.address for gpu in _driven(self._root)]
        known = [one.address for one in self._identities.all()]
        return tuple(dict.fromkeys((*bus, *listed, *known)))

    def forget(self, accelerator: Uuid) -> None:
        """Look the GPU up anew next time: it was reset, or its MIG mode changed."""
        self._addresses.pop(accelerator, None)

    # --- what NVML lists ---

    def _counted(self, bus: Sequence[sysfs.Function] | None) -> int:
        try:
            return int(self._library.call("nvmlDeviceGetCount"))
        except (DriverAbsent, DriverRefused) as error:
            if not bus:
                raise
            names = ", ".join(f"{one.address} ({identity.marks(one)[:9]})" for one in bus)
            detail = f"{error.detail}, but on the PCI bus there is: {names}"
            if isinstance(error, DriverRefused):
                raise DriverRefused(detail, remedy=error.remedy, code=error.code) from error
            remedy = _LOAD if error.remedy == error.default_remedy else error.remedy
            raise DriverAbsent(detail, remedy=remedy, **error.fields) from error

    def _walk(self, count: int) -> tuple[list[Card], set[Uuid], int]:
        """The cards that say who they are, UUIDs that identify nobody, and how many do not."""
        cards, unlisted = [], 0
        for index in range(count):
            try:
                cards.append(self._card(self._library.call("nvmlDeviceGetHandleByIndex", index)))
            except FleetError as error:
                LOG.info("a GPU that the driver counts cannot be opened: %s", error.detail)
                unlisted += 1
        uuids = [card.uuid for card in cards]
        contested = {uuid for uuid in uuids if not uuid or uuids.count(uuid) > 1}
        good = [card for card in cards if card.uuid not in contested]
        return good, contested, unlisted + len(cards) - len(good)

    def _card(self, handle: Any) -> Card:
        said = nvml.text(self._library.call("nvmlDeviceGetUUID", handle))
        bus = self._library.ask("nvmlDeviceGetPciInfo", handle)
        return Card(
            uuid=Uuid(said),
            handle=handle,
            address=pci.address(nvml.text(bus.busId)) if bus is not None else "",
            architecture=self._library.ask("nvmlDeviceGetArchitecture", handle),
        )

    def _seen(self, card: Card) -> Known:
        """A card that answers, as it is now. Raises `DeviceLost` for one that then does not."""
        function = sysfs.Function(self._root, card.address) if card.address else None
        probe = Probe(self._library, card.handle)
        host_memory = attributes.host_memory(probe, self._root, function)
        memory = attributes.memory(probe)
        total = 0 if host_memory or memory is None else memory.total
        told = attributes.read(self._library, probe, function, architecture=card.architecture)
        told["memory"] = host_memory or ("" if memory is None else attributes.OWN_MEMORY)
        told["memory_total"] = str(total) if total else ""
        told["memory_reserved"] = (
            str(memory.reserved) if memory and total and memory.reserved is not None else ""
        )
        name = identity.name(card.address, card.uuid)
        whole = layout.undivided(card.uuid, name, total_bytes=total, attributes=told)
        shaped = self._shape(card, whole) if total else whole
        return Known(
            address=card.address,
            ids=identity.marks(function) if function else "",
            serial=(function.serial or "") if function else "",
            accelerator=shaped,
        )

    # --- what NVML does not list ---

    def _bus(self) -> tuple[sysfs.Function, ...] | None:
        """Cards of the vendor on the bus; None: no bus is visible. Virtual functions are none."""
        try:
            found = sysfs.discover(self._root, vendors={VENDOR}, classes=CLASSES)
        except DriverAbsent:
            return None
        return tuple(function for function in found if function.physical() is None)

    def _dead(self, function: sysfs.Function, taken: set[Uuid]) -> Accelerator:
        known = self._identities.at(function, alive=taken)
        if known is not None:
            return known.accelerator
        ids = identity.marks(function)
        uuid = identity.unnamed(function.address, ids)
        for gpu in _driven(self._root):
            if gpu.address == function.address and gpu.uuid and gpu.uuid not in taken:
                uuid = Uuid(gpu.uuid)
        told = attributes.of_slot(function, product=f"unidentified device {ids[:9]}")
        name = identity.name(function.address, uuid)
        return layout.undivided(uuid, name, total_bytes=0, attributes=told)

    # --- one GPU ---

    def _handle(self, accelerator: Uuid, address: str) -> Any:
        """Raises `DeviceLost`, `DriverRefused`."""
        try:
            if address:
                with suppress(_NotThere):
                    return self._opened("nvmlDeviceGetHandleByPciBusId", address)
            return self._opened("nvmlDeviceGetHandleByUUID", accelerator)
        except _NotThere as error:
            raise DeviceLost(
                f"the driver does not list {accelerator}{self._placed(address)}: {error}"
            ) from error

    def _opened(self, name: str, key: str) -> Any:
        try:
            return self._library.call(name, key)
        except DriverRefused as error:
            if error.code in STALE:
                self._library.close()
                self._library.open()  # away as a whole it is no fault of this card: `DriverAbsent`
                self._library.close()
            if error.code in GONE:
                raise _NotThere(error.detail) from error
            raise

    def _placed(self, address: str) -> str:
        """Where a card is, and who has it there if that is not the vendor's driver."""
        driver = sysfs.Function(self._root, address).driver if address else None
        other = f", which {driver} drives" if driver and driver != attributes.VENDOR else ""
        return f" at {address}{other}" if address else ""

    def _address(self, accelerator: Uuid) -> str:
        """Where the kernel module, or memory, has that GPU; "" unknown."""
        for gpu in _driven(self._root):
            if gpu.uuid == accelerator:
                return gpu.address
        known = self._identities.of(accelerator)
        return known.address if known else ""


_LOAD = "install the driver of these cards and load it with `modprobe nvidia`"


class _NotThere(Exception):
    """The driver has no such GPU."""


def _driven(root: Path) -> tuple[nodes.Listed, ...]:
    """GPUs as the kernel module lists them, without any call into the driver."""
    try:
        return nodes.listed(root)
    except DriverAbsent:
        return ()
