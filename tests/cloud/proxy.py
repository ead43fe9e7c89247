"""A proxy before the service that loses, delays and refuses as networks and services do."""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Fault(StrEnum):
    """What may become of one request."""

    LOSE_ANSWER = "lose-answer"
    """Carried out; the connection closes without an answer."""
    LOSE_REQUEST = "lose-request"
    """Not carried out; the connection closes."""
    DELAY = "delay"
    """The connection closes; carried out after the next request of the same operation."""
    THROTTLE = "throttle"
    CONFLICT = "conflict"
    BREAK = "break"
    """An error of the service (500) that says nothing of what was done: it was carried out."""
    LEAVE_OVER = "leave-over"
    """Of a batch of keys only the first is read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Rule = Callable[[str], Fault | None]
"""What happens to the next request of an operation."""


def by_chance(seed: int, rates: Mapping[Fault, float]) -> Rule:
    """Faults at these rates (their sum at most 1), for writes and reads alike."""
    chance = random.Random(seed)
    lock = threading.Lock()

    def rule(operation: str) -> Fault | None:
        with lock:
            point = chance.random()
        for fault, rate in rates.items():
            if fault is Fault.CONFLICT and operation != "TransactWriteItems":
                continue
            if point < rate:
                return fault
            point -= rate
        return None

    return rule


class Proxy:
    """Forwards to `port` on loopback; `rule` decides, after what was put in line with `next`."""

    def __init__(self, port: int, rule: Rule = lambda _: None) -> None:
        self.upstream = port
        self.rule = rule
        self.page_items = 0
        """Most items of one page of a query; 0: as many as the service gives."""
        self.calls: list[str] = []
        self._line: list[tuple[str, Fault]] = []
        self._before: dict[str, list[Callable[[], object]]] = {}
        self._late: list[tuple[str, bytes, dict[str, str]]] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _door(self))
        self._server.daemon_threads = True

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def next(self, operation: str, *faults: Fault) -> None:
        """What becomes of the next requests of an operation, one after the other."""
        with self._lock:
            self._line += [(operation, fault) for fault in faults]

    def before_next(self, operation: str, act: Callable[[], object]) -> None:
        """Run `act` before the next request of an operation is forwarded."""
        with self._lock:
            self._before.setdefault(operation, []).append(act)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, body: bytes, headers: dict[str, str]) -> Answer | None:
        """The answer to a request, or None when the connection is to be closed without one."""
        operation = headers.get("X-Amz-Target", "").rpartition(".")[2]
        with self._lock:
            self.calls.append(operation)
            acts = self._before.get(operation, [])
            act = acts.pop(0) if acts else None
            fault = next((one for name, one in self._line if name == operation), None)
            if fault is not None:
                self._line.remove((operation, fault))
        if act is not None:
            act()
        fault = fault or self.rule(operation)
        match fault:
            case Fault.LOSE_REQUEST:
                return None
            case Fault.DELAY:
                with self._lock:
                    self._late.append((operation, body, headers))
                return None
            case Fault.THROTTLE:
                return _error(400, "ProvisionedThroughputExceededException", {})
            case Fault.CONFLICT:
                count = len(json.loads(body)["TransactItems"])
                reasons = [{"Code": "TransactionConflict"}, *[{"Code": "None"}] * (count - 1)]
                told = {"CancellationReasons": reasons}
                return _error(400, "TransactionCanceledException", told)
            case Fault.LEAVE_OVER:
                return self._left_over(body, headers)
        answer = self._forward(self._paged(operation, body), headers)
        for late in self._take_late(operation):
            self._forward(late[1], late[2])
        if fault is Fault.LOSE_ANSWER:
            return None
        return _error(500, "InternalServerError", {}) if fault is Fault.BREAK else answer

    def _take_late(self, operation: str) -> list[tuple[str, bytes, dict[str, str]]]:
        with self._lock:
            late = [one for one in self._late if one[0] == operation]
            self._late = [one for one in self._late if one[0] != operation]
            return late

    def _paged(self, operation: str, body: bytes) -> bytes:
        if operation != "Query" or not self.page_items:
            return body
        return json.dumps({**json.loads(body), "Limit": self.page_items}).encode()

    def _left_over(self, body: bytes, headers: dict[str, str]) -> Answer:
        asked = json.loads(body)
        ((name, one),) = asked["RequestItems"].items()
        first = {**asked, "RequestItems": {name: {**one, "Keys": one["Keys"][:1]}}}
        answer = self._forward(json.dumps(first).encode(), headers)
        found: dict[str, Any] = json.loads(answer.body)
        if one["Keys"][1:]:
            found["UnprocessedKeys"] = {name: {**one, "Keys": one["Keys"][1:]}}
        return Answer(answer.status, {}, json.dumps(found).encode())

    def _forward(self, body: bytes, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=30)
        try:
            kept = {key: value for key, value in headers.items() if key != "Content-Length"}
            connection.request("POST", "/", body, kept)
            response = connection.getresponse()
            wanted = {key: value for key, value in response.getheaders() if "crc32" in key.lower()}
            return Answer(response.status, wanted, response.read())
        finally:
            connection.close()


def _error(status: int, code: str, told: Mapping[str, Any]) -> Answer:
    kind = f"com.amazonaws.dynamodb.v20120810#{code}"
    return Answer(status, {}, json.dumps({"__type": kind, "message": code, **told}).encode())


def _door(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one write for head and body: two of them wait 40 ms for each other

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                answer = proxy.answer(body, dict(self.headers.items()))
            except (OSError, http.client.HTTPException):
                answer = None
            if answer is None:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            return

    return Door
