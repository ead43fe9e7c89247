"""What the driver's table of profiles says, and which instances there are.

Reading only. A profile is walked by one number and named in calls by another; the end of a walk is
an error, and so is a row that this GPU does not have.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.core import errors
from fleet.core.model import Uuid
from fleet.devices.base import Instance
from fleet.devices.nvidia import layout, nvml
from fleet.devices.nvidia.layout import Placement, Profile

GONE = frozenset({nvml.NOT_FOUND, nvml.NOT_SUPPORTED})
"""Codes by which the driver says that something is not there (any more)."""
_WALK_MAX = 256
"""Rows looked at in a table whose end the driver does not tell."""
_LISTED_MAX = 64
"""Instances of one profile: far more than a GPU has slices."""
_ENGINES = {
    "multiprocessors": "multiprocessorCount",
    "copy_engines": "copyEngineCount",
    "decoders": "decoderCount",
    "encoders": "encoderCount",
    "jpeg_engines": "jpegCount",
    "optical_flow_engines": "ofaCount",
}


@dataclass(frozen=True, slots=True)
class Found:
    """A GPU instance of the driver with its compute instances."""

    handle: Any
    id: int
    profile_id: int
    placement: Placement
    children: Mapping[int, Any]
    """Handles of compute instances by id."""
    uuid: str
    """Of the MIG device, where there is exactly one compute instance."""
    device: Any = None
    """Its handle. Asking for it by UUID would have the driver look into every GPU."""


class Table:
    """Profiles and instances of the GPUs of this node. Handles are NVML's, of whole GPUs."""

    def __init__(self, library: nvml.Library) -> None:
        self._library = library
        self._profiles: dict[Uuid, tuple[Profile, ...]] = {}

    def forget(self, gpu: Uuid) -> None:
        """Read the profiles of a GPU anew when they are wanted next."""
        self._profiles.pop(gpu, None)

    def profiles(self, handle: Any, gpu: Uuid, *, total_bytes: int = 0) -> tuple[Profile, ...]:
        """The table of profiles: fixed for a GPU, and so read once.

        `total_bytes`, memory of the GPU, names the profiles of drivers that give them no name.
        """
        known = self._profiles.get(gpu)
        if known is None:
            known = tuple(self._walk(handle, total_bytes or self._total(handle)))
            if known:
                self._profiles[gpu] = known
        return known

    def _total(self, handle: Any) -> int:
        memory = self._library.ask("nvmlDeviceGetMemoryInfo", handle)
        return int(memory.total) if memory is not None else 0

    def _walk(self, handle: Any, total_bytes: int) -> Iterator[Profile]:
        names: set[str] = set()
        for number in range(_WALK_MAX):
            try:
                row = self._row(handle, number)
            except errors.DriverRefused as error:
                if error.code == nvml.INVALID_ARGUMENT:
                    return
                if error.code == nvml.NOT_SUPPORTED:
                    continue
                raise
            name = layout.profile_name(
                nvml.text(getattr(row, "name", b"")),
                number=number,
                slices=int(row.sliceCount),
                memory_mib=int(row.memorySizeMB),
                total_bytes=total_bytes,
            )
            if name in names:
                name = f"{name}.{row.id}"
            names.add(name)
            yield Profile(
                name=name,
                id=int(row.id),
                compute_slices=int(row.sliceCount),
                memory_bytes=int(row.memorySizeMB) << 20,
                placements=self._placements(handle, int(row.id)),
                engines={ours: int(getattr(row, theirs)) for ours, theirs in _ENGINES.items()},
            )

    def _row(self, handle: Any, number: int) -> Any:
        name = "nvmlDeviceGetGpuInstanceProfileInfo"
        try:
            return self._library.call(name, handle, number, version=2)
        except errors.DriverRefused as error:
            if error.code not in nvml.OLDER_FORM:
                raise
        return self._library.call(name, handle, number, version=1)

    def _placements(self, handle: Any, profile_id: int) -> tuple[Placement, ...]:
        name = "nvmlDeviceGetGpuInstancePossiblePlacements"
        count = ctypes.c_uint()
        self._library.call(name, handle, profile_id, None, ctypes.byref(count))
        if not count.value:
            return ()
        array = (type(self._library.struct("c_nvmlGpuInstancePlacement_t")) * count.value)()
        self._library.call(name, handle, profile_id, array, ctypes.byref(count))
        found = {Placement(int(array[i].start), int(array[i].size)) for i in range(count.value)}
        return tuple(sorted(found))

    @staticmethod
    def as_instance(gpu: Uuid, found: Found, profiles: Sequence[Profile]) -> Instance:
        """What was found, in the words of back ends."""
        count = layout.slices(profiles)
        ids = {"gi": found.id}
        if len(found.children) == 1:
            ids["ci"] = next(iter(found.children))
        return Instance(
            accelerator=gpu,
            uuid=found.uuid,
            device=layout.device_of(gpu, found.profile_id, found.placement, profiles),
            units=layout.units_of(gpu, found.placement, count),
            ids=ids,
        )

    def found(self, handle: Any, profiles: Sequence[Profile]) -> Iterator[Found]:
        """All GPU instances of a GPU, each once. Raises `DriverRefused` where not all are known."""
        seen: set[int] = set()
        for profile in profiles:
            listed = self._listed(
                "nvmlDeviceGetGpuInstances", handle, profile.id, "c_nvmlGpuInstance_t"
            )
            for instance in listed:
                found = self.look(handle, instance)
                if found is not None and found.id not in seen:
                    seen.add(found.id)
                    yield found

    def look(self, handle: Any, instance: Any) -> Found | None:
        """One GPU instance; None when it went away meanwhile."""
        try:
            facts = self._library.call("nvmlGpuInstanceGetInfo", instance)
            children = self.children(instance)
        except errors.DriverRefused as error:
            if error.code == nvml.NOT_FOUND:
                return None
            raise
        uuid, device = "", None
        if len(children) == 1:
            uuid, device = self._device(handle, int(facts.id), *children.items())
        return Found(
            handle=instance,
            id=int(facts.id),
            profile_id=int(facts.profileId),
            placement=Placement(int(facts.placement.start), int(facts.placement.size)),
            children=children,
            uuid=uuid,
            device=device,
        )

    def children(self, instance: Any) -> dict[int, Any]:
        """Handles of the compute instances of a GPU instance by their ids."""
        found: dict[int, Any] = {}
        for row in self.child_rows(instance):
            listed = self._listed(
                "nvmlGpuInstanceGetComputeInstances", instance, row.id, "c_nvmlComputeInstance_t"
            )
            for child in listed:
                found[int(self._library.call("nvmlComputeInstanceGetInfo_v2", child).id)] = child
        return found

    def child_rows(self, instance: Any) -> Iterator[Any]:
        """The compute profiles that a GPU instance offers, each with `id` and `sliceCount`."""
        for number in range(_WALK_MAX):
            try:
                yield self._child_row(instance, number)
            except errors.DriverRefused as error:
                if error.code == nvml.INVALID_ARGUMENT:
                    return
                if error.code != nvml.NOT_SUPPORTED:
                    raise

    def _child_row(self, instance: Any, number: int) -> Any:
        name = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
        try:
            return self._library.call(name, instance, number, 0, version=2)
        except errors.DriverRefused as error:
            if error.code not in nvml.OLDER_FORM:
                raise
        return self._library.call(name, instance, number, 0, version=1)

    def _listed(self, name: str, parent: Any, profile_id: int, kind: str) -> list[Any]:
        array = (type(self._library.struct(kind)) * _LISTED_MAX)()
        count = ctypes.c_uint(_LISTED_MAX)
        try:
            self._library.call(name, parent, profile_id, array, ctypes.byref(count))
        except errors.DriverRefused as error:
            if error.code in GONE:
                return []
            raise
        return [array[index] for index in range(min(count.value, _LISTED_MAX))]

    def _device(self, handle: Any, gi: int, child: tuple[int, Any]) -> tuple[str, Any]:
        """UUID and handle of the MIG device of a compute instance; "", None: none is shown."""
        number, instance = child
        facts = self._library.call("nvmlComputeInstanceGetInfo_v2", instance)
        told = self._library.ask("nvmlDeviceGetUUID", facts.device)
        if told and nvml.text(told).startswith("MIG-"):
            return nvml.text(told), facts.device
        for index in range(int(self._library.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0)):
            device = self._library.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            if device is None:
                continue  # a hole in the numbering
            place = (
                self._library.ask("nvmlDeviceGetGpuInstanceId", device),
                self._library.ask("nvmlDeviceGetComputeInstanceId", device),
            )
            if place == (gi, number):
                named = nvml.text(self._library.ask("nvmlDeviceGetUUID", device) or "")
                return named, device if named else None
        return "", None
