"""The node's actor as a plain class, without Ray."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from actors import methods
from actors.identity import Assignment, plan_digest
from actors.node_actor import ASK_S, NodeActor, Pulse, ask_owner, open_service
from actors.node_api import ActorApi
from actors.translate import StartRefused, kinds, translate
from fleet.core import errors
from fleet.core.boot import kernel_boot_id
from fleet.core.messages import NodeView, ScrubOrder
from fleet.core.model import Token
from fleet.node.service import NodeService
from fleet.rpc.calls import Verb
from fleet.rpc.client import DoorNode
from fleet.stores.sqlite import host_identity
from fleet.wiring import adapters, plugin

DEADLINE_S = 20.0


def assignment(state: Path) -> Assignment:
    """The one node of a simulated fleet, assigned to this machine."""
    (plan,) = adapters.plan_fleet(state, simulate="1x1", memory_bytes=8 << 20).nodes
    return assignment_of(plan)


def assignment_of(plan: adapters.NodePlan) -> Assignment:
    """The node of `plan`, assigned to this machine."""
    return Assignment(
        node=plan.node,
        host="local",
        machine_id=host_identity(),
        boot_id=str(kernel_boot_id()),
        plan=plan.model_dump_json(),
    )


@dataclass
class Asked(ActorApi):
    """An actor as `RemoteNode` asks it, without Ray."""

    actor: NodeActor
    node: str

    def ask(self, verb: Verb, given: Mapping[str, Any], timeout_s: float | None) -> Any:  # noqa: ARG002
        """Through what crosses."""
        method = getattr(self.actor, verb.name)
        return methods.node_answer(verb, method(self.node, *methods.arguments(verb, given)))


def asked(actor: NodeActor, node: str = "node-01") -> Asked:
    """What an actor answers as that node."""
    return Asked(actor, node)


@pytest.fixture
def actor(tmp_path: Path) -> Iterator[NodeActor]:
    """A serving actor of a simulated node."""
    found = NodeActor(assignment(tmp_path).model_dump_json())
    yield found
    found.close("node-01")


def wait_for(holds: Callable[[], bool]) -> None:
    """Poll until it holds."""
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, "not in time"


def test_it_is_recognised_in_the_dashboard(actor: NodeActor) -> None:
    """E4: its repr, which Ray reads once, has the node and its devices by state at its start; its
    log, which the actor's page shows, has every change of that. Promise 10: simulated says so."""
    assert repr(actor).startswith("NodeActor(node=node-01, SIMULATED, at its start 1 devices: ")


def test_messages_cross_as_validated_json(actor: NodeActor) -> None:
    """E1: a view is a valid `NodeView`; a malformed order is an error of ours, never half read."""
    assert asked(actor).view().node == "node-01"
    with pytest.raises(errors.FleetError):
        actor.scrub("node-01", '[{"operation": "x"}]')  # type: ignore[attr-defined]


def test_a_command_for_another_node_is_refused(actor: NodeActor) -> None:
    """B54: whatever is asked, the node it is asked of must be this one."""
    calls: tuple[Callable[[str], object], ...] = (
        actor.ping,
        lambda node: asked(actor, node).view(),
        lambda node: asked(actor, node).head(),
        actor.drain,
        actor.close,
    )
    for call in calls:
        with pytest.raises(errors.WrongNode):
            call("node-02")


def test_an_order_that_cannot_be_taken_is_refused_by_itself(actor: NodeActor) -> None:
    """A refused order is an answer with its kind, not an error of the whole batch."""
    order = ScrubOrder(operation="o", node="node-01", device="nope", token=str(Token(1, 1)))
    (found,) = asked(actor).scrub((order,))
    assert not found.accepted
    assert issubclass(kinds()[found.kind], errors.FleetError)


def test_the_step_runs_by_itself(actor: NodeActor) -> None:
    """The service is stepped a few times a second: a device nobody holds is proven free."""
    wait_for(lambda: asked(actor).view().devices[0].state != "HELD")
    assert Pulse.model_validate_json(actor.ping("node-01")).tick_age_s < DEADLINE_S


def test_the_wrong_machine_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    """B54: the identity is checked first; the error keeps its kind through Ray's text."""
    wrong = assignment(tmp_path).model_copy(update={"boot_id": "another"})
    with pytest.raises(StartRefused) as caught:
        NodeActor(wrong.model_dump_json())
    assert "another" in str(caught.value)
    assert not (tmp_path / "nodes").exists()


def test_an_unforeseen_error_at_the_start_is_ours(tmp_path: Path) -> None:
    """B60: a fault of the product at the start is told as one, and is not retried for ever."""

    def broken(_: str) -> NodeService:
        raise TypeError("a missing argument")

    with pytest.raises(StartRefused, match=r"node-01: start: TypeError: a missing argument"):
        NodeActor(assignment(tmp_path).model_dump_json(), broken)
    assert isinstance(translate(KeyError("x"), call="c"), errors.Unforeseen)


def test_a_newcomer_stands_by_until_the_owner_is_gone(tmp_path: Path) -> None:
    """DESIGN 5: not-owner while the journal is owned elsewhere; then it takes over by itself."""
    mine = assignment(tmp_path)
    owner = adapters.open_node(adapters.NodePlan.model_validate_json(mine.plan))
    actor = NodeActor(mine.model_dump_json())
    try:
        with pytest.raises(errors.NotOwner):
            asked(actor).view()
        assert "owned by" in Pulse.model_validate_json(actor.ping("node-01")).standby
        owner.close()
        wait_for(lambda: not Pulse.model_validate_json(actor.ping("node-01")).standby)
        assert asked(actor).view().node == "node-01"
    finally:
        owner.close()
        actor.close("node-01")


