"""What may be asked of a node, whoever owns its journal and wherever that process runs.

`fleet.node.service.NodeService` does it; `fleet.rpc.client.DoorNode` asks at the node's door and
`actors.handles.RemoteNode` its actor. Every call is idempotent: who got no answer asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from fleet.core.leases import Closure
from fleet.core.messages import (
    Acceptance,
    ClaimAnswer,
    ClaimOrder,
    DeviceView,
    NodeView,
    Owed,
    Published,
    ScrubOrder,
    Swept,
    TeardownOrder,
)
from fleet.rpc.calls import Interface, verb

DECISION_TIMEOUT_S = 30.0
"""Time, s, an operator's decision may take: work on the device is stopped first."""
SWEEP_TIMEOUT_S = 120.0
PARTITION_TIMEOUT_S = 300.0
"""Time, s, switching partitioning may take: readings, instances removed, a reset, an inventory."""
BUDGET_S = 40.0
"""Time, s, a claim call waits for its work, inside kubelet's 45 s."""
BUDGET_MAX_S = 3600.0
"""Longest time, s, a call may ask to be kept waiting."""

HandOver = Callable[[str], bool]
"""Asked by a newcomer, named in words, for the journal; True: this owner lets go of it soon."""
Budget = Annotated[float, Field(ge=0, le=BUDGET_MAX_S)]


def teardown(order: TeardownOrder | str) -> TeardownOrder:
    """The order; one that names the claim alone in full."""
    return TeardownOrder(uid=order) if isinstance(order, str) else order


Teardown = Annotated[TeardownOrder | str, AfterValidator(teardown)]


class NodeApi(Interface):
    """One node. Every method raises the node's own errors, or that it cannot be reached."""

    incarnation: str = ""
    """Which opening of its journal this is, where that is known without a look."""

    @verb(looks=True)
    def view(self, operations: Sequence[str] = ()) -> NodeView:
        """The node now, with the results of `operations` that are finished."""

    @verb(looks=True)
    def claims(self) -> Sequence[ClaimAnswer]:
        """Claim records on the node."""

    # --- kubelet's side ---

    @verb()
    def prepare(self, order: ClaimOrder, *, budget_s: Budget = BUDGET_S) -> ClaimAnswer:
        """Prepare devices for a claim; the node waits up to `budget_s` seconds for its work."""

    @verb()
    def unprepare(self, order: Teardown, *, budget_s: Budget = BUDGET_S) -> ClaimAnswer:
        """Tear a claim down (a text is its uid), waiting up to `budget_s` seconds for the work; an
        unknown claim is a success.
        """

    @verb()
    def published(self, published: Published) -> None:
        """Tell what was read back from the node's slices."""

    @verb()
    def owe(self, owed: Owed) -> None:
        """Tell that our marks may be on a claim that no burial owes; durable once it returns."""

    @verb()
    def paid(self, uids: Sequence[str]) -> None:
        """Tell which of the claims owed were let go at the API."""

    # --- the coordinator's ---

    @verb()
    def scrub(self, orders: Sequence[ScrubOrder]) -> Sequence[Acceptance]:
        """Hand orders in, idempotent by operation id; one answer for each."""

    @verb()
    def cancel(self, operations: Sequence[str]) -> None:
        """Stop the operations named; what is unknown or finished is left alone."""

    @verb(timeout_s=DECISION_TIMEOUT_S)
    def abandon(self, uid: str, token: str, devices: Sequence[str]) -> Closure:
        """Close the token of a claim without a record: a wipe made for it is stopped first.

        `IllegalTransition`: the claim has a record there; `DeviceUnknown`: the node never had one
        of these devices.
        """

    # --- people's ---

    @verb(timeout_s=DECISION_TIMEOUT_S)
    def quarantine_add(
        self, device: str, *, detail: str, operator: str, codes: Sequence[str] = ()
    ) -> DeviceView:
        """Take a device out of service; with `codes`, for these reasons by others' word."""

    @verb(timeout_s=DECISION_TIMEOUT_S)
    def quarantine_clear(
        self, device: str, *, codes: Sequence[str] = (), operator: str, detail: str = ""
    ) -> DeviceView:
        """Lift reasons by an operator's decision, all with no `codes`; `detail` is kept with it."""

    @verb(timeout_s=DECISION_TIMEOUT_S)
    def adopt(self, *, devices: Sequence[str] = (), operator: str) -> Sequence[DeviceView]:
        """Record that HELD devices are free."""

    @verb(timeout_s=DECISION_TIMEOUT_S)
    def retire(self, device: str, *, detail: str, operator: str) -> str:
        """Take a device out of the slices for good; its UUID."""

    @verb(timeout_s=PARTITION_TIMEOUT_S)
    def partition(self, device: str, *, on: bool, operator: str) -> DeviceView:
        """Switch partitioning of a free accelerator, which the driver may reset for it."""

    @verb(timeout_s=DECISION_TIMEOUT_S)
    def follow_epoch(self, epoch: int, *, operator: str) -> None:
        """Follow a new store epoch."""

    @verb(timeout_s=SWEEP_TIMEOUT_S)
    def sweep(self) -> Sequence[Swept]:
        """Read all health now."""


class OwnerApi(Interface):
    """What may be asked of the process that owns a node's journal."""

    @verb(looks=True)
    def pulse(self) -> Mapping[str, Any]:
        """Proof of life: ``pid``, ``incarnation`` and kind (``owner``) of the owner."""

    @verb()
    def hand_over(self, by: str = "somebody") -> bool:
        """Ask the owner for the journal; whether it lets go of it soon."""
