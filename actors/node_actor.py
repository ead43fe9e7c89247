"""The node's actor: one per node, forwarding to `fleet.node`, which holds every rule.

Retries, deadlines and single flight live in the node service; this class adds what Ray needs: its
identity is checked before a device is touched (B54), durable state is reloaded before anything is
answered (B42), calls that only look run in a group of their own so that a ping answers while work
is slow (B59), and every act names the node it is meant for.

Messages cross as JSON and are validated on arrival. A newcomer that finds the journal owned by
another process stands by: it answers `NotOwner` and takes over once the owner is gone.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import ray
from pydantic import Field

from actors import identity, methods
from actors.identity import PRIVATE_UMASK
from actors.metrics import PERIOD_S, Figures
from actors.translate import StartRefused, unforeseen
from fleet.core import errors, logs
from fleet.core.messages import Message, NodeView
from fleet.metrics import of_node

if TYPE_CHECKING:
    from fleet.node.service import NodeService

STATUS_THREADS = 4
"""Calls that only look, at one time."""
WORK_THREADS = 32
"""Calls that act, at one time: one per claim of a busy host, and some."""
TICK_S = 0.2
"""Period, s, of the service's step."""
ASK_S = 2.0
"""Period, s, in which a waiting actor asks a standby for the journal."""

LOG = logging.getLogger(__name__)


class Pulse(Message):
    """Proof of life, with what keeps the node busy."""

    node: str
    incarnation: str
    pid: int
    state: str = ""
    """State directory of the plan it was made from."""
    plan: str = ""
    """Digest of that plan, see `identity.plan_digest`."""
    standby: str = ""
    """Why the node does not serve yet; empty when it serves."""
    tick_age_s: float
    """Time since the service's last step ended: above a second it is held up."""
    running: Mapping[str, float] = Field(default_factory=dict)
    """Calls in work, with their age in seconds."""


Method = TypeVar("Method", bound=Callable[..., Any])


def looking(method: Method) -> Method:
    """Mark a method as one that only looks: Ray runs it in the group of its own (B59)."""
    marked: Method = ray.method(concurrency_group="status")(method)
    return marked


class Opener(Protocol):
    """How a plan becomes a service: `fleet.wiring.adapters.open_node`, or a fake in a test."""

    def __call__(self, plan: str, /) -> NodeService: ...


def open_service(plan: str) -> NodeService:
    """Open the node that `plan`, a `NodePlan` as JSON, describes. Raises `FleetError`s."""
    from fleet.wiring import adapters

    return adapters.open_node(adapters.NodePlan.model_validate_json(plan), owner="node actor")


class Asker(Protocol):
    """How the owner of a plan's journal is asked to hand it over: `ask_owner`, or a fake."""

    def __call__(self, plan: str, by: str, /) -> bool: ...


def ask_owner(plan: str, by: str) -> bool:
    """Ask at the node's door; a standby lets go, another actor does not. False: nobody there."""
    from fleet.wiring import adapters

    try:
        door = adapters.open_door(adapters.NodePlan.model_validate_json(plan))
        try:
            return door.hand_over(by)
        finally:
            door.close()
    except (errors.FleetError, ValueError):
        return False


