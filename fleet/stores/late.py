"""The lease store as a node sees it: opened late, and again after it was away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from fleet import errors
from fleet.clock import Clock
from fleet.leases import AcquireRequest
from fleet.model import Lease, Token
from fleet.stores.base import LeaseStore, Release, Renewal
from fleet.stores.sqlite import Stores, open_stores

_T = TypeVar("_T")


class LateStore:
    """A node's view of the lease store, opened when first asked.

    A store that is away must not keep a node from coming up and tearing claims down. One that
    failed is opened anew at the next call, so that a file put back is found.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        timeout_s: float,
        expected: Callable[[], bool] = lambda: False,
    ) -> None:
        """`expected` says whether there must be a store already: then none is ever made anew."""
        self._path = path
        self._expected = expected
        self._timeout_s = timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._stores: Stores | None = None

    def newest(self) -> Token:
        """The epoch and the last counter issued."""
        return self._ask(lambda leases: leases.newest())

    def leases(self) -> Sequence[Lease]:
        """The leases in force."""
        return self._ask(lambda leases: leases.leases())

    def acquire(self, requests: Sequence[AcquireRequest]) -> Sequence[Lease | errors.FleetError]:
        """Grant each request, or say why not."""
        return self._ask(lambda leases: leases.acquire(requests))

    def renew(self, renewals: Sequence[Renewal]) -> Sequence[Lease | errors.FleetError]:
        """Prolong leases that carry a ttl."""
        return self._ask(lambda leases: leases.renew(renewals))

    def release(self, releases: Sequence[Release]) -> Sequence[bool | errors.FleetError]:
        """Give leases back by token."""
        return self._ask(lambda leases: leases.release(releases))

    def close(self) -> None:
        """Close the file; the next call would open it again."""
        with self._lock:
            self._drop()

    def _ask(self, question: Callable[[LeaseStore], _T]) -> _T:
        with self._lock:
            try:
                if self._stores is None:
                    self._refuse_absent()
                    self._stores = open_stores(
                        self._path, clock=self._clock, timeout_s=self._timeout_s
                    )
                    self._stores.leases.init()
                return question(self._stores.leases)
            except errors.FleetError as error:
                self._drop()
                if isinstance(error, errors.StoreUnavailable):
                    raise
                raise errors.StoreUnavailable(error.detail, remedy=error.remedy) from error

    def _refuse_absent(self) -> None:
        """A file system that is not mounted now must not get an empty store with a new epoch."""
        if self._expected() and not (self._path.is_file() and self._path.stat().st_size):
            raise errors.StoreUnavailable(
                f"the lease store {self._path} is not there",
                remedy="mount or restore it; after a restore run `fleet store adopt`",
            )

    def _drop(self) -> None:
        if self._stores is not None:
            self._stores.database.close()
            self._stores = None
