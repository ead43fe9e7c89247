"""One HTTP connection of the stand-in: requests in, answers and watches out."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from fleet.kube.base import CLAIMS, PODS, Name
from tests.lab.apiserver import addresses, discovery
from tests.lab.apiserver.access import Caller
from tests.lab.apiserver.addresses import Address
from tests.lab.apiserver.engine import APPLY_YAML, PATCH_TYPES, Options, Target
from tests.lab.apiserver.feeds import Feed
from tests.lab.apiserver.http_faults import Fault, Recorded
from tests.lab.apiserver.refusal import Refusal, bad_request, unsupported
from tests.lab.apiserver.removal import Preconditions

if TYPE_CHECKING:
    from tests.lab.apiserver.server import StandIn

WATCH_DEFAULT_S = 1800.0
PULSE_S = 0.25
RAW = re.compile(r'"parameters"\s*:\s*')
"""Begins JSON that the server keeps as it was sent: opaque parameters."""


class Connection(BaseHTTPRequestHandler):
    """Serves the requests of one connection, one after the other."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    @property
    def standin(self) -> StandIn:
        """The server this connection belongs to."""
        found: StandIn = self.server.standin  # type: ignore[attr-defined]
        return found

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing: requests are recorded instead."""

    def handle(self) -> None:
        """Serve until the peer goes away, however it does."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError, ValueError):
            self.close_connection = True

    def do_GET(self) -> None:
        """Serve a GET."""
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length) if length else b""
        scheme, _, token = (self.headers.get("Authorization") or "").partition(" ")
        content_type = (self.headers.get("Content-Type") or "").partition(";")[0].strip()
        body = _parsed(raw)
        request = Recorded(self.command, self.path, content_type, body, token)
        self.standin.record(request)
        fault = self.standin.faults.take(self.command, self.path)
        if fault.delay_s:
            time.sleep(fault.delay_s)
        if fault.drop == "before":
            self._hang_up()
            return
        if fault.status:
            self._faulty(fault)
            return
        caller = self.standin.caller_of(token) if scheme == "Bearer" else None
        try:
            self._answer_request(request, raw, self._named(caller), fault)
        except Refusal as refusal:
            if fault.drop == "after":
                self._hang_up()
            else:
                self._send(refusal.code, refusal.status())

    def _named(self, caller: Caller | None) -> Caller:
        """The field manager of a write that names none comes from the User-Agent."""
        if caller is None:
            raise Refusal(401, "Unauthorized", "Unauthorized")
        agent = (self.headers.get("User-Agent") or "").partition("/")[0]
        return Caller(caller.user, caller.node, agent or caller.manager)

    def _answer_request(self, request: Recorded, raw: bytes, caller: Caller, fault: Fault) -> None:
        known = discovery.document(request.path, self.standin)
        if known is not None:
            self._send(200, known)
            return
        address = addresses.parse(request.path, self._served())
        if address is None:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        if raw and request.body is None:
            raise bad_request("error decoding the body: it is no JSON")
        if request.method == "GET" and address.says("watch"):
            self._watch(address, caller, fault)
            return
        code, answer = self._act(request, address, caller)
        if address.resource == CLAIMS and request.method in ("POST", "PUT") and _is_spaced(raw):
            name = Name(answer["metadata"]["name"], answer["metadata"]["namespace"])
            self.standin.engine.keep_spaces(Target(CLAIMS, name))
        if fault.drop == "after":
            self._hang_up()
        else:
            self._send(code, answer)

    def _served(self) -> list[Any]:
        return [item for item in self.standin.engine.kinds if item not in self.standin.hidden]

    def _act(self, request: Recorded, address: Address, caller: Caller) -> tuple[int, Any]:
        engine = self.standin.engine
        target = Target(address.resource, address.name, address.subresource)
        options = self._options(request, address, caller)
        single = bool(address.name.name)
        if address.subresource and not self._has(address):
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        if request.method == "GET":
            return 200, engine.get(target, options) if single else self._list(address, options)
        if request.method == "DELETE":
            if single:
                return 200, self._delete(request, address, options)
            gone = engine.list(address.resource, address.selection, options)
            engine.delete_collection(address.resource, address.selection, options)
            return 200, self._listed(address, list(gone.items), gone.resource_version)
        if request.method == "PATCH" and single:
            existed = engine.has(target)
            found = engine.patch(target, request.content_type, request.body, options)
            return (200 if existed else 201), found
        if request.content_type not in ("", "application/json"):
            raise unsupported(["application/json", "application/yaml"])
        if not isinstance(request.body, dict):
            raise bad_request("the body is no object")
        if request.method == "POST" and not single:
            namespace = address.name.namespace
            found = engine.create(
                address.resource, request.body, namespace=namespace, options=options
            )
            return 201, found
        if request.method == "PUT" and single:
            existed = engine.has(target)
            return (200 if existed else 201), engine.replace(target, request.body, options)
        raise Refusal(
            405, "MethodNotAllowed", "the server does not allow this method on the requested"
            " resource",
        )  # fmt: skip

    def _options(self, request: Recorded, address: Address, caller: Caller) -> Options:
        manager = address.query.get("fieldManager", "")
        force = address.says("force") if "force" in address.query else None
        if request.method == "PATCH" and request.content_type not in PATCH_TYPES:
            raise unsupported(PATCH_TYPES)
        if request.content_type == APPLY_YAML:
            return Options(caller, manager=manager, force=bool(force))
        return Options(caller, manager=manager, force=force)

    def _has(self, address: Address) -> bool:
        kind = self.standin.engine.kinds[address.resource]
        return address.subresource == "status" and kind.has_status

    def _delete(self, request: Recorded, address: Address, options: Options) -> Any:
        target = Target(address.resource, address.name, address.subresource)
        asked = request.body if isinstance(request.body, Mapping) else {}
        guards = asked.get("preconditions") or {}
        grace = asked.get("gracePeriodSeconds")
        if grace is None:
            grace = address.number("gracePeriodSeconds")
        conditions = Preconditions(
            str(guards.get("uid") or ""), str(guards.get("resourceVersion") or ""), grace
        )
        engine = self.standin.engine
        found = engine.delete(target, conditions, options)
        told = target.resource == PODS or target.resource.group == "resource.k8s.io"
        if told or engine.has(target):
            return found
        details = {
            "name": target.name.name,
            "group": target.resource.group,
            "kind": target.resource.plural,
            "uid": found["metadata"]["uid"],
        }
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                "details": details}  # fmt: skip

    def _list(self, address: Address, options: Options) -> Any:
        limit = address.number("limit") or 0
        token = address.query.get("continue", "")
        if token:
            items, rest, version = self.standin.next_page(token, limit=limit)
        else:
            listing = self.standin.engine.list(address.resource, address.selection, options)
            version = listing.resource_version
            items, rest = self.standin.page(listing, limit=limit)
        found = self._listed(address, [*items, *self.standin.faults.junk], version)
        if rest:
            found["metadata"]["continue"] = rest
        return found

    def _listed(self, address: Address, items: list[Any], version: str) -> dict[str, Any]:
        """A list as the server sends it: its entries carry neither kind nor apiVersion."""
        plain = [
            {k: v for k, v in item.items() if k not in ("kind", "apiVersion")}
            if isinstance(item, dict)
            else item
            for item in items
        ]
        return {
            "kind": f"{address.resource.kind}List",
            "apiVersion": address.resource.api_version,
            "metadata": {"resourceVersion": version},
            "items": plain,
        }

    # --- watches -------------------------------------------------------------

    def _watch(self, address: Address, caller: Caller, fault: Fault) -> None:
        engine, options = self.standin.engine, Options(caller)
        since = address.query.get("resourceVersion", "")
        selection = address.selection
        initial: list[Any] = []
        if since in ("", "0"):
            listing = engine.list(address.resource, selection, options)
            since, initial = listing.resource_version, list(listing.items)
        feed = engine.watch(address.resource, selection, since=since, options=options)
        timeout_s = float(address.number("timeoutSeconds") or WATCH_DEFAULT_S)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        for found in initial:
            self._event("ADDED", json.dumps(found))
        self._pump(feed, address, time.monotonic() + timeout_s, fault)

    def _pump(self, feed: Feed, address: Address, deadline: float, fault: Fault) -> None:
        bookmarks, sent = address.says("allowWatchBookmarks"), time.monotonic()
        while (left := deadline - time.monotonic()) > 0 and not self.standin.closing.is_set():
            try:
                seen = feed.poll(min(left, PULSE_S))
            except Refusal as refusal:
                self._event("ERROR", json.dumps(refusal.status()))
                break
            for one in seen:
                self._event(str(one.change), one.text)
                if fault.drop == "during":
                    self._hang_up()
                    return
            if bookmarks and time.monotonic() - sent >= self.standin.bookmark_s:
                sent = time.monotonic()
                self._bookmark(feed, address)
            if self._peer_gone():
                self.close_connection = True
                return
        self._chunk(b"")

    def _bookmark(self, feed: Feed, address: Address) -> None:
        mark = {
            "kind": address.resource.kind,
            "apiVersion": address.resource.api_version,
            "metadata": {"resourceVersion": str(feed.version), "creationTimestamp": None},
        }
        self._event("BOOKMARK", json.dumps(mark))

    def _peer_gone(self) -> bool:
        """Whether the reader of a watch has closed its end: then nobody needs it."""
        try:
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _event(self, kind: str, text: str) -> None:
        self._chunk(f'{{"type":"{kind}","object":{text}}}\n'.encode())

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.wfile.flush()

    # --- answers ---------------------------------------------------------------

    def _faulty(self, fault: Fault) -> None:
        if isinstance(fault.body, bytes):
            self._send_bytes(fault.status, fault.body, fault.headers)
            return
        reasons = {429: "TooManyRequests", 503: "ServiceUnavailable", 504: "Timeout"}
        reason = reasons.get(fault.status, "InternalError")
        body = fault.body or Refusal(fault.status, reason, "injected").status()
        self._send_bytes(fault.status, json.dumps(body).encode(), fault.headers)

    def _send(self, code: int, answer: Any) -> None:
        self._send_bytes(code, json.dumps(answer, ensure_ascii=False).encode(), {})

    def _send_bytes(self, code: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def _hang_up(self) -> None:
        """Close without an answer; the peer sees a broken connection."""
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


def _is_spaced(raw: bytes) -> bool:
    """Whether opaque parameters of a body are not spelled as JSON is written without spaces."""
    text, decoder = raw.decode(), json.JSONDecoder()
    for begin in RAW.finditer(text):
        value, end = decoder.raw_decode(text, begin.end())
        plain = [json.dumps(value, separators=(",", ":"), ensure_ascii=one)
                 for one in (False, True)]  # fmt: skip
        if re.sub(r"\\u00(3c|3e|26)", _mark, text[begin.end() : end]) not in plain:
            return True
    return False


def _mark(found: re.Match[str]) -> str:
    return chr(int(found[1], 16))


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else None
    except ValueError:
        return None
