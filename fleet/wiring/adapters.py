"""Wiring: the only place that builds adapters and joins them to the domain.

State directory of a fleet on one host:

    <state>/fleet.json                    what the fleet is, written at first use
    <state>/cluster.json                  which cluster it belongs to (`fleet.kube.identity`)
    <state>/coordinator/{store.db,keys/,heads/,standing}
    <state>/nodes/<node>/{journal.db,journal.lock,ledger/,keys/,cdi/,run/,sim/}

Simulation happens only when asked for: a plan without it needs a real driver, and an absent driver
is `DriverAbsent`, never an empty fleet.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from fleet.control.coordinator import Coordinator
from fleet.core import errors
from fleet.core.boot import kernel_boot_id
from fleet.core.clock import SystemClock
from fleet.core.disk import own_directory
from fleet.core.model import BootId, NodeName, Uuid
from fleet.core.settings_kubernetes import Handover
from fleet.devices import registry as backends
from fleet.devices.base import Backend
from fleet.devices.remote import RemoteBackend
from fleet.devices.simulated import backend as simulated
from fleet.devices.wipe.workers import Spawner
from fleet.evidence import heads, kept_list, layout
from fleet.evidence.dsse import Signer
from fleet.evidence.keys import SigningKey
from fleet.evidence.ledger import Ledger
from fleet.evidence.losses import LossLog
from fleet.kube.base import Cluster
from fleet.kube.marks import AGENT
from fleet.node import inventory, kubelet_checkpoint
from fleet.node.admission import Admission
from fleet.node.bounded import BoundedCalls
from fleet.node.cdi.directory import SpecDirectory
from fleet.node.certification import Certifier
from fleet.node.cgroups import CgroupTree
from fleet.node.claim_lease import Securing
from fleet.node.claim_wipe import Cleaner
from fleet.node.claims import Holding
from fleet.node.container_runtime import ContainerRuntime
from fleet.node.exposure import Exposer
from fleet.node.inventory import OPEN_WAIT_S, Question
from fleet.node.journal import startup
from fleet.node.journal.lock import OwnerLock
from fleet.node.journal.startup import Opened, Place
from fleet.node.key import NodeKey
from fleet.node.loss_records import LossRecorder
from fleet.node.orphan_access import Lingering
from fleet.node.outbox import Outbox
from fleet.node.parts import Parts
from fleet.node.pods import PodTenants
from fleet.node.ports import TenantProof
from fleet.node.preflight import Preflight
from fleet.node.recovery import Recovery
from fleet.node.registry import Registry
from fleet.node.service import NodeService
from fleet.node.sweep import Sweep
from fleet.node.teardown import Teardown, Visibility
from fleet.node.tenancy import ProcessTenants
from fleet.node.upkeep import Cadence
from fleet.node.validation import Validator
from fleet.node.wipe import Wiper
from fleet.plugin.slices.exclusivity import HostLocks
from fleet.rpc.client import DoorNode
from fleet.rpc.node_api import HandOver
from fleet.rpc.socket import Door, keep
from fleet.stores import archives
from fleet.stores.base import RUNS_KEPT
from fleet.stores.factory import StorePlace
from fleet.stores.late import LateStore
from fleet.stores.sqlite import host_identity
from fleet.wiring import hardware, membership
from fleet.wiring.plans import (
    LOCK,
    PLAN_FILE,
    CoordinatorPlan,
    FleetPlan,
    NodePlan,
    SimulatedNode,
    door_path,
    lock_path,
    plan_fleet,
)

# Who speaks for the real devices of a host: one journal, and no other.
#
# Two journals would each believe their own history: what people decided in one of them, and what
# was handed out, is not known to the other.

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


__all__ = [
    "LOCK",
    "CoordinatorPlan",
    "FleetPlan",
    "NodePlan",
    "SimulatedNode",
    "begin",
    "door_path",
    "lock_path",
    "open_coordinator",
    "open_node",
    "plan_fleet",
]


def open_coordinator(plan: CoordinatorPlan, cluster: Cluster | None = None) -> Coordinator:
    """Open the coordinator over the stores that the settings name.

    Those of a cluster are over `cluster` if it is given, and must be initialised: a coordinator
    that made them anew could not tell a lost store from a new one (`SettingsInvalid`). For the same
    reason the file of one host is made only where there is no fleet yet (`StoreUnavailable`).
    """
    state = Path(plan.state)
    clock = SystemClock()
    place = _store_place(plan)
    if place.shared:
        stores = place.open(clock, cluster)
    else:
        stores = place.opener(clock, expected=lambda: membership.is_founded(state))()
    signer = _signer(state, clock)
    if not membership.has_certificates(state):
        with suppress(errors.NotOwner):  # another coordinator begins the log now
            signer.begin()
    runs = stores.runs
    copies = archives.of_coordinator(
        plan.settings.evidence, state, lambda: runs.runs(RUNS_KEPT), clock
    )
    return Coordinator(stores.leases, runs, clock=clock, signer=signer, copies=copies)


def require_store(plan: CoordinatorPlan) -> None:
    """Raises `StoreUnavailable` where a fleet is and the file of its store is not."""
    if membership.is_founded(Path(plan.state)):
        _store_place(plan).require()


def begin(plan: CoordinatorPlan) -> None:
    """At the first use of a state directory, before any node certifies: store and log of heads.

    The stores of a cluster are made by `fleet store init`, once for all its hosts. A node may be
    served long before a coordinator comes; a log of heads that began after the first certificate
    could not be told from one that was cut. Later calls change nothing.
    """
    state, clock = Path(plan.state), SystemClock()
    if membership.has_certificates(state):
        return
    place = _store_place(plan)
    if not place.shared and not membership.is_founded(state):
        with closing(place.open(clock)) as stores:
            stores.leases.init()
    _signer(state, clock).begin()


def _store_place(plan: CoordinatorPlan) -> StorePlace:
    qps = plan.settings.kubernetes.coordinator_qps
    return StorePlace(plan.settings, Path(plan.state), plan.kubeconfig, qps)


def _signer(state: Path, clock: SystemClock) -> heads.Countersigner:
    key = SigningKey.load_or_create(layout.coordinator_key(state))
    log = heads.HeadsLog(layout.heads_directory(state))
    return heads.Countersigner(log, key, clock, partial(kept_list.named, state))


def open_node(
    plan: NodePlan,
    *,
    owner: str = "node service",
    hand_over: HandOver = keep,
    looks: bool = False,
) -> NodeService:
    """Open a node: take its journal, recover, serve at its door. `NotOwner` when another serves.

    Callers are let in as soon as this node's own disk has been read: neither its driver nor its
    lease store is waited for (B14, B72). Where no kubelet asks for its devices the driver is given
    its time, and must be there at the first use: else `DriverAbsent`. `hand_over` decides when a
    newcomer asks for the journal; see `fleet.rpc`. With `looks` trouble of the journal is only
    told (`JournalUnreadable`): whoever serves the node decides about it.
    """
    state = Path(plan.state)
    directory = layout.node_directory(state, plan.node)
    own_directory(directory)
    for above in (directory.parent, state):
        own_directory(above, allowed=0o7775)
    backend = backend_of(plan, directory)
    lock = OwnerLock(directory / LOCK)
    lock.acquire(owner=f"{owner} of {plan.node}")
    parts: Parts | None = None
    alone: HostLocks | None = None
    try:
        question = _asked(plan, backend, directory)
        # Before anything is written: journal and witness of whoever has these devices are not ours.
        alone = _alone(plan, question, directory)
        parts = _parts(plan, backend, directory, lock, looks=looks)
        parts.alone, parts.question = alone, question
        if alone is not None:
            parts.registry.own = partial(take, alone)
        service = NodeService(parts)
        parts.door = Door(service, door_path(plan), owner=owner, hand_over=hand_over)
        service.begin()
        return service
    except BaseException:
        if parts is not None:
            parts.close()
        elif isinstance(backend, RemoteBackend):
            backend.close()
        if alone is not None:
            alone.close()
        lock.release()
        raise


def _asked(plan: NodePlan, backend: Backend, directory: Path) -> Question | None:
    """The driver asked for its accelerators, and waited for as long as a start may wait.

    None: they are simulated, and listed at once. Raises `DriverAbsent` where there is nothing to go
    by without it.
    """
    if plan.simulated is not None:
        return None
    question = Question(backend.inventory)
    question.wait(OPEN_WAIT_S if plan.kubernetes else None)
    if not plan.kubernetes and not (directory / membership.JOURNAL).exists():
        question.answer()
    return question


def _alone(plan: NodePlan, question: Question | None, directory: Path) -> HostLocks | None:
    """The right to speak for real accelerators; simulated ones are in their own directory.

    For those that are remembered while the driver says nothing; for the others once it does.
    """
    if question is None:
        return None
    found = inventory.remembered(directory / inventory.FILE)
    with suppress(errors.DriverAbsent):
        found = question.answer()
    uuids = [accelerator.uuid for accelerator in found]
    return own(run_directory(plan), Path(plan.state).absolute(), uuids)


def open_door(plan: NodePlan) -> DoorNode:
    """The plan's node, whoever owns it."""
    return DoorNode(door_path(plan))