class NodeActor:
    """Serves one node to the rest of the fleet. Works without Ray as well, for tests."""

    def __init__(
        self, assignment: str, opener: Opener = open_service, asker: Asker = ask_owner
    ) -> None:
        """`assignment` is an `Assignment` as JSON. Raises `StartRefused` around our errors."""
        # The raylet's umask is its operator's choice; what a node keeps is private all the same.
        os.umask(PRIVATE_UMASK)
        self._assignment = identity.Assignment.model_validate_json(assignment)
        self._opener = opener
        self._asker = asker
        self._asked_at = float("-inf")
        self._service: NodeService | None = None
        self._standby: errors.FleetError | None = None
        self._incarnation = ""
        self._shown = ""
        self._began = "standing by at its start"
        self._running: dict[int, tuple[str, float]] = {}
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._ticked_at = time.monotonic()
        if _in_ray():
            logs.begin("node-actor", level=logging.INFO, node=self._assignment.node)
        try:
            _refuse_foreign_machine(self._assignment)
            identity.check_plan(self._assignment)
            self._open()
        except errors.FleetError as error:
            raise StartRefused.of(error) from error
        except Exception as error:
            LOG.exception("%s: cannot start", self._assignment.node)
            raise StartRefused.of(unforeseen(self._assignment.node, "start", error)) from error
        self._figures = Figures()
        self._ticker = threading.Thread(target=self._tick_loop, name="tick", daemon=True)
        self._ticker.start()

    def __repr__(self) -> str:
        # Ray reads it once, after the start, and shows it in its dashboard for good.
        return f"NodeActor(node={self._assignment.node}, {self._began})"

    # --- looking: the status group -------------------------------------------------------------

    @looking
    def ping(self, node: str) -> str:
        """A `Pulse`; touches no device and waits for nothing."""
        self._check_node(node)
        now = time.monotonic()
        with self._guard:
            running = {name: round(now - since, 3) for name, since in self._running.values()}
            standby = self._standby
        return Pulse(
            node=node,
            incarnation=self._incarnation,
            pid=os.getpid(),
            state=str(json.loads(self._assignment.plan).get("state", "")),
            plan=identity.plan_digest(self._assignment.plan),
            standby=standby.detail if standby else "",
            tick_age_s=now - self._ticked_at,
            running=running,
        ).model_dump_json()

    def drain(self, node: str) -> None:
        """Finish or stop all work and take nothing new."""
        with self._call(node, "drain") as service:
            service.drain()

    def close(self, node: str) -> None:
        """Stop the step, drain, give the journal up; answers `NotOwner` from then on."""
        self._check_node(node)
        self._stop.set()
        if threading.current_thread() is not self._ticker:
            self._ticker.join(timeout=30)
        with self._guard:
            service, self._service = self._service, None
            self._standby = errors.NotOwner(f"{node} was closed")
        if service is not None:
            service.close()

    # --- inside ----------------------------------------------------------------------------------

    def _open(self) -> None:
        try:
            service = self._opener(self._assignment.plan)
        except errors.NotOwner as error:
            # The owner may be this actor's previous life, still dying; or a standby, which lets go.
            self._standby = error
            if time.monotonic() - self._asked_at >= ASK_S:
                self._asked_at = time.monotonic()
                self._asker(self._assignment.plan, f"the node actor of {self._assignment.node}")
            return
        # A first step before the first answer: who asks sees what the node can prove by itself.
        service.tick(time.time())
        view = service.view(())
        with self._guard:
            self._service, self._standby = service, None
            self._incarnation = view.incarnation
            self._began = f"{'SIMULATED, ' if view.simulated else ''}at its start {_counts(view)}"
        self._show(_counts(view))

    def _show(self, counts: str) -> None:
        """Ray reads the actor's name once; its page in the dashboard shows this log besides."""
        if counts != self._shown:
            self._shown = counts
            LOG.info("%s: %s", self._assignment.node, counts)

    def _tick_loop(self) -> None:
        figures_at = 0.0
        while not self._stop.wait(TICK_S):
            try:
                if self._service is None:
                    self._open()
                else:
                    self._service.tick(time.time())
            except errors.FleetError as error:
                LOG.warning("%s: step failed: %s", self._assignment.node, error)
            except Exception:
                # The step must go on for the other devices; the log names the fault.
                LOG.exception("%s: step failed", self._assignment.node)
            self._ticked_at = time.monotonic()
            if self._service is not None and self._ticked_at - figures_at >= PERIOD_S:
                figures_at = self._ticked_at
                self._tell(self._service)

    def _tell(self, service: NodeService) -> None:
        """Told also while steps fail: that is when somebody looks."""
        try:
            view = service.view(())
            self._show(_counts(view))
            self._figures.tell(of_node.samples(view))
        except Exception:
            LOG.exception("%s: the figures are not told", self._assignment.node)

    def _check_node(self, node: str) -> None:
        if node != self._assignment.node:
            raise errors.WrongNode(
                f"a command for {node} reached {self._assignment.node}", node=self._assignment.node
            )

    @contextmanager
    def _call(self, node: str, name: str) -> Iterator[NodeService]:
        self._check_node(node)
        with self._guard:
            service, standby = self._service, self._standby
        if service is None:
            raise standby or errors.NotOwner(f"{node} is starting")
        key = threading.get_ident()
        with self._guard:
            self._running[key] = (name, time.monotonic())
        try:
            yield service
        except errors.FleetError:
            raise
        except Exception as error:
            LOG.exception("%s: %s failed", node, name)
            raise unforeseen(node, name, error) from None
        finally:
            with self._guard:
                self._running.pop(key, None)


def _in_ray() -> bool:
    return bool(ray.is_initialized() and ray.get_runtime_context().get_actor_id())


def _refuse_foreign_machine(assignment: identity.Assignment) -> None:
    host: str | None = None
    if _in_ray():
        labels = ray.get_runtime_context().get_node_labels()
        host = str(labels.get(identity.HOST_LABEL, ""))
    identity.check(assignment, host=host)


def _counts(view: NodeView) -> str:
    states: dict[str, int] = {}
    for device in view.devices:
        states[device.state] = states.get(device.state, 0) + 1
    counts = " ".join(f"{state}={states[state]}" for state in sorted(states))
    return f"{len(view.devices)} devices: {counts or 'none'}"


for _verb in methods.NODE:
    _method = methods.node_method(_verb, NodeActor._call)
    setattr(NodeActor, _verb, looking(_method) if _verb in ("view", "head") else _method)

_OPTIONS: dict[str, Any] = {
    "num_cpus": 0,
    "max_restarts": -1,
    # A retry would run a wipe again unasked (B43).
    "max_task_retries": 0,
    "concurrency_groups": {"status": STATUS_THREADS},
}
REMOTE_NODE_ACTOR: Any = ray.remote(**_OPTIONS)(NodeActor)
"""The class as Ray starts it."""
