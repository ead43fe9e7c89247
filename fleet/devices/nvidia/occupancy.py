"""Who uses an NVIDIA GPU or one partition of it: the driver's lists, and every open descriptor.

The driver lists only processes with work on the GPU. Whoever merely has the device open (monitors,
device plugins) or is being torn down shows in one place and not in the other, so both are asked and
either is enough. The device's own node decides: control nodes are opened by every tool that prints
a table, and reach no memory.

Decisions:

1. A list that cannot be had is an error, except for graphics and MPS clients, which some drivers
   and modes do not list: their descriptors show.
2. A listed process that ``proc`` does not show is a holder all the same: it is in teardown, or
   lives where we cannot look. A name nobody can read is foreign.
3. Of a partition, holders are those the driver lists inside it and those that have one of its
   capability nodes open. Who has only the parent's node open uses no partition's memory.
4. Memory in use while the driver lists nobody is held all the same: what a process has exported
   lives on in a descriptor of a control node or in a buffer shared by the kernel, which no list and
   no node of the GPU shows. What was just freed may count for a moment more, so it is looked at
   again.
5. No signal is no proof of idleness (F41). The older figures may count the driver's reserve as used
   (B71): above what an idle GPU has, they are a holder all the same, and figures that cannot be had
   are one too. With MIG on each instance is judged by its own figures, for the whole GPU's are the
   sum of them.
6. A newer list that the driver refuses is not replaced by an older one: only a driver that does not
   have the newer form is asked in the older.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet.core import errors
from fleet.core.model import Process, ProcessKind
from fleet.devices import infrastructure
from fleet.devices.base import NOBODY_SEEN, DeviceNode
from fleet.devices.nvidia import nvml
from fleet.devices.nvidia.nvml import Library
from fleet.devices.openers import Opener, openers
from fleet.devices.sysfs import read_text

NO_INSTANCE = 0xFFFFFFFF
_COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
_MPS = "nvmlDeviceGetMPSComputeRunningProcesses"
_OTHERS = ("nvmlDeviceGetGraphicsRunningProcesses", _MPS)
_VERSIONS = ("_v3", "_v2")
_NOT_LISTED = (nvml.NOT_SUPPORTED, *nvml.OLDER_FORM)
_GREW = 7
"""The driver's code for a list that became longer between the two calls that read it."""
_TRIES = 3
IDLE_BYTES = 64 << 20
"""What an idle GPU has in use at most beside its reserve."""
RESERVE_INCLUDED = " (the driver's reserve included, which drivers before R510 do not tell apart)"
FREED_WITHIN_S = 2.0
"""Time, s, within which freed memory is scrubbed by the driver and counts as free."""
_AGAIN_S = 0.05
_UNREADABLE = "unknown"


def processes(
    library: Library,
    handle: Any,
    *,
    root: Path,
    nodes: Sequence[DeviceNode],
    gi: int | None = None,
) -> tuple[Process, ...]:
    """Every process that holds the GPU of `handle`, ourselves included, by pid.

    `handle`: None where the driver gives none before a reset; then descriptors alone decide, which
    whoever has work on the GPU has too. `nodes`: the device's own nodes, never control nodes. With
    `gi`, who holds that GPU instance: `nodes` are then the capability nodes of it and of its
    compute instances. Raises `BackendFailed` where holders cannot be known, `DeviceLost`.
    """
    wanted = {node.host_path or node.path: (node.major, node.minor) for node in nodes}
    opened = {opener.pid: opener for opener in openers(root, wanted)}
    pids = {*opened, *(listed(library, handle, gi=gi) if handle is not None else ())}
    return tuple(_process(library, pid, opened, root) for pid in sorted(pids))


def listed(library: Library, handle: Any, *, gi: int | None = None) -> frozenset[int]:
    """Pids the driver lists on the GPU; with `gi`, those inside that GPU instance.

    None of a GPU that must be reset before anything runs on it again. Raises `BackendFailed` where
    the driver does not tell, `DeviceLost`.
    """
    found = _all(library, handle) or ()
    return frozenset(int(one.pid) for one in found if gi is None or int(one.gpuInstanceId) == gi)


