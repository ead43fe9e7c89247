"""B45: Ray's head restarts while the old world goes on (real processes, no Ray: what matters is who
owns the node's journal, and that is the same file lock with and without it)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from actors.node_actor import NodeActor
from fleet.core import errors
from fleet.core.messages import ClaimAnswer, ClaimOrder, NodeView, TeardownOrder
from fleet.core.model import Holder, HolderKind
from fleet.evidence.judged import judge
from fleet.evidence.sources import collect
from fleet.rpc.client import DoorNode
from fleet.stores.base import Event
from fleet.wiring import adapters, plugin
from fleet.wiring.adapters import NodePlan
from tests.actors.test_node_actor import asked, assignment_of
from tests.actors.waiting import until
from tests.freezing import freeze

DEADLINE_S = 30.0
ANSWER_S = 5.0
"""Time, s, in which a call during the outage has to be answered (the case's own bound)."""
NODE = "node-01"


@contextmanager
def old_world(plan: NodePlan) -> Iterator[subprocess.Popen[bytes]]:
    """A process that owns the node and knows of no head any more."""
    command = [sys.executable, "-P", "-m", "fleet.cli.main", "node", "standby", "--grace", "0"]
    process = subprocess.Popen(
        [*command, "--plan", str(plugin.write_plan(plan))], stderr=subprocess.DEVNULL, cwd="/"
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGCONT)
            process.kill()
        process.wait(DEADLINE_S)


def prepared(door: DoorNode, uid: str, device: str) -> ClaimAnswer:
    """The claim, prepared on a device, by whoever owns the node."""

    def asked() -> ClaimAnswer | None:
        found = {one.name: one for one in door.view().devices}
        order = ClaimOrder(uid=uid, node=NODE, devices=(found[device].uuid,), consumers=("pod",))
        return door.prepare(order, budget_s=10.0)

    return until(asked)


def refused_soon(call: Callable[[], object]) -> None:
    """The call is refused, retryably, within the bound."""
    began = time.monotonic()
    with pytest.raises(errors.Retryable):
        call()
    assert time.monotonic() - began < ANSWER_S


def views(actor: NodeActor) -> NodeView:
    """What the actor shows, once it owns the node."""
    return until(lambda: asked(actor, NODE).view())


def test_b45_one_owner_the_running_claim_untouched_the_teardown_once(tmp_path: Path) -> None:
    """B45: while the old owner holds the journal, alive or mute, the head's new actor changes
    nothing and says so at once; after its death the newcomer goes on from the journal: claim A as
    it was, with no second wipe, C torn down once, every lease given back once.
    """
    (plan,) = adapters.plan_fleet(tmp_path, simulate="1x2", memory_bytes=2 << 20).nodes
    with closing(adapters.open_door(plan)) as door, old_world(plan) as old:
        running = prepared(door, "claim-a", "gpu-0")
        leaving = prepared(door, "claim-c", "gpu-1")
        (kept,) = [d for d in door.view().devices if d.name == "gpu-0"]
        newcomer = NodeActor(assignment_of(plan).model_dump_json(), asker=lambda *_: False)
        try:
            order = ClaimOrder(uid="claim-b", node=NODE, devices=(kept.uuid,))
            refused_soon(lambda: asked(newcomer, NODE).prepare(order))
            refused_soon(lambda: asked(newcomer, NODE).unprepare("claim-a"))
            refused_soon(
                lambda: asked(newcomer, NODE).adopt(devices=[kept.uuid], operator="somebody")
            )
            with suppress(errors.Retryable):  # begun, and not waited for
                door.unprepare(TeardownOrder(uid="claim-c"), budget_s=0.0)
            freeze(old.pid)
            refused_soon(lambda: door.pulse(timeout_s=1.0))
            refused_soon(lambda: asked(newcomer, NODE).unprepare("claim-c"))
            assert newcomer.ping(NODE)  # it answers, as who stands by
            old.kill()
            old.wait(DEADLINE_S)
            now = views(newcomer)
            assert now.incarnation != ""
            again = prepared(door, "claim-a", "gpu-0")
            assert again == running
            until(lambda: asked(newcomer, NODE).unprepare("claim-c"))
            assert [c.uid for c in views(newcomer).claims] == ["claim-a"]
            (after,) = [d for d in views(newcomer).devices if d.name == "gpu-0"]
            assert (after.claim, after.certificate) == ("claim-a", kept.certificate)
            _given_back_once(plan, "claim-c")
        finally:
            newcomer.close(NODE)
    _torn_down_once(tmp_path, set(leaving.devices))


def _given_back_once(plan: NodePlan, uid: str) -> None:
    """The store's history: the claim's lease ended once, and the other claim still has its own."""
    chosen = adapters.CoordinatorPlan(state=plan.state, settings=plan.settings)
    coordinator = adapters.open_coordinator(chosen)
    holder = Holder(HolderKind.CLAIM, uid)
    until(lambda: not coordinator.leases(holder))
    ends = [
        one
        for one in coordinator.history(100)
        if one.event is Event.RELEASED and one.holder == str(holder)
    ]
    assert len(ends) == 1
    assert len(coordinator.leases(Holder(HolderKind.CLAIM, "claim-a"))) == 1


def _torn_down_once(state: Path, devices: set[str]) -> None:
    """The evidence: one certificate says that it wiped what the claim left."""
    found = [one.certificate for one in judge(collect(state)).certificates]
    after = [
        one
        for one in found
        if one.device in devices and "claim-c" in str(one.predicate["previous_holder"])
    ]
    assert len(after) == 1
