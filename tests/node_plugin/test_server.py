"""Rules of the plugin's start, life and end as kubelet sees them."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fleet.core import errors
from fleet.core.errors import FleetError
from fleet.plugin.requests import AskedClaim, PreparedClaim
from node_plugin.health import DeviceHealth, Health
from node_plugin.proto import health_v1alpha1_pb2 as health_wire
from node_plugin.proto.health_v1alpha1_pb2_grpc import DRAResourceHealthStub
from node_plugin.server import REGISTRATION_SERVICE, SERVICES, serve_in_thread
from node_plugin.sockets import SocketPaths, socket_paths
from tests.node_plugin.standins import (
    DRIVER,
    PATIENCE_S,
    ActedClaims,
    Gate,
    device_of,
    dialled,
    dra_of,
    plugin,
    started,
    to_prepare,
    to_unprepare,
    told,
    until,
)

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def process(root: Path, instance: str = "") -> Iterator[subprocess.Popen[str]]:
    """A plugin in a process of its own, serving."""
    command = (sys.executable, "-m", "tests.node_plugin.serving", str(root), instance)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as found:
        try:
            assert found.stdout is not None
            assert found.stdout.readline() == "serving\n"
            yield found
        finally:
            found.kill()


def paths(root: Path, instance: str = "") -> SocketPaths:
    """Its sockets."""
    return socket_paths(kubelet_root=root, driver=DRIVER, instance=instance)


async def prepared(path: Path, *uids: str) -> list[str]:
    """Names of the devices prepared through a new connection."""
    async with dra_of(path) as stub:
        answer = await stub.NodePrepareResources(to_prepare(*uids), timeout=PATIENCE_S)
    return sorted(entry.devices[0].device_name for entry in answer.claims.values())


@pytest.mark.parametrize("_round", range(3))
def test_claims_are_served_when_the_registration_socket_appears(place: Path, _round: int) -> None:
    """Invariant 2: a kubelet that calls in the instant the socket appears gets its answer."""
    found = paths(place)

    async def kubelet() -> list[str]:
        await until(found.registration.exists, "the registration socket")
        return await prepared(found.dra, "a")

    async def story() -> list[str]:
        watching = asyncio.ensure_future(kubelet())
        async with started(plugin(place)):
            return await watching

    assert asyncio.run(story()) == ["dev-a"]


def test_a_stop_leaves_no_socket(place: Path) -> None:
    """Invariant 4: both sockets are gone at the end; stopping twice is harmless."""

    async def story() -> None:
        server = plugin(place)
        async with started(server):
            assert server.serving
            await server.stop(0)
            assert not server.serving

    asyncio.run(story())
    left = [path.name for path in place.rglob("*") if path.is_socket()]
    assert left == []


def test_a_stop_lets_calls_finish(place: Path) -> None:
    """Invariant 4: kubelet loses sight of the plugin at once; the call in flight is answered."""
    gate = Gate()

    async def story() -> list[str]:
        server = plugin(place, ActedClaims(gate))
        await server.start()
        async with dra_of(server.paths.dra) as stub:
            call = stub.NodePrepareResources(to_prepare("a"))
            assert await asyncio.to_thread(gate.entered.acquire, timeout=PATIENCE_S)
            stopping = asyncio.ensure_future(server.stop(PATIENCE_S))
            await until(lambda: not server.paths.registration.exists(), "deregistration")
            refused = stub.NodePrepareResources(to_prepare("late"))
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await refused
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            assert server.paths.dra.exists()
            gate.opened.set()
            answer = await call
            await stopping
            return [device.device_name for device in answer.claims["a"].devices]

    assert asyncio.run(story()) == ["dev-a"]


def test_a_stop_does_not_wait_for_ever(place: Path) -> None:
    """Invariant 4: after the grace a call fails with UNAVAILABLE, streams end, sockets are gone."""
    gate = Gate()

    async def story() -> float:
        server = plugin(place, ActedClaims(gate))
        await server.start()
        server.board.update([DeviceHealth("p", "d", Health.HEALTHY)])
        async with dialled(server.paths.dra) as channel, dra_of(server.paths.dra) as stub:
            watch = DRAResourceHealthStub(channel).NodeWatchResources(
                health_wire.NodeWatchResourcesRequest()
            )
            stream = watch.__aiter__()
            await anext(stream)
            probes = health_pb2_grpc.HealthStub(channel)
            probe = probes.Watch(health_pb2.HealthCheckRequest()).__aiter__()
            await anext(probe)
            call = stub.NodePrepareResources(to_prepare("a"))
            assert await asyncio.to_thread(gate.entered.acquire, timeout=PATIENCE_S)
            began = time.monotonic()
            await server.stop(0.1)
            took_s = time.monotonic() - began
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "stopping" in str(raised.value.details())
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
        assert not server.paths.dra.exists()
        assert server.claims_in_work == 1
        gate.opened.set()
        await until(lambda: server.claims_in_work == 0, "the work's end")
        return took_s

    assert asyncio.run(story()) < 5


def test_a_killed_plugin_is_followed_by_the_next(place: Path) -> None:
    """Invariant 3: after kill -9 the stale sockets are replaced and kubelet registers again; the
    socket kubelet had open fails meanwhile instead of hanging."""

    async def story() -> None:
        async with dra_of(paths(place).dra) as stub:
            with process(place) as first:
                assert (await stub.NodePrepareResources(to_prepare("a"))).claims["a"].devices
                first.kill()
                first.wait()
                assert paths(place).registration.is_socket()
                with pytest.raises(grpc.aio.AioRpcError):
                    await stub.NodePrepareResources(to_prepare("a"), timeout=PATIENCE_S)
            async with started(plugin(place)) as server:
                await told(server.paths.registration, registered=True)
                again = await stub.NodePrepareResources(
                    to_prepare("a"), wait_for_ready=True, timeout=PATIENCE_S
                )
                assert again.claims["a"].devices

    asyncio.run(story())


def test_sigterm_ends_the_process_cleanly(place: Path) -> None:
    """Invariant 4: a call shorter than the grace is answered, a longer one fails with UNAVAILABLE,
    no socket is left, and the process does not wait for the work of the longer one."""

    async def story() -> None:
        with process(place) as running:
            async with dra_of(paths(place).dra) as stub:
                short = stub.NodePrepareResources(to_prepare("slow-0.3"))
                long = stub.NodePrepareResources(to_prepare("slow-60"))
                await stub.NodePrepareResources(to_prepare("a"))
                running.terminate()
                assert (await short).claims["slow-0.3"].devices
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await long
                assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            assert await asyncio.to_thread(running.wait, PATIENCE_S) == 0
        assert not paths(place).registration.exists()
        assert not paths(place).dra.exists()

    asyncio.run(story())


def test_a_second_plugin_of_the_same_name_is_refused(place: Path) -> None:
    """B46: it says so at its start, and the first goes on undisturbed."""

    async def story() -> None:
        async with started(plugin(place)) as first:
            with pytest.raises(errors.SocketTaken, match="another instance"):
                await plugin(place).start()
            assert first.serving
            assert await prepared(first.paths.dra, "a") == ["dev-a"]

    asyncio.run(story())


def test_a_start_that_fails_half_way_leaves_nothing(place: Path) -> None:
    """B46: with a plain file for a registration socket the DRA socket is taken back too."""
    found = paths(place)
    found.registration.parent.mkdir()
    found.registration.write_text("precious")

    async def story() -> None:
        with pytest.raises(errors.SocketTaken, match="plain file"):
            await plugin(place).start()

    asyncio.run(story())
    assert not found.dra.exists()
    assert found.registration.read_text() == "precious"


@pytest.mark.parametrize("first_out", ["old", "new"])
def test_instances_overlap_and_leave_in_any_order(place: Path, first_out: str) -> None:
    """B46, invariant 40: during an update both serve the same claims, interleaved, and whoever goes
    first leaves the other's sockets alone."""
    behind = ActedClaims()

    async def story() -> None:
        old = plugin(place, behind, instance="pod-1")
        new = plugin(place, behind, instance="pod-2")
        async with started(old), started(new):
            endpoints = [
                (await told(server.paths.registration, registered=True)).endpoint
                for server in (old, new)
            ]
            assert endpoints == [str(old.paths.dra), str(new.paths.dra)]
            for server in (old, new, old, new):
                assert await prepared(server.paths.dra, "a") == ["dev-a"]
                async with dra_of(server.paths.dra) as stub:
                    await stub.NodeUnprepareResources(to_unprepare("a"))
            goes, stays = (old, new) if first_out == "old" else (new, old)
            await goes.stop(0)
            assert not goes.paths.registration.exists()
            assert not goes.paths.dra.exists()
            assert stays.serving
            assert await prepared(stays.paths.dra, "b") == ["dev-b"]

    asyncio.run(story())
    assert behind.prepared == ["a"] * 4 + ["b"]
    assert behind.unprepared == ["a"] * 4


