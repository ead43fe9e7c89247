"""Whether everything came to rest once no fault falls any more, and what the disks say at the end.

An operator is part of it: a device that stays quarantined is looked at and cleared, and must then
become clean like any other. A run whose job died is gone on with.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from fleet.core import errors
from fleet.core.messages import NodeView
from fleet.core.model import HolderKind, State
from fleet.evidence import archived, verify
from fleet.kube.base import CLAIMS
from fleet.node.cdi.directory import SpecDirectory
from fleet.stores.base import RunState
from fleet.wiring import adapters
from tests.chaos import checks
from tests.chaos.checks import Sample
from tests.chaos.plain import GONE_WAIT_S, wipe_workers
from tests.chaos.storm.campaigns import RUNS_LOOKED_AT
from tests.chaos.storm.site import Place
from tests.chaos.storm.system import System
from tests.lab.kubelet.control import ControlPlane

CLEARED_AFTER_S = 15.0
"""Age, s, of a quarantine that the operator clears: a rule had its chance by then."""
OPERATOR = "operator@storm.example"


@dataclass
class Operator:
    """Clears what stays quarantined. `step` from one thread."""

    system: System
    cleared: dict[str, int] = field(default_factory=dict)
    """How often, by reason."""

    def step(self) -> None:
        """One look at all nodes."""
        for place in self.system.places:
            with closing(adapters.open_door(self.system.plans[place.node])) as door:
                try:
                    for device in door.view().devices:
                        aged = time.time() - device.since > CLEARED_AFTER_S
                        if device.state == State.QUARANTINED and aged and not device.claim:
                            codes = sorted({reason.code for reason in device.reasons})
                            door.quarantine_clear(device.uuid, operator=OPERATOR, detail="storm")
                            self._tell(place, device.name, codes)
                except errors.FleetError:
                    continue

    def _tell(self, place: Place, device: str, codes: list[str]) -> None:
        for code in codes:
            self.cleared[code] = self.cleared.get(code, 0) + 1
        self.system.story.tell("cleared", node=place.node, device=device, reasons=codes)


def settled(system: System, limit_s: float) -> tuple[float, list[str]]:
    """Wait for rest; how long it took, s, and what is not at rest after `limit_s`."""
    began = time.monotonic()
    while (left := list(_unrest(system))) and time.monotonic() - began < limit_s:
        threading.Event().wait(0.5)
    return time.monotonic() - began, left


def _unrest(system: System) -> Iterator[str]:
    for place in system.places:
        plan = system.plans[place.node]
        ControlPlane(system.cluster, node=place.node, now=time.time).settle()
        try:
            with closing(adapters.open_door(plan)) as door:
                owner, view = str(door.pulse()["owner"]), door.view()
        except errors.FleetError as error:
            yield f"{place.node}: nobody owns it: {error.detail}"
            continue
        if owner != "node actor":
            yield f"{place.node}: owned by the {owner}, not by its actor"
        yield from (f"{place.node}: {left}" for left in _of_node(system, place, view))
    if claims := system.cluster.list(CLAIMS).items:
        yield f"claims are left at the API server: {[c['metadata']['name'] for c in claims]}"
    yield from _of_store(system)


def _of_node(system: System, place: Place, view: NodeView) -> Iterator[str]:
    if view.claims or view.owed or view.outbox:
        yield f"records {view.claims}, owed {view.owed}, {view.outbox} acts in the outbox"
    if view.degraded:
        yield f"degraded: {view.degraded}"
    for device in view.devices:
        if device.state != State.CLEAN:
            codes = sorted(reason.code for reason in device.reasons)
            yield f"{device.name} is {device.state} for {codes}"
    if view.replication is None or view.replication.backlog != 0:
        yield f"its evidence is not all in the archive: {view.replication}"
    specs = sorted(path.name for path in (place.disk.directory / "cdi").glob("*"))
    if specs:
        yield f"{specs} are left in the CDI directory"
    control = ControlPlane(system.cluster, node=place.node, now=time.time)
    free = {seen.name for seen in control.free()}
    if missing := sorted({device.name for device in view.devices} - free):
        yield f"{missing} are clean and not on offer"


def _of_store(system: System) -> Iterator[str]:
    stores = system.stores()
    for lease in stores.leases.leases():
        if lease.holder.kind in (HolderKind.CLAIM, HolderKind.CAMPAIGN):
            yield f"{lease.holder} still has {lease.token}"
    if suspended := stores.leases.suspended():
        yield f"the store is suspended at {suspended}"
    for run in stores.runs.runs(RUNS_LOOKED_AT):
        if run.state is not RunState.FINISHED:
            yield f"run {run.id} is {run.state}"


# --- once nothing runs any more ------------------------------------------------------------------


def at_the_end(system: System) -> Iterator[str]:
    """What the disks and the archive say after all services have ended."""
    deadline = time.monotonic() + GONE_WAIT_S
    while (left := wipe_workers(system.root)) and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    if left:
        yield f"workers {left} outlived everything"
    stores = system.stores()
    runs = {run.id: run for run in stores.runs.runs(RUNS_LOOKED_AT)}
    newest, leases = stores.leases.newest(), tuple(stores.leases.leases())
    for place in system.places:
        now = replace(checks.sample(place.state), newest=newest, leases=leases, runs=runs)
        yield from _on_disk(system, place, now)
        node = now.nodes[place.node]
        yield from (f"{place.node}: the record of {uid} is left" for uid in node.claims)
        if node.outbox or node.workers or node.unfinished:
            yield (
                f"{place.node}: {node.outbox} acts, {node.workers} workers,"
                f" {node.unfinished} operations are left"
            )
        for unit_id, unit in node.units.items():
            if unit.state is not State.CLEAN or unit.claim is not None:
                yield f"{place.node}: {unit_id} is {unit.state} of {unit.claim}"
        yield from (f"{place.node}: {path} is left" for path in _specs(system, place))
    yield from _of_archive(system)


def _on_disk(system: System, place: Place, now: Sample) -> Iterator[str]:
    """As after any kill. A coordinator countersigns all ledgers and each host has only its own:
    that the others are not here is no defect; all of them are in the archive.
    """
    others = [f"names ledger {other.node}," for other in system.places if other != place]
    for broken in checks.after_a_kill(place.state, now, now):
        if not ("missing-ledger" in broken and any(other in broken for other in others)):
            yield f"{place.node}: {broken}"


def _specs(system: System, place: Place) -> list[Path]:
    specs: SpecDirectory = adapters.specs_of(system.plans[place.node], place.directory)
    return sorted(specs.directory.glob("*"))


def _of_archive(system: System) -> Iterator[str]:
    report = verify.verify(archived.collect(system.archive()))
    for defect in report.defects:
        yield f"archive: {defect.code} at {defect.place}: {defect.detail}"
    there = certificates(system)
    if report.certificates != sum(there.values()):
        yield f"the archive has {report.certificates} certificates, the nodes {there}"


def certificates(system: System) -> Mapping[str, int]:
    """How many certificates each node has."""
    return {
        place.node: len(checks.sample(place.state).nodes[place.node].certificates)
        for place in system.places
    }
