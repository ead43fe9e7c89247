"""The webhook: reviews by HTTPS, answered one by one, and two pages for probes.

What comes from the network is never trusted and never a reason to fail: what is no review gets a
4xx, a review that cannot be judged is denied. No review gets a 5xx: a configuration that lets
objects through when the webhook fails would take one for a yes.
"""

from __future__ import annotations

import json
import logging
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar, NoReturn

from fleet import errors
from fleet.admission.listening import CONNECTION_WAIT_S, Certificates, TlsServer
from fleet.admission.reviewing import FORBIDDEN, Reviewing

PATH = "/review"
BODY_MAX = 3 * 1024 * 1024
"""Bytes of a review: what the API server takes from a client at most."""
JUDGED_MAX = 4
"""Reviews judged at once; the rest wait, so that memory stays bounded."""
LEAVING_S = 3.0
"""Time, s, that reviews in work have at the end."""
_DISCARD_MAX = 4 * BODY_MAX
"""Bytes read of a body that is too large, so that the client gets to read why."""
_CHUNK = 1 << 16
_JSON = "application/json"

_log = logging.getLogger(__name__)


class _Refused(Exception):
    """The request is none that we answer."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


@dataclass(frozen=True, slots=True)
class Answers:
    """What the server answers from."""

    reviewing: Reviewing
    now: Callable[[], float]
    """Time, s since the epoch."""
    trouble: Callable[[], str]
    """Why it is not ready; "": it is."""


class _Requests(BaseHTTPRequestHandler):
    """One connection."""

    answers: ClassVar[Answers]
    slots: ClassVar[threading.Semaphore]
    protocol_version = "HTTP/1.1"
    server_version = "fleet-admission"
    sys_version = ""
    timeout = CONNECTION_WAIT_S

    def setup(self) -> None:
        super().setup()
        connection = self.connection
        if isinstance(connection, ssl.SSLSocket):
            connection.do_handshake()

    def do_GET(self) -> None:
        trouble = ""
        if self.path == "/readyz":
            trouble = self.answers.trouble()
        elif self.path != "/healthz":
            self._say(HTTPStatus.NOT_FOUND, "there are: /healthz /readyz, and POST " + PATH)
            return
        status = HTTPStatus.SERVICE_UNAVAILABLE if trouble else HTTPStatus.OK
        self._say(status, trouble or "ok")

    def do_POST(self) -> None:
        try:
            body = self._body()
            with self.slots:
                answer = self._answer(_parsed(body))
        except _Refused as refused:
            self._say(refused.status, refused.why)
            return
        self._send(HTTPStatus.OK, json.dumps(answer).encode(), _JSON)

    def _answer(self, review: Any) -> dict[str, Any]:
        try:
            return self.answers.reviewing.answer(review, now=self.answers.now())
        except errors.InputInvalid as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, str(error)) from error
        except Exception:  # noqa: BLE001 - whatever it is, it is no yes and no 5xx
            _log.exception("a review failed and is denied")
            return _denied(review)

    def _body(self) -> bytes:
        if self.path.partition("?")[0] != PATH:
            raise _Refused(HTTPStatus.NOT_FOUND, "reviews go to " + PATH)
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != _JSON:
            raise _Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"a review is {_JSON}")
        told = self.headers.get("Content-Length", "")
        if not told.isascii() or not told.isdigit() or len(told) > 18:
            raise _Refused(HTTPStatus.LENGTH_REQUIRED, "say how long it is: Content-Length")
        length = int(told)
        if length > BODY_MAX:
            self._discard(length)
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {BODY_MAX} bytes")
        body = self.rfile.read(length)
        if len(body) < length:
            raise _Refused(HTTPStatus.BAD_REQUEST, "the body ends early")
        return body

    def _discard(self, length: int) -> None:
        left = min(length, _DISCARD_MAX)
        while left > 0 and (part := self.rfile.read(min(left, _CHUNK))):
            left -= len(part)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class refuses: a method or a version that it does not know, a bad line."""
        known = HTTPStatus(code) if code < HTTPStatus.INTERNAL_SERVER_ERROR else None
        self._say(known or HTTPStatus.METHOD_NOT_ALLOWED, message or explain or "not understood")

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._send(status, text.encode("utf-8", "backslashreplace"), "text/plain; charset=utf-8")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        _log.debug(format, *args)


def _parsed(body: bytes) -> Any:
    def never(text: str) -> NoReturn:
        raise ValueError(f"{text} is no JSON")

    try:
        return json.loads(body, parse_constant=never)
    except (ValueError, RecursionError) as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, f"the body is no JSON: {error}") from error


def _denied(review: Any) -> dict[str, Any]:
    """A denial of a review that no judge could be found wrong with but by failing."""
    message = "fleetscrub's webhook failed on this object; see its log, and report it"
    status = {"status": "Failure", "reason": "Forbidden", "code": FORBIDDEN, "message": message}
    response = {"uid": review["request"]["uid"], "allowed": False, "status": status}
    return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}


class Webhook:
    """Serves reviews from construction until `close`."""

    def __init__(
        self,
        place: tuple[str, int],
        certificates: Certificates,
        reviewing: Reviewing,
        *,
        trouble: Callable[[], str] = lambda: "",
        now: Callable[[], float] = time.time,
        wait_s: float = CONNECTION_WAIT_S,
    ) -> None:
        """`place`: host and port, 0 takes a free one. Raises `SocketTaken`.

        `trouble`: why it is not ready; "": it is. `wait_s`: a connection's whole time.
        """
        answers = Answers(reviewing, now, trouble)
        fields = {
            "answers": answers,
            "slots": threading.BoundedSemaphore(JUDGED_MAX),
            "timeout": wait_s,
        }
        try:
            requests = type("ReviewRequests", (_Requests,), fields)
            self._server = TlsServer(place, requests, certificates, wait_s=wait_s)
        except OSError as error:
            raise errors.SocketTaken(
                f"{place[0]}:{place[1]} cannot be had: {error}",
                remedy="name another address with --listen",
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve, name="admission-webhook", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port served at."""
        return self._server.server_port

    def close(self) -> None:
        """Stop serving, once the reviews in work are answered; at most a few seconds."""
        self._server.shutdown()
        self._server.settle(LEAVING_S)
        self._server.server_close()
        self._thread.join()
