"""The writes by which we allocate one claim, and those that take all of it back.

Every write carries UID and resourceVersion of the reading it was decided on; a conflict or a lost
answer leads to a live GET and a new decision (`fleet.kube.conflict_retry`).

Hold, conditions and finalizer are applied and not put with the allocation: what a PUT writes stays
its writer's, and the apply that lets a claim go would not take it away.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from fleet.control.binding import allocation, pledge
from fleet.control.binding.claim_facts import UNDER
from fleet.control.binding.claim_leases import ClaimLeases
from fleet.control.binding.device_choice import Choice
from fleet.control.binding.device_proof import Proven
from fleet.control.binding.pledge import LIFETIME_S, Pledge
from fleet.core import errors
from fleet.core.clock import Clock
from fleet.kube import claim_bodies, claim_status
from fleet.kube.base import CLAIMS, Cluster, Name, Object, PatchKind, uid_of, version_of
from fleet.kube.claim import ClaimReading, read
from fleet.kube.conflict_retry import ATTEMPTS, Settled, settle
from fleet.kube.marks import Marks

Decide = Callable[[Object], Object | None]
Write = Callable[[Cluster, Object], Object]


UNDOING_MAX = 12
"""Tries of a write that takes something back: about 15 s of conflicts and silence."""


class Overtaken(errors.ClaimUnready):
    """The devices chosen are not to be had for the claim any more: choose again."""


@dataclass
class Giving:
    """One claim while it is allocated. For one thread."""

    cluster: Cluster
    name: Name
    uid: str
    marks: Marks
    clock: Clock
    sleep: Callable[[float], None]
    leases: ClaimLeases
    owner: str = field(default_factory=lambda: secrets.token_hex(6))
    """Names this attempt in the pledge."""
    given: Object | None = None
    """The allocation that was sent; None: none."""
    protected: bool = False
    """Whether the builtin finalizer is ours to take off. Taking it off changes the version: where a
    scheduler has just relied on it, its own update fails and it looks again."""
    _pledged_until: float = float("-inf")
    """By the monotonic clock: one that is set renews no lease too late (B49)."""

    # --- reading -------------------------------------------------------------------------------

    def live(self) -> Object:
        """The claim now. Raises `ApiNotFound`, and `ClaimReplaced` for another of its name."""
        return self._same(self.cluster.get(CLAIMS, self.name))

    def in_use(self) -> bool:
        """Whether somebody is reserved for the allocation that we gave."""
        with suppress(errors.ApiNotFound, errors.ClaimReplaced):
            found = self.live()
            reading = read(found, self.marks)
            return self._is_ours(found) and bool(reading.pods or reading.others)
        return False

    def _same(self, found: Object) -> Object:
        if uid_of(found) != self.uid:
            raise errors.ClaimReplaced(f"claim {self.name} has another UID than {self.uid} by now")
        return found

    def _is_ours(self, found: Object) -> bool:
        return self.given is not None and allocation.is_given(found, self.given)

    def _unallocated(self, found: Object) -> ClaimReading:
        reading = read(found, self.marks)
        if reading.allocated:
            raise errors.ClaimUnready(
                f"claim {self.name} was allocated by somebody else meanwhile",
                remedy=f"see `fleet claim show {self.name}`; nothing of ours is left on it",
            )
        if reading.terminating:
            raise errors.ClaimUnready(f"claim {self.name} is being deleted")
        return reading

    # --- the pledge ----------------------------------------------------------------------------

    def pledge(self) -> None:
        """Say that we are at work. Raises `ClaimUnready` where somebody else is.

        The right to it first: without that lease nobody believes what stands on the claim.
        """
        try:
            self.leases.pledge(self.uid, self.owner, LIFETIME_S)
        except errors.LeaseHeld:
            raise self._elsewhere() from None
        until, ends_at = self.clock.now() + LIFETIME_S, self.clock.monotonic() + LIFETIME_S

        def decide(found: Object) -> Object | None:
            self._unallocated(found)
            known = pledge.read(found, self.marks)
            if known is not None and known.owner != self.owner and known.counts(self.clock.now()):
                raise self._elsewhere()
            wanted = Pledge(self.owner, float(int(until)))
            return None if known == wanted else pledge.body(found, self.marks, wanted)

        self._bring(decide, self._patch)
        self._pledged_until = ends_at

    def _elsewhere(self) -> errors.ClaimUnready:
        return errors.ClaimUnready(
            f"claim {self.name} is being allocated by somebody else",
            remedy=f"wait for its end, at most {LIFETIME_S:g} s if that process has died",
        )

    def keep_pledge(self) -> None:
        """Renew it when it is half over. Raises as `pledge`, also when the claim is gone."""
        if self.clock.monotonic() > self._pledged_until - LIFETIME_S / 2:
            self.pledge()

    def _drop_pledge(self, *, attempts: int = ATTEMPTS) -> Settled:
        def decide(found: Object) -> Object | None:
            known = pledge.read(found, self.marks)
            ours = known is not None and known.owner == self.owner
            return pledge.body(found, self.marks, None) if ours else None

        self._pledged_until = float("-inf")
        return self._bring(decide, self._patch, attempts=attempts)

    # --- giving --------------------------------------------------------------------------------

    def give(self, choice: Choice, stands: Callable[[Object], bool]) -> ClaimReading:
        """The builtin finalizer, then the allocation; the claim as it is then.

        `stands` says whether the choice is still right for the claim as it is now, which is asked
        when the claim has changed since. Raises `Overtaken` when it is not, and `ClaimUnready`.
        """

        def protect(found: Object) -> Object | None:
            self._unallocated(found)
            body = allocation.with_protection(found, present=True)
            self.protected = self.protected or body is not None
            return body

        settled = self._bring(protect, lambda cluster, body: cluster.replace(CLAIMS, body))
        examined = version_of(settled.found)
        given = self.given = allocation.allocation(choice, now=self.clock.now())

        def allocate(found: Object) -> Object | None:
            if self._is_ours(found):
                return None
            self._unallocated(found)
            if version_of(found) != examined and not stands(found):
                raise Overtaken(f"claim {self.name}: its choice does not stand any more")
            return allocation.with_allocation(found, given)

        settled = self._bring(
            allocate, lambda cluster, body: cluster.replace(CLAIMS, body, subresource="status")
        )
        return self._given_reading(settled.found)

    def expose(self, choice: Choice, proven: Proven) -> ClaimReading:
        """Hold, conditions and receipts in one apply, then our finalizer, as the profile has them.

        Raises `ClaimUnready` when the allocation is not ours any more.
        """
        rules = allocation.rules_of(choice)
        proofs = {pick.offer.name: proven.results[pick.offer.uuid] for pick in choice.picks}
        token = proven.lease.token

        def tell(found: Object) -> Object | None:
            reading = self._given_reading(found)
            held = reading.held or not rules.hold or reading.terminating
            said = {reading.receipt(one, UNDER) for one in reading.devices}
            if held and reading.bound and said == {str(token)}:
                return None
            hold = choice.node if rules.hold and not reading.terminating else ""
            told = allocation.told(reading, self.marks, token, proofs)
            return claim_bodies.status(
                reading, self.marks, told=told, hold=hold, now=self.clock.now()
            )

        def finalize(found: Object) -> Object | None:
            reading = self._given_reading(found)
            if not rules.finalizer or reading.finalizer or reading.terminating:
                return None
            return claim_bodies.finalizer(reading, self.marks, present=True)

        self._bring(tell, lambda cluster, body: claim_status.write(cluster, body, self.marks))
        found = self._bring(finalize, self._patch).found
        with suppress(errors.ApiUnavailable, errors.ApiConflict):  # it ends by itself
            found = self._drop_pledge().found
        self._give_up()
        return self._given_reading(found)

    def _given_reading(self, found: Object) -> ClaimReading:
        if not self._is_ours(found):
            raise errors.ClaimUnready(
                f"claim {self.name}: the allocation we gave was taken away meanwhile",
                remedy="nothing of ours is left on it; repeat the command",
            )
        return read(found, self.marks)

    def _give_up(self) -> None:
        """The right to allocate goes last; where the store does not answer it ends by itself."""
        with suppress(errors.StoreUnavailable):
            self.leases.unpledge(self.uid, self.owner)

    # --- taking back -----------------------------------------------------------------------------

    def take_back(self) -> None:
        """Pledge, allocation, finalizers: the claim as it was. A claim that is gone needs nothing.

        The pledge first: its removal changes the resourceVersion, so that no write of ours whose
        answer was lost can land later. An allocation that somebody is reserved for stays.
        """
        try:
            with suppress(errors.ApiNotFound, errors.ClaimReplaced):
                self._take_off()
        finally:
            self._give_up()

    def _take_off(self) -> None:
        self._drop_pledge(attempts=UNDOING_MAX)
        if self.given is not None:
            self._undo(self._deallocated, self._patch_status)
            self._undo(self._unmarked, self._patch)
            self.given = None
        if self.protected:
            self._undo(self._unprotected, lambda cluster, body: cluster.replace(CLAIMS, body))
            self.protected = False

    def _deallocated(self, found: Object) -> Object | None:
        reading = read(found, self.marks)
        if not self._is_ours(found) or reading.pods or reading.others:
            return None
        return claim_bodies.deallocation(reading)

    def _unmarked(self, found: Object) -> Object | None:
        reading = read(found, self.marks)
        if reading.allocated or not reading.finalizer:
            return None
        return claim_bodies.finalizer(reading, self.marks, present=False)

    def _unprotected(self, found: Object) -> Object | None:
        if read(found, self.marks).allocated:
            return None
        return allocation.with_protection(found, present=False)

    # --- writing ---------------------------------------------------------------------------------

    def _bring(self, decide: Decide, write: Write, *, attempts: int = ATTEMPTS) -> Settled:
        return settle(
            self.cluster,
            lambda _: self.live(),
            decide,
            write,
            attempts=attempts,
            pause=self.sleep,
        )

    def _undo(self, decide: Decide, write: Write) -> None:
        self._bring(decide, write, attempts=UNDOING_MAX)

    def _patch(self, cluster: Cluster, body: Object) -> Object:
        return cluster.patch(CLAIMS, self.name, body, kind=PatchKind.MERGE)

    def _patch_status(self, cluster: Cluster, body: Object) -> Object:
        return cluster.patch(CLAIMS, self.name, body, kind=PatchKind.MERGE, subresource="status")
