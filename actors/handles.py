"""Finding, creating and calling our actors from a driver.

`RemoteNode` asks what `fleet.rpc.node_api` has, so commands treat a node in this
process and a node behind Ray alike. Handles are resolved once: nothing here asks the head again
while work goes on, since calls between live processes outlast the head's absence.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ray
from ray.util import list_named_actors

from actors import coordinators, identity, methods
from actors.cluster import NAMESPACE
from actors.coordinator_actor import REMOTE_COORDINATOR_ACTOR, placement
from actors.node_actor import REMOTE_NODE_ACTOR, WORK_THREADS, Pulse
from actors.node_api import ActorApi
from actors.translate import given_up, translate, translated
from fleet.control.binding.liveness import Alive, Signs, of
from fleet.control.coordinator_api import CoordinatorApi
from fleet.core import errors
from fleet.core.boot import kernel_boot_id
from fleet.rpc.calls import Verb
from fleet.stores.sqlite import host_identity
from fleet.wiring.plans import CoordinatorPlan

LOG = logging.getLogger(__name__)
NODE_PREFIX = "node:"
CALL_TIMEOUT_S = 30.0
"""Time, s, an act may take to be taken in; the work itself goes on in the node."""
START_TIMEOUT_S = 60.0
"""Time, s, an actor has to start: a worker process, imports, the journal."""
ATTEMPT_PAUSE_S = 0.2

Ref = Any
"""A Ray object reference; Ray gives actor calls no static type."""


@dataclass(frozen=True)
class RemoteNode(ActorApi):
    """One node behind its actor. Every method raises the node's own errors or `RayUnavailable`."""

    name: str
    handle: Any

    def start(self, verb: Verb, given: Mapping[str, Any]) -> Ref:
        """Start a call without waiting; `gather` collects what `methods.node_answer` reads."""
        return getattr(self.handle, verb.name).remote(self.name, *methods.arguments(verb, given))

    def ask(self, verb: Verb, given: Mapping[str, Any], timeout_s: float | None) -> Any:
        """As `Interface.ask`. Raises `RayUnavailable` without an answer in time."""
        limit_s = max(timeout_s or 0.0, CALL_TIMEOUT_S)
        with translated(f"{self.name}: {verb.name}"):
            return methods.node_answer(verb, ray.get(self.start(verb, given), timeout=limit_s))

    def ping(self, *, timeout_s: float = 5.0) -> Pulse:
        """Proof of life, also while work is slow."""
        with translated(f"{self.name}: ping"):
            found = ray.get(self.handle.ping.remote(self.name), timeout=timeout_s)
        return Pulse.model_validate_json(found)

    def close(self) -> None:
        """Drain the node and give its journal up."""
        with translated(f"{self.name}: close"):
            ray.get(self.handle.close.remote(self.name), timeout=2 * CALL_TIMEOUT_S)


@dataclass(frozen=True)
class RemoteCoordinator(CoordinatorApi):
    """The coordinator behind its actor. Raises its own errors or `RayUnavailable`."""

    handle: Any

    def ask(self, verb: Verb, given: Mapping[str, Any], timeout_s: float | None) -> Any:
        """As `Interface.ask`."""
        return methods.coordinator_answer(partial(self.wait, timeout_s=timeout_s), verb, given)

    def wait(self, method: str, *arguments: object, timeout_s: float | None = None) -> Any:
        """Call a method of the actor and wait."""
        with translated(f"coordinator: {method}"):
            ref = getattr(self.handle, method).remote(*arguments)
            with given_up(ref):
                return ray.get(ref, timeout=timeout_s or CALL_TIMEOUT_S)

    def ping(self, *, timeout_s: float = 5.0) -> int:
        """Proof of life: the process id."""
        return int(self.wait("ping", timeout_s=timeout_s))

    def alive(self, *, timeout_s: float = 5.0) -> Alive | None:
        """How it stands with the claims of a cluster, as it says itself; None: it reconciles none.

        Raises as `wait`, and the error by which its start was refused.
        """
        if not hasattr(self.handle, "alive"):
            raise errors.RayUnavailable("the coordinator is of an older version and does not tell")
        told = str(self.wait("alive", timeout_s=timeout_s))
        return Alive.model_validate_json(told) if told else None


