"""`StandIn`: the engine behind HTTP, as a client of the real server meets it.

HTTP/1.1 with connections that stay open, chunked watches, content types checked, bearer tokens
that may be rotated, every request recorded, faults on request. Rules live in the engine, not here.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Iterable
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from fleet.kube.base import Listing, Object, Resource
from tests.lab.apiserver.access import ADMIN, Caller
from tests.lab.apiserver.connection import Connection
from tests.lab.apiserver.engine import Engine
from tests.lab.apiserver.http_faults import Faults, Recorded
from tests.lab.apiserver.refusal import bad_request, expired

BOOKMARK_S = 1.0
"""How often, s, an idle watch that asked for bookmarks gets one (a real server: a minute)."""


class StandIn:
    """An API server on loopback; a context manager. `engine` may be shared with a MemoryCluster."""

    def __init__(
        self, engine: Engine | None = None, *, port: int = 0, token: str = "", version: str = "1.36"
    ) -> None:
        """`token`: the first one accepted, for the administrator; random when empty."""
        self.engine = engine or Engine()
        self.faults = Faults()
        self.bookmark_s = BOOKMARK_S
        self.version = version
        self.hidden: set[Resource] = set()
        """Kinds this server does not serve."""
        first = token or secrets.token_hex(16)
        self._tokens = {first: Caller(ADMIN)}
        self._requests: list[Recorded] = []
        self._pages: dict[str, tuple[str, list[Object]]] = {}
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", port), Connection)
        self._server.standin = self
        self._thread = threading.Thread(
            target=lambda: self._server.serve_forever(poll_interval=0.02), daemon=True
        )
        self.closing = threading.Event()

    def __enter__(self) -> Self:
        """Serve."""
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Stop serving and close every connection."""
        self.close()

    def start(self) -> Self:
        """Serve; `close` ends it."""
        return self.__enter__()

    def close(self) -> None:
        """Stop serving and close every connection."""
        self.closing.set()
        with self.engine.changed:
            self.engine.changed.notify_all()
        self._server.shutdown()
        self._server.close_connections()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        """The port served on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Where the server is."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def requests(self) -> list[Recorded]:
        """Every request so far, in order of arrival."""
        with self._lock:
            return list(self._requests)

    @property
    def token(self) -> str:
        """The newest token accepted for the administrator."""
        with self._lock:
            return [token for token, caller in self._tokens.items() if caller.user == ADMIN][-1]

    def accept(self, token: str, caller: Caller | None = None) -> None:
        """Accept one more token."""
        with self._lock:
            self._tokens[token] = caller or Caller(ADMIN)

    def accept_only(self, tokens: Iterable[str]) -> None:
        """Accept these tokens, for the administrator, and no other: a rotation that has ended."""
        with self._lock:
            self._tokens = {token: Caller(ADMIN) for token in tokens}

    def caller_of(self, token: str) -> Caller | None:
        """Who a token stands for, None when it is not accepted."""
        with self._lock:
            return self._tokens.get(token)

    def kubeconfig(self, path: Path, *, token_file: Path | None = None) -> Path:
        """Write a kubeconfig to `path` (JSON is YAML); with `token_file` it names that file."""
        user: dict[str, str] = {"token": self.token}
        if token_file is not None:
            user = {"tokenFile": str(token_file)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "standin", "cluster": {"server": self.url}}],
            "users": [{"name": "admin", "user": user}],
            "contexts": [{"name": "standin", "context": {"cluster": "standin", "user": "admin"}}],
            "current-context": "standin",
        }
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return path

    def drop_connections(self) -> None:
        """Close every open connection, watches included; new ones are accepted."""
        self._server.close_connections()

    def expire_pages(self) -> None:
        """Forget the rest of every list that is being read page by page: 410 for its reader."""
        with self._lock:
            self._pages.clear()

    def record(self, request: Recorded) -> None:
        """Remember a request."""
        with self._lock:
            self._requests.append(request)

    def page(self, listing: Listing, *, limit: int) -> tuple[list[Any], str]:
        """The first `limit` items of a list (0: all) and the token for the rest."""
        return self._cut(listing.resource_version, list(listing.items), limit)

    def next_page(self, token: str, *, limit: int) -> tuple[list[Any], str, str]:
        """More items, the next token and the resourceVersion of the list. Raises 410."""
        if re.fullmatch("[0-9a-f]{16}", token) is None:
            raise bad_request("invalid continue token")
        with self._lock:
            found = self._pages.pop(token, None)
        if found is None:
            raise expired("The provided continue parameter is too old to display a consistent list")
        version, items = found
        page, rest = self._cut(version, items, limit)
        return page, rest, version

    def _cut(self, version: str, items: list[Object], limit: int) -> tuple[list[Any], str]:
        if not limit or len(items) <= limit:
            return items, ""
        token = secrets.token_hex(8)
        with self._lock:
            self._pages[token] = (version, items[limit:])
        return items[:limit], token


class _Server(ThreadingHTTPServer):
    """A server that knows its open connections."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128
    standin: StandIn

    def __init__(self, address: tuple[str, int], connection: type[Connection]) -> None:
        self._open: set[Any] = set()
        self._lock = threading.Lock()
        super().__init__(address, connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection and serve it in a thread of its own."""
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection."""
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        """Shut all connections down at once."""
        with self._lock:
            chosen = list(self._open)
        for request in chosen:
            try:
                request.shutdown(2)
            except OSError:
                continue
