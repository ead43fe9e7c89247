"""The lease a claim is exposed under: the one it has, or one the node gets for it.

The record exists before the lease does, so that a teardown knows of every lease there may be. A
lease whose token the crash kept from the record is found by its holder when the claim is buried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet.core import errors, leases, unit_states
from fleet.core.claim_states import Claim
from fleet.core.leases import AcquireRequest
from fleet.core.model import NO_TOKEN, Holder, HolderKind, Lease, State
from fleet.node import lease_check
from fleet.node.outbox import Outbox
from fleet.node.ports import Leases
from fleet.node.registry import Registry


@dataclass(frozen=True, slots=True)
class Securing:
    """Sees to it that a claim has a lease of all its units."""

    registry: Registry
    store: Leases
    outbox: Outbox

    def secure(self, claim: Claim) -> Claim:
        """The claim with the token of its lease, floors raised, durable.

        Raises `LeaseHeld` (retryable, names the holder), `StoreUnavailable`, `EpochForeign`.
        """
        units = [self.registry.journal.units[unit] for unit in claim.units]
        if all(unit.claim == claim.uid and unit.state is State.IN_USE for unit in units):
            return claim  # exposed already, or nothing to hold
        if claim.token != NO_TOKEN:
            try:
                leases.check_token(units, claim.token, self.registry.journal.epoch)
                lease_check.leased(self.store, claim.uid, claim.token, claim.units)
            except (errors.TokenStale, errors.LeaseLost, errors.EpochForeign):
                # Closed or gone: a new one, and then a wipe under it. The record forgets the old
                # one first: a lease it does not learn of is found by its holder at the burial.
                claim = self._put(replace(claim, token=NO_TOKEN))
            else:
                return claim
        lease = self._acquire(claim)
        with self.registry.commit() as commit:
            secured = replace(commit.claim(claim.uid) or claim, token=lease.token)
            now = [commit.unit(unit) for unit in claim.units]
            try:
                leases.check_token(now, lease.token, self.registry.journal.epoch)
            except errors.TokenStale as error:
                # Closed while it was asked for: by the end of an earlier claim of this uid.
                raise errors.LeaseLost(
                    error.detail, remedy="retry; a newer one is asked for"
                ) from error
            commit.put_claim(secured)
            for unit in now:
                commit.put_unit(unit_states.raise_floor(unit, lease.token))
        return secured

    def _put(self, claim: Claim) -> Claim:
        with self.registry.commit() as commit:
            current = replace(commit.claim(claim.uid) or claim, token=claim.token)
            commit.put_claim(current)
        return current

    def _acquire(self, claim: Claim) -> Lease:
        units = [self.registry.journal.units[unit] for unit in claim.units]
        newest = max(units, key=lambda unit: (unit.floor, unit.closed))
        request = AcquireRequest(
            units=frozenset(claim.units),
            holder=Holder(HolderKind.CLAIM, claim.uid),
            min_token=newest.floor,
            closed=newest.closed,
        )
        (answer,) = self.store.acquire([request])
        if isinstance(answer, errors.LeaseHeld):
            # Perhaps by a claim that was buried here a moment ago: what is owed is paid first.
            self.outbox.drain(self.registry.clock.now())
            (answer,) = self.store.acquire([request])
        if isinstance(answer, errors.FleetError):
            raise answer
        return answer
