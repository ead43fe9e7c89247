"""Modes an operator has set on a GPU: written down before a reset, and put back after it.

A reset loses them, failed or not. Locked clocks and the time slice are not among them: the driver
takes them and does not tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fleet import errors
from fleet.backends.nvidia.nvml import Library

GRAPHICS_CLOCK, MEMORY_CLOCK = 0, 2
ON, OFF = 1, 0


@dataclass(frozen=True, slots=True)
class Modes:
    """None: the part has no such mode, or the driver did not tell; it is left alone then."""

    persistence: int | None = None
    compute: int | None = None
    power_limit_mw: int | None = None
    clocks_mhz: tuple[int, int] | None = None
    """Memory and graphics clock applications run at."""


def read(library: Library, handle: Any) -> Modes:
    """The modes now. Raises `DeviceLost`."""
    memory = library.ask("nvmlDeviceGetApplicationsClock", handle, MEMORY_CLOCK)
    graphics = library.ask("nvmlDeviceGetApplicationsClock", handle, GRAPHICS_CLOCK)
    return Modes(
        persistence=library.ask("nvmlDeviceGetPersistenceMode", handle),
        compute=library.ask("nvmlDeviceGetComputeMode", handle),
        power_limit_mw=library.ask("nvmlDeviceGetPowerManagementLimit", handle),
        clocks_mhz=(memory, graphics) if memory and graphics else None,
    )


def let_go(library: Library, handle: Any, modes: Modes) -> None:
    """Switch persistence mode off where it is on: it holds the device as a process does.

    Raises `BackendFailed` where the driver refuses, `DeviceLost`.
    """
    if modes.persistence == ON:
        library.call("nvmlDeviceSetPersistenceMode", handle, OFF)


def restore(library: Library, handle: Any, modes: Modes) -> tuple[str, ...]:
    """Put back what differs; in words, what could not be. Raises `DeviceLost`.

    Persistence comes first: without it the driver may forget the others at once.
    """
    failed: list[str] = []
    now = read(library, handle)
    for name, values, found in (
        ("nvmlDeviceSetPersistenceMode", (modes.persistence,), (now.persistence,)),
        ("nvmlDeviceSetComputeMode", (modes.compute,), (now.compute,)),
        ("nvmlDeviceSetPowerManagementLimit", (modes.power_limit_mw,), (now.power_limit_mw,)),
        ("nvmlDeviceSetApplicationsClocks", modes.clocks_mhz or (None,), now.clocks_mhz),
    ):
        if None in values or values == found:
            continue
        try:
            library.call(name, handle, *values)
        except errors.DriverRefused as error:
            failed.append(error.detail)
    return tuple(failed)
