"""The bridge as a process against a real Ray, and what ends it."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
import ray

from actors import bridge, cluster, handles
from actors.bridge import Leash
from actors.handles import RemoteNode
from fleet.core import errors
from fleet.evidence import layout
from fleet.wiring import adapters, plugin
from fleet.wiring.adapters import NodePlan
from tests.actors.waiting import until
from tests.lab.apiserver.server import StandIn

DEADLINE_S = 60.0
NOBODY = "127.0.0.1:1"
"""An address at which no Ray can be."""


def plan_of(state: Path, **settings: object) -> NodePlan:
    """A simulated node with one small device."""
    (plan,) = adapters.plan_fleet(state, simulate="1x1", memory_bytes=1 << 20).nodes
    return plan.model_copy(update=settings)


@contextmanager
def running(plan: Path, address: str, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """The bridge as the node plugin starts it, gone after the block; see `said`."""
    with (plan.parent / "bridge.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "actors.bridge", str(plan), address, *more],
            stdin=subprocess.PIPE,
            stderr=log,
            cwd="/",
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def said(plan: Path) -> str:
    """What the last bridge of a plan wrote."""
    return (plan.parent / "bridge.log").read_text()


@pytest.fixture
def address(ray_cluster: cluster.Cluster) -> Iterator[str]:
    """Where Ray is; none of our actors is left in it afterwards."""
    yield ray.get_runtime_context().gcs_address
    for node in handles.find_nodes():
        with suppress(errors.FleetError):
            node.close()
        ray.kill(node.handle)
    with suppress(errors.FleetError):
        ray.kill(handles.find_coordinator().handle)
    until(lambda: not handles.find_nodes())


def serving() -> RemoteNode | None:
    """The node's actor once it serves."""
    for node in handles.find_nodes():
        if not node.ping().standby:
            return node
    return None


@pytest.mark.ray
def test_it_creates_what_is_missing_and_ends_with_its_parent(address: str, tmp_path: Path) -> None:
    """DESIGN 5, Ray: node actor and coordinator exist; at the end of its input it ends with 0."""
    plan = plan_of(tmp_path)
    with running(plugin.write_plan(plan), address) as process:
        node = until(serving)
        assert node.name == plan.node
        assert until(lambda: handles.find_coordinator().ping()) > 0
        with closing(adapters.open_door(plan)) as door:
            assert door.pulse()["pid"] == node.ping().pid
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(bridge.FAREWELL_S + DEADLINE_S) == 0
    assert node.ping().pid > 0  # what it made outlives it


@pytest.mark.ray
def test_bridge_and_actor_may_each_be_lost(address: str, tmp_path: Path) -> None:
    """Promise 7: a new bridge finds the actor that runs; an actor lost for good is made again."""
    path = plugin.write_plan(plan_of(tmp_path))
    with running(path, address) as process:
        before = until(serving).ping()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with running(path, address):
        until(lambda: "it serves" in said(path))
        found = until(serving).ping()
        assert (found.pid, found.incarnation) == (before.pid, before.incarnation)
        ray.kill(until(serving).handle, no_restart=True)
        after = until(lambda: node.ping() if (node := serving()) else None)
        assert after.pid != before.pid


@pytest.mark.ray
def test_an_actor_with_an_earlier_plan_is_replaced(address: str, tmp_path: Path) -> None:
    """A detached actor outlives the plugin: new settings come with the next bridge."""
    plan = plan_of(tmp_path)
    with running(plugin.write_plan(plan), address):
        before = until(serving).ping()
    changed = plan.model_copy(update={"labels": {"rack": "another"}})
    with running(plugin.write_plan(changed), address):
        node = until(
            lambda: node if (node := serving()) and node.ping().plan != before.plan else None
        )
        assert node.view().labels == {"rack": "another"}


@pytest.mark.ray
def test_a_node_of_another_state_directory_is_not_taken_over(address: str, tmp_path: Path) -> None:
    """B54: an actor of that name which serves other files is left alone, and said so."""
    first, second = plan_of(tmp_path / "a"), plan_of(tmp_path / "b")
    with running(plugin.write_plan(first), address):
        before = until(serving).ping()
    path = plugin.write_plan(second)
    with running(path, address) as process:
        assert process.wait(DEADLINE_S) == bridge.RAY_AWAY
    assert "runs already, for the state directory" in said(path)
    assert until(serving).ping().pid == before.pid


