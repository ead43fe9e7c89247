"""From a kind and its settings to a back end: how a worker process rebuilds what the node has."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleet.core.errors import InputInvalid
from fleet.devices.base import Backend

KINDS = ("simulated", "nvidia", "pcie")


_MODULES = {
    "simulated": ("backend", "session"),
    "nvidia": ("backend", "session"),
    "pcie": ("backend",),
}


def preload(kind: str) -> None:
    """Load the code of `kind` ahead of `build`, which then takes no time; unknown kinds: nothing.

    Opens nothing: a driver is loaded by `build` at the earliest.
    """
    for name in _MODULES.get(kind, ()):
        importlib.import_module(f"fleet.devices.{kind}.{name}")


def build(kind: str, settings: Mapping[str, Any]) -> Backend:
    """The back end `kind`, from what its `settings()` returned.

    Raises InputInvalid for an unknown kind or settings it does not have. Imports only that kind: a
    worker pays for no other driver.
    """
    if kind == "simulated":
        from fleet.devices.simulated.backend import SimulatedBackend

        if set(settings) != {"root"}:
            raise InputInvalid(f"a simulated back end has one setting, root, not {dict(settings)}")
        return SimulatedBackend(Path(settings["root"]))
    try:
        if kind == "nvidia":
            from fleet.devices.nvidia.backend import NvidiaBackend

            return NvidiaBackend(**settings)
        if kind == "pcie":
            from fleet.devices.pcie.backend import PcieBackend

            return PcieBackend(**settings)
    except TypeError as error:
        raise InputInvalid(f"these are no settings of the {kind} back end: {error}") from error
    raise InputInvalid(
        f"there is no back end {kind!r}", remedy=f"the kinds are: {', '.join(KINDS)}"
    )