def gather(
    refs: Mapping[str, Ref], *, call: str, timeout_s: float
) -> dict[str, Any | errors.FleetError]:
    """Answers by key, all waited for together; an error stands in the place of an answer."""
    keys = {ref: key for key, ref in refs.items()}
    found: dict[str, Any | errors.FleetError] = {}
    if keys:
        with translated(call):
            ready, late = ray.wait(list(keys), num_returns=len(keys), timeout=timeout_s)
    else:
        ready, late = [], []
    for ref in ready:
        key = keys[ref]
        try:
            found[key] = ray.get(ref)
        except Exception as error:  # noqa: BLE001  whatever an actor raised becomes ours here
            found[key] = translate(error, call=f"{key}: {call}")
    for ref in late:
        found[keys[ref]] = errors.RayUnavailable(
            f"{keys[ref]}: {call}: no answer within {timeout_s:g} s; it may or may not have run"
        )
    return found


def assign(node: str, plan: str, *, host: str) -> identity.Assignment:
    """An assignment of `node` to the machine this process runs on."""
    return identity.Assignment(
        node=node,
        host=host,
        machine_id=host_identity(),
        boot_id=str(kernel_boot_id()),
        plan=plan,
    )


def create_node(assignment: identity.Assignment) -> RemoteNode:
    """Create the node's actor or take the one that runs. Does not wait for it to serve.

    Raises `RayUnavailable` when no live raylet carries the host label: an unknown label would
    leave the actor pending for ever.
    """
    _check_host(assignment.host)
    with translated(f"creating the actor of {assignment.node}"):
        handle = REMOTE_NODE_ACTOR.options(
            name=NODE_PREFIX + assignment.node,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_concurrency=WORK_THREADS,
            label_selector={identity.HOST_LABEL: assignment.host},
        ).remote(assignment.model_dump_json())
    return RemoteNode(assignment.node, handle)


def create_coordinator(plan: str, *, host: str) -> RemoteCoordinator:
    """Create the coordinator's actor where its stores are, or take the one that runs, whatever that
    was made from: see `match_coordinator`."""
    _check_host(host)
    with translated("creating the coordinator"):
        handle = REMOTE_COORDINATOR_ACTOR.options(
            name=coordinators.name_of(CoordinatorPlan.model_validate_json(plan).nodes),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            **placement(plan, host=host, raylets=_raylets()),
        ).remote(plan)
    return RemoteCoordinator(handle)


def match_coordinator(
    found: RemoteCoordinator, plan: str, *, host: str, replace: bool
) -> RemoteCoordinator:
    """The coordinator, made from `plan` or told of.

    Ray returns one that runs whatever it was made from (B63): one of another plan is ended and made
    anew with `replace`, and is told of otherwise. One that does not answer now is taken as it is.
    """
    if not _is_other(found, plan):
        return found
    name = coordinators.name_of(CoordinatorPlan.model_validate_json(plan).nodes)
    if replace:
        LOG.warning("%s has an earlier plan and is replaced", name)
        with translated(f"replacing {name}"):
            ray.kill(found.handle, no_restart=True)
        return create_coordinator(plan, host=host)
    LOG.warning(
        "%s runs with other settings than those asked for, and goes on with its own; restart"
        " the node plugin or the head with the settings that are to hold",
        name,
    )
    return found


def _is_other(found: RemoteCoordinator, plan: str) -> bool:
    """Whether a coordinator says that it was made from another plan; an older one cannot say."""
    if not hasattr(found.handle, "made_from"):
        return True
    try:
        return bool(found.wait("made_from") != identity.coordinator_digest(plan))
    except errors.FleetError as error:
        LOG.warning("the coordinator does not tell what it was made from: %s", error)
        return False


