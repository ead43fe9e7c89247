"""One gRPC server behind one published socket: it serves and answers first, then it is seen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

from fleet.core import errors
from fleet.rpc.socket_paths import closed_to_others
from node_plugin import sockets

CHECK_WAIT_S = 10.0
"""Time, s, a new server has to answer its own first call."""

_log = logging.getLogger(__name__)

Services = Callable[[grpc.aio.Server], None]
"""Adds services to a server."""
Check = Callable[[grpc.aio.Channel], Awaitable[object]]
"""Calls one of them over a channel to the server."""


@dataclass(frozen=True, slots=True)
class _Open:
    server: grpc.aio.Server
    published: sockets.Published


class Listener:
    """A server at `path`. `open` and `close` may be repeated; both belong to one event loop."""

    def __init__(self, path: Path, *, lock: Path, services: Services, check: Check) -> None:
        self._path = path
        self._lock = lock
        self._services = services
        self._check = check
        self._open: _Open | None = None

    @property
    def seen(self) -> bool:
        """Whether the path is there and ours."""
        return self._open is not None and sockets.is_ours(self._open.published)

    async def open(self) -> None:
        """Serve, check with a real call, then publish the path.

        Raises `SocketTaken` when the path cannot be had; nothing is left open then.
        """
        try:
            sockets.make_directory(self._path.parent)
            private = sockets.private_path(self._path.parent)
            server = grpc.aio.server()
            self._services(server)
            _bind(server, private)
            try:
                await server.start()
                await self._answers(private)
                published = await asyncio.to_thread(
                    sockets.publish, private, self._path, lock=self._lock
                )
            except BaseException:
                await server.stop(0)
                private.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise errors.SocketTaken(
                f"the socket {self._path} cannot be made: {error}",
                remedy="repair access to the directory named and start again",
            ) from error
        self._open = _Open(server, published)
        _log.info("serving at %s", self._path)

    async def withdraw(self) -> None:
        """Remove the path; calls in flight and open connections are not touched."""
        if self._open is None:
            return
        with suppress(OSError):  # the directory is gone with all that was in it
            if not await asyncio.to_thread(sockets.withdraw, self._open.published, lock=self._lock):
                _log.warning("%s is not ours any more and was left as it is", self._path)

    async def close(self, grace_s: float) -> None:
        """Remove the path, then end the server; calls in flight have `grace_s`."""
        if self._open is None:
            return
        await self.withdraw()
        server = self._open.server
        self._open = None
        await server.stop(grace_s)

    async def _answers(self, private: Path) -> None:
        # A pool of its own: gRPC shares connections between channels to one address.
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(f"unix:{private}", options) as channel:
            try:
                await asyncio.wait_for(self._check(channel), CHECK_WAIT_S)
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                raise errors.SocketTaken(
                    f"the new server for {self._path} does not answer: {error}",
                    remedy="see the log of the node plugin",
                ) from error


def _bind(server: grpc.aio.Server, private: Path) -> None:
    try:
        with closed_to_others():
            server.add_insecure_port(f"unix:{private}")
    except RuntimeError as error:
        raise errors.SocketTaken(
            f"no socket can be bound in {private.parent}: {error}",
            remedy="check that the directory is writable and on a local file system",
        ) from error
