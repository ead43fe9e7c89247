"""Whether this process may publish a device: nobody else on this host, nobody else in the fleet.

Two guards, since each sees what the other cannot (B4): a lock file per UUID and per PCI address
ends with the process that holds it, also after kill -9, but reaches one host only; a lease in the
store reaches everywhere, but lives on for a while after its holder.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from fleet.core import errors
from fleet.core.disk import own_directory
from fleet.core.messages import DeviceView
from fleet.plugin.slices.foreign import is_simulated, own_marks

RENEW_PERIOD_S = 15.0
"""Time, s, between renewals of all publisher leases: a quarter of the usual lifetime."""
RETRY_PERIOD_S = 3.0
"""Time, s, between attempts while a device is refused."""


class PublisherLease(Protocol):
    """The right to publish devices, by UUID."""

    def hold(self, uuids: Sequence[str], *, now: float) -> Mapping[str, str]:
        """Acquire what is not held yet and renew the rest; why each device refused is refused.

        Raises `StoreUnavailable` when the store does not answer: what was held before is then still
        held until its lease expires, which the store's own clock judges on the next answer. `now`:
        seconds of a clock that never goes back.
        """
        ...


class HostLocks:
    """Lock files in one directory, one per key, held until closed or the process ends."""

    def __init__(self, directory: Path, *, act: str = "publishes") -> None:
        """`directory` is made when missing; it must be the same for all who ask on the host.

        `act`: what the holder of a key does, for whoever is refused.
        """
        self._directory = directory
        self._act = act
        self._held: dict[str, int] = {}

    def take(self, keys: Iterable[str]) -> Mapping[str, str]:
        """Lock what is not locked yet; who has each key that could not be locked.

        Raises `BackendFailed` when the directory cannot be used.
        """
        refused = {}
        for key in keys:
            if key in self._held:
                continue
            found = self._lock(key)
            if isinstance(found, int):
                self._held[key] = found
            else:
                refused[key] = found
        return refused

    def keep_only(self, keys: Iterable[str]) -> None:
        """Unlock every key that is not among `keys`."""
        for key in self._held.keys() - set(keys):
            os.close(self._held.pop(key))

    def close(self) -> None:
        """Unlock everything."""
        self.keep_only(())

    def _lock(self, key: str) -> int | str:
        path = self._directory / f"{re.sub(r'[^A-Za-z0-9.-]', '_', key)}.lock"
        try:
            own_directory(self._directory)
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise errors.BackendFailed(
                f"the lock {path} cannot be opened: {error}",
                remedy="repair access to the directory; nobody has a device without its lock",
            ) from error
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(opened, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(opened)
            return f"process {holder} of this host {self._act} {key}"
        os.ftruncate(opened, 0)
        os.pwrite(opened, f"{os.getpid()}\n".encode(), 0)
        return opened


class Exclusivity:
    """Both guards together, asked once a step and renewed on a period."""

    def __init__(self, *, locks: HostLocks | None = None, lease: PublisherLease | None = None):
        """Either guard may be left out, where only one publisher can exist (tests, one host)."""
        self._locks = locks
        self._lease = lease
        self._asked: frozenset[str] = frozenset()
        self._due = 0.0
        self._refused: dict[str, str] = {}
        self.trouble: errors.FleetError | None = None
        """Why the guards could not be asked the last time; devices never granted stay barred."""

    def barred(self, devices: Sequence[DeviceView], *, now: float) -> Mapping[str, str]:
        """Why each device must not be published, by UUID.

        `now`: seconds of a clock that never goes back; a stepped wall clock ends no lease.
        """
        asked = frozenset(device.uuid for device in devices)
        if asked == self._asked and now < self._due:
            return self._refused
        granted = self._asked - self._refused.keys()
        self.trouble = None
        try:
            refused = self._ask(devices, now=now)
        except errors.FleetError as error:
            self.trouble = error
            refused = dict.fromkeys(asked - granted, f"publishing right unknown: {error.detail}")
        self._asked = asked
        self._refused = refused
        self._due = now + (RETRY_PERIOD_S if refused or self.trouble else RENEW_PERIOD_S)
        return refused

    def close(self) -> None:
        """Let go of the host's locks; leases expire."""
        if self._locks is not None:
            self._locks.close()

    def _ask(self, devices: Sequence[DeviceView], *, now: float) -> dict[str, str]:
        keys = {device.uuid: _keys(device) for device in devices}
        refused: dict[str, str] = {}
        if self._locks is not None:
            self._locks.keep_only(key for found in keys.values() for key in found)
            taken = self._locks.take(key for found in keys.values() for key in found)
            for uuid, found in keys.items():
                if whys := [taken[key] for key in found if key in taken]:
                    refused[uuid] = whys[0]
        if self._lease is not None:
            free = sorted(keys.keys() - refused.keys())
            answer = self._lease.hold(free, now=now)
            refused |= {uuid: answer[uuid] for uuid in free if uuid in answer}
        return refused


def _keys(device: DeviceView) -> tuple[str, ...]:
    """What a device is locked by; partitions share their parent's address, and one process."""
    _, address = own_marks(device)
    if not address or is_simulated(device):
        return (f"uuid-{device.uuid}",)
    return (f"uuid-{device.uuid}", f"pci-{address}")
