"""Do the lease store, the nodes and the certificates agree? The comparison is pure.

The node's journal is the holder of record; the store says who may hold; the ledger says what was
proven. Where they disagree somebody is about to be handed a device that is not theirs.
``python -m jobs.audit`` is the scheduled form of `fleet audit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from fleet.cli.reach import Fleet
from fleet.control.binding import liveness, pledge
from fleet.control.repair import audit
from fleet.control.repair.audit import Compared
from fleet.control.repair.facts import Api, Facts, homes
from fleet.control.repair.leftovers import judge
from fleet.control.repair.survey import LISTED, read_api
from fleet.control.repair.troubles import AuditFinding, Trouble, finding
from fleet.core.errors import FleetError
from fleet.core.messages import DeviceView, Message, Moment, NodeView
from fleet.core.model import HolderKind, Lease, State, Token, UnitId
from fleet.evidence import layout
from fleet.evidence.ledger import Ledger
from fleet.evidence.segments import Damage
from fleet.evidence.sources import collect
from fleet.evidence.verify import Demand, verify
from fleet.kube.base import Cluster
from fleet.kube.marks import Marks
from fleet.node.lost import LOST
from fleet.plugin.slices.gate import is_quarantined
from jobs.sweep import each

NEEDS_CERTIFICATE = frozenset({str(State.CLEAN), str(State.IN_USE)})


class AuditReport(Message):
    """What an audit saw; `findings` empty means all agree."""

    at: Moment
    simulated: bool
    nodes: int
    devices: int
    leases: int
    certificates: int
    findings: tuple[AuditFinding, ...]
    skipped: tuple[str, ...] = ()
    """What was not compared, and why."""
    blind: bool = False
    """Whether neither a node nor the API server answered."""

    @property
    def exit_code(self) -> int:
        """1: something was found; 2: nothing could be looked at."""
        return 2 if self.blind else int(bool(self.findings))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the three sources say at one moment."""

    at: float
    views: tuple[NodeView, ...]
    leases: tuple[Lease, ...]
    newest: Token
    """The last token issued."""
    open_runs: AbstractSet[str]
    """Campaign runs that are not finished."""
    certificates: AbstractSet[str] | None
    """Digests in the ledgers; None where they cannot be read from here."""
    silent: Mapping[str, str]
    """Nodes that did not answer, with the error."""
    defects: tuple[Damage, ...] = ()
    """What is wrong with the ledgers and their countersignatures."""
    api: Api | None = None
    """None: no cluster was asked."""
    settle_s: float = 600.0
    """Age, s, from which an allocation has to have its lease."""
    marks: Marks | None = None
    """How ours is told on claims; None: nothing is asked of them."""
    unasked: str = ""
    """Why the cluster that is served was not asked."""
    coordinator: tuple[str, ...] = ()
    """What is wrong with the coordinator that reports."""
    uncoordinated: tuple[str, ...] = ()
    """What is to be said where none reports."""

    @property
    def facts(self) -> Facts | None:
        """What says whether anybody has a use for a claim; None: no cluster was asked."""
        if self.api is None or self.marks is None:
            return None
        views = {view.node: view for view in self.views}
        return Facts(
            at=self.at,
            marks=self.marks,
            leases=self.leases,
            views=views,
            api=self.api,
            settle_s=self.settle_s,
        )


@dataclass(frozen=True, slots=True)
class Looking:
    """Where an audit looks besides nodes and store. None: not there."""

    ledgers: Path | None
    """The state directory, where the certificates can be read."""
    marks: Marks
    cluster: Cluster | None = None
    namespace: str = ""
    """Where our coordinator's Lease is."""
    settle_s: float = 600.0
    unasked: str = ""
    """Why the cluster that is served cannot be asked."""
    awaited: bool = False
    """Whether pods wait for a coordinator."""


def gather(fleet: Fleet, looking: Looking, *, now: float) -> Evidence:
    """Read all sources."""
    # Leases first: one granted between the two reads is then no finding.
    leases = tuple(fleet.coordinator.leases())
    newest = fleet.coordinator.newest()
    open_runs = frozenset(run.id for run in fleet.coordinator.unfinished())
    found = each(fleet.nodes, lambda node: node.view())
    ledgers, cluster = looking.ledgers, looking.cluster
    return Evidence(
        at=now,
        views=tuple(one for one in found.values() if not isinstance(one, FleetError)),
        leases=leases,
        newest=newest,
        open_runs=open_runs,
        certificates=None if ledgers is None else _certificates(ledgers),
        silent={name: str(one) for name, one in found.items() if isinstance(one, FleetError)},
        defects=() if ledgers is None else _defects(ledgers, now),
        api=None if cluster is None else read_api(cluster, looking.marks),
        settle_s=looking.settle_s,
        marks=looking.marks,
        unasked=looking.unasked,
        **_coordinators(looking, now),
    )


