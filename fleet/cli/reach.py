"""How a verb reaches the fleet: at the nodes' doors, in this process, or through Ray's actors.

Without `--address` a node that somebody on this host owns (a standby, a node actor, another verb)
is asked at its door; one that nobody owns is opened here, under its journal's lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.core import errors
from fleet.rpc import socket_paths
from fleet.rpc.client import DoorNode
from fleet.rpc.node_api import NodeApi
from fleet.wiring import plans as wiring_plans
from fleet.wiring.plans import NodePlan

if TYPE_CHECKING:
    from fleet.control.binding.liveness import Signs
    from fleet.control.coordinator_api import CoordinatorApi
    from fleet.node.service import NodeService

TICK_S = 0.2
"""Period, s, of the services' step where a verb needs them to act."""
KNOCK_S = 2.0
"""Time, s, a node's door has to take a connection."""
WAIT_S = 60.0
"""Time, s, a command waits for another one that has its nodes."""
STANDBY = "standby of "
"""How the owner of a node's journal begins that gives it up when asked."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet at hand."""

    nodes: Mapping[str, NodeApi]
    coordinator: CoordinatorApi


@contextmanager
def fleet(
    state: Path, *, address: str | None, ticking: bool = False, looks: bool = False
) -> Iterator[Fleet]:
    """Nodes and coordinator; `ticking` lets services opened here act (they only answer otherwise).

    `looks`: for verbs that decide nothing, not even about a damaged journal. Raises `DriverAbsent`
    where the state directory holds no fleet, `NotOwner`, `RayUnavailable`.
    """
    with ExitStack() as stack:
        if address is not None:
            yield Fleet(_attached(address, stack), _attached_coordinator())
        else:
            nodes = _opened(state, stack, ticking=ticking, looks=looks)
            yield Fleet(nodes, _opened_coordinator(state))


@contextmanager
def nodes(
    state: Path, *, address: str | None, looks: bool = False
) -> Iterator[Mapping[str, NodeApi]]:
    """The nodes by name, answering only. Raises as `fleet` does.

    Where every node has an owner that answers, that one knows whether there is a store.
    """
    with ExitStack() as stack:
        if address is not None:
            yield _attached(address, stack)
            return
        found = _opened(state, stack, ticking=False, looks=looks)
        if found.opened:
            _opened_coordinator(state)
        yield found


@contextmanager
def nodes_alone(
    state: Path, *, address: str | None, looks: bool = False
) -> Iterator[Mapping[str, NodeApi]]:
    """The nodes by name, whether or not there is a store to be had. Raises as `fleet` does."""
    with ExitStack() as stack:
        if address is not None:
            yield _attached(address, stack)
        else:
            yield _opened(state, stack, ticking=False, looks=looks)


@contextmanager
def coordinator(state: Path, *, address: str | None) -> Iterator[CoordinatorApi]:
    """The coordinator alone, which many processes may have open. Raises as `fleet` does."""
    with ExitStack() as stack:
        if address is None:
            yield _opened_coordinator(state)
        else:
            from actors import cluster

            stack.callback(cluster.attach(address).close)
            yield _attached_coordinator()


def find(
    nodes: Mapping[str, NodeApi], device: str, *, node: str | None = None
) -> tuple[str, NodeApi]:
    """The node that has `device` (name or UUID), narrowed down by `node`.

    Raises `DeviceUnknown`, and `InputInvalid` when the name is on several nodes.
    """
    wanted = {node} if node else set(nodes)
    found = [
        name
        for name, one in nodes.items()
        if name in wanted and any(device in (d.uuid, d.name) for d in one.view().devices)
    ]
    if not found:
        where = f"node {node}" if node else f"any of {', '.join(sorted(nodes))}"
        raise errors.DeviceUnknown(f"no device {device!r} on {where}")
    if len(found) > 1:
        raise errors.InputInvalid(
            f"device {device!r} is on {', '.join(sorted(found))}",
            remedy="give its UUID, or name the node with --node",
        )
    return found[0], nodes[found[0]]


def owner(nodes: Mapping[str, NodeApi], device: str, *, node: str | None = None) -> str:
    """The node of a device; one that is gone is looked for where the operator says, or alone.

    Raises as `find` does.
    """
    try:
        return find(nodes, device, node=node)[0]
    except errors.DeviceUnknown:
        chosen = [node] if node else list(nodes)
        if len(chosen) == 1 and chosen[0] in nodes:
            return chosen[0]
        raise


def _opened(state: Path, stack: ExitStack, *, ticking: bool, looks: bool) -> _Reached:
    plans = {plan.node: plan for plan in wiring_plans.plan_fleet(state).nodes}
    found = _Reached(plans, stack, ticking=ticking, looks=looks)
    for name in found:
        found.reach(name)
    if ticking:
        stack.enter_context(_ticking(found))
    return found


