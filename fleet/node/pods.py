"""Proof about tenants on a Kubernetes node: the cgroups of the pods that use a claim.

"Gone" never follows from an idle device or an empty process list (promise 4): every pod known to
use the claim, by our record and by kubelet's checkpoint, must have no cgroup left or only empty
ones, and no foreign process may have the device open. A boot later than the claim's proves it too.
Kubelet may ask early (a pod that never got its reference), twice, late or not at all, and may be
down while pods are force-deleted: nothing here depends on it. Unknown is never "gone".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fleet.core.claim_states import Claim
from fleet.core.errors import FleetError
from fleet.core.model import UnitId, Uuid
from fleet.node import kubelet_checkpoint
from fleet.node.cgroups import CgroupTree
from fleet.node.kubelet_checkpoint import Checkpoint
from fleet.node.registry import Registry
from fleet.node.tenancy import ProcessTenants


@dataclass(frozen=True, slots=True)
class PodTenants:
    """Tenants are pods. `processes` is the proof by processes, which must hold as well.

    `checkpoint` is the path of kubelet's ``dra_manager_state``. Every call looks anew.
    `driver` is ours, as kubelet names it; `besides` are devices of it that have no memory.
    """

    registry: Registry
    processes: ProcessTenants
    cgroups: CgroupTree
    checkpoint: Path
    driver: str = ""
    besides: frozenset[str] = frozenset()

    def gone(self, claim: Claim) -> bool:
        """Whether every consumer of the claim is proven gone; False also when unknown."""
        return not self.obstacle(claim)

    def obstacle(self, claim: Claim) -> str:
        """Why the tenant is not proven gone, in words for the operator; empty when it is."""
        if not self._of_now(claim):
            return ""
        try:
            checkpoint = kubelet_checkpoint.read(self.checkpoint)
            pods = _consumers([claim], checkpoint)
            if not pods and not checkpoint.present:
                return f"no pod of claim {claim.uid} is known, and kubelet has no checkpoint"
            for uid, paths in self.cgroups.find(pods).items():
                occupied = next((path for path in paths if self.cgroups.occupied(path)), None)
                if occupied is not None:
                    return f"pod {uid} of claim {claim.uid} still runs: {occupied}"
            return self.processes.obstacle(claim)
        except FleetError as error:
            return f"it is unknown whether claim {claim.uid} is still used: {error.detail}"

    def running(self, consumers: Sequence[str]) -> tuple[str, ...]:
        """Which of these pods run now for certain: a process is in one of their cgroups.

        What cannot be told counts as not running here: `gone` does not take it for gone either.
        """
        return tuple(uid for uid in dict.fromkeys(consumers) if self._runs(uid))

    def created(self, device: Uuid) -> str:
        """Whose process exists for memory of the device, or who is attached to it.

        Given a whole accelerator it answers for all of it, given a partition for claims that share
        memory with that partition only. A pod that kubelet gave a device of ours counts without a
        record too: a lost journal remembers leases, and who is attached has none. What cannot be
        told counts as somebody.
        """
        known = self.registry.devices.get(device)
        if known is None:
            return f"somebody unknown: {device} is not in the inventory"
        units = set(known.units)
        claims = [c for c in tuple(self.registry.journal.claims.values()) if self._of_now(c)]
        here = [claim for claim in claims if units.intersection(claim.units)]
        try:
            checkpoint = kubelet_checkpoint.read(self.checkpoint)
            pods = {*_consumers(here, checkpoint), *self._unrecorded(units, checkpoint)}
            pods |= {*self.registry.lingering(units)}
            found = self.cgroups.find(pods) if pods else {}
            running = [
                uid
                for uid, paths in found.items()
                if any(self.cgroups.occupied(path) for path in paths)
            ]
        except FleetError as error:
            return f"a pod, for all that is known: {error.detail}"
        return f"pod {running[0]}" if running else ""

    def trouble(self) -> str:
        """Why pods cannot be looked for: kubelet's checkpoint or the host's cgroups are unreadable.

        Then every proof fails, and with it every prepare and every teardown.
        """
        try:
            kubelet_checkpoint.read(self.checkpoint)
            self.cgroups.find(())
        except FleetError as error:
            return str(error)
        return ""

    def free(self, accelerator: Uuid) -> bool:
        """As by processes: simulated without a tenant; real devices are adopted by a person."""
        return self.processes.free(accelerator)

    def _unrecorded(self, units: AbstractSet[UnitId], checkpoint: Checkpoint) -> Iterator[str]:
        """Pods of claims we have no record of, which may reach `units` by a device of ours."""
        known = {device.name: device.units for device in self.registry.devices.values()}
        for uid, pods in checkpoint.pods.items():
            given = checkpoint.devices.get(uid, {}).get(self.driver, ())
            reached = (known.get(name, units) for name in given if name not in self.besides)
            if uid not in self.registry.journal.claims and any(
                not units.isdisjoint(device) for device in reached
            ):
                yield from pods

    def _of_now(self, claim: Claim) -> bool:
        """Whether the claim is of this boot, or of an unknown one: no tenant survives a reboot."""
        return claim.boot_id in ("", self.registry.boot_id)

    def _runs(self, uid: str) -> bool:
        paths: list[Path] = []
        with suppress(FleetError):
            paths = self.cgroups.pods(uid)
        for path in paths:
            with suppress(FleetError):
                if self.cgroups.occupied(path):
                    return True
        return False


def _consumers(claims: Iterable[Claim], checkpoint: Checkpoint) -> tuple[str, ...]:
    """All pods known to use these claims, each once."""
    known = (
        uid for claim in claims for uid in (*claim.consumers, *checkpoint.pods.get(claim.uid, ()))
    )
    return tuple(dict.fromkeys(known))
