"""What must hold of a state directory after any kill, judged from its files alone.

Nothing here asks a running process. Databases are read from copies, since opening the originals
would recover them before the product does. Every check returns sentences; none means it holds.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fleet.core import sqlite
from fleet.core.claim_states import Claim, ClaimEvent
from fleet.core.clock import SystemClock
from fleet.core.messages import Outcome
from fleet.core.model import (
    NO_TOKEN,
    ClaimUid,
    Digest,
    HolderKind,
    Lease,
    OperationId,
    State,
    Token,
    Unit,
    UnitId,
)
from fleet.devices.simulated.backend import SimulatedBackend
from fleet.evidence import layout, sources, verify
from fleet.evidence.ledger import Ledger
from fleet.evidence.parsed import Certificate
from fleet.node.journal import schema
from fleet.node.journal.journal import Journal, OperationRow
from fleet.stores.base import RunRecord, RunState
from fleet.stores.sqlite import open_stores, store_path
from tests.scratch import scratch

DEBRIS = frozenset({"truncated", "empty-file"})
"""What a crash may leave at the very end of a ledger until the next start sets it aside."""
CLAIMED = tuple(f"{event}/" for event in (ClaimEvent.PREPARE, ClaimEvent.UNPREPARE))
"""Operations for a claim; the claim's record is their order."""
IDLE = "idle/"
"""Operations the node gave itself; they need no lease and have no record."""


@dataclass(frozen=True, slots=True)
class NodeSample:
    """One node as its disk tells it."""

    name: str
    units: Mapping[UnitId, Unit] = field(default_factory=dict)
    operations: Mapping[OperationId, OperationRow] = field(default_factory=dict)
    claims: Mapping[ClaimUid, Claim] = field(default_factory=dict)
    boot_id: str = ""
    epoch: int = 0
    workers: int = 0
    outbox: int = 0
    unfinished: int = 0
    certificates: Mapping[Digest, Certificate] = field(default_factory=dict)
    heads: Mapping[UnitId, Digest] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """A fleet as its disk tells it."""

    nodes: Mapping[str, NodeSample]
    newest: Token = NO_TOKEN
    suspended: Token | None = None
    leases: tuple[Lease, ...] = ()
    runs: Mapping[str, RunRecord] = field(default_factory=dict)


def sample(state: Path) -> Sample:
    """Read everything once."""
    nodes = {str(name): _node(state, name) for name in layout.nodes(state)}
    with _copied(store_path(state)) as path:
        if path is None:
            return Sample(nodes)
        stores = open_stores(path, clock=SystemClock())
        try:
            if not stores.initialised:
                return Sample(nodes)
            return Sample(
                nodes,
                newest=stores.leases.newest(),
                suspended=stores.leases.suspended(),
                leases=tuple(stores.leases.leases()),
                runs={run.id: run for run in stores.runs.runs(100)},
            )
        finally:
            stores.close()


def _node(state: Path, name: str) -> NodeSample:
    ledger = Ledger(layout.ledger_directory(state, name))
    heads = ledger.heads()
    certificates = {e.digest: ledger.certificate(e.digest) for e in ledger.entries()}
    with _copied(layout.node_directory(state, name) / "journal.db") as path:
        if path is None:
            return NodeSample(name, certificates=certificates, heads=heads)
        database = sqlite.open_database(path, schema=schema.SCHEMA, timeout_s=1.0)
        try:
            database.integrity()
            journal = Journal(database)
            rows = database.query("SELECT id FROM operations")
            found = [journal.operation(OperationId(row["id"])) for row in rows]
            return NodeSample(
                name,
                units=dict(journal.units),
                operations={row.id: row for row in found if row is not None},
                claims=dict(journal.claims),
                boot_id=journal.meta.get("boot_id", ""),
                epoch=journal.epoch,
                workers=len(journal.workers()),
                outbox=len(journal.outbox()),
                unfinished=len(journal.unfinished()),
                certificates=certificates,
                heads=heads,
            )
        finally:
            database.close()


@contextmanager
def _copied(path: Path) -> Iterator[Path | None]:
    """A copy of a database with its log, to be opened at leisure; None when there is none."""
    if not path.exists() or not path.stat().st_size:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="chaos-copy-", dir=scratch()) as directory:
        for suffix in ("", "-wal", "-journal"):
            source = path.with_name(path.name + suffix)
            if source.exists():
                shutil.copyfile(source, Path(directory) / source.name)
        yield Path(directory) / path.name


