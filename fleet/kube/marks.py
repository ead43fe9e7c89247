"""The names under which we write to claims: field manager, hold entry, finalizer, conditions. Pure.

Coordinator and node plugins write under one field manager. Server-side apply makes a manager the
owner of exactly what its last body said, so whoever writes sends the full set as it should be by
the object just read: there is one owner of our part of a claim, whichever process writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.kube.base import Object

MANAGER = "fleetscrub"
"""Field manager of everything we write to a claim."""
AGENT = "agent"
"""Name of the extra device through which the node service reaches the accelerators (DESIGN 7)."""
HOLDS = "holds"
"""`resource` of our entry in ``status.reservedFor``; its apiGroup is the driver's name."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Our marks on claims, all made from the driver's name."""

    driver: str

    @property
    def sanitized(self) -> str:
        """Condition: wiped and verified under the claim's token."""
        return f"{self.driver}/Sanitized"

    @property
    def healthy(self) -> str:
        """Condition: checked under the claim's token."""
        return f"{self.driver}/Healthy"

    @property
    def failed(self) -> str:
        """Failure condition: the device will not become ready for this claim."""
        return f"{self.driver}/SanitizationFailed"

    @property
    def finalizer(self) -> str:
        """Our finalizer: goes with the hold and is removed last (D3)."""
        return f"{self.driver}/teardown"

    def hold(self, *, node: str, uid: str) -> Object:
        """Our entry for a claim (`uid`) whose devices are on `node`.

        The server merges entries by uid; the claim's own is no pod's.
        """
        return {"apiGroup": self.driver, "resource": HOLDS, "name": node, "uid": uid}

    def is_hold(self, entry: Mapping[str, object]) -> bool:
        """Whether an entry of ``status.reservedFor`` is ours."""
        return entry.get("apiGroup") == self.driver and entry.get("resource") == HOLDS
