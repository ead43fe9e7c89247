"""The webhook: reviews by HTTPS, answered one by one, and two pages for probes.

What comes from the network is never trusted and never a reason to fail: what is no review gets a
4xx, a review that cannot be judged is denied. No review gets a 5xx: a configuration that lets
objects through when the webhook fails would take one for a yes.

Nothing is spent on a stranger that others could miss (F62): who must show a certificate and has
none is refused before the body is read, a body that is too much before it is parsed, and what is
judged next depends on what it costs and on what its source has cost (`fleet.admission.turns`).
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
from typing import Any, ClassVar, NoReturn

from fleet.admission.review import FORBIDDEN, Reviewing
from fleet.admission.tls import CONNECTION_WAIT_S, Certificates, TlsServer, caller_of
from fleet.admission.turns import Abandoned, Turns, parts
from fleet.core import errors
from fleet.core.listener import Requests, source_of

PATH = "/review"
BODY_MAX = 3 * 1024 * 1024
"""Bytes of a review: what the API server takes from a client at most."""
PARTS_MAX = 200_000
"""Lists, objects and entries of a body: what is more is not parsed. A review has an object of
60,000 values at most, what it was before, and who wrote which field of both."""
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
    turns: Turns
    asks: bool
    """Whether who asks for a review must show a certificate."""
    callers: frozenset[str]
    """Common names of those who may; empty: whoever the authority has signed for."""


class _Requests(Requests):
    """One connection."""

    answers: ClassVar[Answers]
    protocol_version = "HTTP/1.1"
    server_version = "fleet-admission"
    sys_version = ""
    timeout = CONNECTION_WAIT_S

    def setup(self) -> None:
        super().setup()
        connection = self.connection
        if isinstance(connection, ssl.SSLSocket):
            connection.do_handshake()
            if self.answers.asks and self._refusal() is None and isinstance(self.server, TlsServer):
                self.server.proven(connection)

    def do_GET(self) -> None:  # noqa: N802 - the base class's name
        trouble = ""
        if self.path == "/readyz":
            trouble = self.answers.trouble()
        elif self.path != "/healthz":
            self._say(HTTPStatus.NOT_FOUND, "there are: /healthz /readyz, and POST " + PATH)
            return
        status = HTTPStatus.SERVICE_UNAVAILABLE if trouble else HTTPStatus.OK
        self._say(status, trouble or "ok")

    def do_POST(self) -> None:  # noqa: N802 - the base class's name
        try:
            body = self._body()
            cost = _cost(body)
            source = source_of(self.client_address)
            with self.answers.turns.turn(self.connection, source, cost, wait_s=self.timeout):
                answer = self._answer(_parsed(body))
        except _Refused as refused:
            self._say(refused.status, refused.why)
            return
        except Abandoned:
            self.close_connection = True
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
        if refusal := self._refusal():
            raise refusal
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

    def _refusal(self) -> _Refused | None:
        """Why the caller is not answered; None: he is."""
        if not self.answers.asks:
            return None
        found = caller_of(self.connection) if isinstance(self.connection, ssl.SSLSocket) else None
        if found is None:
            return _Refused(
                HTTPStatus.UNAUTHORIZED,
                "reviews are for callers with a client certificate of --client-ca: give the API"
                " server one (docs/isolation-tags.md)",
            )
        if self.answers.callers and found not in self.answers.callers:
            return _Refused(HTTPStatus.FORBIDDEN, f"{found!r} is none of the --client-name")
        return None

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


def _cost(body: bytes) -> int:
    cost = parts(body)
    if cost > PARTS_MAX:
        raise _Refused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"{cost} lists, objects and entries; at most {PARTS_MAX}",
        )
    return cost


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
        callers: frozenset[str] = frozenset(),
    ) -> None:
        """`place`: host and port, 0 takes a free one. Raises `SocketTaken`.

        `trouble`: why it is not ready; "": it is. `wait_s`: a connection's whole time. `callers`:
        common names of client certificates, where `certificates` ask for them; empty: all.
        """
        turns = Turns()
        answers = Answers(reviewing, now, trouble, turns, certificates.asks, callers)
        fields = {"answers": answers, "timeout": wait_s}
        try:
            requests = type("ReviewRequests", (_Requests,), fields)
            self._server = TlsServer(
                place, requests, certificates, wait_s=wait_s, on_cut=turns.abandon
            )
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
