"""The back end for any PCI accelerator: sysfs alone, no vendor library, memory never read.

All that can be certified is a reset with nobody on the device (`scrub_by_reset`); the certificate
says so, and policy decides whether that is enough (`hardware.accept_unread`). Plain direct code
that may block: it runs only in processes that can be killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet.core.clock import Clock, SystemClock
from fleet.core.errors import BackendFailed, DeviceLost, DeviceUnknown
from fleet.core.model import Accelerator, Device, Process, UnitId, Uuid
from fleet.devices import infrastructure, kmsg, pci_reset
from fleet.devices.base import Grant, MemorySession, Mount, ResetOutcome, ResetScrub
from fleet.devices.health.readings import LogState, Readings
from fleet.devices.kmsg import KernelLog
from fleet.devices.nvidia.identity import Identities
from fleet.devices.openers import Opener, Wanted, openers
from fleet.devices.pcie import inventory, nodes
from fleet.devices.pcie.catalogue import Part
from fleet.devices.pcie.inventory import Slot
from fleet.devices.pcie.nodes import KFD, nodes_of, reaching, render_nodes
from fleet.devices.pcie.obstacles import obstacles
from fleet.devices.pcie.readings import readings
from fleet.devices.pcie.vendor_scrub import scrub_of
from fleet.devices.sysfs import Function, discover, read_text

# Who uses a PCI function: every process with one of its device nodes open.

HIVE = "xgmi_hive_info/xgmi_hive_id"


def processes(function: Function, part: Part) -> tuple[Process, ...]:
    """Processes that have the function open, classified, by pid.

    Raises `BackendFailed` where not all processes can be looked into, and for a driver whose nodes
    nobody knows.
    """
    known = [node for node in nodes_of(function, part) if not node.shared]
    if not known and function.driver is not None:
        raise BackendFailed(
            f"{function.address} is bound to {function.driver}, and no device node of it is known:"
            " who uses it is unknown",
            remedy="bind the device to vfio-pci, or to the driver of its vendor",
        )
    nodes = reaching(function, part)
    own = {node.path: node.numbers for node in nodes if not node.shared}
    wanted: dict[str, tuple[int, int] | None] = dict(own)
    renders: Wanted = {}
    shared = [node for node in nodes if node.path == KFD]
    if shared:
        renders = render_nodes(function.root)
        wanted = {**renders, **own, KFD: shared[0].numbers}
    proc = function.root / "proc"
    return tuple(
        infrastructure.process(found.pid, found.name, proc=proc)
        for found in openers(function.root, wanted)
        if found.paths.intersection(own) or _anywhere(found, renders)
    )


def _anywhere(found: Opener, renders: Iterable[str]) -> bool:
    """Has the compute node of all GPUs open and none known to be of one: it may be on any."""
    return KFD in found.paths and not found.paths.intersection(renders)


def hive(function: Function) -> tuple[Function, ...]:
    """GPUs linked to this one so closely that a reset of it may disturb them, itself excluded."""
    own = read_text(function.path / HIVE)
    if not own or own == "0" or function.ids is None:
        return ()
    return tuple(
        other
        for other in discover(function.root, vendors={function.ids.vendor})
        if other != function and read_text(other.path / HIVE) == own
    )


DEFAULT_METHODS = ("flr", "device_specific")


class PcieBackend:
    """All PCI accelerators of this node (see `Backend`, `CanReset`, `CanScrubByReset`)."""

    kind = "pcie"
    simulated = False

    def __init__(self, **settings: Any) -> None:
        """`settings` as `fleet.wiring.hardware.arguments` gives them; those left out have their
        default.

        Used are ``root``, ``kernel_log``, ``reset_methods`` and ``identities``; the others concern
        other back ends and are only passed on. Raises TypeError for one that is unknown.
        """
        if unknown := settings.keys() - _SETTINGS:
            raise TypeError(f"unknown: {', '.join(sorted(unknown))}")
        self._settings = dict(settings)
        self._root = Path(settings.get("root", "/"))
        self._methods = tuple(settings.get("reset_methods", DEFAULT_METHODS))
        remembered = settings.get("identities", "")
        self._identities = Identities(Path(remembered) if remembered else None)
        self._log = KernelLog(settings.get("kernel_log", ""))
        self.clock: Clock = SystemClock()
        self.write: pci_reset.Write = pci_reset.write_attribute
        self.settle_s = pci_reset.LINK_WAIT_S

    def settings(self) -> Mapping[str, Any]:
        """What `fleet.devices.registry.build` needs to make this back end again."""
        return self._settings

    def inventory(self) -> Sequence[Accelerator]:
        """All accelerators, dead ones included. Raises DriverAbsent without a PCI bus."""
        return tuple(slot.accelerator for slot in self._slots())

    def readings(self, accelerator: Uuid) -> Readings:
        """Health readings. Raises DeviceLost, DeviceUnknown."""
        return readings(
            self._slot(accelerator).function,
            at=self.clock.now(),
            log=self._log,
            now_s=self.clock.monotonic(),
        )

    def processes(self, accelerator: Uuid) -> Sequence[Process]:
        """Everybody with one of its nodes open. Raises BackendFailed where that is unknown."""
        slot = self._slot(accelerator)
        return processes(slot.function, slot.part)

    def log_state(self) -> LogState | None:
        """How far the kernel log was read, now; None: it cannot be read."""
        return kmsg.state(self._log, self.clock)

    def grant(self, device: Device) -> Grant:
        """The nodes of its driver. Raises DeviceLost where one is missing, and BackendFailed where
        a node would reach another device as well, or only a part of this one."""
        slot = self._slot(device.accelerator)
        readings(slot.function, at=self.clock.now())
        given = nodes.grant(slot.function, slot.part, device.name)
        if found := obstacles(slot.function):
            raise BackendFailed(
                f"{device.name} is not handed out: {'; '.join(found)}",
                remedy="do what is said, then scrub the device",
            )
        return given

    def agent_grant(self) -> Grant:
        """The kernel's view of the bus, writable for resets. Nodes of devices are never opened."""
        return Grant(mounts=(Mount("/sys", "/sys", read_only=False),))

    def session(self, accelerator: Uuid, units: Sequence[UnitId]) -> MemorySession:
        """Always raises: `scrub_by_reset` is all there is."""
        slot = self._slot(accelerator)
        raise BackendFailed(
            f"memory of {slot.accelerator.device.name} ({len(units)} units) cannot be reached"
            " without a vendor library",
            remedy="it is reset instead; `hardware.accept_unread` decides whether that is enough",
        )

    def reset(self, accelerator: Uuid) -> ResetOutcome:
        """Reset by the kernel's methods that policy allows. Refused while anybody, infrastructure
        included, has it open, or another GPU of its XGMI hive.

        Raises DeviceLost, BackendFailed.
        """
        slot = self._slot(accelerator)
        terms = pci_reset.Terms(self._methods, unbinds=slot.part.unbinds, settle_s=self.settle_s)
        return pci_reset.reset(
            slot.function, terms, lambda: self._hive_holders(slot), write=self.write
        )

    def scrub_by_reset(self, accelerator: Uuid) -> ResetScrub:
        """Reset it, and say what the vendor's switch and the holders before and after are.

        The switch counts only where it was on before and is on after: it is a driver's, which a
        reset may have unbound and bound again.
        """
        slot = self._slot(accelerator)
        scrub = scrub_of(slot.function)
        if found := obstacles(slot.function):
            return ResetScrub(
                performed=False,
                method="",
                vendor_scrub=scrub.state.value,
                switch=scrub.name,
                problem=f"it was not reset: {'; '.join(found)}",
            )
        before = self.processes(accelerator)
        outcome = self.reset(accelerator)
        after = self.processes(accelerator)
        again = scrub_of(slot.function)
        scrub = scrub if scrub.problem else again
        problem = scrub.problem
        if not outcome.done:
            problem = f"it was not reset: {outcome.detail}"
        return ResetScrub(
            performed=outcome.done,
            method=outcome.method,
            vendor_scrub=scrub.state.value,
            switch=scrub.name,
            before=tuple(before),
            after=tuple(after),
            problem=problem,
        )

    def _hive_holders(self, slot: Slot) -> Sequence[Process]:
        found: dict[int, Process] = {}
        for function in (slot.function, *hive(slot.function)):
            for process in processes(function, slot.part):
                found[process.pid] = process
        return tuple(found[pid] for pid in sorted(found))

    def _slots(self) -> tuple[Slot, ...]:
        return inventory.slots(self._root, self._identities)

    def _slot(self, accelerator: Uuid) -> Slot:
        """By the whole UUID only, never by index or prefix (B13)."""
        known = self._identities.of(accelerator)
        if known is not None and (found := inventory.slot_of(self._root, known)):
            return found
        for slot in self._slots():
            if slot.accelerator.uuid == accelerator:
                return slot
        if known is not None:
            raise DeviceLost(f"{known.accelerator.device.name} is not at {known.address} any more")
        raise DeviceUnknown(f"there is no PCI accelerator with the UUID {accelerator!r}")


_SETTINGS = frozenset(
    {
        "root",
        "kernel_log",
        "mps",
        "mps_deadline_s",
        "reset_methods",
        "reset_tool",
        "host_readback",
        "partition_retries",
        "identities",
    }
)
