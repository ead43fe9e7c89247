"""Which machine this is, so that an actor can prove it runs where it was meant to (case B54).

Ray's node ids and host names prove nothing: ids change with every raylet, names may be shared. The
machine id and the boot id of the kernel do not lie about the hardware underneath.
"""

from __future__ import annotations

import hashlib
import json

from fleet.core import errors
from fleet.core.boot import kernel_boot_id
from fleet.core.messages import Message
from fleet.stores.sqlite import host_identity

HOST_LABEL = "fleet/host"
"""Label of a raylet that names its host; node actors are pinned to it."""
COORDINATOR_LABEL = "fleet/coordinator"
"""Label, "true", of the raylets that alone may run the coordinator, where any carries it."""
PRIVATE_UMASK = 0o077
"""Umask of the actors' processes: keys, journals and stores are for their owner only."""


class Assignment(Message):
    """What an actor is made for: a node, the machine it must find, and the plan to open there."""

    node: str
    host: str
    """Value of the raylet's label `fleet/host`."""
    machine_id: str
    boot_id: str
    plan: str
    """The node's `NodePlan` as JSON."""


def check(assignment: Assignment, *, host: str | None) -> None:
    """Raises `WrongNode` when this machine is not the one the assignment was made for.

    `host` is the label of the raylet this process runs under; None means outside Ray.
    """
    found = {"machine id": host_identity(), "boot id": str(kernel_boot_id())}
    wanted = {"machine id": assignment.machine_id, "boot id": assignment.boot_id}
    if host is not None:
        found[HOST_LABEL] = host
        wanted[HOST_LABEL] = assignment.host
    for name, value in wanted.items():
        if found[name] != value:
            raise errors.WrongNode(
                f"the actor of {assignment.node} was meant for {name} {value or '(none)'}"
                f" and started on {found[name] or '(none)'}",
                remedy="no device was touched; create the actor again: a fresh assignment is made"
                f" then. If it repeats, check the label {HOST_LABEL} of the raylets",
                node=assignment.node,
            )


def check_plan(assignment: Assignment) -> None:
    """Raises `WrongNode` when the plan is another node's, before anything of it is opened.

    A plan that cannot be read is left to the opener, which says what is wrong with it.
    """
    try:
        plan = json.loads(assignment.plan)
    except ValueError:
        return
    planned = plan.get("node") if isinstance(plan, dict) else None
    if planned != assignment.node:
        raise errors.WrongNode(
            f"the actor of {assignment.node} was given the plan of {planned or '(no node)'}",
            remedy="nothing was opened; create the actor with the plan of its own node",
            node=assignment.node,
        )


def plan_digest(plan: str) -> str:
    """Tells one plan, as JSON, from another: an actor outlives the process that made its plan."""
    return hashlib.sha256(plan.encode()).hexdigest()[:16]


def coordinator_digest(plan: str) -> str:
    """As `plan_digest`, of a `CoordinatorPlan`: what only a node goes by tells none apart.

    Every node's bridge asks for the coordinator, each with the settings of its node.
    """
    try:
        found = json.loads(plan)
        settings = {k: v for k, v in found["settings"].items() if k not in _OF_NODES}
        told = json.dumps({**found, "settings": settings}, sort_keys=True)
    except (ValueError, LookupError, TypeError, AttributeError):
        told = plan
    return plan_digest(told)


_OF_NODES = frozenset({"hardware", "node"})
"""Sections of the settings that a coordinator does not read."""
