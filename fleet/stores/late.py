"""The lease store as a node sees it: opened late, and again after it was away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, Lease, Token, UnitId
from fleet.stores.base import LeaseStore, Release, Renewal
from fleet.stores.factory import Opener, Stores

_T = TypeVar("_T")


class LateStore:
    """A node's view of the lease store, opened when first asked.

    A store that is away must not keep a node from coming up and tearing claims down. One that
    failed is opened anew at the next call, so that a file put back is found.
    """

    def __init__(self, opener: Opener) -> None:
        """`opener` opens the stores, or says why they are not to be had now."""
        self._opener = opener
        self._lock = threading.Lock()
        self._stores: Stores | None = None

    def newest(self) -> Token:
        """The epoch and the last counter issued."""
        return self._ask(lambda leases: leases.newest())

    def leases(self) -> Sequence[Lease]:
        """The leases in force."""
        return self._ask(lambda leases: leases.leases())

    def held_by(self, holders: Collection[Holder]) -> Sequence[Lease]:
        """The leases in force of these holders, by token."""
        return self._ask(lambda leases: leases.held_by(holders))

    def holder(self, unit: UnitId) -> Lease | None:
        """The lease in force on `unit`."""
        return self._ask(lambda leases: leases.holder(unit))

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
        """Close the stores; the next call would open them again."""
        with self._lock:
            self._drop()

    def _ask(self, question: Callable[[LeaseStore], _T]) -> _T:
        with self._lock:
            try:
                if self._stores is None:
                    self._stores = self._opener()
                return question(self._stores.leases)
            except errors.FleetError as error:
                self._drop()
                if isinstance(error, errors.StoreUnavailable):
                    raise
                raise errors.StoreUnavailable(error.detail, remedy=error.remedy) from error

    def _drop(self) -> None:
        if self._stores is not None:
            self._stores.close()
            self._stores = None
