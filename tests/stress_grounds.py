"""The stores that are put under stress, each on its own ground: opened with faults, copied, put
back as an older copy.

Faults come by chance between store and service: answers and requests lost, throttling, conflicts,
errors of the service. SQLite has its own: eight processes wait for one lock. Memory has threads.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fleet.core.clock import SystemClock
from fleet.kube.base import CONFIGMAPS, Name, Object
from fleet.stores import aws
from fleet.stores.base import LeaseStore
from fleet.stores.dynamodb import open_dynamodb_stores
from fleet.stores.dynamodb_table import Patience as DynamodbPatience
from fleet.stores.kubernetes import NAME, open_kubernetes_stores
from fleet.stores.kubernetes_maps import Patience
from fleet.stores.sqlite import open_stores
from tests.cloud import proxy
from tests.cloud.server import CREDENTIALS, REGION, CloudServer
from tests.lab.apiserver.http_faults import Fault, Faults
from tests.lab.stores import MemoryLeaseStore

if TYPE_CHECKING:
    from tests.lab.apiserver.server import StandIn

TIMEOUT_S = 20.0
TABLE = "stress"
NAMESPACE = "default"
RATES = {
    proxy.Fault.LOSE_ANSWER: 0.02,
    proxy.Fault.LOSE_REQUEST: 0.01,
    proxy.Fault.DELAY: 0.005,
    proxy.Fault.THROTTLE: 0.03,
    proxy.Fault.BREAK: 0.005,
    proxy.Fault.CONFLICT: 0.03,
}
"""Of 100 requests to DynamoDB, those that meet each fault."""


@dataclass(frozen=True, slots=True)
class Spec:
    """How a process opens the store; crosses to other processes."""

    kind: str
    place: str
    port: int = 0


class Ground(Protocol):
    """One store, from outside."""

    spec: Spec

    def copy(self) -> Any:
        """What it keeps now; nobody may be using it."""
        ...

    def put_back(self, copied: Any) -> None:
        """Have it keep what it kept then."""
        ...


@contextmanager
def opened(spec: Spec, seed: int) -> Iterator[LeaseStore]:
    """The store as a process of its own opens it, over a bad net; `seed` decides the faults."""
    clock = SystemClock()
    with ExitStack() as stack:
        if spec.kind == "memory":
            yield MEMORY[spec.place]
        elif spec.kind == "sqlite":
            stores = open_stores(Path(spec.place), clock=clock, timeout_s=TIMEOUT_S)
            stack.callback(stores.close)
            yield stores.leases
        elif spec.kind == "kubernetes":
            from fleet.kube.client import connect  # takes long to load: only where it is used

            cluster = connect(spec.place, qps=10_000.0, timeout_s=TIMEOUT_S)
            patience = Patience(TIMEOUT_S, away_s=TIMEOUT_S)
            yield open_kubernetes_stores(cluster, NAMESPACE, clock=clock, patience=patience).leases
        else:
            os.environ.update(CREDENTIALS)
            rule = proxy.by_chance(seed, RATES)
            net = stack.enter_context(proxy.Proxy(spec.port, rule))
            place = aws.Place(REGION, net.endpoint)
            patience_ = DynamodbPatience(TIMEOUT_S)
            yield open_dynamodb_stores(place, spec.place, clock=clock, patience=patience_).leases


@contextmanager
def ground(kind: str, seed: int, cloud: CloudServer | None = None) -> Iterator[Ground]:
    """A new store of this kind, with an epoch; a table of `cloud`, if it is given."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found: Ground
        if kind == "memory":
            found = _Memory()
        elif kind == "sqlite":
            found = _File(folder / "store.db")
        elif kind == "kubernetes":
            from tests.lab.apiserver.server import StandIn

            found = _Cluster(stack.enter_context(StandIn()), folder, seed)
        else:
            os.environ.update(CREDENTIALS)
            found = _Cloud(cloud or stack.enter_context(CloudServer()))
        with opened(found.spec, seed) as store:
            store.init()
        yield found


MEMORY: dict[str, MemoryLeaseStore] = {}


@dataclass(slots=True)
class _Memory:
    """Threads of this process share it."""

    spec: Spec = field(default_factory=lambda: Spec("memory", "one"))

    def __post_init__(self) -> None:
        MEMORY["one"] = MemoryLeaseStore(SystemClock())

    def copy(self) -> Any:
        store = MEMORY["one"]
        return copy.copy((store._stored, dict(store._rows)))

    def put_back(self, copied: Any) -> None:
        store = MEMORY["one"]
        store._stored, store._rows = copied[0], dict(copied[1])


class _File:
    """A file of this host."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.spec = Spec("sqlite", str(path))

    def copy(self) -> Any:
        parts = self._path.parent.glob(f"{self._path.name}*")
        return {part.name: part.read_bytes() for part in parts if part.is_file()}

    def put_back(self, copied: Any) -> None:
        for part in self._path.parent.glob(f"{self._path.name}*"):
            if part.is_file():
                part.unlink()
            else:
                shutil.rmtree(part)
        for name, content in copied.items():
            (self._path.parent / name).write_bytes(content)


class _Chance(Faults):
    """Faults of an API server by chance."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(seed)

    def take(self, method: str, path: str) -> Fault:
        with self._lock:
            point = self._chance.random()
        if "configmaps" not in path or point >= 0.1:
            return Fault()
        if point < 0.02:
            return Fault(drop="after")
        if point < 0.03:
            return Fault(drop="before")
        if point < 0.06 and method == "PUT":
            return Fault(status=409)
        if point < 0.07:
            return Fault(status=429, headers={"Retry-After": "0"})
        return Fault()


class _Cluster:
    """An object of the stand-in's API server."""

    def __init__(self, server: StandIn, folder: Path, seed: int) -> None:
        self._engine = server.engine
        server.faults = _Chance(seed)
        self.spec = Spec("kubernetes", str(server.kubeconfig(folder / "kubeconfig")))

    def copy(self) -> Any:
        from tests.lab.apiserver.cluster import MemoryCluster

        return MemoryCluster(self._engine).get(CONFIGMAPS, Name(NAME, NAMESPACE))

    def put_back(self, copied: Object) -> None:
        self._engine.seed(CONFIGMAPS, copied)


class _Cloud:
    """A table of moto's server."""

    def __init__(self, server: CloudServer) -> None:
        self.spec = Spec("dynamodb", TABLE, server.port)
        self._client = aws.dynamodb(aws.Place(REGION, server.endpoint), timeout_s=60.0)

    def copy(self) -> Any:
        return [item for page in self._pages() for item in page["Items"]]

    def put_back(self, copied: list[Mapping[str, Any]]) -> None:
        for page in self._pages():
            for item in page["Items"]:
                key = {name: item[name] for name in ("pk", "sk")}
                self._client.delete_item(TableName=TABLE, Key=key)
        for item in copied:
            self._client.put_item(TableName=TABLE, Item=item)

    def _pages(self) -> Iterator[Any]:
        yield from self._client.get_paginator("scan").paginate(TableName=TABLE)