class _Reached(Mapping[str, "NodeApi"]):
    """The nodes, each at its owner's door or opened here, as long as `stack` is.

    An owner may end while a verb runs, as a campaign does: the node is then taken up here, or at
    its next owner's door, with the next call.
    """

    def __init__(
        self, plans: Mapping[str, NodePlan], stack: ExitStack, *, ticking: bool, looks: bool
    ) -> None:
        self._plans = plans
        self._stack = stack
        self._ticking = ticking
        self._looks = looks
        self._doors: dict[str, DoorNode] = {}
        self._here: dict[str, NodeService] = {}

    @property
    def opened(self) -> Sequence[NodeService]:
        """Those opened here until now."""
        return tuple(self._here.values())

    def __iter__(self) -> Iterator[str]:
        return iter(self._plans)

    def __len__(self) -> int:
        return len(self._plans)

    def __getitem__(self, name: str) -> NodeApi:
        if name in self._doors:
            try:
                # One that is slow takes the connection; one that is dead does not.
                socket_paths.connect(self._doors[name].path, timeout_s=KNOCK_S).close()
            except OSError:
                return self.reach(name)
        return self._here.get(name) or self._doors[name]

    def reach(self, name: str) -> NodeApi:
        """Who answers for the node now. Raises `NotOwner` where its owner does not answer."""
        plan = self._plans[name]
        door = _answering(plan, self._stack)
        if door is not None:
            self._doors[name] = door
            return door
        # What opens a node is most of what there is: loaded where one has to be opened.
        from fleet.wiring import adapters

        try:
            service = adapters.open_node(plan, looks=self._looks)
        except errors.NotOwner as error:
            raise errors.NotOwner(
                error.detail,
                remedy="it owns the node and does not answer yet; wait until it has ended or does,"
                " then run the command again",
            ) from None
        self._stack.callback(_end, service)
        if self._ticking:
            # Before the first answer: who asks sees what the node can prove by itself.
            service.tick(time.time())
        if plan.simulated is None:
            service.look()  # a card that died since says so nowhere but in its readings
        self._doors.pop(name, None)
        self._here[name] = service
        return service


def others(plans: Sequence[NodePlan]) -> dict[str, str]:
    """By node, who has it and since when; without those that nobody has, or a standby, which lets
    go as soon as it is asked."""
    from fleet.node.journal.lock import holder

    found: dict[str, str] = {}
    for plan in plans:
        owner = holder(wiring_plans.lock_path(plan))
        if owner is not None and not owner.owner.startswith(STANDBY):
            found[plan.node] = owner.told()
    return found


def await_free(
    plans: Sequence[NodePlan], *, wait: bool, say: Callable[[str], None], limit_s: float = WAIT_S
) -> None:
    """Return once nobody has any of these nodes; who has one, and since when, is said at once.

    Raises `NotOwner` without `wait`, and where somebody still has one after `limit_s`.
    """
    until = time.monotonic() + limit_s
    said: set[str] = set()
    while found := others(plans):
        told = "; ".join(f"{node}: {who}" for node, who in found.items())
        if not wait or time.monotonic() >= until:
            raise errors.NotOwner(
                f"in use by another command or service: {told}",
                remedy="run again when it has ended",
            )
        new = {node: who for node, who in found.items() if node not in said}
        for node, who in new.items():
            say(f"{node} is in use: {who}")
        if new:
            said |= set(new)
            say(f"waiting up to {limit_s:g} s; --no-wait, or Ctrl-C, gives up")
        time.sleep(TICK_S)


def _answering(plan: NodePlan, stack: ExitStack) -> DoorNode | None:
    """The door of the node's owner, if there is one and it answers."""
    door = DoorNode(wiring_plans.door_path(plan))
    try:
        door.pulse()
    except errors.FleetError:
        door.close()
        return None
    stack.callback(door.close)
    return door


def _end(service: NodeService) -> None:
    """Close, after one step where leases are still to be given back: nobody may serve after us.

    A step that fails changes nothing: what is to be given back stays in the journal.
    """
    try:
        with suppress(errors.FleetError):
            if service.view().outbox:
                service.tick(time.time())
    finally:
        service.close()


@contextmanager
def _ticking(reached: _Reached) -> Iterator[None]:
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(TICK_S):
            for service in reached.opened:
                service.tick(time.time())

    thread = threading.Thread(target=loop, name="tick", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _opened_coordinator(state: Path) -> CoordinatorApi:
    from fleet.wiring import adapters

    return adapters.open_coordinator(adapters.plan_fleet(state).coordinator)


def _attached(address: str, stack: ExitStack) -> Mapping[str, NodeApi]:
    from actors import cluster, handles

    stack.callback(cluster.attach(address).close)
    found = handles.find_nodes()
    if not found:
        raise errors.RayUnavailable(
            f"no node actor runs in the Ray at {address}",
            remedy="start the node services, or use --state without --address",
        )
    return {node.name: node for node in found}


def signs(address: str) -> Signs:
    """What the coordinators behind Ray's actors say of themselves. Raises `RayUnavailable` where
    Ray is away.
    """
    from actors import cluster, handles

    with ExitStack() as stack:
        stack.callback(cluster.attach(address).close)
        return handles.signs(handles.find_coordinators())


def _attached_coordinator() -> CoordinatorApi:
    from actors import handles

    return handles.find_coordinator()
