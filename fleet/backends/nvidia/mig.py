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

from fleet import errors
from fleet.backends.base import Instance
from fleet.backends.nvidia import layout, nvml
from fleet.backends.nvidia.instances import GONE, Found, Table
from fleet.backends.nvidia.layout import Placement, Profile
from fleet.model import Device, Uuid

_PAUSE_S = 0.1
"""First pause, s, between two tries to remove what is in use; doubled after each."""
_PROCESS_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
)
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

        The driver reports most failures as a value. The change may reset the GPU: handles, minor
        number and everything else read before are stale, and the GPU is found anew by its UUID.
        """
        word = "on" if on else "off"
        self._table.forget(gpu)
        status = int(self._library.call("nvmlDeviceSetMigMode", self._handle(gpu), int(on)))
        if status:
            why = _ACTIVATION.get(status, f"the driver says {status}")
            raise errors.DriverRefused(
                f"partitioning of {gpu} was not turned {word}: {why}",
                remedy="end what uses the GPU, reset it, then ask again",
                code=status,
            )
        mode = self.mode(self._handle(gpu))
        if mode is None or mode.current is not on:
            raise errors.BackendFailed(
                f"the driver took the order, and partitioning of {gpu} is not {word}: {mode}",
                remedy="reset the GPU, or reboot: the mode changes with it",
            )
        return mode

    def _handle(self, gpu: Uuid) -> Any:
        return self._library.call("nvmlDeviceGetHandleByUUID", gpu)

    def instances(self, handle: Any, gpu: Uuid) -> Sequence[Instance]:
        """All instances, half made and half removed ones too, whoever made them.

        Raises `DeviceLost`, `BackendFailed`. With partitioning off there are none.
        """
        if not self.enabled(handle):
            return ()
        profiles = self._table.profiles(handle, gpu)
        return [
            self._table.as_instance(gpu, found, profiles)
            for found in self._table.found(handle, profiles)
        ]

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
            pause_s *= 2

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
