"""The plugin as kubelet sees it: two sockets, opened and closed in the only safe order.

Kubelet calls as soon as the registration socket appears, so the DRA server must answer before; and
kubelet must see the registration socket go before the DRA server does, so that a stop is a driver
that leaves and not one that fails. The process's signals belong to whoever runs this.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
from grpc_health.v1 import health as probes
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fleet.core import errors
from node_plugin import dra, sockets
from node_plugin.health import HealthBoard, ResourceHealth
from node_plugin.listener import Listener
from node_plugin.metrics import ClaimFigures
from node_plugin.ports import Claims
from node_plugin.proto import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2_grpc,
    health_v1alpha1_pb2_grpc,
    registration_pb2,
    registration_pb2_grpc,
)
from node_plugin.registration import Registered, Registration, RegistrationState

SERVICES = (
    "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
    "v1alpha1.DRAResourceHealth",
)
REGISTRATION_SERVICE = "pluginregistration.Registration"
"""Known to the health service too: serving while kubelet has the plugin registered."""
BEAT_S = 1.0
"""Period, s, in which the event loop shows that it runs."""
DEAD_PERIOD_S = 30.0
"""Period, s, in which sockets of instances that were killed are looked for."""
FAREWELL_S = 1.0
"""Time, s, the last answers have to leave after the grace."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the server needs to know. Times in seconds."""

    driver: str
    kubelet_root: Path
    instance: str = ""
    """Distinguishes instances of one node during an update: the UID of the plugin's pod."""
    answer_s: float = dra.ANSWER_S
    retry_s: tuple[float, float] = (1.0, 120.0)
    """First and longest pause before a refused registration is offered again; the pause doubles.
    (0.0, 0.0): never."""


