"""Wiring: the only place that builds adapters and joins them to the domain.

State directory of a fleet on one host:

    <state>/fleet.json                    what the fleet is, written at first use
    <state>/coordinator/{store.db,keys/,heads/}
    <state>/nodes/<node>/{journal.db,journal.lock,ledger/,keys/,cdi/,run/,sim/}

Simulation happens only when asked for: a plan without it needs a real driver, and an absent driver
is `DriverAbsent`, never an empty fleet.
"""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from fleet import errors
from fleet.backends import registry as backends
from fleet.backends.base import Backend
from fleet.backends.simulated import backend as simulated
from fleet.backends.simulated import topology
from fleet.cdi import SpecDirectory
from fleet.clock import SystemClock
from fleet.coordinator import Coordinator
from fleet.evidence import heads, layout
from fleet.evidence.keys import SigningKey
from fleet.evidence.ledger import Ledger
from fleet.journal import opening
from fleet.journal.lock import OwnerLock
from fleet.journal.opening import Place
from fleet.messages import Message
from fleet.model import BootId, NodeName
from fleet.node.bounded import BoundedCalls
from fleet.node.certifying import Certifier
from fleet.node.cleaning import Cleaner
from fleet.node.exposing import Exposer
from fleet.node.holding import Holding
from fleet.node.recovery import Recovery
from fleet.node.registry import Registry
from fleet.node.service import NodeService, Parts
from fleet.node.sweep import Sweep
from fleet.node.tenancy import ProcessTenants
from fleet.node.tending import Cadence
from fleet.node.validating import Validator
from fleet.node.wiping import Wiper
from fleet.profiles import Profile
from fleet.settings import MIB, Settings
from fleet.stores.late import LateStore
from fleet.stores.sqlite import host_identity, open_stores, store_path
from fleet.wipe.identity import kernel_boot_id
from fleet.wipe.workers import Spawner

PLAN_FILE = "fleet.json"
RUN_DIRECTORY = Path("/run/fleetscrub")
MEMORY_DEFAULT = 64 * MIB
_SIMULATE = re.compile(r"^(?P<nodes>\d{1,4})x(?P<devices>\d{1,3})(?:p(?P<parts>\d{1,3}))?$")


class SimulatedNode(Message):
    """What to simulate on one node. `partitionable` of the accelerators have partitions."""

    accelerators: int = Field(ge=1)
    memory_bytes: int = Field(ge=1)
    partitionable: int = Field(default=0, ge=0)
    seed: int = 0


class NodePlan(Message):
    """Everything a process needs to open one node."""

    node: str = Field(min_length=1)
    state: str
    simulated: SimulatedNode | None = None
    settings: Settings = Settings()
    labels: dict[str, str] = Field(default_factory=dict)


class CoordinatorPlan(Message):
    """Everything a process needs to open the coordinator."""

    state: str
    settings: Settings = Settings()


class FleetPlan(Message):
    """A fleet on one host."""

    nodes: tuple[NodePlan, ...]
    coordinator: CoordinatorPlan

    @property
    def simulated(self) -> bool:
        """Whether every device is simulated."""
        return all(node.simulated is not None for node in self.nodes)


def plan_fleet(
    state: Path,
    *,
    simulate: str | None = None,
    memory_bytes: int | None = None,
    profile: str | None = None,
    settings: Settings | None = None,
) -> FleetPlan:
    """The fleet of a state directory: as asked for, or as recorded at its first use.

    `simulate` is ``NxM`` or ``NxMpK`` (N nodes of M accelerators, K of them partitionable). Raises
    `InputInvalid` when an existing fleet has another shape, `DriverAbsent` when there is none.
    """
    state = state.absolute()
    path = state / PLAN_FILE
    recorded = _recorded(path)
    chosen = settings or Settings()
    if profile is not None:
        chosen = chosen.model_copy(update={"profile": _profile(profile)})
    if simulate is None:
        if recorded is None:
            raise errors.DriverAbsent(
                "no accelerator driver that this version supports answers on this machine"
            )
        shape = recorded
    else:
        shape = _shape(simulate, memory_bytes or _memory(recorded))
        if recorded is not None and recorded != shape:
            raise errors.InputInvalid(
                f"{state} holds a simulated fleet of another shape ({_told(recorded)})",
                remedy="ask for the shape it has, or name another directory with --state",
            )
    if recorded is None:
        state.mkdir(parents=True, exist_ok=True)
        shape = _write(path, shape)
    return _plan(state, shape, chosen)