# --- at every moment -----------------------------------------------------------------------------


def after_a_kill(state: Path, before: Sample, now: Sample) -> list[str]:
    """What holds whenever the process is dead."""
    return [
        *backwards(before, now),
        *evidence(state, debris=True),
        *(broken for node in now.nodes.values() for broken in _clean_units(state, node, now)),
    ]


def backwards(before: Sample, now: Sample) -> Iterator[str]:
    """No floor, epoch or issued token is ever lower than it was; no certificate is ever gone."""
    if now.newest < before.newest:
        yield f"the store issued up to {before.newest}, now it says {now.newest}"
    if now.suspended is not None:
        yield f"the store suspended itself at {now.suspended}: a node has seen a token it has not"
    for name, old in before.nodes.items():
        new = now.nodes.get(name, NodeSample(name))
        if new.epoch < old.epoch:
            yield f"{name}: epoch {old.epoch} became {new.epoch}"
        for unit_id, unit in old.units.items():
            found = new.units.get(unit_id)
            if found is None:
                yield f"{name}: {unit_id} is gone from the journal"
            elif found.floor < unit.floor:
                yield f"{name}: the floor of {unit_id} fell from {unit.floor} to {found.floor}"
        for digest in old.certificates.keys() - new.certificates.keys():
            yield f"{name}: certificate {digest} is gone from the ledger"
    for name, node in now.nodes.items():
        yield from _tokens_in_order(name, node, now.newest)


def _tokens_in_order(name: str, node: NodeSample, newest: Token) -> Iterator[str]:
    last: dict[UnitId, Token] = {}
    for certificate in node.certificates.values():
        token = certificate.token
        if token is None:
            continue
        if token > newest:
            yield f"{name}: certificate {certificate.digest} is under {token}, never issued"
        for covered in certificate.chain:
            if token < last.get(covered, token):
                yield f"{name}: {covered} is certified under {last[covered]}, then under {token}"
            last[covered] = token
    for unit_id, unit in node.units.items():
        if unit.floor > newest:
            yield f"{name}: the floor of {unit_id} is {unit.floor}, the store issued {newest}"
        if unit.floor < last.get(unit_id, unit.floor):
            yield f"{name}: {unit_id} is certified under {last[unit_id]} above its {unit.floor}"


def evidence(state: Path, *, debris: bool = False) -> list[str]:
    """`fleet evidence verify` of the whole state finds nothing."""
    if not any(layout.ledger_directory(state, name).is_dir() for name in layout.nodes(state)):
        return []
    report = verify.verify(sources.collect(state))
    return [
        f"evidence: {defect.code} at {defect.place}: {defect.detail}"
        for defect in report.defects
        if not (debris and defect.code in DEBRIS)
    ]


def _clean_units(state: Path, node: NodeSample, now: Sample) -> Iterator[str]:
    """CLEAN means: zero memory, and the certificate of exactly this wipe is in the ledger."""
    backend = SimulatedBackend(layout.node_directory(state, node.name) / "sim")
    if backend.boot_id() != node.boot_id:
        return  # the next start drops all trust before it serves anybody
    clean = {unit_id for unit_id, unit in node.units.items() if unit.state is State.CLEAN}
    for accelerator in backend.inventory():
        memory = backend.memory(accelerator.uuid).read_bytes()
        for spec in accelerator.units:
            part = memory[spec.offset_bytes : spec.offset_bytes + spec.size_bytes]
            if spec.id in clean and part.count(0) != len(part):
                yield f"{node.name}: {spec.id} is CLEAN, {len(part) - part.count(0)} bytes are not"
    for unit_id in sorted(clean):
        for broken in _certified(node.units[unit_id], node, now):
            yield f"{node.name}: {unit_id} is CLEAN, but {broken}"


