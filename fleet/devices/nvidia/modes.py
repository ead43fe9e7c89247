"""Modes an operator has set on a GPU: written down before a reset, and put back after it.

A reset loses them, failed or not. Locked clocks and the time slice are not among them: the driver
takes them and does not tell.

They are noted in a file before the first is changed, below /run: gone after a reboot, as they are.
Whoever finds a note of a GPU that nobody works on any more puts them back (`recover`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fleet.core import errors
from fleet.devices.nvidia.nvml import Library
from fleet.devices.sysfs import read_text

LOG = logging.getLogger(__name__)
NOTES = "run/fleetscrub/gpu-modes"
"""Where modes to put back are noted, below the root."""

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


def note(root: Path, uuid: str, modes: Modes) -> None:
    """Write down what has to be put back. Of two notes of one GPU the older one counts: modes were
    changed since. Raises `BackendFailed` where it cannot be written."""
    path = _note(root, uuid)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            return
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(modes)))
        draft.replace(path)
    except OSError as error:
        raise errors.BackendFailed(
            f"{uuid} is left as it is: the modes to put back cannot be noted at {path}:"
            f" {error.strerror}",
            remedy=f"make {path.parent} writable for the node service",
        ) from error


def noted(root: Path, uuid: str) -> Modes | None:
    """What somebody noted and did not put back; None: nothing."""
    text = read_text(_note(root, uuid))
    if text is None:
        return None
    try:
        found = json.loads(text)
        clocks = found.pop("clocks_mhz", None)
        return Modes(**found, clocks_mhz=None if clocks is None else (clocks[0], clocks[1]))
    except (ValueError, TypeError, AttributeError, LookupError):
        return Modes()  # torn: nothing is known of it


def settled(root: Path, uuid: str) -> None:
    """Everything noted is as it was."""
    _note(root, uuid).unlink(missing_ok=True)


def recover(library: Library, handle: Callable[[], Any], *, root: Path, uuid: str) -> None:
    """Put back what a reset, or a switch of partitioning, that was killed left changed.

    `handle`: asked for only where there is a note. What cannot be put back now stays noted.
    """
    found = noted(root, uuid)
    if found is None:
        return
    try:
        failed = restore(library, handle(), found)
    except errors.FleetError as error:
        failed = (error.detail,)
    if failed:
        LOG.warning("modes of %s are not as before: %s", uuid, "; ".join(failed))
    else:
        settled(root, uuid)


def _note(root: Path, uuid: str) -> Path:
    return root / NOTES / f"{uuid}.json"


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
