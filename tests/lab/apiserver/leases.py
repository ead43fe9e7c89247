"""The rules of Leases (coordination.k8s.io), as measured. Pure.

leaseTransitions is plain stored content: it may be lowered and is lost when a write leaves it out,
which is why fencing tokens need a store of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.kube.base import Object
from tests.lab.apiserver.refusal import Cause
from tests.lab.apiserver.rules import Write, wrong


class LeaseRules:
    """Rules of leases."""

    def prepare(self, write: Write) -> Object:
        """Nothing is reset."""
        return write.new

    def judge(self, write: Write) -> Sequence[Cause]:
        """Causes for numbers out of range."""
        spec = write.new.get("spec", {})
        found = []
        duration = spec.get("leaseDurationSeconds")
        if duration is not None and duration <= 0:
            found.append(wrong("spec.leaseDurationSeconds", duration, "must be greater than 0"))
        transitions = spec.get("leaseTransitions")
        if transitions is not None and transitions < 0:
            told = "must be greater than or equal to 0"
            found.append(wrong("spec.leaseTransitions", transitions, told))
        return found
