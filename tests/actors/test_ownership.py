"""Who owns the node: the actor in a real Ray, or the standby without one (DESIGN 5, Ray)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import ray

from actors import cluster, handles
from actors.handles import RemoteNode
from fleet.core import errors
from fleet.core.messages import ClaimOrder, TeardownOrder
from fleet.node.standby import Patience
from fleet.rpc.client import DoorNode
from fleet.wiring import adapters, plugin
from fleet.wiring.adapters import NodePlan
from tests.actors.waiting import until
from tests.freezing import freeze

pytestmark = pytest.mark.ray

DEADLINE_S = 60.0
BUDGET_S = 30.0
HOSTS = ("node actor", "standby")


class Ground:
    """One simulated node, its door, and whoever is started for it."""

    def __init__(self, state: Path) -> None:
        (self.plan,) = adapters.plan_fleet(state, simulate="1x1", memory_bytes=1 << 20).nodes
        self.door: DoorNode = adapters.open_door(self.plan)

    def actor(self) -> RemoteNode:
        """The node's actor, created or found."""
        plan = self.plan.model_dump_json()
        return handles.create_node(handles.assign(self.plan.node, plan, host=cluster.LOCAL_HOST))

    def owner(self) -> tuple[str, int]:
        """Kind and pid of whoever answers at the door; "" and 0 for nobody."""
        try:
            pulse = self.door.pulse(timeout_s=1.0)
        except errors.NotOwner:
            return "", 0
        return str(pulse["owner"]), int(pulse["pid"])

    def await_owner(self, kind: str, *, besides: int = 0) -> int:
        """Wait until one of this kind owns the node; its pid."""
        return until(
            lambda: (
                pid if (found := self.owner())[0] == kind and (pid := found[1]) != besides else 0
            )
        )

    def prepare(self, uid: str) -> None:
        """A claim on the one device, prepared by whoever owns the node."""
        device = until(
            lambda: next((d for d in self.door.view().devices if d.state != "HELD"), None)
        )
        order = ClaimOrder(uid=uid, node=self.plan.node, devices=(device.uuid,))
        until(lambda: self.door.prepare(order, budget_s=BUDGET_S).state == "PREPARED")

    def unprepare(self, uid: str) -> None:
        """Torn down by whoever owns the node."""
        order = TeardownOrder(uid=uid)
        until(lambda: self.door.unprepare(order, budget_s=BUDGET_S).state == "ABSENT")

    def prepared(self) -> list[str]:
        """Claims that are prepared."""
        return [
            claim.uid for claim in until(lambda: [*self.door.claims()]) if claim.state == "PREPARED"
        ]


@pytest.fixture
def ground(ray_cluster: cluster.Cluster, tmp_path: Path) -> Iterator[Ground]:
    """A node in the session's Ray; its actor ends with the test."""
    found = Ground(tmp_path)
    with closing(found.door):
        yield found
    for node in handles.find_nodes():
        ray.kill(node.handle)
    until(lambda: not handles.find_nodes())


@contextmanager
def standby_process(plan: NodePlan) -> Iterator[subprocess.Popen[bytes]]:
    """`fleet node standby`, as the plugin starts it."""
    command = [sys.executable, "-P", "-m", "fleet.cli.main", "node", "standby", "--supervised"]
    process = subprocess.Popen(
        [*command, "--plan", str(plugin.write_plan(plan))],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 0


@contextmanager
def standby_here(plan: NodePlan, patience: Patience) -> Iterator[list[str]]:
    """A standby in this process with a patience of its own; when it owned the node, as text."""
    standing, door = plugin.open_standby(plan), adapters.open_door(plan)
    standing.door, standing.patience = door, patience
    stop, owned = threading.Event(), list[str]()

    def stand() -> None:
        while not stop.wait(0.05):
            before = standing.service is not None
            standing.step()
            if standing.service is not None and not before:
                owned.append("owned")

    thread = threading.Thread(target=stand, daemon=True)
    thread.start()
    try:
        yield owned
    finally:
        stop.set()
        thread.join()
        standing.close()
        door.close()


def test_hand_over_and_take_over_go_on_for_ever(ground: Ground) -> None:
    """DESIGN 5: the standby lets go for an actor and steps in without one, a claim lives on.

    Three rounds; actor and standby are at it at the same time in each.
    """
    with standby_process(ground.plan):
        for number in range(3):
            ground.await_owner("standby")
            uid = f"claim-{number}"
            ground.prepare(uid)
            actor = ground.actor()
            ground.await_owner("node actor")
            assert ground.prepared() == [uid]
            ray.kill(actor.handle, no_restart=True)
            ground.await_owner("standby")
            assert ground.prepared() == [uid]
            ground.unprepare(uid)  # without any actor
        assert ground.door.claims() == ()


def test_racing_for_a_node_ends_with_the_actor(ground: Ground) -> None:
    """Started at the same moment, each may own first; the actor does in the end, and stays."""
    with standby_process(ground.plan):
        ground.actor()
        pid = ground.await_owner("node actor")
        ground.prepare("claim-r")
        assert ground.owner() == ("node actor", pid)
        ground.unprepare("claim-r")


def test_an_actor_that_ray_restarts_is_waited_for(ground: Ground) -> None:
    """Killed with -9 the actor is back within the standby's grace, with its claims."""
    ground.actor()
    before = ground.await_owner("node actor")
    ground.prepare("claim-k")
    with standby_here(ground.plan, Patience(grace_s=DEADLINE_S)) as owned:
        os.kill(before, signal.SIGKILL)
        ground.await_owner("node actor", besides=before)
        assert ground.prepared() == ["claim-k"]
        ground.unprepare("claim-k")
    assert owned == []


def test_an_owner_that_hangs_is_killed(ground: Ground) -> None:
    """Silent for long with the journal locked: killed by name, and the node goes on."""
    ground.actor()
    before = ground.await_owner("node actor")
    ground.prepare("claim-h")
    patience = Patience(grace_s=0.5, silence_s=8.0, pulse_s=0.2)
    with standby_here(ground.plan, patience) as owned:
        freeze(before)
        began = time.monotonic()
        until(lambda: owned)
        assert time.monotonic() - began >= patience.silence_s
        assert not Path(f"/proc/{before}").exists() or ground.owner()[1] != before
        ground.await_owner("node actor")  # Ray started it again, and it asked
        assert ground.prepared() == ["claim-h"]
        ground.unprepare("claim-h")
