"""moto's server in a process of its own, made to keep its word (docs/dynamodb.md says where).

1. One request at a time: moto's transactions are not isolated from each other, and one that is
   cancelled puts back a copy of the whole table, with it the writes of all others since.
2. A cancelled transaction puts back its own items only: the copy of the whole table is left out,
   which also took time that grows with the table.
3. At tables named `tokens-...` a client token is carried out once, as the real service does for
   ten minutes. moto ignores it; at all others what the stores do on their own is tested.

`python -m tests.cloud.server` prints its port and serves until its standard input ends.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import BytesIO
from types import SimpleNamespace
from typing import Any, Self

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
REGION = "eu-central-1"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}
"""Environment of whoever talks to it."""


class CloudServer:
    """The process, started and stopped with the context."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, on the same port as before if it had one."""
        command = [sys.executable, "-m", "tests.cloud.server", "--port", str(self.port)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def stop(self) -> None:
        """End it; what it kept is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class OneAtATime:
    """Serialises requests, and remembers the client tokens that were carried out."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._lock = threading.Lock()
        self._done: set[str] = set()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        size = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(size)
        environ["wsgi.input"] = BytesIO(body)
        transaction = environ.get("HTTP_X_AMZ_TARGET", "").endswith(".TransactWriteItems")
        token = _token(json.loads(body)) if transaction else ""
        with self._lock:
            if token in self._done:
                start("200 OK", [("Content-Type", "application/x-amz-json-1.0")])
                return [b"{}"]
            statuses: list[str] = []

            def started(status: str, *rest: Any) -> Any:
                statuses.append(status)
                return start(status, *rest)

            answer = list(self._application(environ, started))
            if token and statuses[-1].startswith("200"):
                self._done.add(token)
            return answer


def _token(transaction: dict[str, Any]) -> str:
    tables = {op["TableName"] for item in transaction["TransactItems"] for op in item.values()}
    kept = all(name.startswith("tokens-") for name in tables)
    return transaction.get("ClientRequestToken", "") if kept else ""


def keep_others_writes() -> None:
    """Have a cancelled transaction put back its own items, and no copy of the whole table."""
    from moto.dynamodb import models
    from moto.dynamodb.models.table import Table

    def deepcopy(found: Any) -> Any:
        return found if isinstance(found, Table) else copy.deepcopy(found)

    backend = models.DynamoDBBackend
    original = backend.transact_write_items

    def transact(self: Any, transact_items: list[dict[str, Any]]) -> None:
        before = []
        for item in transact_items:
            (op,) = item.values()
            table = self.tables.get(op.get("TableName"))
            if table is not None:
                before.append((table, _keys(table, op.get("Key") or op["Item"])))
        kept = [(table, keys, copy.deepcopy(_item(table, keys))) for table, keys in before]
        try:
            original(self, transact_items)
        except Exception:
            for table, (pk, sk), item in kept:
                table.items[pk].pop(sk, None)
                if item is not None:
                    table.items[pk][sk] = item
            raise

    vars(models)["copy"] = SimpleNamespace(deepcopy=deepcopy, copy=copy.copy)
    type.__setattr__(backend, "transact_write_items", transact)


def _keys(table: Any, item: dict[str, Any]) -> tuple[Any, Any]:
    from moto.dynamodb.models.dynamo_type import DynamoType

    return DynamoType(item[table.hash_key_attr]), DynamoType(item[table.range_key_attr])


def _item(table: Any, keys: tuple[Any, Any]) -> Any:
    pk, sk = keys
    return table.items[pk].get(sk)


def main() -> None:
    """Serve until the standard input ends."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    class Quiet(MotoRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, *_: Any) -> None:
            return

        def finish(self) -> None:
            with suppress(ConnectionError):  # who asked was killed before the answer was out
                super().finish()

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    keep_others_writes()
    application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", given.port, application, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
