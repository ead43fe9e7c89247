"""The NVIDIA back end where only a container's own processes can be seen.

On a host the product refuses to take "I see nobody" for "nobody is there". A GPU lent to a
container has no user outside of it that we could be shown, so the check goes on with what can be
seen from inside, and says so in its report. Never used by the product.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fleet.core.model import Process, ProcessKind, Uuid
from fleet.core.processes import MARKER
from fleet.devices.nvidia.backend import NvidiaBackend
from fleet.devices.nvidia.holders import DRIVER_MARK


def seen(proc: Path, minor: str) -> Iterator[Process]:
    """Processes below `proc` that have ``/dev/nvidia<minor>`` open, but the node's own readers."""
    for place in sorted(proc.glob("[0-9]*")):
        try:
            targets = {str(descriptor.readlink()) for descriptor in (place / "fd").iterdir()}
            pairs = (place / "environ").read_bytes().split(b"\0")
            name = (place / "comm").read_text().strip()
        except OSError:
            continue
        prefix = f"{MARKER}=".encode()
        mark = next((pair[len(prefix) :] for pair in pairs if pair.startswith(prefix)), b"")
        if f"/dev/nvidia{minor}" in targets and not mark.startswith(DRIVER_MARK.encode()):
            yield Process(int(place.name), name, ProcessKind.OURS if mark else ProcessKind.FOREIGN)


class ContainedBackend(NvidiaBackend):
    """All of it but who holds a GPU."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._minors: dict[Uuid, str] = {}

    def processes(self, accelerator: Uuid) -> tuple[Process, ...]:
        """Who has the GPU open in this container."""
        if accelerator not in self._minors:
            found = self.accelerator(accelerator)
            self._minors[accelerator] = found.device.attributes["minor"]
        return tuple(seen(Path("/proc"), self._minors[accelerator]))


def built(settings: dict[str, Any], *, contained: bool) -> NvidiaBackend:
    """The product's back end, or the one for a container."""
    return ContainedBackend(**settings) if contained else NvidiaBackend(**settings)


def held_by_us(proc: Path = Path("/proc")) -> list[str]:
    """Device nodes of GPUs that this process has open."""
    links = (proc / str(os.getpid()) / "fd").iterdir()
    found = set()
    for link in links:
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.startswith("/dev/nvidia"):
            found.add(target)
    return sorted(found)
