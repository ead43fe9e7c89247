"""Opening the stores that the settings name: a file, objects of the API server, or a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fleet.core import errors
from fleet.core.boot import kernel_boot_id
from fleet.core.clock import Clock, SystemClock
from fleet.core.settings import Settings, StoreKind
from fleet.kube.base import Cluster
from fleet.stores import aws, dynamodb_table
from fleet.stores.base import LeaseStore, RunStore
from fleet.stores.dynamodb import open_dynamodb_stores
from fleet.stores.kubernetes import open_kubernetes_stores
from fleet.stores.kubernetes_maps import Patience
from fleet.stores.sqlite import open_stores, store_path


class Stores(Protocol):
    """Both stores of one place, open."""

    @property
    def leases(self) -> LeaseStore:
        """The leases."""
        ...

    @property
    def runs(self) -> RunStore:
        """The campaign runs."""
        ...

    @property
    def initialised(self) -> bool:
        """Whether there is an epoch."""
        ...

    def close(self) -> None:
        """Let go of what is held between calls."""
        ...


Opener = Callable[[], Stores]
"""Opens stores. Raises any `FleetError` when they cannot be opened or must not be used now."""


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where the settings put the stores."""

    settings: Settings
    state: Path
    """State directory: the file of an SQLite store is in it."""
    kubeconfig: str = ""
    """The API server of a store on Kubernetes; "": that of the pod we run in, else the user's."""
    qps: float | None = None
    """Requests per second to that server; None: as a node (kubernetes.api_qps)."""

    @property
    def shared(self) -> bool:
        """Whether the stores are a cluster's: then only `fleet store init` makes them."""
        return self.settings.store.kind is not StoreKind.SQLITE

    @property
    def named(self) -> str:
        """The place as an operator names it."""
        store = self.settings.store
        if store.kind is StoreKind.KUBERNETES:
            return f"on Kubernetes, namespace {store.namespace}"
        if store.kind is StoreKind.DYNAMODB:
            where = store.endpoint or store.region or "the region of the environment"
            return f"on DynamoDB, table {store.table} ({where})"
        return str(store_path(self.state))

    def open(self, clock: Clock, cluster: Cluster | None = None) -> Stores:
        """Open them, over `cluster` if it is given and they are there; nothing is minted."""
        store = self.settings.store
        if store.kind is StoreKind.DYNAMODB:
            return open_dynamodb_stores(
                aws.Place(store.region, store.endpoint),
                store.table,
                clock=clock,
                patience=dynamodb_table.Patience(store.timeout_s),
            )
        if not self.shared:
            boot = kernel_boot_id() if isinstance(clock, SystemClock) else ""
            return open_stores(
                store_path(self.state), clock=clock, timeout_s=store.timeout_s, boot=boot
            )
        return open_kubernetes_stores(
            cluster or self._connected(),
            store.namespace,
            clock=clock,
            patience=Patience(store.timeout_s),
        )

    def opener(
        self, clock: Clock, *, expected: Callable[[], bool], cluster: Cluster | None = None
    ) -> Opener:
        """How a node opens them when it first asks.

        `expected` says whether there must be stores already: then no file is ever made anew. Stores
        of a cluster are never made by a node, and kept once open: what this process has seen of
        them is what a restored API server is found out by.
        """
        if self.shared:
            kept: list[Stores] = []

            def shared() -> Stores:
                if not kept:
                    kept.append(self.open(clock, cluster))
                return kept[0]

            return shared
        return lambda: self._open_file(clock, expected)

    def require(self) -> None:
        """Raises `StoreUnavailable` where the stores are a file of this host that is not there.

        A file system that is not mounted now must not get an empty store with a new epoch.
        """
        path = store_path(self.state)
        if not self.shared and not (path.is_file() and path.stat().st_size):
            raise errors.StoreUnavailable(
                f"the lease store {path} is not there",
                remedy="mount or restore it; after a restore run `fleet store adopt`. Where it is"
                " lost for good, `fleet store init` and then `fleet store adopt` begin a new one",
            )

    def _open_file(self, clock: Clock, expected: Callable[[], bool]) -> Stores:
        there_must_be = expected()
        if there_must_be:
            self.require()
        stores = self.open(clock)
        try:
            if not there_must_be:
                stores.leases.init()
        except BaseException:
            stores.close()
            raise
        return stores

    def _connected(self) -> Cluster:
        from fleet.kube import client  # takes 0.3 s to load: only where it is used

        kubernetes = self.settings.kubernetes
        return client.connect(
            self.kubeconfig or None,
            qps=self.qps or kubernetes.api_qps,
            timeout_s=min(kubernetes.api_timeout_s, self.settings.store.timeout_s),
        )