def test_an_instance_that_dies_leaves_the_other_reachable(place: Path) -> None:
    """B46: instance 2 crashes without a word; instance 1 still answers, and instance 2 may come
    back under its own name."""

    async def story() -> None:
        async with started(plugin(place, instance="pod-1")) as old:
            with process(place, "pod-2") as new:
                new.kill()
                new.wait()
            assert paths(place, "pod-2").dra.is_socket()
            assert await prepared(old.paths.dra, "a") == ["dev-a"]
            async with started(plugin(place, instance="pod-2")) as again:
                assert await prepared(again.paths.dra, "a") == ["dev-a"]
                assert old.serving

    asyncio.run(story())


def test_a_lost_socket_is_noticed(place: Path) -> None:
    """Somebody who deletes a socket makes the plugin unreachable for kubelet: it says so."""

    async def story() -> None:
        async with started(plugin(place)) as server:
            assert server.serving
            server.paths.registration.unlink()
            assert not server.serving

    asyncio.run(story())


def test_probes_tell_serving_from_registered(place: Path) -> None:
    """B82: the standard health service is on the DRA socket, and a refusal is visible there."""

    async def status(stub: health_pb2_grpc.HealthStub, service: str) -> str:
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    async def story() -> None:
        async with (
            started(plugin(place)) as server,
            dialled(server.paths.dra) as channel,
        ):
            stub = health_pb2_grpc.HealthStub(channel)
            for service in ("", *SERVICES):
                assert await status(stub, service) == "SERVING"
            assert await status(stub, REGISTRATION_SERVICE) == "NOT_SERVING"
            for registered, expected in ((True, "SERVING"), (False, "NOT_SERVING")):
                await told(server.paths.registration, registered=registered)
                deadline = time.monotonic() + PATIENCE_S
                while await status(stub, REGISTRATION_SERVICE) != expected:
                    assert time.monotonic() < deadline

    asyncio.run(story())