def _profile(name: str) -> Profile:
    try:
        return Profile(name)
    except ValueError:
        raise errors.InputInvalid(
            f"there is no profile {name!r}", remedy=f"choose one of: {', '.join(Profile)}"
        ) from None


class _Shape(Message):
    nodes: int = Field(ge=1)
    node: SimulatedNode


def _shape(simulate: str, memory_bytes: int) -> _Shape:
    match = _SIMULATE.match(simulate)
    if match is None or int(match["nodes"]) < 1 or int(match["devices"]) < 1:
        raise errors.InputInvalid(
            f"--simulate {simulate!r} is not NODESxDEVICES",
            remedy="write for example 2x8, or 2x8p2 for two partitionable devices on each node",
        )
    figures = {
        "accelerators": int(match["devices"]),
        "memory_bytes": memory_bytes,
        "partitionable": int(match["parts"] or 0),
    }
    # Refused before it is recorded: a recorded shape that cannot be built would be a trap.
    topology.Shape(node="node", seed=0, **figures).check()
    return _Shape(nodes=int(match["nodes"]), node=SimulatedNode.model_validate(figures))


def _memory(recorded: _Shape | None) -> int:
    return recorded.node.memory_bytes if recorded else MEMORY_DEFAULT


def _told(shape: _Shape) -> str:
    parts = f"p{shape.node.partitionable}" if shape.node.partitionable else ""
    return f"{shape.nodes}x{shape.node.accelerators}{parts}, {shape.node.memory_bytes} B each"


def _recorded(path: Path) -> _Shape | None:
    try:
        return _Shape.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise errors.InputInvalid(
            f"{path} cannot be read: {error}", remedy="restore it, or name another --state"
        ) from error


def _write(path: Path, shape: _Shape) -> _Shape:
    """Record the shape, complete, unless somebody else just did; returns what is recorded."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    temporary.write_text(shape.model_dump_json(indent=2))
    try:
        os.link(temporary, path)
    except FileExistsError:
        found = _recorded(path)
        if found != shape:
            raise errors.InputInvalid(
                f"{path} was just made for a fleet of another shape",
                remedy="ask for the shape it has, or name another directory with --state",
            ) from None
    finally:
        temporary.unlink()
    return shape


def _plan(state: Path, shape: _Shape, settings: Settings) -> FleetPlan:
    width = max(2, len(str(shape.nodes)))
    nodes = tuple(
        NodePlan(
            node=f"node-{number:0{width}d}",
            state=str(state),
            simulated=shape.node.model_copy(update={"seed": number}),
            settings=settings,
            labels={"rack": f"rack-{(number - 1) // 4 + 1:02d}", "pool": "default"},
        )
        for number in range(1, shape.nodes + 1)
    )
    return FleetPlan(nodes=nodes, coordinator=CoordinatorPlan(state=str(state), settings=settings))


def open_coordinator(plan: CoordinatorPlan) -> Coordinator:
    """Open the coordinator over the state directory's stores."""
    state = Path(plan.state)
    clock = SystemClock()
    stores = open_stores(store_path(state), clock=clock, timeout_s=plan.settings.store.timeout_s)
    stores.leases.init()
    key = SigningKey.load_or_create(layout.coordinator_key(state))
    signer = heads.Countersigner(heads.HeadsLog(layout.heads_directory(state)), key, clock)
    if not any(_has_certificates(state, node) for node in layout.nodes(state)):
        signer.begin()
    return Coordinator(stores.leases, stores.runs, clock=clock, signer=signer)