def _coordinators(looking: Looking, now: float) -> dict[str, tuple[str, ...]]:
    if looking.cluster is None:
        return {}
    signs = liveness.read(looking.cluster, looking.namespace)
    said = tuple(liveness.told(signs, now, awaited=looking.awaited))
    return {"uncoordinated": said} if signs.found is None else {"coordinator": said}


def _defects(state: Path, now: float) -> tuple[Damage, ...]:
    if not layout.nodes(state):
        return ()
    return tuple(verify(collect(state), Demand(now=now)).defects)


def _certificates(state: Path) -> frozenset[str]:
    return frozenset(
        str(entry.digest)
        for node in layout.nodes(state)
        for entry in Ledger(layout.ledger_directory(state, node)).entries()
    )


def compare(evidence: Evidence) -> AuditReport:
    """Compare the sources, which were read leases first: one granted meanwhile is no finding."""
    findings = [
        *_of_nodes(evidence),
        *_of_leases(evidence),
        *_of_devices(evidence),
        *(finding(Trouble.EVIDENCE_BROKEN, str(d.place), d.detail) for d in evidence.defects),
        *_of_api(evidence),
        *(finding(Trouble.COORDINATOR_TROUBLED, "-", why) for why in evidence.coordinator),
    ]
    return AuditReport(
        at=evidence.at,
        simulated=any(view.simulated for view in evidence.views),
        nodes=len(evidence.views) + len(evidence.silent),
        devices=sum(len(view.devices) for view in evidence.views),
        leases=len(evidence.leases),
        certificates=len(evidence.certificates or ()),
        findings=tuple(findings),
        skipped=_skipped(evidence),
        blind=not evidence.views
        and bool(evidence.silent)
        and (evidence.api is None or set(evidence.api.unknown) >= LISTED),
    )


def _skipped(evidence: Evidence) -> tuple[str, ...]:
    found = []
    if evidence.api is None:
        found.append("no cluster was asked: claims and allocations were not compared")
    if evidence.certificates is None:
        found.append("the ledgers cannot be read from here: certificates were not compared")
    return (*found, *evidence.uncoordinated)


def _of_api(evidence: Evidence) -> Iterator[AuditFinding]:
    if evidence.unasked:
        yield finding(Trouble.API_SILENT, "cluster", evidence.unasked)
    if evidence.api is not None:
        views = {view.node: view for view in evidence.views}
        compared = Compared(evidence.at, evidence.leases, views, evidence.api, evidence.settle_s)
        yield from audit.compare(compared)


def _of_nodes(evidence: Evidence) -> Iterator[AuditFinding]:
    for node, error in evidence.silent.items():
        yield finding(Trouble.NODE_SILENT, node, error)
    for view in evidence.views:
        for reason in view.degraded:
            yield finding(Trouble.NODE_DEGRADED, view.node, reason)


def _of_leases(evidence: Evidence) -> Iterator[AuditFinding]:
    devices = _by_unit(evidence.views)
    sending = {view.node for view in evidence.views if view.outbox}
    facts = evidence.facts
    for lease in evidence.leases:
        if lease.holder.kind is HolderKind.PUBLISHER:
            continue  # of hardware: it comes and goes with its plugin
        if pledge.is_right(lease):
            continue  # of no device; it ends by itself
        if any(unit.startswith(f"{LOST}/") for unit in lease.units):
            continue  # the mark of a lost node, which the node itself takes off
        unknown = sorted(lease.units - set(devices))
        if unknown and not evidence.silent:
            yield finding(
                Trouble.LEASE_UNKNOWN_UNIT,
                ", ".join(unknown),
                f"{lease.holder} has a lease on units no node reports",
            )
        if lease.holder.kind is HolderKind.CLAIM:
            for told in _of_claim_lease(lease, devices, sending):
                if told.trouble is not Trouble.LEASE_WITHOUT_HOLDER or _is_nobodys(lease, facts):
                    yield told
        elif (
            lease.holder.kind is HolderKind.CAMPAIGN and lease.holder.name not in evidence.open_runs
        ):
            yield finding(
                Trouble.LEASE_RUN_ENDED,
                _places(lease, devices),
                f"{lease.holder} holds a lease and its run has ended",
            )
        elif lease.holder.kind is HolderKind.QUARANTINE:
            yield from _of_quarantine_lease(lease, devices)


def _is_nobodys(lease: Lease, facts: Facts | None) -> bool:
    """Whether a lease without a record is left over: most have none yet, for claims to be bound."""
    if facts is None:
        return True
    places = homes(facts)
    nodes = {places.get(unit, "") for unit in lease.units}
    return bool(judge(lease.holder.name, nodes.pop() if len(nodes) == 1 else "", facts).why)