@asynccontextmanager
async def busy(path: Path) -> AsyncIterator[None]:
    """Calls going on at `path` all the time."""

    async def load() -> None:
        async with dra_of(path) as stub:
            while True:
                await stub.NodeUnprepareResources(to_unprepare("x", "y"))

    task = asyncio.ensure_future(load())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_child_processes_never_hang_beside_grpc(place: Path) -> None:
    """B81: three hundred short tools, started from call threads under load, all come back."""
    rounds, width = 30, 10

    def act(claim: AskedClaim) -> PreparedClaim | FleetError:
        subprocess.run(["true"], check=True, timeout=PATIENCE_S)
        return device_of(claim)

    async def story() -> int:
        server = plugin(place, ActedClaims(act))
        async with started(server), busy(server.paths.dra), dra_of(server.paths.dra) as stub:
            for number in range(rounds):
                uids = [f"{number}-{index}" for index in range(width)]
                answer = await stub.NodePrepareResources(to_prepare(*uids), timeout=40)
                assert not any(entry.error for entry in answer.claims.values())
            return server.figures.count("prepare", "done")

    assert asyncio.run(story()) == rounds * width


def test_the_plugin_never_forks() -> None:
    """B81: no fork, no forking pool and no code between fork and exec in this package."""
    found = []
    for path in sorted((ROOT / "node_plugin").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
                module = getattr(node, "module", None) or ""
                if "multiprocessing" in (module.partition(".")[0], *names):
                    found.append(f"{path}: multiprocessing")
            elif isinstance(node, ast.Attribute) and node.attr in ("fork", "forkpty"):
                found.append(f"{path}: {node.attr}")
            elif isinstance(node, ast.keyword) and node.arg == "preexec_fn":
                found.append(f"{path}: preexec_fn")
    assert found == []


def test_a_server_may_live_on_a_thread(place: Path) -> None:
    """Callers that are not async start and stop it, and learn why it did not start."""
    threaded = serve_in_thread(plugin(place))
    try:
        assert asyncio.run(prepared(threaded.server.paths.dra, "a")) == ["dev-a"]
        assert threaded.server.silent_s < PATIENCE_S
        with pytest.raises(errors.SocketTaken):
            serve_in_thread(plugin(place))
    finally:
        threaded.stop()
    assert not threaded.server.paths.dra.exists()
