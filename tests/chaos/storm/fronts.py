"""The address of a server, as a process of its own that passes bytes on to it.

Killed, nobody listens and all connections end; stopped, connections are taken by the kernel and
nothing is answered; SIGUSR1 resets every connection. The server behind it is none the wiser, as
behind a load balancer. ``python -m tests.chaos.storm.fronts PORT UPSTREAM`` serves until its
standard input ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass

PIECE_BYTES = 1 << 16
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: closing resets the connection."""


def free_port() -> int:
    """A port nobody listens at now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@dataclass
class Front:
    """One address on loopback, before the server at `upstream`."""

    upstream: int
    port: int = 0
    _process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Listen, at the same port as before; returns once it does."""
        self.end()
        self.port = self.port or free_port()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.storm.fronts", str(self.port), str(self.upstream)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "listening\n"

    @property
    def pid(self) -> int:
        """Its process id, 0 while there is none."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else 0

    @property
    def url(self) -> str:
        """Where clients ask."""
        return f"http://127.0.0.1:{self.port}"

    def end(self) -> None:
        """Kill it, if it is there."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


class _Passing:
    """All connections of one address."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._open: set[asyncio.StreamWriter] = set()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on until either side ends it."""
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:
            writer.close()
            return
        self._open |= {writer, far_writer}
        await asyncio.gather(_pass(reader, far_writer), _pass(far_reader, writer))
        self._open -= {writer, far_writer}

    def reset(self) -> None:
        """Reset every connection on both sides."""
        for writer in self._open:
            told = writer.get_extra_info("socket")
            with suppress(OSError):
                told.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    writer.close()


async def _serve(port: int, upstream: int) -> None:
    passing = _Passing(upstream)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, passing.reset)
    server = await asyncio.start_server(passing.take, "127.0.0.1", port, reuse_address=True)
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    async with server:
        await asyncio.to_thread(_until_orphaned)
    os._exit(0)


def _until_orphaned() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
