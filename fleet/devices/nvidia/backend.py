"""The NVIDIA back end: GPUs and their partitions through NVML and the CUDA driver API.

Plain code that may block: it runs only in processes that can be killed (`fleet.devices.remote`
keeps one for each GPU, the wipe worker is another). What it holds open it lets go before a reset,
which any open handle, ours included, would keep from happening.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fleet.core.clock import Clock, SystemClock
from fleet.core.errors import BackendFailed, DeviceLost, DeviceUnknown, DriverRefused, FleetError
from fleet.core.model import Accelerator, Device, Process, UnitId, Uuid
from fleet.devices.base import Grant, Instance, MemorySession, ResetOutcome, Unfit
from fleet.devices.health.readings import LogState, Readings
from fleet.devices.kmsg import KernelLog
from fleet.devices.nvidia import clients, fitness, grants, layout, linkage, modes, mps, nvml
from fleet.devices.nvidia import reset as nvidia_reset
from fleet.devices.nvidia.events import EventStream
from fleet.devices.nvidia.holders import Entered, Holders
from fleet.devices.nvidia.identity import Identities
from fleet.devices.nvidia.inventory import Card, Inventory
from fleet.devices.nvidia.mig import Mig
from fleet.devices.nvidia.readings import Reader

LOG = logging.getLogger(__name__)
MPS_WAIT_S = 5.0
"""Longest time, s, an MPS daemon is waited for in one call: who asks for holders waits for them.
One that needs longer is a holder until the next call finds it gone."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`fleet.core.settings.HardwareSettings` without its kind, and where cards are remembered."""

    root: str = "/"
    kernel_log: str = "/dev/kmsg"
    mps: str = "refuse"
    mps_deadline_s: float = 20.0
    reset_methods: Sequence[str] = ("flr", "device_specific")
    reset_tool: str = "nvidia-smi"
    host_readback: bool = True
    partition_retries: int = 5
    identities: str = ""
    """File in which cards are remembered, so that a dead one keeps its identity; "": in none."""