def backend_of(plan: NodePlan, directory: Path) -> Backend:
    """The back end of the plan's devices. Raises `DriverAbsent`, `SettingsInvalid`."""
    if plan.simulated is None and not plan.hardware:
        raise errors.DriverAbsent(f"no accelerator driver answers on node {plan.node}")
    if plan.simulated is None:
        hardware.require_root(plan.settings.hardware)
        given = hardware.arguments(plan.settings.hardware, directory)
        return RemoteBackend(plan.hardware, given)
    root = directory / "sim"
    simulated.create(
        root,
        node=plan.node,
        accelerators=plan.simulated.accelerators,
        memory_bytes=plan.simulated.memory_bytes,
        partitionable=plan.simulated.partitionable,
        seed=plan.simulated.seed,
    )
    return backends.build("simulated", {"root": str(root)})


def run_directory(plan: NodePlan) -> Path:
    """Where the node keeps what must not survive a boot."""
    if plan.simulated is not None:
        return layout.node_directory(Path(plan.state), plan.node) / "run"
    return Path(plan.settings.hardware.run_directory)


def _place(plan: NodePlan, directory: Path) -> Place:
    return Place(
        path=directory / membership.JOURNAL,
        witness=run_directory(plan) / f"{plan.node}.witness",
        node=NodeName(plan.node),
        machine_id=host_identity(),
    )


