"""Who speaks for the real devices of a host: one journal, and no other.

Two journals would each believe their own history: what people decided in one of them, and what was
handed out, is not known to the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from fleet.core import errors
from fleet.core.disk import own_directory
from fleet.core.model import Uuid
from fleet.plugin.slices.exclusivity import HostLocks

SPEAKS = "state"
"""File beside the locks that names the state directory in charge; gone with the boot."""


def own(run: Path, state: Path, accelerators: Iterable[Uuid]) -> HostLocks:
    """Locks of the accelerators, held until closed or the process ends.

    To be taken before anything is written. Raises `NotOwner` where another service of the host has
    one of them, `InputInvalid` where another state directory spoke for the host since it was
    booted, `BackendFailed` when `run` cannot be used.
    """
    locks = HostLocks(run / "owners", act="serves")
    try:
        take(locks, accelerators)
        _keep(run / SPEAKS, state)
    except errors.FleetError:
        locks.close()
        raise
    return locks


def take(locks: HostLocks, accelerators: Iterable[Uuid]) -> None:
    """Lock accelerators that `locks` has not yet. Raises `NotOwner`, `BackendFailed`."""
    refused = locks.take(f"uuid-{uuid}" for uuid in accelerators)
    if refused:
        raise errors.NotOwner(
            "; ".join(sorted(refused.values())),
            remedy="stop that service, or use its --state: one journal speaks for a device",
        )


def _keep(path: Path, state: Path) -> None:
    try:
        known = Path(path.read_text().strip()) if path.exists() else state
        if known != state:
            raise errors.InputInvalid(
                f"{known} speaks for the devices of this host, not {state}",
                remedy=f"use --state {known}; to leave it for good, remove {path} first",
            )
        own_directory(path.parent, allowed=0o755)  # there may be no lock in it yet
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(f"{state}\n")
        temporary.replace(path)
    except OSError as error:
        raise errors.BackendFailed(
            f"{path} cannot be kept: {error}",
            remedy="repair access to the directory, or set hardware.run_directory",
        ) from error