class NvidiaBackend:
    """All NVIDIA GPUs of this node (`Backend`, `CanReset`, `CanPartition`)."""

    kind = "nvidia"
    simulated = False

    def __init__(self, *, clock: Clock | None = None, **settings: Any) -> None:
        """`settings` are those of `Settings`; TypeError for any other. Opens nothing yet."""
        self._settings = Settings(**settings)
        self._root = Path(self._settings.root)
        self._library = nvml.Library()
        self._mig = Mig(self._library, tries=self._settings.partition_retries)
        self._stream = EventStream(self._library, clock)
        remembered = self._settings.identities
        self._identities = Identities(Path(remembered) if remembered else None)
        self._inventory = Inventory(self._library, self._root, self._identities, self._shape)
        self._holders = Holders(
            self._library,
            self._root,
            mps.Policy(
                shuts_down=self._settings.mps == "shut-down",
                deadline_s=min(self._settings.mps_deadline_s, MPS_WAIT_S),
            ),
        )
        self._reader = Reader(
            self._library,
            self._root,
            KernelLog(self._settings.kernel_log),
            self._stream,
            clock or SystemClock(),
            self._identities,
        )

    def settings(self) -> Mapping[str, Any]:
        """What `fleet.devices.registry.build` needs to make this back end again."""
        return {**asdict(self._settings), "reset_methods": list(self._settings.reset_methods)}

    @property
    def opened(self) -> bool:
        """Whether the driver is open, and with it the GPUs looked at."""
        return self._library.opened

    def close(self) -> None:
        """Let the driver go. A later call opens it again."""
        self._stream.close()
        self._reader.log.close()
        self._library.close()

    # --- what there is ---

    def inventory(self) -> Sequence[Accelerator]:
        """All GPUs. Raises DriverAbsent, BackendFailed.

        Lets the driver go afterwards if it was not open before: who has looked at every GPU would
        otherwise hold every GPU.
        """
        open_before = self._library.opened
        try:
            return self._inventory.accelerators()
        finally:
            if not open_before:
                self.close()

    def readings(self, accelerator: Uuid) -> Readings:
        """Health readings of a GPU. Raises DeviceLost, BackendFailed.

        What a reset that was killed has left changed is put back first: that is no fault of its.
        """
        modes.recover(
            self._library,
            lambda: self._inventory.card(accelerator).handle,
            root=self._root,
            uuid=accelerator,
        )
        try:
            card = self._inventory.card(accelerator)
        except DriverRefused as error:
            if error.code == nvml.RESET_REQUIRED:
                return self._reader.reset_needed()
            raise
        return self._read(card, under_load=False)

    def processes(self, accelerator: Uuid) -> Sequence[Process]:
        """Every process that has a GPU, or the partition named, open. Raises BackendFailed.

        Of a partition that has no instance now nobody can have anything open.
        """
        if not accelerator.startswith(layout.PARTS):
            card = self._inventory.card(accelerator)
            return self._holders.of(card, self._minor(card), instances=self._entered(card))
        card, device = self._part(accelerator)
        found = self._mig.find(card.handle, card.uuid, lambda one: one.device == device.uuid)
        return () if found is None else self._holders.of(card, self._minor(card), Entered(*found))

    def holders(self, accelerator: Uuid) -> Mapping[Uuid, Sequence[Process]]:
        """Holders of a GPU and of each partition that has an instance, in one look."""
        card = self._inventory.card(accelerator)
        minor = self._minor(card)
        there = self._entered(card)
        found: dict[Uuid, Sequence[Process]] = {
            one.instance.device: self._holders.of(card, minor, one)
            for one in there
            if one.instance.device is not None
        }
        return {**found, accelerator: self._holders.of(card, minor, instances=there)}

    def openers(self, device: Device, ids: Mapping[str, int]) -> Sequence[Process]:
        """Who has a GPU or an instance open, asked of the kernel alone.

        Nobody has a node of a driver that is not loaded: an open one keeps its module there.
        Raises BackendFailed where the module drives cards and not this one.
        """
        minor = self._inventory.minor(device.accelerator)
        return () if minor is None else self._holders.openers(minor, ids)

    def strays(self) -> Sequence[str]:
        """Open faults in the kernel log of slots without a GPU of ours (B39, B70)."""
        return self._reader.strays(self._inventory.slots())

    def unfit(self) -> Sequence[Unfit]:
        """Causes of this node that fail the wipe of any GPU (F44). Raises `BackendFailed`."""
        open_before = self._library.opened
        known = [one.accelerator for one in self._identities.all()] or self.inventory()
        try:
            return fitness.found(
                self._library, self._root, known, host_readback=self._settings.host_readback
            )
        finally:
            if not open_before:
                self.close()

    def log_state(self) -> LogState | None:
        """How far the kernel log was read, now; None: it cannot be read."""
        return self._reader.log_state()

    def grant(self, device: Device) -> Grant:
        """What a container needs to use `device`. Raises DeviceLost, BackendFailed."""
        card = self._inventory.card(device.accelerator)
        partitioned = self._mig.enabled(card.handle)
        instance = self._instance(card, device) if partitioned else None
        return grants.grant(
            device, instance, address=card.address, partitioned=partitioned, root=self._root
        )

    def agent_grant(self) -> Grant:
        """What our own node service needs to reach every GPU."""
        return grants.agent_grant(self._root)

    def session(self, accelerator: Uuid, units: Sequence[UnitId]) -> MemorySession:
        """Open the memory of a GPU, or of the instance over `units`; only in a wipe worker.

        Raises DeviceUnknown for units that are not the GPU's, BackendFailed where memory cannot be
        reached or is not all the GPU's own, DeviceLost.
        """
        from fleet.devices.nvidia import session, targets  # they load CUDA, which reading does not

        card = self._inventory.card(accelerator)
        self._stream.listen(card.uuid, card.handle)
        target = targets.target(
            card,
            self._inventory.accelerator(card),
            units,
            mig=self._mig,
            library=self._library,
            read=lambda: self._read(card, under_load=True),
        )
        return session.open_session(replace(target, fallback=self._settings.host_readback))

    # --- resetting ---

    def reset(self, accelerator: Uuid) -> ResetOutcome:
        """Reset a GPU. Refused while anything has it open. Raises BackendFailed, DeviceLost."""
        self._stream.forget(accelerator)
        self._inventory.forget(accelerator)
        address = self._inventory.address(accelerator)
        if not address:
            raise DeviceLost(f"in which slot {accelerator} is, is not known")
        terms = nvidia_reset.Terms(
            tool=self._settings.reset_tool, methods=tuple(self._settings.reset_methods)
        )
        return nvidia_reset.reset(
            linkage.Card(accelerator, address),
            self._library,
            around=_Around(self),
            terms=terms,
            root=self._root,
        )

    # --- partitions ---

    def partitioned(self, device: Device) -> bool:
        """Whether memory of `device` is reached only through an instance. Raises DeviceLost."""
        return self._mig.enabled(self._inventory.card(device.accelerator).handle)

    def instances(self, accelerator: Uuid) -> Sequence[Instance]:
        """All instances there are. Raises DeviceLost, BackendFailed."""
        return self._mig.instances(self._inventory.card(accelerator).handle, accelerator)

    def make(self, device: Device) -> Instance:
        """Make the instance of `device`, complete. Raises BackendFailed."""
        return self._mig.make(self._inventory.card(device.accelerator).handle, device)

    def unmake(self, instance: Instance) -> None:
        """Remove an instance, whatever of it is left. Raises BackendFailed while it is in use."""
        self._mig.unmake(self._inventory.card(instance.accelerator).handle, instance)

    def divide(self, accelerator: Uuid, *, on: bool) -> None:
        """Switch MIG mode. Raises BackendFailed unless it is so afterwards, DeviceLost.

        Not while anything but this process has the GPU open: the driver would refuse, or reset it
        under that process (gpus-8.30, gpus-8.37). Persistence mode holds it as a process does: it
        is off meanwhile, and what the operator had set comes back, whatever happened. From Hopper
        on the mode is lost when the last client leaves without persistence: so this process
        stays one from the switch on, and reads the mode again at the end (F82).
        """
        handle = self._inventory.card(accelerator).handle
        found = modes.noted(self._root, accelerator) or modes.read(self._library, handle)
        modes.note(self._root, accelerator, found)
        switched = False
        try:
            modes.let_go(self._library, handle, found)
            self._refuse_held(accelerator)
            self._stream.forget(accelerator)
            self._mig.set_mode(accelerator, on=on)
        except DriverRefused as error:
            kernel = clients.told(self._root) if error.code == nvml.IN_USE else ""
            if not kernel:
                raise
            raise DriverRefused(
                f"{error.detail} ({kernel})", remedy=error.remedy, code=error.code
            ) from error
        else:
            switched = True
        finally:
            self._inventory.forget(accelerator)  # handles and the minor number are others now
            if not switched:
                self.close()
            self._restore(accelerator, found)
            if not switched:
                self.close()
        self._require_divided(accelerator, on=on)

    def _require_divided(self, accelerator: Uuid, *, on: bool) -> None:
        """The mode is what it was set to, now that everything is as an operator had it."""
        if self._mig.enabled(self._inventory.card(accelerator).handle) is not on:
            word = "on" if on else "off"
            raise BackendFailed(
                f"partitioning of {accelerator} was turned {word}, and is not {word} any more",
                remedy="switch persistence mode on (`nvidia-smi -pm 1`, or nvidia-persistenced):"
                " from Hopper on a driver without it forgets the mode when its last client leaves",
            )

    def _refuse_held(self, accelerator: Uuid) -> None:
        there = self.in_the_way(accelerator)
        if there:
            named = ", ".join(f"{one.name} (pid {one.pid})" for one in there)
            raise BackendFailed(
                f"partitioning of {accelerator} is not switched: {named} has the GPU open",
                remedy="end that process, a monitor or a persistence daemon too; nothing is"
                " stopped for you",
                holder=named,
            )

    def _restore(self, accelerator: Uuid, found: modes.Modes) -> None:
        """Put an operator's modes back; what cannot be is logged: it undoes no change of mode."""
        try:
            failed = modes.restore(self._library, self._inventory.card(accelerator).handle, found)
        except FleetError as error:
            failed = (error.detail,)
        if failed:
            LOG.warning("modes of %s are not as before: %s", accelerator, "; ".join(failed))
        else:
            modes.settled(self._root, accelerator)

    def accelerator(self, uuid: Uuid) -> Accelerator:
        """One GPU as the inventory has it, looking into no other. Raises DeviceLost."""
        return self._inventory.accelerator(self._inventory.card(uuid))

    def roll(self) -> Sequence[Uuid]:
        """UUIDs of the GPUs that the kernel module lists, without any call into the driver."""
        return self._inventory.roll()

    def silent(self, uuid: Uuid) -> Accelerator:
        """A GPU that does not answer, as it is remembered."""
        return self._inventory.silent(uuid)

    def in_the_way(self, accelerator: Uuid) -> Sequence[Process]:
        """Everybody but this process who keeps a GPU from being reset: workers of ours for other
        GPUs too, who have its node open. Of a GPU that must be reset first, by descriptors alone.
        Raises BackendFailed, DeviceLost."""
        try:
            card = self._inventory.card(accelerator)
            found = self._holders.of(
                card, self._minor(card), instances=self._entered(card), bystanders=True
            )
        except DriverRefused as error:
            if error.code != nvml.RESET_REQUIRED:
                raise
            address = self._inventory.address(accelerator)
            gpu = grants.located(address, uuid=accelerator, root=self._root)
            found = self._holders.of(Card(accelerator, None, address), gpu.minor, bystanders=True)
        return tuple(process for process in found if process.pid != os.getpid())

    def note_reset(self, address: str) -> None:
        """Write into the kernel log that the GPU in a slot was reset: that ends its open faults."""
        self._reader.log.mark_reset(address)

    # --- inside ---

    def _shape(self, card: Card, whole: Accelerator) -> Accelerator:
        if not self._mig.enabled(card.handle):
            return whole
        device = whole.device
        profiles = self._mig.profiles(card.handle, card.uuid, total_bytes=device.memory_bytes)
        try:
            return layout.divided(
                card.uuid,
                device.name,
                total_bytes=device.memory_bytes,
                profiles=profiles,
                attributes=device.attributes,
            )
        except ValueError as error:
            raise BackendFailed(f"{device.name} is partitioned, but not usably: {error}") from error

    def _read(self, card: Card, *, under_load: bool) -> Readings:
        found = self._reader.read(
            card, under_load=under_load, unpartitioned=self._unpartitioned(card)
        )
        return replace(found, obstacles=self._obstacles(card))

    def _obstacles(self, card: Card) -> tuple[str, ...]:
        """Why a GPU whose partitioning is on cannot be divided, and so not be used at all (B80)."""
        try:
            if not self._mig.enabled(card.handle) or self._mig.profiles(card.handle, card.uuid):
                return ()
            why = "the driver lists no profile"
        except BackendFailed as error:
            why = error.detail
        told = (
            f"partitioning (MIG) is on, and how the GPU can be divided is not told ({why}): give"
            f" the node service the right to ask, or switch it off (`nvidia-smi -i {card.uuid}"
            " -mig 0`)"
        )
        return (told,)

    def _unpartitioned(self, card: Card) -> bool | None:
        try:
            return self._mig.empty(card.handle, card.uuid)
        except BackendFailed:
            return None

    def _minor(self, card: Card) -> int:
        """The device minor as it is now: a change of MIG mode may change it."""
        return int(self._library.call("nvmlDeviceGetMinorNumber", card.handle))

    def _entered(self, card: Card) -> Sequence[Entered]:
        return [Entered(*one) for one in self._mig.entered(card.handle, card.uuid)]

    def _instance(self, card: Card, device: Device) -> Instance | None:
        found = self._mig.find(card.handle, card.uuid, lambda one: one.device == device.uuid)
        return None if found is None else found[0]

    def _part(self, named: Uuid) -> tuple[Card, Device]:
        """A partition and the GPU it is on. Raises DeviceUnknown, DeviceLost."""
        known = [one.accelerator for one in self._identities.all()]
        for accelerators in (known, None):
            for accelerator in self.inventory() if accelerators is None else accelerators:
                for device in accelerator.devices:
                    if device.uuid == named:
                        return self._inventory.card(accelerator.uuid), device
        raise DeviceUnknown(f"there is no device with the UUID {named!r}")


class _Around:
    """What a reset asks of us (`nvidia_reset.Surroundings`)."""

    def __init__(self, backend: NvidiaBackend) -> None:
        self._backend = backend

    def holders(self, card: linkage.Card) -> Sequence[Process]:
        """Everybody but this process."""
        return self._backend.in_the_way(card.uuid)

    def instances(self, card: linkage.Card) -> Sequence[str]:
        """By number and units; of a GPU that must be reset first, none can be told or are left."""
        try:
            found = self._backend.instances(card.uuid)
        except DriverRefused as error:
            if error.code != nvml.RESET_REQUIRED:
                raise
            return ()
        return [f"gi {one.ids.get('gi')} ({', '.join(one.units)})" for one in found]

    def readings(self, card: linkage.Card) -> Readings:
        """Its health now."""
        return self._backend.readings(card.uuid)

    def mark(self, card: linkage.Card) -> None:
        """Write into the kernel log that it was reset."""
        self._backend.note_reset(card.address)