def test_a_closed_actor_has_given_the_journal_up(tmp_path: Path) -> None:
    """After close another process can own the journal at once, and the actor says not-owner."""
    mine = assignment(tmp_path)
    actor = NodeActor(mine.model_dump_json())
    actor.close("node-01")
    adapters.open_node(adapters.NodePlan.model_validate_json(mine.plan)).close()
    with pytest.raises(errors.NotOwner):
        asked(actor).view()


def test_another_nodes_plan_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    """B54: an actor made for node-01 with the plan of node-02 touches neither of the two."""
    plans = adapters.plan_fleet(tmp_path, simulate="2x1", memory_bytes=8 << 20).nodes
    opened: list[str] = []

    def open_it(plan: str) -> NodeService:
        opened.append(plan)
        return adapters.open_node(adapters.NodePlan.model_validate_json(plan))

    wrong = assignment_of(plans[0]).model_copy(update={"plan": plans[1].model_dump_json()})
    with pytest.raises(StartRefused, match="node-01 was given the plan of node-02"):
        NodeActor(wrong.model_dump_json(), open_it)
    assert opened == []
    assert not (tmp_path / "nodes").exists()


def test_what_a_node_keeps_is_private(tmp_path: Path) -> None:
    """An actor started under umask 000 leaves nothing that others can read."""
    before = os.umask(0o000)
    try:
        mine = assignment(tmp_path)
        actor = NodeActor(mine.model_dump_json())
        actor.close("node-01")
    finally:
        assert os.umask(before) == 0o077
    paths = [*(tmp_path / "nodes").rglob("*.db"), *(tmp_path / "nodes").rglob("*.lock")]
    assert paths
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}


# --- asking for the journal ----------------------------------------------------------------------


def test_a_standby_process_lets_go_for_the_actor(tmp_path: Path) -> None:
    """DESIGN 5: the newcomer asks at the door, the standby drains and unlocks, the actor serves."""
    mine = assignment(tmp_path)
    plan = adapters.NodePlan.model_validate_json(mine.plan)
    command = [sys.executable, "-P", "-m", "fleet.cli.main", "node", "standby", "--supervised"]
    standby = subprocess.Popen(
        [*command, "--plan", str(plugin.write_plan(plan))],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )
    assert standby.stdin is not None
    actor: NodeActor | None = None
    try:
        with closing(adapters.open_door(plan)) as door:
            wait_for(lambda: owner(door) == "standby")
            actor = NodeActor(mine.model_dump_json())
            serving = actor
            wait_for(lambda: not Pulse.model_validate_json(serving.ping("node-01")).standby)
            assert owner(door) == "node actor"
            assert asked(actor).view().node == "node-01"
            assert standby.poll() is None
            actor.close("node-01")
            wait_for(lambda: owner(door) == "standby")
    finally:
        if actor is not None:
            actor.close("node-01")
        standby.stdin.close()
        assert standby.wait(DEADLINE_S) == 0


def owner(door: DoorNode) -> str:
    """The kind of process that answers at a door; empty for nobody."""
    try:
        return str(door.pulse()["owner"])
    except errors.NotOwner:
        return ""


def test_an_actor_is_not_asked_out(actor: NodeActor, tmp_path: Path) -> None:
    """An actor keeps the journal whoever asks: only a standby lets go."""
    assert not ask_owner(assignment(tmp_path).plan, "a test")
    assert asked(actor).view().node == "node-01"


def test_nobody_there_is_nobody_asked(tmp_path: Path) -> None:
    """Asking without an owner, or with a plan that cannot be read, is answered no."""
    assert not ask_owner(assignment(tmp_path).plan, "a test")
    assert not ask_owner("{}", "a test")


def test_who_waits_asks_now_and_then(tmp_path: Path) -> None:
    """A newcomer asks when it comes and then at its period, not at every step."""
    asked: list[float] = []

    def ask(_: str, by: str) -> bool:
        assert by == "the node actor of node-01"
        asked.append(time.monotonic())
        return True

    def refuse(_: str) -> NodeService:
        raise errors.NotOwner("somebody else has it")

    actor = NodeActor(assignment(tmp_path).model_dump_json(), refuse, ask)
    assert len(asked) == 1
    wait_for(lambda: len(asked) == 2)
    actor.close("node-01")
    assert asked[1] - asked[0] >= ASK_S


def test_its_plan_is_told(actor: NodeActor, tmp_path: Path) -> None:
    """A bridge sees by the digest whether the actor was made from the plan it has itself."""
    plan = assignment(tmp_path).plan
    told = Pulse.model_validate_json(actor.ping("node-01")).plan
    assert told == plan_digest(plan) != plan_digest(plan + " ")


def test_figures_are_told_while_steps_fail(tmp_path: Path) -> None:
    """B83: a node whose steps fail is the one that somebody looks at; its figures stay fresh."""
    looks: list[float] = []

    class Failing:
        """A service whose every step but the first fails."""

        def __init__(self, service: NodeService) -> None:
            self._service, self._stepped = service, False

        def __getattr__(self, name: str) -> object:
            return getattr(self._service, name)

        def tick(self, now: float) -> None:
            if self._stepped:
                raise errors.JournalUnreadable("the disk is full")
            self._stepped = True
            self._service.tick(now)

        def view(self, operations: Sequence[str] = ()) -> NodeView:
            looks.append(time.monotonic())
            return self._service.view(operations)

    found = NodeActor(
        assignment(tmp_path).model_dump_json(),
        opener=lambda plan: cast("NodeService", Failing(open_service(plan))),
    )
    try:
        wait_for(lambda: len(looks) >= 2)  # the first is that of the start
    finally:
        found.close("node-01")
