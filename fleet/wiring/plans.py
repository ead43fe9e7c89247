"""What a fleet is made of, as plans that cross process borders, and where they are recorded.

A plan says everything a process needs to open a node or the coordinator; `fleet.wiring.adapters`
does it.
"""

from __future__ import annotations

import os
import re
import socket
import uuid
from pathlib import Path

from pydantic import Field, ValidationError

from fleet.core import errors
from fleet.core.disk import own_directory
from fleet.core.messages import Message
from fleet.core.profiles import Profile
from fleet.core.settings import MIB, HardwareKind, HardwareSettings, Settings
from fleet.evidence import layout
from fleet.rpc import socket_paths

PLAN_FILE = "fleet.json"
LOCK = "journal.lock"
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
    hardware: str = ""
    """Kind of back end that reaches real devices; "" where they are simulated."""
    settings: Settings = Settings()
    labels: dict[str, str] = Field(default_factory=dict)
    kubernetes: bool = False
    """Whether kubelet hands this node's devices out: specs go where the container runtime reads
    them, tenants are pods, and a quarantine must be visible to the scheduler before a claim is let
    go."""
    kubeconfig: str = ""
    """The API server, as the plugin reaches it; "": that of the pod we run in, else the user's."""


def door_path(plan: NodePlan) -> Path:
    """Where the owner of the plan's node answers."""
    return layout.node_directory(Path(plan.state), plan.node) / socket_paths.DOOR


def lock_path(plan: NodePlan) -> Path:
    """The lock of the node's journal."""
    return layout.node_directory(Path(plan.state), plan.node) / LOCK


class CoordinatorPlan(Message):
    """Everything a process needs to open the coordinator."""

    state: str
    settings: Settings = Settings()
    kubernetes: bool = False
    """Whether it reconciles the claims of a cluster."""
    kubeconfig: str = ""
    """As in `NodePlan`."""
    nodes: str = ""
    """Label selector of the Nodes whose claims it decides about; "": all."""

    def shards(self) -> tuple[CoordinatorPlan, ...]:
        """The coordinators that the settings ask for: one, or one for each selection of nodes."""
        chosen = self.settings.kubernetes.coordinator_nodes
        return tuple(self.model_copy(update={"nodes": one}) for one in chosen) or (self,)


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
    serve: str = "",
) -> FleetPlan:
    """The fleet of a state directory: as asked for, or as recorded at its first use.

    `simulate` is ``NxM`` or ``NxMpK`` (N nodes of M accelerators, K of them partitionable). `serve`
    names the Node whose kubelet hands the devices out (the real ones of this machine, if nothing
    else is recorded); that is recorded with how it does, since whoever opens the node later must
    look for tenants in the same places. Raises `InputInvalid` when an existing fleet has another
    shape, `DriverAbsent` when there is none.
    """
    state = state.absolute()
    path = state / PLAN_FILE
    recorded = _recorded(path)
    chosen = settings or Settings()
    if profile is not None:
        chosen = chosen.model_copy(update={"profile": _profile(profile)})
    if simulate is None and recorded is not None:
        shape = _looked_for(path, recorded, chosen)
    elif simulate is None:
        shape = _real(state, chosen, wanted=bool(serve))
    else:
        shape = _shape(simulate, memory_bytes or _memory(recorded))
        if recorded is not None:
            shape = shape.model_copy(
                update=recorded.model_dump(include={"name", "kubeconfig"})
                | {"served": recorded.served}
            )
        if recorded is not None and recorded != shape:
            raise errors.InputInvalid(
                f"{state} holds a fleet of another shape ({_told(recorded)})",
                remedy="ask for the shape it has, or name another directory with --state",
            )
    if recorded is None:
        _make(state)
        shape = _write(path, shape)
    if serve:
        shape = _served(path, shape, serve, chosen)
    return _plan(state, shape, chosen)


