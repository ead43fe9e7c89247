"""TLS connections, few and short: what the webhook's requests come in by.

Anybody on the cluster's network can connect; the API server must still be heard. There are never
more than so many connections, none older than its time, and when all are taken the oldest gives
way: a review takes milliseconds, so who is slow is who goes.

Certificate files are read again when they change, for the connections that come after; those that
were replaced only half, or by something else, leave the ones in use as they are.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import ssl
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from fleet import errors

CONNECTIONS_MAX = 64
"""Connections at once: an API server asks for each object that is made, and there are few."""
CONNECTION_WAIT_S = 10.0
"""Time, s, of a connection in all: twice what the API server waits for us."""
_POLL_S = 0.1
_LEAVING_S = 0.5
"""Time, s, a connection that was cut has to be gone."""

_log = logging.getLogger(__name__)
_Stamp = tuple[tuple[int, int, int], ...]


class Certificates:
    """A certificate and its key, as files that somebody else renews."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises `KeyUnusable` if they cannot be used now."""
        self._files = certificate, key
        self._lock = threading.Lock()
        try:
            self._stamp = self._seen()
            self._context = self._loaded()
        except (OSError, ValueError) as error:
            raise errors.KeyUnusable(
                f"{certificate} and {key} cannot be served with: {error}",
                remedy="name PEM files with a certificate (and its chain) and the key to it",
            ) from error

    def context(self) -> ssl.SSLContext:
        """What the next connection is served with."""
        with self._lock:
            try:
                stamp = self._seen()
                if stamp != self._stamp:
                    self._stamp = stamp
                    self._context = self._loaded()
                    _log.info("certificate %s was renewed", self._files[0])
            except (OSError, ValueError) as error:
                _log.warning("the certificate stays the one in use: %s", error)
            return self._context

    def _seen(self) -> _Stamp:
        found = [path.stat() for path in self._files]
        return tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in found)

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self._files)
        return context


class TlsServer(socketserver.ThreadingMixIn, HTTPServer):
    """Serves each connection in a thread of its own, within the limits. Used as its base is."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        place: tuple[str, int],
        requests: type[BaseHTTPRequestHandler],
        certificates: Certificates,
        *,
        wait_s: float = CONNECTION_WAIT_S,
        most: int = CONNECTIONS_MAX,
    ) -> None:
        """Raises OSError when the address cannot be had. `wait_s`: a connection's whole time."""
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._certificates = certificates
        self._wait_s, self._most = wait_s, most
        self._changed = threading.Condition()
        self._until: dict[ssl.SSLSocket, float] = {}
        """The end of each open connection's time (monotonic), oldest first; 0 once it was cut."""
        super().__init__(place, requests)

    def server_bind(self) -> None:
        """Without the base class's question to DNS, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def get_request(self) -> tuple[Any, Any]:
        """The next connection; its handshake is its own thread's, which alone waits for it."""
        plain, address = self.socket.accept()
        try:
            plain.settimeout(self._wait_s)
            found = self._certificates.context().wrap_socket(
                plain, server_side=True, do_handshake_on_connect=False
            )
        except BaseException:
            plain.close()
            raise
        return found, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve it, if it has a place."""
        if not self._has_place():
            super().shutdown_request(request)
            return
        with self._changed:
            self._until[request] = time.monotonic() + self._wait_s
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Called once for each connection, when its thread is done or could not be started."""
        with self._changed:
            # Forgotten and closed in one: what is cut is always a connection of ours still.
            self._until.pop(request, None)
            super().shutdown_request(request)
            self._changed.notify_all()

    def service_actions(self) -> None:
        """Called after each connection and every tenth of a second."""
        now = time.monotonic()
        with self._changed:
            for request in [one for one, until in self._until.items() if 0 < until <= now]:
                self._cut(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A connection that breaks is the client's affair."""
        _log.debug("the connection of %s failed", client_address, exc_info=True)

    def settle(self, wait_s: float) -> None:
        """Wait for the connections that are open, up to `wait_s` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._until, timeout=wait_s)

    def serve(self) -> None:
        """Serve until `shutdown`."""
        self.serve_forever(poll_interval=_POLL_S)

    def _has_place(self) -> bool:
        """Whether one more may come, after the oldest was cut if need be."""
        with self._changed:
            if len(self._until) >= self._most:
                oldest = next((one for one, until in self._until.items() if until), None)
                if oldest is not None:
                    self._cut(oldest)
            return self._changed.wait_for(lambda: len(self._until) < self._most, timeout=_LEAVING_S)

    def _cut(self, request: ssl.SSLSocket) -> None:
        """End a connection under its thread, which wakes, finds it ended and closes it."""
        self._until[request] = 0.0
        with suppress(OSError):
            # Not the TLS object's own, which would forget its keys under the thread that uses it.
            socket.socket.shutdown(request, socket.SHUT_RDWR)