def _has_certificates(state: Path, node: str) -> bool:
    directory = layout.ledger_directory(state, node)
    return any(path.stat().st_size for path in directory.glob("*.jsonl"))


def open_node(plan: NodePlan) -> NodeService:
    """Open a node: take its journal, recover, serve. Raises `NotOwner` when another serves."""
    state = Path(plan.state)
    directory = layout.node_directory(state, plan.node)
    directory.mkdir(parents=True, exist_ok=True)
    backend = _backend(plan, directory)
    lock = OwnerLock(directory / "journal.lock")
    lock.acquire(owner=f"node service of {plan.node}")
    parts: Parts | None = None
    try:
        parts = _parts(plan, backend, directory, lock)
        return NodeService(parts)
    except BaseException:
        if parts is not None:
            parts.close()
        lock.release()
        raise


def _backend(plan: NodePlan, directory: Path) -> Backend:
    if plan.simulated is None:
        raise errors.DriverAbsent(f"no accelerator driver answers on node {plan.node}")
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


def _key(plan: NodePlan, state: Path) -> SigningKey:
    """The node's key; one kept elsewhere leaves its public half here, for `--state` to verify."""
    chosen, usual = plan.settings.evidence.key_file, layout.node_key(state, plan.node)
    if not chosen:
        return SigningKey.load_or_create(usual)
    key = SigningKey.load_or_create(Path(chosen))
    usual.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key.public().save(usual.with_suffix(".pub"))
    return key


def _place(plan: NodePlan, backend: Backend, directory: Path) -> Place:
    run_directory = directory / "run" if backend.simulated else RUN_DIRECTORY
    return Place(
        path=directory / "journal.db",
        witness=run_directory / f"{plan.node}.witness",
        node=NodeName(plan.node),
        machine_id=host_identity(),
    )


def _parts(plan: NodePlan, backend: Backend, directory: Path, lock: OwnerLock) -> Parts:
    state, settings, clock = Path(plan.state), plan.settings, SystemClock()
    place = _place(plan, backend, directory)
    opened = opening.open_or_set_aside(place, now=clock.now())
    registry = Registry(backend, opened.journal, place, clock, boot_id=_boot_id(backend))
    try:
        key = _key(plan, state)
    except BaseException:
        opened.journal.close()
        raise
    ledger = Ledger(layout.ledger_directory(state, plan.node))
    certifier = Certifier(registry, ledger, key, settings.profile)
    validator = Validator(registry, BoundedCalls(), settings.health)
    specs = SpecDirectory(directory / "cdi")
    tenants = ProcessTenants(registry, validator)
    sweep = Sweep(registry, validator)
    wiper = Wiper(
        registry,
        workers=Spawner(),
        tenants=tenants,
        validator=validator,
        certifier=certifier,
        max_parallel=settings.node.max_parallel,
    )
    store = LateStore(store_path(state), clock, timeout_s=settings.store.timeout_s)
    return Parts(
        registry=registry,
        recovery=Recovery(registry, specs, settings.wipe.kill_wait_s, ledger),
        wiper=wiper,
        holding=Holding(
            registry,
            Cleaner(registry, wiper, settings.wipe),
            Exposer(registry, validator, sweep, settings.profile, ledger),
            specs,
            tenants,
            settings.wipe,
            store,
            settings.node.holder_deadline_s,
        ),
        sweep=sweep,
        tenants=tenants,
        store=store,
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
        close_store=store.close,
    )


def _boot_id(backend: Backend) -> BootId:
    booted: Any = getattr(backend, "boot_id", None)
    return BootId(booted() if callable(booted) else kernel_boot_id())