class PluginServer:
    """Serves claims to kubelet. `start` and `stop` are awaited on one event loop, once each."""

    def __init__(
        self,
        settings: ServerSettings,
        claims: Claims,
        board: HealthBoard,
        *,
        figures: ClaimFigures | None = None,
    ) -> None:
        """Raises `SettingsInvalid` when a socket's path would be too long."""
        self.settings = settings
        self.figures = figures if figures is not None else ClaimFigures()
        self.board = board
        self.paths = sockets.socket_paths(
            kubelet_root=settings.kubelet_root, driver=settings.driver, instance=settings.instance
        )
        self._calls = dra.ClaimCalls(claims, figures=self.figures, answer_s=settings.answer_s)
        self._registration = Registration(
            driver=settings.driver, endpoint=self.paths.dra, heard=self._heard
        )
        self._probes = probes.aio.HealthServicer()
        self._dra = Listener(
            self.paths.dra, lock=self.paths.lock, services=self._add_dra, check=_prepare_nothing
        )
        self._reg = Listener(
            self.paths.registration,
            lock=self.paths.lock,
            services=self._add_registration,
            check=_ask_who,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._beat_at = 0.0
        self._stopping = False

    @property
    def registration(self) -> RegistrationState:
        """What kubelet last said. Safe for threads."""
        return self._registration.state

    @property
    def claims_in_work(self) -> int:
        """Claims in work now, also those whose call was given up. Safe for threads."""
        return self._calls.in_work

    @property
    def serving(self) -> bool:
        """Whether both sockets are there, ours, and the plugin is not being stopped."""
        return self._dra.seen and self._reg.seen and not self._stopping

    @property
    def silent_s(self) -> float:
        """Time, s, since the event loop last showed that it runs. Safe for threads."""
        return time.monotonic() - self._beat_at

    async def start(self) -> None:
        """Serve claims, then let kubelet find us. Raises `SocketTaken`; nothing is left open."""
        sockets.close_directory(self.paths.dra.parent)
        await self._remove_dead()
        await self._dra.open()
        try:
            for service in ("", *SERVICES):
                await self._probes.set(service, health_pb2.HealthCheckResponse.SERVING)
            await self._probes.set(REGISTRATION_SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)
            await self._reg.open()
        except BaseException:
            await self._dra.close(0)
            raise
        self._keep(self._beat())
        self._keep(self._clear_away())
        self._keep(self._follow_registration())

    async def stop(self, grace_s: float) -> None:
        """Leave kubelet's sight at once; calls in flight have `grace_s`, then they fail cleanly."""
        if self._stopping:
            return
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._reg.close(0)
        await self._probes.enter_graceful_shutdown()
        await self._calls.drain(grace_s)
        self.board.close()
        await self._dra.close(FAREWELL_S)

    def _add_dra(self, server: grpc.aio.Server) -> None:
        dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(dra.DraV1(self._calls), server)
        dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(dra.DraV1Beta1(self._calls), server)
        health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(
            ResourceHealth(self.board), server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._probes, server)

    def _add_registration(self, server: grpc.aio.Server) -> None:
        registration_pb2_grpc.add_RegistrationServicer_to_server(self._registration, server)

    def _heard(self, _: RegistrationState) -> None:
        self._news.set()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(_report)

    async def _beat(self) -> None:
        while True:
            self._beat_at = time.monotonic()
            await asyncio.sleep(BEAT_S)

    async def _clear_away(self) -> None:
        """An instance that is killed while this one serves leaves its sockets as well."""
        while True:
            await asyncio.sleep(DEAD_PERIOD_S)
            await self._remove_dead()

    async def _remove_dead(self) -> None:
        try:
            removed = await asyncio.to_thread(
                sockets.remove_dead,
                self.settings.kubelet_root,
                self.settings.driver,
                lock=self.paths.lock,
            )
        except (OSError, errors.SocketTaken) as error:
            _log.warning("sockets of instances that ended are not removed now: %s", error)
            return
        for path in removed:
            _log.warning("%s was of an instance that ended, and is removed", path)

    async def _follow_registration(self) -> None:
        """Tell the health service what kubelet said, and offer a refused registration again.

        Kubelet itself tries again while the socket is there; a new socket makes it start from
        nothing, which also helps one that has given up or remembers something wrong.
        """
        first_s, longest_s = self.settings.retry_s
        pause_s = first_s
        while True:
            await self._news.wait()
            self._news.clear()
            accepted = self.registration.state is Registered.ACCEPTED
            status = health_pb2.HealthCheckResponse
            await self._probes.set(
                REGISTRATION_SERVICE, status.SERVING if accepted else status.NOT_SERVING
            )
            if accepted:
                pause_s = first_s
            elif longest_s:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), pause_s)
                if not self._news.is_set():
                    await self._offer_again()
                    pause_s = min(2 * pause_s, longest_s)

    async def _offer_again(self) -> None:
        _log.warning("offering the registration to kubelet again")
        await self._reg.close(FAREWELL_S)
        try:
            await self._reg.open()
        except errors.SocketTaken:
            _log.exception("the registration socket cannot be made again; trying later")
            self._news.set()


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a task of the plugin ended", exc_info=error)


async def _prepare_nothing(channel: grpc.aio.Channel) -> None:
    stub = dra_v1_pb2_grpc.DRAPluginStub(channel)
    await stub.NodePrepareResources(dra_v1_pb2.NodePrepareResourcesRequest())


async def _ask_who(channel: grpc.aio.Channel) -> None:
    stub = registration_pb2_grpc.RegistrationStub(channel)
    await stub.GetInfo(registration_pb2.InfoRequest())


class ThreadedServer:
    """A `PluginServer` on an event loop and thread of its own, for callers that are not async."""

    def __init__(self, server: PluginServer) -> None:
        self.server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="plugin-server", daemon=True
        )

    def start(self) -> None:
        """Start it; blocking. Raises what `PluginServer.start` raises."""
        self._thread.start()
        try:
            self._do(self.server.start())
        except BaseException:
            self._end()
            raise

    def stop(self, grace_s: float = 5.0) -> None:
        """Stop the server and its thread; blocking."""
        try:
            self._do(self.server.stop(grace_s))
        finally:
            self._end()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


def serve_in_thread(server: PluginServer) -> ThreadedServer:
    """Start `server` on a thread of its own; it serves when this returns."""
    threaded = ThreadedServer(server)
    threaded.start()
    return threaded