def find_coordinator() -> RemoteCoordinator:
    """A coordinator that runs in this cluster: all of a Ray have one store, so any will do.

    Raises `RayUnavailable` when there is none.
    """
    for found in find_coordinators():
        return found
    raise errors.RayUnavailable("no coordinator runs in this Ray", remedy="start it, then retry")


def find_coordinators() -> list[RemoteCoordinator]:
    """All coordinators that run in this cluster; none where there is none."""
    found: list[RemoteCoordinator] = []
    for name in coordinators.running():
        with translated("looking for the coordinators"), suppress(ValueError):
            found.append(RemoteCoordinator(ray.get_actor(name, namespace=NAMESPACE)))
    return found


def signs(asked: Sequence[RemoteCoordinator]) -> Signs:
    """What these coordinators say of themselves; one that does not answer is told of."""
    found: list[Alive] = []
    unknown = "" if asked else "no coordinator's actor is in this Ray: see the logs of the bridges"
    for one in asked:
        try:
            told = one.alive()
        except errors.FleetError as error:
            unknown = unknown or f"it does not answer: {error}"
        else:
            found += [told] if told is not None else []
    return replace(of(found), unknown=unknown)


def own_host() -> str:
    """The host label of this machine's raylet; "" where none carries one.

    Where several raylets run on a machine, as the head's beside the node's, a driver is attached to
    the head's; the one that is labelled is meant. Every actor proves its machine by itself.
    """
    labels = ray.get_runtime_context().get_node_labels()
    own = str(labels.get(identity.HOST_LABEL, ""))
    if own:
        return own
    with translated("looking for the raylets of this machine"):
        here = [
            str(raylet["Labels"].get(identity.HOST_LABEL, ""))
            for raylet in _raylets()
            if raylet["Alive"] and raylet["NodeManagerHostname"] == socket.gethostname()
        ]
    found = sorted(filter(None, here))
    return found[0] if len(found) == 1 else ""


def _raylets() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return found


def _check_host(host: str) -> None:
    if not host:
        raise errors.RayUnavailable(
            f"the raylet of this machine carries no label {identity.HOST_LABEL}",
            remedy=f"start the raylet with --labels {identity.HOST_LABEL}=<name of the host>",
        )
    with translated(f"looking for host {host}"):
        hosts = {
            raylet["Labels"].get(identity.HOST_LABEL, "")
            for raylet in _raylets()
            if raylet["Alive"]
        }
    if host not in hosts:
        raise errors.RayUnavailable(
            f"no live raylet carries the label {identity.HOST_LABEL}={host}"
            f" (found: {', '.join(sorted(filter(None, hosts))) or 'none'})",
            remedy=f"start the raylet with --labels {identity.HOST_LABEL}=<name of the host>",
        )


def await_serving(nodes: Sequence[RemoteNode], *, timeout_s: float = START_TIMEOUT_S) -> None:
    """Wait until every node serves. Raises the first error that waiting cannot mend."""
    until = time.monotonic() + timeout_s
    for node in nodes:
        _until(lambda node=node: node.view(), until)  # type: ignore[misc]


def find_nodes() -> tuple[RemoteNode, ...]:
    """All node actors that run in this cluster, by name."""
    with translated("looking for node actors"):
        names = sorted(
            str(entry["name"])
            for entry in list_named_actors(all_namespaces=True)
            if entry["namespace"] == NAMESPACE and str(entry["name"]).startswith(NODE_PREFIX)
        )
        return tuple(
            RemoteNode(name.removeprefix(NODE_PREFIX), ray.get_actor(name, namespace=NAMESPACE))
            for name in names
        )


def _until(attempt: Callable[[], object], until: float) -> None:
    while True:
        try:
            attempt()
            return
        except errors.Retryable:
            if time.monotonic() >= until:
                raise
            time.sleep(ATTEMPT_PAUSE_S)
