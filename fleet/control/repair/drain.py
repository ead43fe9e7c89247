"""No new claims for a node: its devices go out of service, whoever has one now finishes.

A decision like any other against a device (reason `operator`): visible in `fleet quarantine list`,
in the slices, and lifted by `fleet quarantine clear`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import Field

from fleet.core import errors
from fleet.core.messages import ClaimBrief, Message, NodeView
from fleet.core.model import Source
from fleet.rpc.node_api import NodeApi

OPERATOR_CODE = "operator"


class Left(Message):
    """A claim that still has something on the node."""

    uid: str
    name: str
    """namespace/name, where the node knows it."""
    devices: tuple[str, ...]
    state: str = ""


class Drained(Message):
    """How far a node is drained: entirely when `left` and `failed` are empty."""

    node: str
    operator: str
    taken: tuple[str, ...] = ()
    """Devices taken out of service by this call."""
    left: tuple[Left, ...] = ()
    failed: dict[str, str] = Field(default_factory=dict)
    """Devices that could not be taken out of service, and why."""
    uncopied: int | None = 0
    """Certificates that are nowhere but on the node, where policy wants them in the archive; None:
    it cannot be told how many."""
    uncopied_because: str = ""


def drain(node: NodeApi, *, detail: str, operator: str) -> Drained:
    """Take every device out of service; those that an operator took out already are left as is.

    Raises what the node raises when it does not answer; one device that fails stops no other.
    """
    taken: list[str] = []
    failed: dict[str, str] = {}
    view = node.view()
    # Whole accelerators first: their parts are out of service with them.
    for device in sorted(view.devices, key=lambda d: (d.uuid != d.accelerator, d.name)):
        now = node.view() if taken and device.uuid != device.accelerator else view
        if _is_out(now, device.uuid):
            continue
        try:
            node.quarantine_add(device.uuid, detail=f"drained: {detail}", operator=operator)
            taken.append(device.name)
        except errors.FleetError as error:
            failed[device.name] = str(error)
    last = node.view()
    return Drained(
        node=view.node,
        operator=operator,
        taken=tuple(taken),
        left=left(last),
        failed=failed,
        uncopied=uncopied(last),
        uncopied_because=_because(last),
    )


def settled(node: NodeApi, drained: Drained, *, pause: Callable[[], bool]) -> Drained:
    """Look again until nobody is left and all proof is copied, as policy wants it.

    `pause` waits a moment and says whether to go on.
    """
    while (drained.left or drained.uncopied != 0) and pause():
        view = node.view()
        drained = drained.model_copy(
            update={
                "left": left(view),
                "uncopied": uncopied(view),
                "uncopied_because": _because(view),
            }
        )
    return drained


def uncopied(view: NodeView) -> int | None:
    """Certificates that would be lost with the node, where policy forbids that; None: who knows."""
    found = view.replication
    return found.backlog if found is not None and found.required else 0


def counted(count: int | None) -> str:
    """Subject and verb of a sentence about so many certificates."""
    if count is None:
        return "nobody can tell how many certificates are"
    return f"{count} certificates are"


def _because(view: NodeView) -> str:
    found = view.replication
    return "; ".join(filter(None, (found.error, *found.aside))) if found is not None else ""


def left(view: NodeView) -> tuple[Left, ...]:
    """Who still has something on the node."""
    devices: dict[str, list[str]] = {claim.uid: [] for claim in view.claims}
    for device in view.devices:
        for uid in (device.claim, *device.attached):
            if uid:
                devices.setdefault(uid, []).append(device.name)
    briefs = {claim.uid: claim for claim in view.claims}
    return tuple(
        Left(
            uid=uid,
            name=_name(briefs.get(uid)),
            devices=tuple(names),
            state=briefs[uid].state if uid in briefs else "",
        )
        for uid, names in sorted(devices.items())
    )


def _name(brief: ClaimBrief | None) -> str:
    return f"{brief.namespace}/{brief.name}" if brief is not None and brief.name else ""


def _is_out(view: NodeView, uuid: str) -> bool:
    reasons: Sequence[str] = [
        reason.code
        for device in view.devices
        if device.uuid == uuid
        for reason in device.reasons
        if reason.source == Source.OPERATOR
    ]
    return OPERATOR_CODE in reasons
