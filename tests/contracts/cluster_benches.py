"""Two clusters behind one port: the in-memory twin, and the client against the stand-in."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Protocol

from fleet.core.clock import ManualClock
from fleet.core.errors import ApiUnavailable
from fleet.kube.base import CLAIMS, Cluster, Name, Object
from fleet.kube.client import connect
from tests.lab.apiserver.access import Access, Caller
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine
from tests.lab.apiserver.http_faults import Fault
from tests.lab.apiserver.server import StandIn

START = 1_764_000_000.0
METHODS = {
    "get": "GET",
    "list": "GET",
    "create": "POST",
    "replace": "PUT",
    "apply": "PATCH",
    "patch": "PATCH",
    "delete": "DELETE",
}
STRANGER = "system:serviceaccount:kube-system:stranger"


def engine() -> Engine:
    """A server that knows one field nobody else knows yet (B19)."""
    return Engine(
        clock=ManualClock(START), access=Access(), extra_fields={CLAIMS: ("status.futureField",)}
    )


class Bench(Protocol):
    """A cluster and what may happen to it."""

    engine: Engine

    @property
    def cluster(self) -> Cluster:
        """The port, as the administrator."""
        ...

    def stranger(self) -> Cluster:
        """The port, as somebody without rights; `engine.access` may give some."""
        ...

    def lose_answer(self, verb: str) -> None:
        """The next call of `verb` is carried out, but its answer is lost."""
        ...

    def refuse(self, verb: str) -> None:
        """The next call of `verb` meets a server that is not available."""
        ...

    def break_watches(self) -> None:
        """Close the connections of all watches."""
        ...

    def go_offline(self) -> None:
        """No call gets through any more."""
        ...

    def close(self) -> None:
        """End."""
        ...


class MemoryBench:
    """The twin."""

    def __init__(self) -> None:
        """A new engine."""
        self.engine = engine()
        self._cluster = MemoryCluster(self.engine)

    @property
    def cluster(self) -> Cluster:
        """As `Bench.cluster`."""
        return self._cluster

    def stranger(self) -> Cluster:
        """As `Bench.stranger`."""
        return MemoryCluster(self.engine, caller=Caller(STRANGER, manager="stranger"))

    def lose_answer(self, verb: str) -> None:
        """As `Bench.lose_answer`."""
        self._cluster.faults.lose_answer_next(verb)

    def refuse(self, verb: str) -> None:
        """As `Bench.refuse`."""
        self._cluster.faults.fail_next(verb, ApiUnavailable("injected"))

    def break_watches(self) -> None:
        """As `Bench.break_watches`."""
        self._cluster.break_watches()

    def go_offline(self) -> None:
        """As `Bench.go_offline`."""
        self._cluster.faults.offline = True

    def close(self) -> None:
        """As `Bench.close`."""


class ClientBench:
    """The product's client against the stand-in."""

    def __init__(self, folder: Path) -> None:
        """`folder` takes the kubeconfigs."""
        self.engine = engine()
        self._folder = folder
        self._standin = StandIn(self.engine).start()
        path = self._standin.kubeconfig(folder / "admin.kubeconfig")
        self._cluster = connect(str(path), qps=5000, timeout_s=5)

    @property
    def cluster(self) -> Cluster:
        """As `Bench.cluster`."""
        return self._cluster

    def stranger(self) -> Cluster:
        """As `Bench.stranger`."""
        file = self._folder / "token"
        file.write_text(secrets.token_hex(8))
        self._standin.accept(file.read_text(), Caller(STRANGER))
        path = self._folder / "stranger.kubeconfig"
        return connect(str(self._standin.kubeconfig(path, token_file=file)), qps=5000, timeout_s=5)

    def lose_answer(self, verb: str) -> None:
        """As `Bench.lose_answer`."""
        self._standin.faults.add(Fault(METHODS[verb], drop="after"))

    def refuse(self, verb: str) -> None:
        """As `Bench.refuse`."""
        self._standin.faults.add(Fault(METHODS[verb], status=503))

    def break_watches(self) -> None:
        """As `Bench.break_watches`."""
        self._standin.drop_connections()

    def go_offline(self) -> None:
        """As `Bench.go_offline`."""
        self._standin.faults.keep(Fault(drop="before"))
        self._standin.drop_connections()

    def close(self) -> None:
        """As `Bench.close`."""
        self._cluster.close()
        self._standin.close()


def claim(name: str, **metadata: object) -> Object:
    """The body of a claim in the namespace default."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {
            "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpus"}}]}
        },
    }


def status(name: str, *entries: Object, **metadata: object) -> Object:
    """What an apply to the status of a claim sends."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "status": {"devices": list(entries)},
    }


def device(name: str, driver: str = "gpu.example.com", **fields: object) -> Object:
    """An entry of status.devices, and a result of an allocation without its request."""
    return {"driver": driver, "pool": "node-1", "device": name, **fields}


def condition(value: str = "True", kind: str = "x.example.com/Sanitized") -> Object:
    """A condition."""
    return {
        "type": kind,
        "status": value,
        "reason": "Done",
        "message": "",
        "lastTransitionTime": "2026-11-29T13:13:23Z",
    }


def slice_of(node: str, *names: str, driver: str = "gpu.example.com") -> Object:
    """The body of a slice with these devices."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": f"00000-{driver}-{node}-"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": name} for name in names],
        },
    }


def allocated(bench: Bench, *names: str, name: str = "a") -> Object:
    """A claim with these devices allocated."""
    bench.cluster.create(CLAIMS, claim(name))
    found = bench.cluster.get(CLAIMS, Name(name, "default"))
    results = [{"request": "gpu", **device(item)} for item in names]
    found["status"] = {"allocation": {"devices": {"results": results}}}
    return bench.cluster.replace(CLAIMS, found, subresource="status")
