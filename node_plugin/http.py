"""A small port for probes and scrapers: fixed pages, made anew for each request.

It runs in threads of its own, so that it answers also when the plugin's event loop does not; then
saying so is what it is for.

Anybody on the host's network can connect, and the plugin's descriptors and its processor are
kubelet's first: connections are few and short (`fleet.core.listener`), and a page that is costly to
make is kept for a few times that long, so that nobody can have it made all the time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import ClassVar

from fleet.core import errors
from fleet.core.listener import Listener, Requests

REQUEST_WAIT_S = 5.0
"""Time, s, a client has in all, from connecting to having taken the answer."""
CONNECTIONS_MAX = 32
"""Connections at once; probes and scrapers need two."""
COSTLY_S = 0.01
"""Processor time, s, from which on a page is kept."""
KEPT_TIMES = 4
"""For how many times the time it took to make a costly page is kept: a fifth of one processor is
what all who ask for it can take."""
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


class _Maker:
    """Makes one page; a costly one for one caller at a time, and it is kept for a while.

    One that only waits (for an event loop that hangs) is made for all at once, and never kept.
    """

    def __init__(self, make: Callable[[], Page]) -> None:
        self._make = make
        self._turn = threading.Lock()
        self._costly = False
        self._kept: Page | None = None
        self._until = 0.0

    def __call__(self) -> Page:
        """The page, as it is or was a moment ago."""
        if not self._costly:
            return self._made()
        with self._turn:
            kept = self._kept
            return kept if kept is not None and time.monotonic() < self._until else self._made()

    def _made(self) -> Page:
        begun = time.thread_time()
        page = self._make()
        spent_s = time.thread_time() - begun
        self._costly = spent_s >= COSTLY_S
        self._kept = page if self._costly else None
        self._until = time.monotonic() + spent_s * KEPT_TIMES
        return page


class _Requests(Requests):
    """Answers GET with the pages of its class."""

    pages: ClassVar[Pages] = {}
    timeout = REQUEST_WAIT_S

    def do_GET(self) -> None:  # noqa: N802 - the base class's name
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


class HttpServer:
    """Serves pages from construction until `close`."""

    def __init__(
        self, host: str, port: int, pages: Pages, *, wait_s: float = REQUEST_WAIT_S
    ) -> None:
        """`port` 0 takes a free one. Raises `SocketTaken` when the address cannot be had.

        `wait_s` is a connection's whole time.
        """
        makers = {path: _Maker(make) for path, make in pages.items()}
        requests = type("PageRequests", (_Requests,), {"pages": makers, "timeout": wait_s})
        try:
            self._server = Listener((host, port), requests, wait_s=wait_s, most=CONNECTIONS_MAX)
        except OSError as error:
            raise errors.SocketTaken(
                f"the port {host}:{port} cannot be had: {error}",
                remedy="set another address for probes and metrics",
            ) from error
        self._thread = threading.Thread(target=self._server.serve, name="plugin-http", daemon=True)
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