def clients(library: Library, handle: Any) -> frozenset[int] | None:
    """Pids the driver lists as clients of an MPS server; None: it does not tell."""
    try:
        return frozenset(int(one.pid) for one in _list(library, _MPS, handle))
    except errors.DriverRefused:
        return None


def unseen(
    library: Library,
    handle: Any,
    *,
    instance: tuple[int, Any] | None = None,
    within_s: float = FREED_WITHIN_S,
) -> tuple[Process, ...]:
    """A holder without a pid where memory is in use, or may be, and the driver lists nobody.

    `instance`: number and device handle of one GPU instance, whose memory alone is asked for then.
    Waits up to `within_s` for memory that was just freed. Of a GPU that must be reset first:
    nobody, for descriptors decide there. Raises as `listed`.
    """
    until = time.monotonic() + within_s
    while (found := _in_use(library, handle, instance)) is not None:
        if time.monotonic() >= until:
            return (Process(0, f"{found} {NOBODY_SEEN}", ProcessKind.FOREIGN),)
        time.sleep(_AGAIN_S)
    return ()


def _in_use(library: Library, handle: Any, instance: tuple[int, Any] | None) -> str | None:
    """How much memory is in use with nobody listed, in words; None: it is idle, or his who is."""
    gi, device = instance or (None, handle)
    try:
        used, apart = _used(library, device)
    except errors.DriverRefused as error:
        if error.code == nvml.RESET_REQUIRED:
            return None
        words = f"memory (how much is unknown: {error.detail})"
    else:
        if used <= IDLE_BYTES:
            return None
        words = f"{used >> 20} MiB" + ("" if apart else RESERVE_INCLUDED)
    listed_now = _all(library, handle)
    if listed_now is None:  # it lists nothing before its reset
        return None
    there = [one for one in listed_now if gi is None or int(one.gpuInstanceId) == gi]
    return None if there else words


def _used(library: Library, handle: Any) -> tuple[int, bool]:
    """Bytes in use, and whether the driver's own reserve is certain to be none of them.

    Raises `DriverRefused` where it does not tell, `DeviceLost`.
    """
    name, version = "nvmlDeviceGetMemoryInfo", library.constant("nvmlMemory_v2")
    try:
        return int(library.call(name, handle, version=version).used), True
    except errors.DriverRefused as error:
        if error.code not in nvml.OLDER_FORM:
            raise
    return int(library.call(name, handle).used), False


def _all(library: Library, handle: Any) -> list[Any] | None:
    """All lists of the driver in one; None of a GPU that must be reset first."""
    try:
        found = list(_list(library, _COMPUTE, handle))
    except errors.DriverRefused as error:
        if error.code != nvml.RESET_REQUIRED:
            raise
        return None
    for name in _OTHERS:
        try:
            found += _list(library, name, handle)
        except errors.DriverRefused as error:
            if error.code not in _NOT_LISTED:
                raise
    return found


def _list(library: Library, name: str, handle: Any) -> Iterator[Any]:
    """One of the driver's lists, in the newest form it has."""
    refused: errors.DriverRefused | None = None
    for version in _VERSIONS:
        try:
            yield from _read(library, name + version, handle)
            return
        except errors.DriverRefused as error:
            if error.code not in nvml.OLDER_FORM:
                raise
            refused = refused or error
    if refused is not None:
        raise refused


def _read(library: Library, name: str, handle: Any) -> Sequence[Any]:
    for _ in range(_TRIES - 1):
        try:
            return list(library.call(name, handle))
        except errors.DriverRefused as error:
            if error.code != _GREW:
                raise
    return list(library.call(name, handle))


def _process(library: Library, pid: int, opened: Mapping[int, Opener], root: Path) -> Process:
    name = opened[pid].name if pid in opened else _name(library, pid, root)
    return infrastructure.process(pid, name, proc=root / "proc")


def _name(library: Library, pid: int, root: Path) -> str:
    """What the kernel calls it, else what the driver does: of a process that is being torn down
    only the driver still knows."""
    found = read_text(root / "proc" / str(pid) / "comm")
    if found:
        return nvml.text(found)
    told = library.ask("nvmlSystemGetProcessName", pid) if pid else None
    return nvml.text(told).rpartition("/")[2] if told else _UNREADABLE
