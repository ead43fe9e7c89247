"""A proxy before S3 that loses, refuses and alters as networks and lesser services do."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class Fault(StrEnum):
    """What may become of one request."""

    LOSE_ANSWER = "lose-answer"
    """Carried out; the connection closes without an answer."""
    LOSE_REQUEST = "lose-request"
    """Not carried out; the connection closes."""
    CONFLICT = "409"
    SLOW_DOWN = "503"
    CUT = "cut"
    """Carried out; the body of the answer lacks its last byte."""


_CODES = {Fault.CONFLICT: "ConditionalRequestConflict", Fault.SLOW_DOWN: "SlowDown"}
Rule = Callable[[str, str], Fault | None]
"""What becomes of a request, by its method and its path with the query."""


@dataclass
class Lossy:
    """Forwards to `port` on loopback, after what was put in line with `next`."""

    port: int
    rule: Rule = lambda _method, _path: None
    dropped: tuple[str, ...] = ()
    """Headers of requests (their beginnings) that this service takes and ignores."""
    refused: tuple[str, ...] = ()
    """Headers of requests (their beginnings) that this service answers with 400 InvalidArgument."""
    demanded: tuple[str, ...] = ()
    """Headers (their beginnings) of which a PUT needs one, else 400 InvalidRequest."""
    listen: int = 0
    """Port it answers at; 0: any."""
    seen: list[tuple[str, str]] = field(default_factory=list)
    _line: list[tuple[str, Fault]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self.listen), _door(self))
        self._server.daemon_threads = True

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def next(self, method: str, *faults: Fault) -> None:
        """What becomes of the next requests of a method, one after the other."""
        with self._lock:
            self._line += [(method, fault) for fault in faults]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fault(self, method: str, path: str) -> Fault | None:
        """What becomes of this request."""
        with self._lock:
            self.seen.append((method, path))
            found = next((one for one in self._line if one[0] == method), None)
            if found is not None:
                self._line.remove(found)
                return found[1]
        return self.rule(method, path)


def _door(proxy: Lossy) -> type[BaseHTTPRequestHandler]:
    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = proxy.fault(self.command, self.path)
            names = [name.lower() for name in self.headers]
            lacking = self.command == "PUT" and "retention" not in self.path
            lacking &= bool(proxy.demanded) and not any(
                name.startswith(proxy.demanded) for name in names
            )
            if lacking or any(name.startswith(proxy.refused) for name in names if proxy.refused):
                code = "InvalidRequest" if lacking else "InvalidArgument"
                told = f"<Error><Code>{code}</Code><Message>a header</Message></Error>".encode()
                self._send(400, {"Content-Type": "application/xml"}, told)
                return
            if fault in _CODES:
                code = _CODES[fault]
                told = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
                self._send(int(fault), {"Content-Type": "application/xml"}, told)
                return
            if fault is Fault.LOSE_REQUEST:
                self.close_connection = True
                return
            try:
                status, headers, content = self._forward(body)
            except (OSError, http.client.HTTPException):
                self.close_connection = True
                return
            if fault is Fault.LOSE_ANSWER:
                self.close_connection = True
                return
            self._send(status, headers, content[:-1] if fault is Fault.CUT else content)

        def do_GET(self) -> None:
            self._pass()

        def do_PUT(self) -> None:
            self._pass()

        def do_HEAD(self) -> None:
            self._pass()

        def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=30)
            try:
                skipped = ("content-length", "expect", *proxy.dropped)
                kept = {
                    name: value
                    for name, value in self.headers.items()
                    if not name.lower().startswith(skipped)
                }
                connection.request(self.command, self.path, body, kept)
                response = connection.getresponse()
                return response.status, dict(response.getheaders()), response.read()
            finally:
                connection.close()

        def _send(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            return

    return Door