def discover_fleet(state: Path, settings: Settings) -> None:
    """Record the real accelerators of this machine where no fleet is recorded yet.

    Raises `DriverAbsent` where there are none.
    """
    state = state.absolute()
    path = state / PLAN_FILE
    if _recorded(path) is None:
        shape = _real(state, settings, wanted=True)
        _make(state)
        _write(path, shape.model_copy(update={"name": _own_name()}))


def _make(state: Path) -> None:
    try:
        own_directory(state, allowed=0o7775)
    except OSError as error:
        raise errors.InputInvalid(
            f"{state} cannot be made: {error}", remedy="name another directory with --state"
        ) from error


def _served(path: Path, shape: _Shape, name: str, how: Settings) -> _Shape:
    """Record that the one node of the fleet is the Node `name`, and how it is served."""
    if shape.nodes != 1:
        raise errors.InputInvalid(
            f"{path.parent} holds a fleet of {shape.nodes} nodes; a plugin serves one",
            remedy="give the plugin a state directory of its own",
        )
    if shape.name not in ("", name):
        raise errors.InputInvalid(
            f"{path.parent} is the state of node {shape.name}, not of {name}",
            remedy="name that node with --node, or another directory with --state",
        )
    served = shape.model_copy(update={"name": name, "served": how})
    if served != shape:
        _replace(path, served)
    return served


def record_kubeconfig(state: Path, kubeconfig: str) -> None:
    """Write down by which kubeconfig the node's plugin reaches its cluster, for every verb.

    Several files are separated as in $KUBECONFIG; "": that of the pod we run in, else the user's.
    Raises `InputInvalid` where there is no fleet.
    """
    path = state.absolute() / PLAN_FILE
    shape = _recorded(path)
    if shape is None:
        raise errors.InputInvalid(f"{path} is not there", remedy="start the node plugin first")
    files = [part for part in kubeconfig.split(os.pathsep) if part]
    told = os.pathsep.join(str(Path(part).expanduser().absolute()) for part in files)
    if told != shape.kubeconfig:
        _replace(path, shape.model_copy(update={"kubeconfig": told}))


def _replace(path: Path, shape: _Shape) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    temporary.write_text(shape.model_dump_json(indent=2))
    temporary.replace(path)


def _profile(name: str) -> Profile:
    try:
        return Profile(name)
    except ValueError:
        raise errors.InputInvalid(
            f"there is no profile {name!r}", remedy=f"choose one of: {', '.join(Profile)}"
        ) from None


class _Shape(Message):
    nodes: int = Field(ge=1)
    node: SimulatedNode | None = None
    """What to simulate; None: the devices are real."""
    hardware: str = ""
    """Kind of back end that reaches them then."""
    real: HardwareSettings | None = None
    """How they were found; whoever opens the node later must look in the same places."""
    name: str = ""
    """Name of the one node, where kubelet knows it; else nodes are numbered."""
    kubeconfig: str = ""
    """By which the plugin reaches the cluster it serves; "": as in `NodePlan`."""
    served: Settings | None = None
    """The node's settings where kubelet hands its devices out: whoever opens the node later must
    look for tenants in the same places and wipe by the same policy. None: kubelet does not."""


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
    from fleet.devices.simulated import topology

    topology.Shape(node="node", seed=0, **figures).check()
    return _Shape(nodes=int(match["nodes"]), node=SimulatedNode.model_validate(figures))


def _real(state: Path, settings: Settings, *, wanted: bool) -> _Shape:
    """The accelerators of this machine. Raises `DriverAbsent`, also where they are not `wanted`."""
    if not wanted:
        raise errors.DriverAbsent(
            f"there is no fleet in {state}",
            remedy="`fleet scrub` makes one of this machine's accelerators (it asks first), or of"
            " simulated ones with `--simulate 2x8`; or name its directory with --state",
        )
    from fleet.wiring import hardware

    kind = hardware.discover(settings.hardware)
    return _Shape(nodes=1, hardware=kind, real=settings.hardware)


