"""A small port for probes and scrapers: fixed pages, made anew for each request.

It runs in threads of its own, so that it answers also when the plugin's event loop does not; then
saying so is what it is for.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from fleet import errors

REQUEST_WAIT_S = 5.0
"""Time, s, a client has to send its request and to take the answer."""
PLAIN = "text/plain; charset=utf-8"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    """One answer."""

    text: str
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = PLAIN


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
    """The standard server without its question to DNS, which takes seconds where none answers."""

    daemon_threads = True

    def __init__(self, host: str, port: int, requests: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), requests)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]


class HttpServer:
    """Serves pages from construction until `close`."""

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        """`port` 0 takes a free one. Raises `SocketTaken` when the address cannot be had."""
        requests = type("PageRequests", (_Requests,), {"pages": pages})
        try:
            self._server = _Server(host, port, requests)
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
