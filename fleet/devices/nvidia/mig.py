"""Partitions (MIG) through NVML: the table of profiles, what exists, making and removing.

Whose an instance is, is not known here: the node keeps that record. Every call may be repeated;
what is half made is gone on with, what is half removed is removed, and gone already is done.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.core import errors
from fleet.core.model import Device, Uuid
from fleet.devices.base import Instance
from fleet.devices.nvidia import layout, nvml
from fleet.devices.nvidia.instances import GONE, Found, Table
from fleet.devices.nvidia.layout import Placement, Profile

_PAUSE_S, _PAUSE_GROWTH = 0.2, 4
"""First pause, s, between two tries to remove what is in use, and by what each next is longer: five
tries end after 17 s. The driver may take that long to let go of what nobody is listed for."""
_PROCESS_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
)
PENDING = "the order could not be taken back: it is pending, and will change with the next reset"
_SWITCH_REMEDIES = {
    nvml.RESET_REQUIRED: "this driver does not reset the GPU for it: set the mode with nvidia-smi,"
    " reset or reboot, then start the node service anew",
}
_ACTIVATION = {
    nvml.RESET_REQUIRED: "the GPU must be reset before the mode changes",
    nvml.IN_USE: "a process uses the GPU",
}


@dataclass(frozen=True, slots=True)
class Mode:
    """Whether partitioning is on, and whether it will be after the next reset."""

    current: bool
    pending: bool


class Mig:
    """Partitions of the GPUs of this node. Handles are NVML's, of whole GPUs."""

    def __init__(
        self,
        library: nvml.Library,
        *,
        tries: int = 5,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`tries`: how often a removal is tried while the driver says that it is in use."""
        self._library = library
        self._tries = tries
        self._sleep = sleep
        self._table = Table(library)
        self._kept: dict[Uuid, list[Instance]] = {}

    # --- mode ---

    def mode(self, handle: Any) -> Mode | None:
        """The mode; None where the GPU or its driver has no partitions. Raises `DeviceLost`."""
        try:
            current, pending = self._library.call("nvmlDeviceGetMigMode", handle)
        except errors.DriverRefused as error:
            if error.code in (nvml.NOT_SUPPORTED, nvml.FUNCTION_NOT_FOUND):
                return None
            raise
        return Mode(bool(current), bool(pending))

    def enabled(self, handle: Any) -> bool:
        """Whether memory is reached only through instances now."""
        mode = self.mode(handle)
        return mode is not None and mode.current

    def set_mode(self, gpu: Uuid, *, on: bool) -> Mode:
        """Turn partitioning on or off. Raises `BackendFailed` unless it is so afterwards.

        The driver reports most failures as a value, and would then change the mode at the next
        reset, whenever and for whomever that is: the order is taken back. The change may reset the
        GPU: handles, minor number and everything else read before are stale, and the GPU is found
        anew by its UUID.
        """
        word = "on" if on else "off"
        self._table.forget(gpu)
        before = self.mode(self._handle(gpu))
        status = int(self._library.call("nvmlDeviceSetMigMode", self._handle(gpu), int(on)))
        if status:
            why = _ACTIVATION.get(status, f"the driver says {status}")
            left = "" if self._taken_back(gpu, before) else f"; {PENDING}"
            raise errors.DriverRefused(
                f"partitioning of {gpu} was not turned {word}: {why}{left}",
                remedy=_SWITCH_REMEDIES.get(status, "end what uses the GPU, then ask again"),
                code=status,
            )
        mode = self.mode(self._handle(gpu))
        if mode is None or mode.current is not on:
            raise errors.BackendFailed(
                f"the driver took the order, and partitioning of {gpu} is not {word}: {mode}",
                remedy="reset the GPU, or reboot: the mode changes with it",
            )
        return mode

    def _taken_back(self, gpu: Uuid, before: Mode | None) -> bool:
        """Order the mode that was, after a refusal; whether the next reset changes nothing now."""
        try:
            if before is not None:
                handle = self._handle(gpu)
                self._library.ask("nvmlDeviceSetMigMode", handle, int(before.current))
            now = self.mode(self._handle(gpu))
        except errors.BackendFailed:
            return False
        return now is not None and now.pending is now.current

    def _handle(self, gpu: Uuid) -> Any:
        return self._library.call("nvmlDeviceGetHandleByUUID", gpu)

    def instances(self, handle: Any, gpu: Uuid) -> Sequence[Instance]:
        """All instances, half made and half removed ones too, whoever made them.

        Raises `DeviceLost`, `BackendFailed`. With partitioning off there are none.
        """
        return [instance for instance, _ in self.entered(handle, gpu)]

    def entered(self, handle: Any, gpu: Uuid) -> Sequence[tuple[Instance, Any]]:
        """All instances, each with the handle of its device: None while it is half made.

        Raises as `instances`.
        """
        if not self.enabled(handle):
            return ()
        profiles = self._table.profiles(handle, gpu)
        return [
            (self._table.as_instance(gpu, found, profiles), found.device)
            for found in self._table.found(handle, profiles)
        ]

    def find(
        self, handle: Any, gpu: Uuid, fits: Callable[[Instance], bool]
    ) -> tuple[Instance, Any] | None:
        """The complete instance that `fits`, and the handle of its device; None: there is none.

        One that was found before is looked for by its number, and no other is looked at: a worker
        asks again and again. Raises `DeviceLost`, `BackendFailed`.
        """
        if not self.enabled(handle):
            return None
        for known in self._kept.get(gpu, ()):
            if fits(known) and (now := self._again(handle, known)) is not None:
                return now
        self._kept[gpu] = []
        for one in self.instances(handle, gpu):
            if fits(one) and (now := self._again(handle, one)) is not None:
                self._kept[gpu] = [now[0]]
                return now
        return None

    def empty(self, handle: Any, gpu: Uuid) -> bool:
        """Whether partitioning is on and there is no instance. Raises as `find`."""
        if not self.enabled(handle):
            return False
        kept = self._kept.get(gpu, ())
        if any(self._again(handle, known) is not None for known in kept):
            return False
        return not self.instances(handle, gpu)

    def _again(self, handle: Any, known: Instance) -> tuple[Instance, Any] | None:
        """An instance as it is now; None: it is gone, half made, or its numbers are another's."""
        found = self._still(handle, known)
        if found is None or found.device is None:
            return None
        profiles = self._table.profiles(handle, known.accelerator)
        return self._table.as_instance(known.accelerator, found, profiles), found.device

    def profiles(self, handle: Any, gpu: Uuid, *, total_bytes: int = 0) -> tuple[Profile, ...]:
        """The table of profiles: fixed for a GPU, and so read once.

        `total_bytes`, memory of the GPU, names the profiles of drivers that give them no name.
        """
        return self._table.profiles(handle, gpu, total_bytes=total_bytes)

    # --- making ---

    def make(self, handle: Any, device: Device) -> Instance:
        """Make the instance of `device`, with one compute instance of all its slices.

        Goes on with a GPU instance at the same place that has no compute instance yet. Raises
        `BackendFailed` naming what occupies the place, and then has made nothing.
        """
        gpu = device.accelerator
        profiles = self._table.profiles(handle, gpu)
        place = layout.placed(device, profiles)
        if place is None:
            raise errors.BackendFailed(
                f"{device.name}: the GPU offers no such partition now",
                remedy="restart the node service: its inventory is older than the GPU's mode",
            )
        profile, placement = place
        half = self._half_made(handle, device, profile, placement)
        instance = half.handle if half else self._create(handle, device, profile, placement)
        try:
            self._create_child(instance, device, profile)
            return self._complete(handle, device, instance)
        except errors.BackendFailed:
            self._undo(instance)
            raise

    def _half_made(
        self, handle: Any, device: Device, profile: Profile, placement: Placement
    ) -> Found | None:
        for found in self._table.found(handle, self._table.profiles(handle, device.accelerator)):
            if (found.profile_id, found.placement) == (profile.id, placement):
                if found.children:
                    raise _taken(device, [found])
                return found
        return None

    def _create(self, handle: Any, device: Device, profile: Profile, placement: Placement) -> Any:
        wanted = self._library.struct("c_nvmlGpuInstancePlacement_t")
        wanted.start, wanted.size = placement.start, placement.size
        name = "nvmlDeviceCreateGpuInstanceWithPlacement"
        try:
            return self._library.call(name, handle, profile.id, ctypes.byref(wanted))
        except errors.DriverRefused as error:
            if error.code != nvml.INSUFFICIENT_RESOURCES:
                raise
            there = list(
                self._table.found(handle, self._table.profiles(handle, device.accelerator))
            )
            slices = set(placement.slices)
            near = [found for found in there if slices.intersection(found.placement.slices)]
            raise _taken(device, near or there) from error

    def _create_child(self, instance: Any, device: Device, profile: Profile) -> None:
        refused: errors.DriverRefused | None = None
        for row in self._table.child_rows(instance):
            if int(row.sliceCount) != profile.compute_slices:
                continue
            try:
                self._library.call("nvmlGpuInstanceCreateComputeInstance", instance, row.id)
            except errors.DriverRefused as error:
                if error.code not in (nvml.INSUFFICIENT_RESOURCES, nvml.NOT_SUPPORTED):
                    raise
                refused = error
            else:
                return
        raise errors.BackendFailed(
            f"{device.name}: no compute instance of {profile.compute_slices} slices can be made"
        ) from refused

    def _complete(self, handle: Any, device: Device, instance: Any) -> Instance:
        found = self._table.look(handle, instance)
        if found is None or not found.uuid:
            raise errors.BackendFailed(f"{device.name}: the driver shows no device of its instance")
        return self._table.as_instance(
            device.accelerator, found, self._table.profiles(handle, device.accelerator)
        )

    def _undo(self, instance: Any) -> None:
        """Take back what a failed `make` began; what cannot go now is found half made later."""
        for child in self._ask_children(instance):
            self._library.ask("nvmlComputeInstanceDestroy", child)
        self._library.ask("nvmlGpuInstanceDestroy", instance)

    def _ask_children(self, instance: Any) -> Sequence[Any]:
        try:
            return list(self._table.children(instance).values())
        except errors.DriverRefused:
            return ()

    # --- removing ---

    def unmake(self, handle: Any, instance: Instance) -> None:
        """Remove compute instances, then the GPU instance, as far as they are still there.

        Numbers are given out again: an instance elsewhere, or with another UUID, is another one
        and stays. Raises `BackendFailed` naming who uses it once the tries are used up.
        """
        pause_s = _PAUSE_S
        for left in reversed(range(self._tries)):
            try:
                self._remove(handle, instance)
            except errors.DriverRefused as error:
                if error.code != nvml.IN_USE:
                    raise
                if not left:
                    raise self._in_use(handle, instance) from error
            else:
                return
            self._sleep(pause_s)
            pause_s *= _PAUSE_GROWTH

    def _remove(self, handle: Any, instance: Instance) -> None:
        found = self._still(handle, instance)
        if found is None:
            return
        for child in found.children.values():
            self._destroy("nvmlComputeInstanceDestroy", child)
        self._destroy("nvmlGpuInstanceDestroy", found.handle)

    def _still(self, handle: Any, instance: Instance) -> Found | None:
        """The instance as it is now; None when it is gone or its number is another's."""
        try:
            gi = self._library.call("nvmlDeviceGetGpuInstanceById", handle, instance.ids["gi"])
        except errors.DriverRefused as error:
            if error.code in GONE:
                return None
            raise
        found = self._table.look(handle, gi)
        if found is None:
            return None
        now = self._table.as_instance(
            instance.accelerator, found, self._table.profiles(handle, instance.accelerator)
        )
        renamed = now.uuid and instance.uuid and now.uuid != instance.uuid
        return None if renamed or now.units != instance.units else found

    def _destroy(self, name: str, instance: Any) -> None:
        try:
            self._library.call(name, instance)
        except errors.DriverRefused as error:
            if error.code not in GONE:
                raise

    def _in_use(self, handle: Any, instance: Instance) -> errors.BackendFailed:
        gi = instance.ids["gi"]
        named = {
            int(process.pid): self._library.ask("nvmlSystemGetProcessName", process.pid)
            for listed in _PROCESS_LISTS
            for process in self._library.ask(listed, handle) or ()
            if process.gpuInstanceId == gi
        }
        users = [f"{nvml.text(name or 'process')} (pid {pid})" for pid, name in named.items()]
        who = ", ".join(users) or "a client that the driver does not list"
        return errors.BackendFailed(
            f"MIG instance gi {gi} of {instance.accelerator} is in use by {who}",
            remedy="it is not killed for you; the instance is removed once that process has ended",
            holder=who,
        )


def _taken(device: Device, there: Sequence[Found]) -> errors.BackendFailed:
    named = ", ".join(f"MIG instance gi {f.id} at {f.placement}" for f in there)
    return errors.BackendFailed(
        f"{device.name} cannot be made: its place is taken by {named or 'something unknown'}",
        remedy="remove that instance; it is retried by itself",
        holder=named,
    )
