"""A kubelet on the wire and claims behind the port, for the tests of the gRPC side."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio

from fleet.core.errors import FleetError
from fleet.plugin.requests import AskedClaim, PreparedClaim, PreparedDevice
from node_plugin.health import HealthBoard
from node_plugin.proto import dra_v1_pb2 as v1
from node_plugin.proto import dra_v1_pb2_grpc, registration_pb2, registration_pb2_grpc
from node_plugin.server import PluginServer, ServerSettings

DRIVER = "gpu.example.com"
PATIENCE_S = 10.0
"""Time, s, a test waits for a fact before it fails."""
# Channels of one process share connections; a kubelet of its own must not see another's.
ALONE = (("grpc.use_local_subchannel_pool", 1),)

Act = Callable[[AskedClaim], PreparedClaim | FleetError]
Undo = Callable[[AskedClaim], FleetError | None]


def device_of(claim: AskedClaim) -> PreparedClaim:
    """A claim with one device named after it."""
    return PreparedClaim(
        (PreparedDevice(("gpu",), "node-1", f"dev-{claim.uid}", (f"example.com/gpu={claim.uid}",)),)
    )


class ActedClaims:
    """Claims that do what a test says and remember who asked."""

    def __init__(self, act: Act = device_of, undo: Undo = lambda _: None) -> None:
        self._act = act
        self._undo = undo
        self.prepared: list[str] = []
        self.unprepared: list[str] = []

    def prepare(self, asked: Sequence[AskedClaim]) -> Mapping[str, PreparedClaim | FleetError]:
        self.prepared += [claim.uid for claim in asked]
        return {claim.uid: self._act(claim) for claim in asked}

    def unprepare(self, asked: AskedClaim) -> FleetError | None:
        self.unprepared.append(asked.uid)
        return self._undo(asked)


class Gate:
    """Work that goes on until the test lets it end."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()

    def __call__(self, claim: AskedClaim) -> PreparedClaim | FleetError:
        self.entered.release()
        assert self.opened.wait(PATIENCE_S)
        return device_of(claim)


def claims(*uids: str) -> list[v1.Claim]:
    """Claims of a request."""
    return [v1.Claim(namespace="tenant", uid=uid, name=f"claim-{uid}") for uid in uids]


def to_prepare(*uids: str) -> v1.NodePrepareResourcesRequest:
    """A request to prepare them."""
    return v1.NodePrepareResourcesRequest(claims=claims(*uids))


def to_unprepare(*uids: str) -> v1.NodeUnprepareResourcesRequest:
    """A request to unprepare them."""
    return v1.NodeUnprepareResourcesRequest(claims=claims(*uids))


@asynccontextmanager
async def dialled(path: Path | str, *options: tuple[str, str]) -> AsyncIterator[grpc.aio.Channel]:
    """A connection to a socket, shared with nobody."""
    async with grpc.aio.insecure_channel(f"unix:{path}", (*ALONE, *options)) as channel:
        yield channel


@asynccontextmanager
async def dra_of(path: Path | str) -> AsyncIterator[dra_v1_pb2_grpc.DRAPluginStub]:
    """The DRA service behind a socket."""
    async with dialled(path) as channel:
        yield dra_v1_pb2_grpc.DRAPluginStub(channel)


async def told(path: Path, *, registered: bool, error: str = "") -> registration_pb2.PluginInfo:
    """Do what kubelet does with a registration socket: ask, then tell. Its deadlines: 1 s and 5 s,
    here longer, since the machine of the tests is shared."""
    async with dialled(path) as channel:
        stub = registration_pb2_grpc.RegistrationStub(channel)
        answer = await stub.GetInfo(registration_pb2.InfoRequest(), timeout=PATIENCE_S)
        status = registration_pb2.RegistrationStatus(plugin_registered=registered, error=error)
        await stub.NotifyRegistrationStatus(status, timeout=PATIENCE_S)
        return answer


def plugin(
    root: Path,
    behind: ActedClaims | None = None,
    *,
    instance: str = "",
    answer_s: float = PATIENCE_S,
    retry_s: tuple[float, float] = (0.0, 0.0),
) -> PluginServer:
    """A plugin that is not started."""
    settings = ServerSettings(DRIVER, root, instance, answer_s, retry_s)
    return PluginServer(settings, behind or ActedClaims(), HealthBoard())


@asynccontextmanager
async def started(server: PluginServer, *, grace_s: float = 1.0) -> AsyncIterator[PluginServer]:
    """`server` between its start and its stop."""
    await server.start()
    try:
        yield server
    finally:
        await server.stop(grace_s)


async def until(fact: Callable[[], bool], what: str) -> None:
    """Wait until `fact` holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not fact():
        assert time.monotonic() < deadline, f"waited too long for: {what}"
        await asyncio.sleep(0.005)
