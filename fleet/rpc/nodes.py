"""What the coordinator needs of nodes: always asked in batches, each node answering for itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fleet.core import errors
from fleet.core.leases import Closure
from fleet.core.messages import Acceptance, NodeView, ScrubOrder


@dataclass(frozen=True, slots=True)
class Abandonment:
    """Ask a node to close `token` for a claim that it has no record of."""

    node: str
    uid: str
    token: str
    devices: tuple[str, ...]
    """UUIDs of devices or ids of units: the latter are known to a node that has lost the device."""


class Nodes(Protocol):
    """All nodes of the fleet. A node that does not answer is an error in its place."""

    def names(self) -> Collection[str]:
        """Nodes that exist now, by the name of their Node object."""
        ...

    def views(
        self, asked: Mapping[str, Sequence[str]]
    ) -> Mapping[str, NodeView | errors.FleetError]:
        """The nodes named, each with the results of the operations asked for."""
        ...

    def scrub(
        self, orders: Mapping[str, Sequence[ScrubOrder]]
    ) -> Mapping[str, Sequence[Acceptance] | errors.FleetError]:
        """Hand orders in; they are idempotent by operation id."""
        ...

    def abandon(self, asked: Sequence[Abandonment]) -> Sequence[Closure | errors.FleetError]:
        """Close tokens, one answer for each. `IllegalTransition`: the claim has a record there;
        `DeviceUnknown`: the node never had one of these devices.
        """
        ...

    def quarantine_add(
        self, node: str, device: str, *, detail: str, operator: str, codes: Sequence[str] = ()
    ) -> None:
        """Take a device out of service, for reasons of the catalogue. Raises the node's errors."""
        ...