def _certified(unit: Unit, node: NodeSample, now: Sample) -> Iterator[str]:
    certificate = node.certificates.get(unit.certificate or Digest(""))
    if certificate is None:
        yield f"its certificate {unit.certificate} is not in the ledger"
        return
    said = certificate.predicate
    if unit.id not in certificate.chain:
        yield f"{unit.certificate} does not cover it"
    if node.heads.get(unit.id) != unit.certificate or unit.head != unit.certificate:
        yield f"{unit.certificate} is not the newest of its chain"
    if certificate.token != unit.token:
        yield f"it was wiped under {unit.token}, the certificate says {certificate.token}"
    if said["boot_id"] != node.boot_id:
        yield f"the certificate is of another boot ({said['boot_id']})"
    if unit.reasons:
        yield f"reasons are open: {sorted(reason.code for reason in unit.reasons)}"
    operation = OperationId(str(said["operation"]))
    if operation.startswith(IDLE):
        if certificate.token is not None or said["run"]:
            yield f"the node's own {operation} claims a token or a run"
        return
    if operation.startswith(CLAIMED):
        if said["run"] or not said["claim"]:
            yield f"{operation} is of run {said['run']!r} and claim {said['claim']!r}"
        return
    row = node.operations.get(operation)
    if row is None:
        yield f"the journal has no operation {operation}"
        return
    if row.request["token"] != str(certificate.token) or row.request["run"] != said["run"]:
        yield f"the certificate is not of what {operation} ordered: {row.request}"
    if said["run"] not in now.runs:
        yield f"its run {said['run']} does not exist"
    answered = row.result and row.result["outcome"] == Outcome.CERTIFIED
    if row.result and answered and row.result["certificate"] != unit.certificate:
        yield f"{operation} answered {row.result['certificate']}"


# --- at rest -------------------------------------------------------------------------------------


def at_rest(state: Path, now: Sample, run: str) -> list[str]:
    """What holds once run `run` came to its end and everybody left."""
    return [
        *evidence(state),
        *_boots(state, now),
        *_left_over(now),
        *_run(state, now, run),
    ]


def _boots(state: Path, now: Sample) -> Iterator[str]:
    """The journal follows the boot the hardware is in; else nothing CLEAN was judged above."""
    for node in now.nodes.values():
        booted = SimulatedBackend(layout.node_directory(state, node.name) / "sim").boot_id()
        if node.boot_id != booted:
            yield f"{node.name}: the journal still follows boot {node.boot_id}, not {booted}"


def _left_over(now: Sample) -> Iterator[str]:
    for lease in now.leases:
        if lease.holder.kind is HolderKind.CAMPAIGN:
            known = now.runs.get(lease.holder.name)
            yield f"{lease.holder} ({known.state if known else 'unknown'}) still has {lease.token}"
    for node in now.nodes.values():
        if node.outbox:
            yield f"{node.name}: {node.outbox} remote acts are left in the outbox"
        if node.unfinished:
            yield f"{node.name}: {node.unfinished} operations have no answer"
        wedged = any(r.code == "wedged" for u in node.units.values() for r in u.reasons)
        if node.workers and not wedged:
            yield f"{node.name}: {node.workers} workers are still journalled"
        for unit_id, unit in node.units.items():
            if unit.state not in (State.CLEAN, State.QUARANTINED):
                yield f"{node.name}: {unit_id} is left {unit.state}"
            if unit.state is State.QUARANTINED and not unit.reasons:
                yield f"{node.name}: {unit_id} is QUARANTINED without a reason"


def _run(state: Path, now: Sample, run: str) -> Iterator[str]:
    record = now.runs.get(run)
    if record is None:
        yield f"run {run} is not in the store"
        return
    if record.state is not RunState.FINISHED:
        yield f"run {run} is {record.state} ({record.exit_reason})"
    for other in now.runs.values():
        if other.state is RunState.RUNNING:
            yield f"run {other.id} still looks alive"
    devices = {
        str(accelerator.uuid): node
        for node in now.nodes.values()
        for accelerator in SimulatedBackend(
            layout.node_directory(state, node.name) / "sim"
        ).inventory()
    }
    if record.results.keys() != devices.keys():
        yield f"run {run} has outcomes of {sorted(record.results)}, not {sorted(devices)}"
    for uuid, result in record.results.items():
        if result.outcome is not Outcome.CERTIFIED or uuid not in devices:
            continue
        certificate = devices[uuid].certificates.get(Digest(result.certificate))
        if certificate is None:
            yield f"run {run}: {uuid} is certified by {result.certificate}, not in the ledger"
        elif (certificate.device, certificate.predicate["run"]) != (uuid, run):
            yield f"run {run}: the certificate of {uuid} is of another device or run"
        elif certificate.predicate["operation"] != result.operation:
            yield f"run {run}: the certificate of {uuid} is of another operation"


def living(marker: str, value: str) -> list[int]:
    """Pids of processes that inherited `marker` with `value`."""
    wanted = f"{marker}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rpartition(") ")[2][:1]
        except OSError:
            continue
        if wanted in environment and state not in "ZX":
            found.append(int(entry.name))
    return found