def _parts(
    plan: NodePlan, backend: Backend, directory: Path, lock: OwnerLock, *, looks: bool
) -> Parts:
    state, settings, clock = Path(plan.state), plan.settings, SystemClock()
    place = _place(plan, directory)
    opened = startup.open_or_set_aside(place, now=clock.now(), looks=looks)
    _refuse_unserved(plan, opened)
    registry = Registry(backend, opened.journal, place, clock, boot_id=_boot_id(backend))
    try:
        key = _key(plan, registry)
    except BaseException:
        opened.journal.close()
        raise
    ledger = Ledger(layout.ledger_directory(state, plan.node))
    evidence = settings.evidence
    whose = {
        "operator": evidence.operator,
        "site": evidence.site,
        "rack": evidence.rack or plan.labels.get("rack", ""),
    }
    certifier = Certifier(registry, ledger, key, settings.profile, whose)
    validator = Validator(registry, BoundedCalls(), settings.health)
    specs = specs_of(plan, directory)
    tenants = _tenants(plan, registry, validator)
    sweep = Sweep(registry, validator)
    wiper = _wiper(plan, tenants, validator, certifier)
    cleaner = Cleaner(registry, wiper, settings.wipe)
    unread = settings.hardware.accept_unread
    exposer = Exposer(registry, validator, sweep, settings.profile, ledger, accept_unread=unread)
    place_of_store = StorePlace(settings, state, plan.kubeconfig)
    known = opened.journal
    store = LateStore(
        place_of_store.opener(
            clock, expected=lambda: known.epoch > 0 or membership.is_founded(state)
        )
    )
    outbox = Outbox(registry, store)
    return Parts(
        registry=registry,
        recovery=Recovery(
            registry, specs, settings.wipe.kill_wait_s, ledger, partitions=validator.partitions
        ),
        wiper=wiper,
        holding=_holding(plan, cleaner, exposer, specs, tenants, outbox),
        outbox=outbox,
        sweep=sweep,
        tenants=tenants,
        store=store,
        lingering=_lingering(plan, registry),
        ledger=ledger,
        certifier=certifier,
        lock=lock,
        policy=settings.wipe,
        cadence=Cadence(
            idle_delay_s=settings.node.idle_delay_s,
            sweep_period_s=settings.health.sweep_period_s,
            retest_period_s=settings.health.retest_period_s,
        ),
        labels=plan.labels,
        troubles=opened.troubles,
        lacks=hardware.lacks(plan.hardware, settings.hardware),
        runtime=_container_runtime(plan, backend),
        preflight=_preflight(plan),
        close_store=store.close,
        replicator=archives.of_node(settings.evidence, state, plan.node, clock),
    )


