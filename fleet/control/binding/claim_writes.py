"""Our writes to one claim, each a single guarded apply; what was examined is what is said (B5).

A conflict or an open answer is never repeated blindly: the caller reads the claim anew and decides
again. A server that keeps our reservation from us (a missing right) gets the conditions alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.control.binding import receipt
from fleet.control.binding.decisions import Fault
from fleet.core import errors
from fleet.core.messages import DeviceResult
from fleet.core.model import Lease
from fleet.kube import claim_bodies, claim_status
from fleet.kube.base import CLAIMS, Cluster, Object, PatchKind
from fleet.kube.claim import Allotted, ClaimReading
from fleet.kube.claim_bodies import Told, Word
from fleet.kube.marks import Marks

LOG = logging.getLogger(__name__)
AGAIN_S = 60.0
"""Time, s, after a refused reservation during which none is asked for."""
BINDING_RIGHT = "the right to patch resourceclaims/binding"


@dataclass
class Writer:
    """Says conditions, hold and finalizer. Every method returns the claim as the server has it.

    All raise the errors of `fleet.kube.base.Cluster`.
    """

    cluster: Cluster
    marks: Marks
    holds: bool = True
    """Whether the server lets us reserve; learnt from its refusals, asked again after `AGAIN_S`."""
    refused_at: float = float("-inf")
    """When it last did not, or is being asked whether it still does not; s since the epoch."""
    writes: int = 0
    """Writes sent."""
    troubles: dict[str, str] = field(default_factory=dict)
    """What keeps us from working as we should, by what it is about."""

    def bind(
        self,
        reading: ClaimReading,
        lease: Lease | None,
        proofs: Mapping[str, DeviceResult],
        *,
        now: float,
    ) -> Object:
        """All conditions True with receipts, and our reservation where the claim can have one."""
        told = [self._proven(one, lease, proofs.get(one.device)) for one in reading.devices]
        node = reading.nodes[0] if reading.nodes else ""
        asking = bool(node) and not (reading.held or reading.terminating) and self._may_hold(now)
        hold = node if reading.held or asking else ""
        try:
            found = self._apply(
                claim_bodies.status(reading, self.marks, told=told, hold=hold, now=now)
            )
        except errors.ApiForbidden as error:
            if not hold or reading.held or not _about_reservation(error):
                raise
            known, self.holds, self.refused_at = "holds" in self.troubles, False, now
            self.troubles["holds"] = (
                f"claims cannot be held after use: {BINDING_RIGHT} is missing ({error.detail})"
            )
            if not known:
                LOG.warning("%s", self.troubles["holds"])
            return self._apply(claim_bodies.status(reading, self.marks, told=told, now=now))
        if asking and not self.holds:
            self.holds = True
            self.troubles.pop("holds", None)
        return found

    def granted(self) -> None:
        """A right that was missing is there: nothing is known to be refused any more."""
        self.holds = True
        self.troubles.pop("holds", None)

    def _may_hold(self, now: float) -> bool:
        """Whether to ask for a reservation: while it is refused, one claim a minute does."""
        if not self.holds:
            if 0.0 <= now - self.refused_at < AGAIN_S:
                return False
            self.refused_at = now
        return True

    def unbind(self, reading: ClaimReading, why: str, *, now: float) -> Object:
        """All conditions False; our reservation stays as it is."""
        told = [
            Told(one, tuple(Word(kind, "Superseded", why, true=False) for kind in one.conditions))
            for one in reading.devices
        ]
        hold = reading.nodes[0] if reading.held and reading.nodes else ""
        return self._apply(claim_bodies.status(reading, self.marks, told=told, hold=hold, now=now))

    def fail(self, reading: ClaimReading, faults: tuple[Fault, ...], *, now: float) -> Object:
        """The failure condition on every device, for the scheduler stops at the first that is not
        ready and would not see a later one; our reservation goes, it would be in the way.
        """
        by_name = {fault.device: fault for fault in faults}
        told = [self._failed(one, by_name.get(one.device)) for one in reading.devices]
        return self._apply(claim_bodies.status(reading, self.marks, told=told, now=now))

    def finalize(self, reading: ClaimReading) -> Object:
        """Our finalizer on the claim."""
        self.writes += 1
        body = claim_bodies.finalizer(reading, self.marks, present=True)
        return self.cluster.patch(CLAIMS, reading.name, body, kind=PatchKind.MERGE)

    def _apply(self, body: Object) -> Object:
        self.writes += 1
        return claim_status.write(self.cluster, body, self.marks)

    def _proven(self, one: Allotted, lease: Lease | None, proof: DeviceResult | None) -> Told:
        if one.admin:
            words = [
                Word(kind, "AdminAccess", "it is not held", true=True) for kind in one.conditions
            ]
            return Told(one, tuple(words))
        if proof is None or lease is None:
            raise errors.InputInvalid(f"{one.device} of the claim is not proven")
        reasons = {self.marks.sanitized: "Certified", self.marks.healthy: "Checked"}
        words = [
            Word(kind, reasons.get(kind, "Proven"), f"under token {lease.token}", true=True)
            for kind in one.conditions
        ]
        return Told(one, tuple(words), receipt.written(lease.token, proof))

    def _failed(self, one: Allotted, fault: Fault | None) -> Told:
        text = fault.text if fault else "another device of the claim failed"
        reason = _camel(fault.code) if fault else "ClaimFailed"
        words = [Word(kind, reason, text, true=True) for kind in one.failures]
        words += [Word(kind, reason, text, true=False) for kind in one.conditions]
        return Told(one, tuple(words))


def _about_reservation(error: errors.ApiForbidden) -> bool:
    causes = error.fields.get("causes") or ()
    return any(
        str(cause[1]).startswith(("status.allocation", "status.reservedFor")) for cause in causes
    )


def _camel(code: str) -> str:
    return "".join(part.capitalize() for part in code.split("-")) or "Failed"
