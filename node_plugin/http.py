"""A small port for probes and scrapers: fixed pages, made anew for each request.

It runs in threads of its own, so that it answers also when the plugin's event loop does not; then
saying so is what it is for.

Anybody on the host's network can connect, and the plugin's descriptors are kubelet's first: there
are never more than `CONNECTIONS_MAX`, none older than one deadline, and when all are taken the
oldest gives way. A probe takes milliseconds, so who is slow is who goes.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, TypeAlias

from fleet import errors

REQUEST_WAIT_S = 5.0
"""Time, s, a client has in all, from connecting to having taken the answer."""
CONNECTIONS_MAX = 32
"""Connections at once; probes and scrapers need two."""
_LEAVING_S = 0.5
"""Time, s, a connection that was cut has to be gone; its thread has only to wake for it."""
PLAIN = "text/plain; charset=utf-8"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    """One answer."""

    text: str
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = PLAIN


_Request: TypeAlias = socket.socket | tuple[bytes, socket.socket]
Pages = Mapping[str, Callable[[], Page]]
"""Makers of pages by path. Called in any thread."""


class _Requests(BaseHTTPRequestHandler):
    """Answers GET with the pages of its class."""

    pages: ClassVar[Pages] = {}
    timeout = REQUEST_WAIT_S

    def do_GET(self) -> None:
        make = self.pages.get(self.path.partition("?")[0])
        if make is None:
            page = Page("no such page; there are: " + " ".join(self.pages), HTTPStatus.NOT_FOUND)
        else:
            try:
                page = make()
            except Exception:  # noqa: BLE001 - a probe must get an answer
                _log.exception("page %s failed", self.path)
                page = Page("the page failed; see the log", HTTPStatus.INTERNAL_SERVER_ERROR)
        body = page.text.encode()
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        _log.debug(format, *args)


class _Server(ThreadingHTTPServer):
    """The standard server with limits, and without its question to DNS, which may take seconds."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, host: str, port: int, requests: type[BaseHTTPRequestHandler], wait_s: float
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._until: dict[socket.socket, float] = {}
        """The end of each open connection's time (monotonic), oldest first; 0 once it was cut."""
        super().__init__((host, port), requests)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: _Request, client_address: object) -> None:
        if not self._has_place():
            super().shutdown_request(request)
            return
        with self._changed:
            self._until[_connection(request)] = time.monotonic() + self._wait_s
        super().process_request(request, client_address)

    def shutdown_request(self, request: _Request) -> None:
        """Called once for each connection, when its thread is done or could not be started."""
        with self._changed:
            # Forgotten and closed in one: what is cut is always a connection of ours still.
            self._until.pop(_connection(request), None)
            super().shutdown_request(request)
            self._changed.notify_all()

    def service_actions(self) -> None:
        """Called after each connection and every tenth of a second."""
        now = time.monotonic()
        with self._changed:
            for request in [one for one, until in self._until.items() if 0 < until <= now]:
                self._cut(request)

    def handle_error(self, request: _Request, client_address: object) -> None:  # noqa: ARG002
        _log.debug("the connection of %s failed", client_address, exc_info=True)

    def _has_place(self) -> bool:
        """Whether one more may come, after the oldest was cut if need be."""
        with self._changed:
            if len(self._until) >= CONNECTIONS_MAX:
                oldest = next((one for one, until in self._until.items() if until), None)
                if oldest is not None:
                    self._cut(oldest)
            return self._changed.wait_for(
                lambda: len(self._until) < CONNECTIONS_MAX, timeout=_LEAVING_S
            )

    def _cut(self, request: socket.socket) -> None:
        """End a connection under its thread, which wakes, finds it ended and closes it."""
        self._until[request] = 0.0
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


def _connection(request: _Request) -> socket.socket:
    """What the base class calls a request is a pair only where there are no connections."""
    return request if isinstance(request, socket.socket) else request[1]


class HttpServer:
    """Serves pages from construction until `close`."""

    def __init__(
        self, host: str, port: int, pages: Pages, *, wait_s: float = REQUEST_WAIT_S
    ) -> None:
        """`port` 0 takes a free one. Raises `SocketTaken` when the address cannot be had.

        `wait_s` is a connection's whole time.
        """
        requests = type("PageRequests", (_Requests,), {"pages": pages, "timeout": wait_s})
        try:
            self._server = _Server(host, port, requests, wait_s)
        except OSError as error:
            raise errors.SocketTaken(
                f"the port {host}:{port} cannot be had: {error}",
                remedy="set another address for probes and metrics",
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="plugin-http",
            daemon=True,
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port served at."""
        return self._server.server_port

    def close(self) -> None:
        """Stop serving; blocking, at most a few tenths of a second."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