def _preflight(plan: NodePlan) -> Preflight | None:
    """The look at the hand-over to the container runtime, where it is a real one's."""
    if not plan.kubernetes or plan.simulated is not None:
        return None
    kubernetes = plan.settings.kubernetes
    return Preflight(
        Path(plan.settings.hardware.root),
        Path(kubernetes.cdi_directory),
        kubernetes.cdi_vendor,
        taints=kubernetes.preflight is Handover.TAINT,
    )


def _container_runtime(plan: NodePlan, backend: Backend) -> ContainerRuntime | None:
    """Looked at where devices are NVIDIA's and kubelet makes the containers."""
    if plan.kubernetes and backend.kind == "nvidia":
        return ContainerRuntime(Path(plan.settings.hardware.root))
    return None


def _key(plan: NodePlan, registry: Registry) -> Signer:
    """The node's key. Where kubelet waits for teardowns, one that cannot be used is waited for."""
    usual = layout.node_key(Path(plan.state), plan.node)
    placed = partial(SigningKey.placed, plan.settings.evidence.key_file, usual)
    if not plan.kubernetes:
        return placed()
    key = NodeKey(placed)
    registry.unsigned = lambda: key.trouble
    return key


def _wiper(
    plan: NodePlan, tenants: TenantProof, validator: Validator, certifier: Certifier
) -> Wiper:
    chosen = plan.settings.node
    return Wiper(
        certifier.registry,
        workers=Spawner(spares=chosen.spare_workers if plan.kubernetes else 0),
        tenants=tenants,
        validator=validator,
        certifier=certifier,
        max_parallel=chosen.max_parallel,
    )


def _holding(
    plan: NodePlan,
    cleaner: Cleaner,
    exposer: Exposer,
    specs: SpecDirectory,
    tenants: TenantProof,
    outbox: Outbox,
) -> Holding:
    settings, registry, store = plan.settings, cleaner.registry, outbox.store
    visibility = Visibility(required=plan.kubernetes)
    where = layout.losses_directory(Path(plan.state), plan.node)
    losses = LossRecorder(cleaner.wiper.certifier, LossLog(where))
    return Holding(
        registry,
        Admission(registry, specs, store, settings.kubernetes.admins),
        Securing(registry, store, outbox),
        cleaner,
        exposer,
        Teardown(
            registry,
            cleaner,
            specs,
            tenants,
            visibility,
            losses,
            settings.node.holder_deadline_s,
            exposer.validator.partitions,
        ),
        settings.wipe.kill_wait_s,
    )


def _refuse_unserved(plan: NodePlan, opened: Opened) -> None:
    """Who once handed devices to pods must look for pods, also when opened by another command."""
    if opened.journal.meta.get("kubernetes") and not plan.kubernetes:
        opened.journal.close()
        raise errors.SettingsInvalid(
            f"kubelet hands out the devices of {plan.node}, and this plan knows nothing of it",
            remedy=f"restore {PLAN_FILE} in {plan.state}, or start the node plugin once: it writes"
            " down how the node is served",
        )
    if plan.kubernetes and not opened.journal.meta.get("kubernetes"):
        with opened.journal.commit() as commit:
            commit.set_meta("kubernetes", "true")


def _lingering(plan: NodePlan, registry: Registry) -> Lingering | None:
    root = Path(plan.settings.kubernetes.cgroup_root)
    return Lingering(registry, root) if plan.kubernetes else None


def _tenants(plan: NodePlan, registry: Registry, validator: Validator) -> TenantProof:
    processes = ProcessTenants(registry, validator)
    if not plan.kubernetes:
        return processes
    kubernetes = plan.settings.kubernetes
    cgroups = CgroupTree(Path(kubernetes.cgroup_root))
    return PodTenants(
        registry,
        processes,
        cgroups,
        Path(kubernetes.kubelet_root) / kubelet_checkpoint.NAME,
        driver=kubernetes.driver,
        besides=frozenset({AGENT}),
    )


def specs_of(plan: NodePlan, directory: Path) -> SpecDirectory:
    """Where the node's CDI specs are written."""
    chosen = plan.settings.kubernetes
    where = Path(chosen.cdi_directory) if plan.kubernetes else directory / "cdi"
    real = plan.simulated is None
    host = Path(plan.settings.hardware.root) if real else Path("/")
    return SpecDirectory(where, chosen.cdi_vendor, chosen.cdi_class, host_root=host)


def _boot_id(backend: Backend) -> BootId:
    booted: Any = getattr(backend, "boot_id", None)
    return BootId(booted() if callable(booted) else kernel_boot_id())
