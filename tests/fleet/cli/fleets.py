"""Fleets of verbs brought into a state, without Ray: it takes half a minute to start."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

from fleet.core.leases import AcquireRequest
from fleet.core.messages import ClaimOrder, ScrubOrder
from fleet.core.model import Holder, HolderKind, Lease, UnitId
from fleet.core.settings import Settings
from fleet.node.service import NodeService
from fleet.wiring import adapters

WAIT_S = 30.0


def certify(state: Path, settings: Settings | None = None) -> None:
    """Every device of the fleet wiped, certified and given back."""
    plan = adapters.plan_fleet(state, settings=settings)
    coordinator = adapters.open_coordinator(plan.coordinator)
    for one in plan.nodes:
        with closing(adapters.open_node(one)) as node:
            node.adopt(operator="me")
            units = frozenset(UnitId(u) for d in node.view().devices for u in d.units)
            holder = Holder(HolderKind.OPERATOR, "me")
            (lease,) = coordinator.acquire([AcquireRequest(units, holder, ttl_s=60.0)])
            assert isinstance(lease, Lease)
            _scrub(node, str(lease.token))
            coordinator.sign_heads({one.node: node.head()})  # type: ignore[dict-item]
            coordinator.release(holder, lease.token)


def _scrub(node: NodeService, token: str) -> None:
    view = node.view()
    orders = [
        ScrubOrder(operation=f"op/{d.uuid}", node=view.node, device=d.uuid, token=token)
        for d in view.devices
    ]
    assert all(answer.accepted for answer in node.scrub(orders))
    operations = [order.operation for order in orders]
    deadline = time.monotonic() + WAIT_S
    while len(node.view(operations).results) < len(orders):
        assert time.monotonic() < deadline, "the wipes did not end"
        threading.Event().wait(0.01)


def occupy(state: Path, uid: str) -> None:
    """A claim of this UID prepared on the first device of the first node."""
    plan = adapters.plan_fleet(state).nodes[0]
    with closing(adapters.open_node(plan)) as node:
        node.adopt(operator="me")
        order = ClaimOrder(
            uid=uid, node=plan.node, devices=(node.view().devices[0].uuid,), consumers=("pod",)
        )
        assert node.prepare(order).state == "PREPARED"