@pytest.mark.ray
def test_f71_it_says_whether_the_coordinator_steps(
    address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F71: as it says itself, once; one that is another process is counted, and one that lacks a
    right is no coordinator that steps."""
    del address
    with StandIn() as standin:
        plan = served(tmp_path, standin)
        found = bridge.Bridge(plan)

        def says(text: str, *, at: float) -> bool:
            found.step(at)
            return text in caplog.text

        found.step(0.0)
        clock = itertools.count(20.0, 20.0)
        until(lambda: says("): it steps", at=next(clock)))
        assert caplog.text.count("): it steps") == 1
        for _ in range(4):
            found.step(next(clock) + bridge.MAKE_PERIOD_S)
        assert caplog.text.count("): it steps") == 1
        before = handles.find_coordinator().ping()
        os.kill(before, signal.SIGKILL)
        clock = itertools.count(2_000.0, 100.0)
        until(lambda: says("made anew 1 times since this bridge began", at=next(clock)))


@pytest.mark.ray
def test_f71_a_coordinator_that_cannot_start_is_counted(
    address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F71: why it does not start, and how often it was made; nothing says that it serves."""
    del address
    with StandIn() as standin:
        plan = served(tmp_path, standin)
        keys = layout.coordinator_keys_directory(Path(plan.state))
        for path in keys.iterdir():
            path.write_bytes(b"no key")
        found = bridge.Bridge(plan)
        for at in (0.0, 20.0, 40.0, 80.0, 100.0, 160.0, 180.0):
            found.step(at)
    lines = [one for one in caplog.messages if one.startswith("coordinator")]
    assert all("it does not answer" in one and "key" in one for one in lines), lines
    assert "[made 3 times, every 60 s]" in lines[-1]
    assert not any("it steps" in one for one in lines)


def served(state: Path, standin: StandIn) -> NodePlan:
    """The plan of a node that kubelet serves."""
    kubeconfig = standin.kubeconfig(state / "kubeconfig")
    plan = plan_of(state, kubernetes=True, kubeconfig=str(kubeconfig))
    adapters.begin(adapters.CoordinatorPlan(state=plan.state, settings=plan.settings))
    return plan


@pytest.mark.ray
def test_without_ray_it_ends_with_two(tmp_path: Path) -> None:
    """Ray that is away is an error the supervisor sees, and no state is touched for it."""
    plan = plugin.write_plan(plan_of(tmp_path))
    with running(plan, NOBODY, "0.5") as process:
        assert process.wait(DEADLINE_S) == bridge.RAY_AWAY
    assert NOBODY in said(plan)
    assert "Traceback" not in said(plan)
    assert not (plan.parent / "journal.db").exists()


def test_it_waits_for_a_head_that_is_away(tmp_path: Path) -> None:
    """A head that is away costs no restarts; the end of standard input ends the wait."""
    plan = plugin.write_plan(plan_of(tmp_path))
    with running(plan, NOBODY) as process:
        until(lambda: "waiting for Ray" in said(plan))
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 0


def test_it_ends_with_its_parent_while_ray_does_not_answer(tmp_path: Path) -> None:
    """A call into Ray that hangs does not keep the bridge alive once the plugin is gone."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        running(
            plugin.write_plan(plan_of(tmp_path)), f"127.0.0.1:{silent.getsockname()[1]}"
        ) as process,
    ):
        silent.settimeout(DEADLINE_S)
        silent.accept()[0].close()  # it has knocked: what comes next is Ray's own call
        assert process.stdin is not None
        process.stdin.close()
        # 0, or 2 where Ray's own call failed a moment before the end was heard of.
        assert process.wait(bridge.FAREWELL_S + DEADLINE_S / 2) in (0, 2)


@pytest.mark.parametrize(
    ("content", "told"), [(None, "No such file"), ("", "is no plan"), ('{"node": "n"}', "state")]
)
def test_a_plan_that_cannot_be_read_is_told(
    tmp_path: Path, content: str | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A bad plan is an error with the file's name, before Ray is asked for anything."""
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content)
    assert bridge.main([str(path), NOBODY]) == bridge.RAY_AWAY
    assert str(path) in caplog.text
    assert told in caplog.text


def test_wrong_arguments_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """Without a plan and an address it says how it is run."""
    assert bridge.main([]) == bridge.RAY_AWAY
    assert "python -m actors.bridge PLAN ADDRESS [PATIENCE]" in caplog.text


def test_what_takes_too_long_is_the_end() -> None:
    """A call that cannot be cancelled ends the process after its time, and not before."""
    ended: list[int] = []
    late = threading.Event()

    def end(code: int) -> None:
        ended.append(code)
        late.set()

    with Leash(end).held("quick", DEADLINE_S):
        pass
    assert ended == []
    with Leash(end).held("slow", 0.01, code=7):
        assert late.wait(DEADLINE_S)
    assert ended == [7]
