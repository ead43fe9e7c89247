"""Connections of anybody, few and short: what all ports of ours are served by.

Anybody on the network can connect, and those who matter must still be heard. There are never more
than so many connections and none older than its time. When all are taken one gives way: the oldest
of whoever has the most, and never that of a caller who has proven who he is for one who has not.
So a flood takes places from itself.
"""

from __future__ import annotations

import http.client
import logging
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BufferedIOBase
from typing import Any

HEAD_MAX = 32 * 1024
"""Bytes of a request before its body. The library takes 6 MiB, and holds them three times, of each
stranger."""
LEAVING_S = 0.5
"""Time, s, a connection that was cut has to be gone; its thread has only to wake for it."""
POLL_S = 0.1

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Place:
    """One open connection. `until`: the end of its time (monotonic), 0 once it was cut."""

    source: str
    until: float
    proven: bool = False


class _Head:
    """The head of a request, as it is read: so many bytes and no more."""

    def __init__(self, file: BufferedIOBase, left: int) -> None:
        self._file, self._left = file, left

    def readline(self, most: int) -> bytes:
        """The next line. Raises `LineTooLong`."""
        line = self._file.readline(max(0, min(most, self._left + 1)))
        self._left -= len(line)
        if self._left < 0:
            raise http.client.LineTooLong("header line")
        return line


class Requests(BaseHTTPRequestHandler):
    """What answers the requests of one connection."""

    raw_requestline: bytes

    def parse_request(self) -> bool:
        """As its base does, which answers what is too long with 431."""
        file = self.rfile
        self.rfile = _Head(file, HEAD_MAX - len(self.raw_requestline))  # type: ignore[assignment] # it only reads lines
        try:
            return super().parse_request()
        finally:
            self.rfile = file


class Listener(socketserver.ThreadingMixIn, HTTPServer):
    """Serves each connection in a thread of its own, within the limits. Used as its base is."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        place: tuple[str, int],
        requests: type[Requests],
        *,
        wait_s: float,
        most: int,
        on_cut: Callable[[Any], None] = lambda _: None,
    ) -> None:
        """Raises OSError when the address cannot be had. `wait_s`: a connection's whole time.

        `on_cut` hears of each connection that gives way, which its own thread may not notice.
        """
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._wait_s, self._most, self._on_cut = wait_s, most, on_cut
        self._changed = threading.Condition()
        self._places: dict[Any, _Place] = {}
        """Oldest first."""
        super().__init__(place, requests)

    def server_bind(self) -> None:
        """Without the base class's question to DNS, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve it, if it has a place."""
        source = source_of(client_address)
        if not self._has_place(source):
            super().shutdown_request(request)
            return
        with self._changed:
            self._places[request] = _Place(source, time.monotonic() + self._wait_s)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Called once for each connection, when its thread is done or could not be started."""
        with self._changed:
            # Forgotten and closed in one: what is cut is always a connection of ours still.
            self._places.pop(request, None)
            super().shutdown_request(request)
            self._changed.notify_all()

    def service_actions(self) -> None:
        """Called after each connection and every tenth of a second."""
        now = time.monotonic()
        with self._changed:
            for request in [one for one, at in self._places.items() if 0 < at.until <= now]:
                self._cut(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A connection that breaks is the client's affair."""
        _log.debug("the connection of %s failed", client_address, exc_info=True)

    def proven(self, request: Any) -> None:
        """The caller has proven who he is: his place is not given to one who has not."""
        with self._changed:
            if request in self._places:
                self._places[request].proven = True

    def settle(self, wait_s: float) -> None:
        """Wait for the connections that are open, up to `wait_s` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._places, timeout=wait_s)

    def serve(self) -> None:
        """Serve until `shutdown`."""
        self.serve_forever(poll_interval=POLL_S)

    def _has_place(self, source: str) -> bool:
        """Whether one more may come, after another was cut if need be."""
        with self._changed:
            if len(self._places) >= self._most:
                yielding = self._yielding(source)
                if yielding is not None:
                    self._cut(yielding)
            return self._changed.wait_for(lambda: len(self._places) < self._most, timeout=LEAVING_S)

    def _yielding(self, source: str) -> Any | None:
        """Whose place it is that a connection of `source` gets; None: one is free soon anyway."""
        if any(not at.until for at in self._places.values()):
            return None
        strangers = {one: at for one, at in self._places.items() if not at.proven}
        among = strangers or self._places
        count = Counter(at.source for at in among.values())
        count[source] += 1
        most = max(count[at.source] for at in among.values())
        return next(one for one, at in among.items() if count[at.source] == most)

    def _cut(self, request: Any) -> None:
        """End a connection under its thread, which wakes, finds it ended and closes it."""
        self._places[request].until = 0.0
        with suppress(OSError):
            # Not a TLS object's own, which would forget its keys under the thread that uses it.
            socket.socket.shutdown(request, socket.SHUT_RDWR)
        self._on_cut(request)


def source_of(address: Any) -> str:
    """Who a connection is from, as far as its address tells."""
    return str(address[0]) if isinstance(address, tuple) and address else str(address)
