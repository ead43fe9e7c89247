"""Do the lease store, the nodes and the certificates agree? The comparison is pure.

The node's journal is the holder of record; the store says who may hold; the ledger says what was
proven. Where they disagree somebody is about to be handed a device that is not theirs.
``python -m jobs.audit`` is the scheduled form of `fleet audit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from fleet.cli.reach import Fleet
from fleet.errors import FleetError
from fleet.evidence import layout
from fleet.evidence.ledger import Ledger
from fleet.messages import DeviceView, Message, NodeView
from fleet.model import HolderKind, Lease, State, Token, UnitId
from jobs.sweep import each

NEEDS_CERTIFICATE = frozenset({str(State.CLEAN), str(State.IN_USE)})


class Trouble(StrEnum):
    """What an audit can find."""

    LEASE_EXPIRED = "lease-expired"
    LEASE_UNKNOWN_UNIT = "lease-of-unknown-unit"
    LEASE_WITHOUT_HOLDER = "lease-without-holder"
    LEASE_FOREIGN = "lease-of-another"
    LEASE_RUN_ENDED = "lease-of-ended-run"
    LEASE_CLOSED = "lease-closed-by-node"
    IN_USE_WITHOUT_LEASE = "in-use-without-lease"
    TOKEN_AHEAD = "token-ahead-of-store"  # noqa: S105  a word for an operator, not a secret
    EPOCH_FOREIGN = "epoch-foreign"
    CERTIFICATE_MISSING = "certificate-missing"
    NODE_DEGRADED = "node-degraded"
    NODE_SILENT = "node-silent"


REMEDIES: Mapping[Trouble, str] = {
    Trouble.LEASE_EXPIRED: "nothing to do: the next acquire replaces it",
    Trouble.LEASE_UNKNOWN_UNIT: "start the node that has the unit, or forget it if it is gone",
    Trouble.LEASE_WITHOUT_HOLDER: "if the claim is gone, its node must abandon it; then release it",
    Trouble.LEASE_FOREIGN: "find out which of the two is right before anybody gets the device",
    Trouble.LEASE_RUN_ENDED: "nothing to do: it expires; a run that still works renews it",
    Trouble.LEASE_CLOSED: "the release waits in the node's outbox; if it stays, restart the node",
    Trouble.IN_USE_WITHOUT_LEASE: "nothing may be granted on it: end the claim so that it is wiped",
    Trouble.TOKEN_AHEAD: "the store is an older copy: run `fleet store adopt`",
    Trouble.EPOCH_FOREIGN: "node and store do not belong together: see `fleet store adopt`",
    Trouble.CERTIFICATE_MISSING: "scrub the device; keep the ledger for inquiry",
    Trouble.NODE_DEGRADED: "see `fleet status`",
    Trouble.NODE_SILENT: "start the node's service, then audit again",
}


class AuditFinding(Message):
    """One disagreement."""

    trouble: Trouble
    place: str
    """node/device, or the units of a lease nobody reports."""
    detail: str
    remedy: str


class AuditReport(Message):
    """What an audit saw; `findings` empty means all agree."""

    at: float
    simulated: bool
    nodes: int
    devices: int
    leases: int
    certificates: int
    findings: tuple[AuditFinding, ...]


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


def gather(fleet: Fleet, *, ledgers: Path | None, now: float) -> Evidence:
    """Read all sources. `ledgers`: the state directory, where the certificates can be read."""
    # Leases first: one granted between the two reads is then no finding.
    leases = tuple(fleet.coordinator.leases())
    newest = fleet.coordinator.newest()
    open_runs = frozenset(run.id for run in fleet.coordinator.unfinished())
    found = each(fleet.nodes, lambda node: node.view())
    return Evidence(
        at=now,
        views=tuple(one for one in found.values() if not isinstance(one, FleetError)),
        leases=leases,
        newest=newest,
        open_runs=open_runs,
        certificates=None if ledgers is None else _certificates(ledgers),
        silent={name: str(one) for name, one in found.items() if isinstance(one, FleetError)},
    )


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
    ]
    return AuditReport(
        at=evidence.at,
        simulated=any(view.simulated for view in evidence.views),
        nodes=len(evidence.views) + len(evidence.silent),
        devices=sum(len(view.devices) for view in evidence.views),
        leases=len(evidence.leases),
        certificates=len(evidence.certificates or ()),
        findings=tuple(findings),
    )


def _finding(trouble: Trouble, place: str, detail: str) -> AuditFinding:
    return AuditFinding(trouble=trouble, place=place, detail=detail, remedy=REMEDIES[trouble])


def _of_nodes(evidence: Evidence) -> Iterator[AuditFinding]:
    for node, error in evidence.silent.items():
        yield _finding(Trouble.NODE_SILENT, node, error)
    for view in evidence.views:
        for reason in view.degraded:
            yield _finding(Trouble.NODE_DEGRADED, view.node, reason)


def _of_leases(evidence: Evidence) -> Iterator[AuditFinding]:
    devices = _by_unit(evidence.views)
    sending = {view.node for view in evidence.views if view.outbox}
    for lease in evidence.leases:
        if lease.holder.kind is HolderKind.PUBLISHER:
            continue  # of hardware: it comes and goes with its plugin
        unknown = sorted(lease.units - set(devices))
        if unknown and not evidence.silent:
            yield _finding(
                Trouble.LEASE_UNKNOWN_UNIT,
                ", ".join(unknown),
                f"{lease.holder} has a lease on units no node reports",
            )
        if lease.expires_at is not None and lease.expires_at <= evidence.at:
            yield _finding(
                Trouble.LEASE_EXPIRED,
                _places(lease, devices),
                f"the lease of {lease.holder} ran out {evidence.at - lease.expires_at:.0f} s ago",
            )
        elif lease.holder.kind is HolderKind.CLAIM:
            yield from _of_claim_lease(lease, devices, sending)
        elif (
            lease.holder.kind is HolderKind.CAMPAIGN and lease.holder.name not in evidence.open_runs
        ):
            yield _finding(
                Trouble.LEASE_RUN_ENDED,
                _places(lease, devices),
                f"{lease.holder} holds a lease and its run has ended",
            )


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
        yield _finding(
            Trouble.LEASE_FOREIGN, place, f"leased to {lease.holder}, held on the node by {others}"
        )
    elif not claims and any(devices.get(unit) for unit in lease.units):
        floors = [
            Token.parse(device.floor) for unit in lease.units for _, device in devices.get(unit, ())
        ]
        nodes = {node for unit in lease.units for node, _ in devices.get(unit, ())}
        closed = any(floor > lease.token for floor in floors) or bool(nodes & sending)
        yield _finding(
            Trouble.LEASE_CLOSED if closed else Trouble.LEASE_WITHOUT_HOLDER,
            place,
            f"leased to {lease.holder} under {lease.token}; the node has no record of the claim",
        )


def _of_devices(evidence: Evidence) -> Iterator[AuditFinding]:
    leased = {unit: lease for lease in evidence.leases for unit in lease.units}
    for view in evidence.views:
        for device in view.devices:
            place = f"{view.node}/{device.name}"
            yield from _of_tokens(evidence, device, place)
            if device.state == State.IN_USE and device.claim:
                holders = {
                    str(leased[UnitId(unit)].holder) if UnitId(unit) in leased else "nobody"
                    for unit in device.units
                }
                if holders != {f"{HolderKind.CLAIM}:{device.claim}"}:
                    yield _finding(
                        Trouble.IN_USE_WITHOUT_LEASE,
                        place,
                        f"in use by claim {device.claim}; the store says"
                        f" {', '.join(sorted(holders))}",
                    )
            if device.state in NEEDS_CERTIFICATE and evidence.certificates is not None:
                if not device.certificate:
                    yield _finding(
                        Trouble.CERTIFICATE_MISSING, place, f"{device.state} without a certificate"
                    )
                elif not {part.strip() for part in device.certificate.split(",")} <= set(
                    evidence.certificates
                ):
                    yield _finding(
                        Trouble.CERTIFICATE_MISSING,
                        place,
                        f"{device.state} under {device.certificate}, which is in no ledger",
                    )


def _of_tokens(evidence: Evidence, device: DeviceView, place: str) -> Iterator[AuditFinding]:
    floor = Token.parse(device.floor)
    if floor.counter == 0:
        return
    if floor.epoch != evidence.newest.epoch:
        yield _finding(
            Trouble.EPOCH_FOREIGN,
            place,
            f"acted under {floor}, the store issues epoch {evidence.newest.epoch}",
        )
    elif floor > evidence.newest:
        yield _finding(
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
