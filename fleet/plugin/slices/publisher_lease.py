"""The right to publish hardware, as leases of the fleet's store: one publisher in the whole fleet.

The units are ``publisher/<uuid>``: hardware, not memory, so that they never meet a claim's. The
lease ends by itself when its holder does not come back, long after a restart is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind, Lease, UnitId
from fleet.stores.base import Renewal

TTL_S = 60.0
"""Lifetime, s: four renewals."""
SHARED_TTL_S = 600.0
"""Lifetime, s, where every node of a cluster writes to one store: two renewals, so that 125 nodes
write less than once in two seconds together."""


class Leases(Protocol):
    """What is needed of the lease store. `StoreUnavailable` when it does not answer."""

    def acquire(self, requests: Sequence[AcquireRequest]) -> Sequence[Lease | errors.FleetError]:
        """Grant each request, or say why not."""
        ...

    def renew(self, renewals: Sequence[Renewal]) -> Sequence[Lease | errors.FleetError]:
        """Prolong each lease, or say why not."""
        ...


@dataclass
class StoreLease:
    """Publisher leases of one publisher. `name` is the same after a restart of it."""

    store: Leases
    name: str
    ttl_s: float = TTL_S
    _held: dict[str, Lease] = field(default_factory=dict)

    def hold(self, uuids: Sequence[str], *, now: float) -> Mapping[str, str]:
        """Renew what is held, acquire the rest; why each device refused is refused.

        The store's own clock judges what has run out; `now` only how soon to renew a lease of more
        than a minute. Renewing and acquiring are two batches.
        """
        self._held = {u: self._held[u] for u in uuids if u in self._held}
        self._renew(now)
        missing = [uuid for uuid in uuids if uuid not in self._held]
        if not missing:
            return {}
        answers = self.store.acquire([self._request(uuid) for uuid in missing])
        refused = {}
        for uuid, answer in zip(missing, answers, strict=True):
            if isinstance(answer, Lease):
                self._held[uuid] = answer
            else:
                refused[uuid] = answer.detail
        return refused

    def _renew(self, now: float) -> None:
        asked = sorted(uuid for uuid, lease in self._held.items() if self._ages(lease, now))
        if not asked:
            return
        holder = self._holder
        answers = self.store.renew(
            [Renewal(holder, self._held[uuid].token, self.ttl_s) for uuid in asked]
        )
        for uuid, answer in zip(asked, answers, strict=True):
            if isinstance(answer, Lease):
                self._held[uuid] = answer
            else:
                del self._held[uuid]

    def _ages(self, lease: Lease, now: float) -> bool:
        """A clock that went astray makes a lease old, never young."""
        if self.ttl_s <= TTL_S or lease.expires_at is None:
            return True
        return not self.ttl_s / 2 <= lease.expires_at - now <= self.ttl_s

    @property
    def _holder(self) -> Holder:
        return Holder(HolderKind.PUBLISHER, self.name)

    def _request(self, uuid: str) -> AcquireRequest:
        units = frozenset({UnitId(f"{HolderKind.PUBLISHER}/{uuid}")})
        return AcquireRequest(units=units, holder=self._holder, ttl_s=self.ttl_s)
