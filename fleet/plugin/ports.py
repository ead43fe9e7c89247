"""What serving claims needs of the node, wherever it is owned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fleet.core.messages import (
    ClaimAnswer,
    ClaimOrder,
    DeviceView,
    NodeView,
    Owed,
    Published,
    TeardownOrder,
)


class Node(Protocol):
    """One node's service, behind its door. Methods raise its errors, or `NotOwner` (retryable)."""

    def view(self) -> NodeView:
        """The node now."""
        ...

    def claims(self) -> Sequence[ClaimAnswer]:
        """Claim records on the node."""
        ...

    def prepare(self, order: ClaimOrder, *, budget_s: float) -> ClaimAnswer:
        """Prepare devices for a claim, waiting up to `budget_s` seconds."""
        ...

    def unprepare(self, order: TeardownOrder, *, budget_s: float) -> ClaimAnswer:
        """Tear a claim down, waiting up to `budget_s` seconds; an unknown claim is a success."""
        ...

    def published(self, published: Published) -> None:
        """Tell what was read back from the node's slices."""
        ...

    def owe(self, owed: Owed) -> None:
        """Tell that our marks may be on a claim that no burial owes; durable once it returns."""
        ...

    def paid(self, uids: Sequence[str]) -> None:
        """Tell which of the claims owed were let go at the API."""
        ...

    def quarantine_add(
        self, device: str, *, detail: str, operator: str, codes: Sequence[str]
    ) -> DeviceView:
        """Take a device out of service for reasons that the slices knew of and the node did not."""
        ...