def _looked_for(path: Path, recorded: _Shape, settings: Settings) -> _Shape:
    """The recorded fleet, its real devices from now on reached as `settings` say, if they do."""
    if not recorded.hardware or "hardware" not in settings.model_fields_set:
        return recorded
    kind = settings.hardware.kind
    if kind is not HardwareKind.AUTO and kind.value != recorded.hardware:
        raise errors.InputInvalid(
            f"the devices of {path.parent} are {recorded.hardware} devices, asked for {kind}",
            remedy="name another directory with --state: units of memory are not the same ones",
        )
    found = recorded.model_copy(update={"real": settings.hardware})
    if found != recorded:
        _replace(path, found)
    return found


def _own_name() -> str:
    """This machine's name, fit for a node."""
    return re.sub(r"[^a-z0-9.-]+", "-", socket.gethostname().lower()).strip("-.") or "node-01"


def _memory(recorded: _Shape | None) -> int:
    return recorded.node.memory_bytes if recorded and recorded.node else MEMORY_DEFAULT


def _told(shape: _Shape) -> str:
    if shape.node is None:
        return f"the real devices of {shape.name}"
    parts = f"p{shape.node.partitionable}" if shape.node.partitionable else ""
    return f"{shape.nodes}x{shape.node.accelerators}{parts}, {shape.node.memory_bytes} B each"


def _recorded(path: Path) -> _Shape | None:
    try:
        return _Shape.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except OSError as error:
        why = error.strerror or str(error)
    except ValueError as error:  # no JSON, no text, or not the fields there have to be
        why = _wrong(error)
    raise errors.InputInvalid(
        f"{path}, which says what fleet this is, cannot be read: {why}",
        remedy="put its last good copy back, or name another directory with --state",
    )


def _wrong(error: ValueError) -> str:
    """What is wrong with a file, in our words and on one line."""
    if not isinstance(error, ValidationError):
        return "it is not text"
    found = error.errors(include_url=False, include_context=False, include_input=False)
    places = [".".join(map(str, one["loc"])) for one in found]
    if any(one["type"] == "json_invalid" for one in found):
        return "it is not JSON"
    return "wrong in it: " + ", ".join(place or "the whole" for place in places)


def _write(path: Path, shape: _Shape) -> _Shape:
    """Record the shape, complete, unless somebody else just did; returns what is recorded."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    temporary.write_text(shape.model_dump_json(indent=2))
    try:
        os.link(temporary, path)
    except FileExistsError:
        found = _recorded(path)
        if found is not None and found.nodes == shape.nodes and found.node == shape.node:
            return found  # how it is served may be written down already
        raise errors.InputInvalid(
            f"{path} was just made for a fleet of another shape",
            remedy="ask for the shape it has, or name another directory with --state",
        ) from None
    finally:
        temporary.unlink()
    return shape


def _plan(state: Path, shape: _Shape, settings: Settings) -> FleetPlan:
    if shape.real is not None:
        settings = settings.model_copy(update={"hardware": shape.real})
    width = max(2, len(str(shape.nodes)))
    nodes = tuple(
        NodePlan(
            node=shape.name or f"node-{number:0{width}d}",
            state=str(state),
            simulated=shape.node and shape.node.model_copy(update={"seed": number}),
            hardware=shape.hardware,
            settings=shape.served or settings,
            kubernetes=shape.served is not None,
            kubeconfig=shape.kubeconfig,
            labels={"rack": f"rack-{(number - 1) // 4 + 1:02d}", "pool": "default"},
        )
        for number in range(1, shape.nodes + 1)
    )
    if shape.served is not None:
        # The node's leases are where the plugin has them, whatever else a verb is told.
        there = {"store": shape.served.store, "kubernetes": shape.served.kubernetes}
        settings = settings.model_copy(update=there)
    coordinator = CoordinatorPlan(state=str(state), settings=settings, kubeconfig=shape.kubeconfig)
    return FleetPlan(nodes=nodes, coordinator=coordinator)