def _of_quarantine_lease(
    lease: Lease, devices: Mapping[UnitId, Sequence[tuple[str, DeviceView]]]
) -> Iterator[AuditFinding]:
    about = {
        (node, device.name)
        for unit in lease.units
        for node, device in devices.get(unit, ())
        if device.uuid == lease.holder.name and not is_quarantined(device)
    }
    for node, name in sorted(about):
        detail = f"{lease.holder} keeps it, and its node has no reason against it"
        yield finding(Trouble.QUARANTINE_WITHOUT_REASON, f"{node}/{name}", detail)


def _of_claim_lease(
    lease: Lease,
    devices: Mapping[UnitId, Sequence[tuple[str, DeviceView]]],
    sending: AbstractSet[str],
) -> Iterator[AuditFinding]:
    """`sending`: nodes with releases in their outbox."""
    claims = {
        device.claim for unit in lease.units for _, device in devices.get(unit, ()) if device.claim
    }
    place = _places(lease, devices)
    if claims - {lease.holder.name}:
        others = ", ".join(sorted(claims - {lease.holder.name}))
        yield finding(
            Trouble.LEASE_FOREIGN, place, f"leased to {lease.holder}, held on the node by {others}"
        )
    elif not claims and any(devices.get(unit) for unit in lease.units):
        floors = [
            Token.parse(device.floor) for unit in lease.units for _, device in devices.get(unit, ())
        ]
        nodes = {node for unit in lease.units for node, _ in devices.get(unit, ())}
        closed = any(floor > lease.token for floor in floors) or bool(nodes & sending)
        yield finding(
            Trouble.LEASE_CLOSED if closed else Trouble.LEASE_WITHOUT_HOLDER,
            place,
            f"leased to {lease.holder} under {lease.token}; the node has no record of the claim",
        )


def _of_devices(evidence: Evidence) -> Iterator[AuditFinding]:
    leased = {unit: lease for lease in evidence.leases for unit in lease.units}
    for view in evidence.views:
        for device in view.devices:
            place = f"{view.node}/{device.name}"
            yield from _of_tokens(evidence, view, device, place)
            if device.state == State.IN_USE and device.claim:
                holders = {
                    str(leased[UnitId(unit)].holder) if UnitId(unit) in leased else "nobody"
                    for unit in device.units
                }
                if holders != {f"{HolderKind.CLAIM}:{device.claim}"}:
                    yield finding(
                        Trouble.IN_USE_WITHOUT_LEASE,
                        place,
                        f"in use by claim {device.claim}; the store says"
                        f" {', '.join(sorted(holders))}",
                    )
            if device.state in NEEDS_CERTIFICATE and evidence.certificates is not None:
                if not device.certificate:
                    yield finding(
                        Trouble.CERTIFICATE_MISSING, place, f"{device.state} without a certificate"
                    )
                elif not {part.strip() for part in device.certificate.split(",")} <= set(
                    evidence.certificates
                ):
                    yield finding(
                        Trouble.CERTIFICATE_MISSING,
                        place,
                        f"{device.state} under {device.certificate}, which is in no ledger",
                    )


def _of_tokens(
    evidence: Evidence, view: NodeView, device: DeviceView, place: str
) -> Iterator[AuditFinding]:
    floor = Token.parse(device.floor)
    if floor.counter == 0:
        return
    if view.epoch == evidence.newest.epoch > floor.epoch:
        return  # put behind by an adopt: the floor stays until the first act after it
    if floor.epoch != evidence.newest.epoch:
        yield finding(
            Trouble.EPOCH_FOREIGN,
            place,
            f"acted under {floor}, the store issues epoch {evidence.newest.epoch}",
        )
    elif floor > evidence.newest:
        yield finding(
            Trouble.TOKEN_AHEAD,
            place,
            f"acted under {floor}, the store has issued only up to {evidence.newest}",
        )


def _by_unit(views: Iterable[NodeView]) -> dict[UnitId, list[tuple[str, DeviceView]]]:
    found: dict[UnitId, list[tuple[str, DeviceView]]] = {}
    for view in views:
        for device in view.devices:
            for unit in device.units:
                found.setdefault(UnitId(unit), []).append((view.node, device))
    return found


def _places(lease: Lease, devices: Mapping[UnitId, Sequence[tuple[str, DeviceView]]]) -> str:
    places = sorted(
        {f"{node}/{device.name}" for unit in lease.units for node, device in devices.get(unit, ())}
    )
    return ", ".join(places or sorted(lease.units))


if __name__ == "__main__":
    from fleet.cli.main import run as run_verb

    run_verb("audit")
