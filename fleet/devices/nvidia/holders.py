"""Who holds a GPU or a partition, as the node counts it: drivers' lists, descriptors, MPS, and us.

Decisions:

1. The node's own processes that keep the driver open to read health hold no memory and are left
   out; a wipe worker is `OURS`. Both carry the marker of `fleet.core.processes`, which
   anybody can put into his environment: it counts only for processes of the host, as root or as we
   run.
2. A worker is a holder of the GPU that the driver lists it on, and of an instance whose
   capability it has open. With the node alone open it works on another GPU.
3. An MPS daemon that may serve the device holds it, clients or not: whatever would run there runs
   inside its server.
4. Memory in use that nobody listed accounts for, or whose use the driver does not tell, is held by
   a process without a pid: nothing of ours touches it until it is known to be free
   (`occupancy.unseen`).
5. Whether an MPS daemon has clients is the driver's word too: where it gives none, the daemon is
   not asked to end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet.core.model import Process, ProcessKind
from fleet.core.processes import MARKER, is_of_the_host
from fleet.devices.base import DeviceNode, Instance
from fleet.devices.nvidia import mps, nodes, nvml, occupancy
from fleet.devices.nvidia.inventory import Card

DRIVER_MARK = "nvidia driver, "
"""How the marker of a process begins that only asks the driver (`fleet.devices.remote`)."""


@dataclass(frozen=True, slots=True)
class Entered:
    """A GPU instance and the driver's handle of its device; None while it is half made."""

    instance: Instance
    handle: Any


@dataclass(frozen=True, slots=True)
class Holders:
    """Asks about holders; `root` is where the host's processes are seen."""

    library: nvml.Library
    root: Path
    policy: mps.Policy
    freed_within_s: float = occupancy.FREED_WITHIN_S
    """Time, s, for which memory just freed may count as used."""

    def of(
        self,
        card: Card,
        minor: int,
        within: Entered | None = None,
        *,
        instances: Sequence[Entered] = (),
        bystanders: bool = False,
    ) -> tuple[Process, ...]:
        """Holders of a GPU, or of one instance on it, by pid. Raises `BackendFailed`, `DeviceLost`.

        `within`: that instance. `instances`: all there are, where the GPU is partitioned.
        `bystanders`: also workers of ours that only have the GPU's node open, as whoever starts
        CUDA has every node he can see: they keep no wipe from it, and a reset they do.
        With a policy that allows it, an MPS daemon without clients is asked to end first.
        """
        instance = within.instance if within else None
        gi = None if instance is None else instance.ids["gi"]
        own = (
            [nodes.of_gpu(minor, root=self.root), *nodes.rendering(self.root, card.address)]
            if instance is None
            else self._capabilities(minor, instance)
        )
        found = occupancy.processes(self.library, card.handle, root=self.root, nodes=own, gi=gi)
        settled = mps.settle(
            card.uuid,
            root=self.root,
            policy=self.policy,
            holding={process.pid for process in found},
            clients=self._clients(card.handle),
        )
        if settled.ended:
            mps.leave_exclusive_mode(self.library, card.handle)
            found = tuple(process for process in found if process.pid not in settled.gone)
        unseen = self._unseen(card.handle, [within] if within else instances)
        named = {process.pid: process for process in (*found, *settled.holders)}
        ours = (*unseen, *self._as_we_count(named[pid] for pid in sorted(named)))
        if bystanders or instance is not None or card.handle is None:
            return ours
        at_work = occupancy.listed(self.library, card.handle)
        return tuple(one for one in ours if one.kind is not ProcessKind.OURS or one.pid in at_work)

    def openers(self, minor: int, ids: Mapping[str, int]) -> tuple[Process, ...]:
        """Who has the GPU's own node open, or with `ids` those of that instance: asks no driver."""
        own = [nodes.of_gpu(minor, root=self.root)]
        if "gi" in ids and "ci" in ids:
            own = list(nodes.of_instance(minor, gi=ids["gi"], ci=ids["ci"], root=self.root))
        found = occupancy.processes(self.library, None, root=self.root, nodes=own)
        return tuple(self._as_we_count(iter(found)))

    def _capabilities(self, minor: int, instance: Instance) -> Sequence[DeviceNode]:
        if "ci" not in instance.ids:
            return ()  # half made: there is nothing yet that a process could open
        return nodes.of_instance(
            minor, gi=instance.ids["gi"], ci=instance.ids["ci"], root=self.root
        )

    def _unseen(self, handle: Any, entered: Sequence[Entered]) -> tuple[Process, ...]:
        """Who holds memory without being listed, of the GPU or of each instance.

        In an instance that is half made nothing can run.
        """
        if handle is None:
            return ()
        complete = [(one.instance.ids["gi"], one.handle) for one in entered if one.handle]
        return tuple(
            process
            for place in (complete if entered else [None])
            for process in occupancy.unseen(
                self.library, handle, instance=place, within_s=self.freed_within_s
            )
        )

    def _clients(self, handle: Any) -> frozenset[int] | None:
        """Clients of an MPS server on the GPU; None: unknown."""
        return None if handle is None else occupancy.clients(self.library, handle)

    def _as_we_count(self, found: Iterator[Process]) -> Iterator[Process]:
        for process in found:
            mark = self._mark(process.pid)
            if mark.startswith(DRIVER_MARK):
                continue
            yield replace(process, kind=ProcessKind.OURS) if mark else process

    def _mark(self, pid: int) -> str:
        """The marker of a process of ours, "" for any other, and for one without a pid."""
        if pid == os.getpid():
            return os.environ.get(MARKER, "")
        proc = self.root / "proc"
        try:
            pairs = (proc / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            return ""
        prefix = f"{MARKER}=".encode()
        found = next((pair[len(prefix) :] for pair in pairs if pair.startswith(prefix)), b"")
        return found.decode(errors="replace") if is_of_the_host(pid, proc=proc) else ""
