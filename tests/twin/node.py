"""`TwinNode`: one node in memory on the product's tables, registry and steps.

What `fleet.node` does with threads, files and processes happens here in events of virtual time. The
journal, the memory and the evidence survive a crash; everything else is lost. A crash may come at
any commit (`tests.twin.journal.Died`), in the middle of a call or of a step.

Not modelled: partitions of one accelerator and attached devices (`tests.simulation` and the tests
of `fleet.node` have them), threads of one service racing each other, and two services that own one
journal at once: the file lock that forbids it is a real one, and `tests.chaos` kills real owners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fleet.core import errors
from fleet.core.leases import Closure
from fleet.core.messages import (
    Acceptance,
    ClaimAnswer,
    ClaimOrder,
    DeviceResult,
    DeviceView,
    NodeView,
    Owed,
    Published,
    ScrubOrder,
    TeardownOrder,
)
from fleet.core.model import ClaimUid, Device, OperationId, Token
from fleet.node import lease_check, outbox
from fleet.node import view as node_view
from fleet.node.journal.journal import OperationRow
from fleet.rpc.node_api import NodeApi, teardown
from tests.twin.service import Build, Service
from tests.twin.wiping import Job

__all__ = ["Build", "TwinNode"]


@dataclass
class TwinNode(Service, NodeApi):
    """One node: what it answers to others. The hardware is there whether or not it serves."""

    # --- reading ---

    def view(self, operations: Sequence[str] = ()) -> NodeView:
        """The node now."""
        return self.inside(lambda: self._view(operations))

    def _view(self, operations: Sequence[str]) -> NodeView:
        registry = self.registry
        if self._seen is not None and self._seen[0] == self.revision and not operations:
            return self._seen[1].model_copy(update={"at": self.clock.now()})
        releases, owed = outbox.shown(registry)
        rows = [registry.journal.operation(OperationId(one)) for one in operations]
        found = NodeView(
            node=self.name,
            incarnation=f"{self.name}-{self.starts}",
            boot_id=registry.boot_id,
            at=self.clock.now(),
            simulated=self.hardware.simulated,
            backend=self.hardware.kind,
            epoch=registry.journal.epoch,
            devices=tuple(self._device(device) for device in registry.devices.values()),
            results=tuple(
                DeviceResult.model_validate(row.result)
                for row in rows
                if row is not None and row.result is not None
            ),
            outbox=releases,
            gone=node_view.gone(registry),
            claims=node_view.claims(registry),
            owed=owed,
        )
        if not operations:
            self._seen = (self.revision, found)
        return found

    def _device(self, device: Device) -> DeviceView:
        checked_at = self.wiping.checked_at.get(device.uuid, 0.0)
        return node_view.device(self.registry, device, checked_at=checked_at)

    def claims(self) -> Sequence[ClaimAnswer]:
        """Claim records."""
        return self.inside(
            lambda: [self.holding.answer(one) for one in self.registry.journal.claims.values()]
        )

    # --- orders ---

    def scrub(self, orders: Sequence[ScrubOrder]) -> list[Acceptance]:
        """Accept or refuse each order on its own."""
        return self.inside(lambda: [self._accept(order) for order in orders])

    def _accept(self, order: ScrubOrder) -> Acceptance:
        try:
            self._order(order)
        except errors.FleetError as error:
            shown = {name: str(value) for name, value in error.fields.items()}
            return Acceptance(
                operation=order.operation,
                accepted=False,
                error=str(error),
                kind=type(error).__name__,
                fields=shown,
            )
        return Acceptance(operation=order.operation, accepted=True)

    def _order(self, order: ScrubOrder) -> None:
        registry = self.registry
        token, operation = Token.parse(order.token), OperationId(order.operation)
        if order.node != self.name:
            raise errors.WrongNode(f"order {operation} is for node {order.node}")
        request = order.model_dump(mode="json")
        known = registry.journal.operation(operation)
        if known is not None:
            if known.request != request:
                raise errors.InputInvalid(f"operation {operation} is known with other content")
            return
        device = registry.device(order.device)
        self._adopted()
        registry.fence.check(registry.units(device), token, registry.journal.epoch)
        lease_check.issued(self.build.store, token)
        row = OperationRow(operation, "scrub", device.uuid, request, None, self.clock.now())
        with registry.commit() as commit:
            commit.put_operation(row)
        job = Job(operation, device, idle=False, token=token)
        job.on_end = self._record
        self.wiping.begin(job)

    def prepare(self, order: ClaimOrder, *, budget_s: float = 0.0) -> ClaimAnswer:  # noqa: ARG002
        """Prepare, or say that it is still in work."""
        if order.node != self.name:
            raise errors.WrongNode(f"claim {order.uid} is for node {order.node}")

        def act() -> ClaimAnswer:
            self._adopted()
            return self.holding.prepare(order)

        return self.inside(act)

    def unprepare(self, order: TeardownOrder | str, *, budget_s: float = 0.0) -> ClaimAnswer:  # noqa: ARG002
        """Tear down, or say that it is still in work."""
        asked = teardown(order)
        uid = ClaimUid(asked.uid)

        def act() -> ClaimAnswer:
            if asked.unheld:
                self.holding.unhold(uid)
            return self.holding.unprepare(uid, asked.consumers, asked.reserved)

        return self.inside(act)

    def abandon(self, uid: str, token: str, devices: Sequence[str]) -> Closure:
        """Close a token for a claim without a record."""

        def act() -> Closure:
            self._adopted()
            return self.holding.abandon(ClaimUid(uid), Token.parse(token), devices)

        return self.inside(act)

    def published(self, published: Published) -> None:
        """What was read back from the slices."""
        self.inside(lambda: self.holding.visibility.published(published))

    def owe(self, owed: Owed) -> None:
        """A claim that no burial owes."""
        self.inside(lambda: self.outbox.owe(owed))
        self._changed()

    def paid(self, uids: Sequence[str]) -> None:
        """Claims let go at the API."""
        self.inside(lambda: self.outbox.paid(uids))
        self._changed()

    def quarantine_add(
        self, device: str, *, detail: str, operator: str, codes: Sequence[str] = ()
    ) -> DeviceView:
        """Take a device out of service."""
        add = partial(self._decisions.quarantine, detail=detail, operator=operator, codes=codes)
        return self.inside(lambda: add(device))

    def quarantine_clear(
        self, device: str, *, codes: Sequence[str] = (), operator: str = "twin", detail: str = ""
    ) -> DeviceView:
        """An operator clears reasons: all when no code is named."""
        clear = partial(
            self._decisions.quarantine_clear, codes=codes, operator=operator, detail=detail
        )
        return self.inside(lambda: clear(device))

    def follow_epoch(self, epoch: int, *, operator: str) -> None:
        """Follow a store's new epoch."""

        def act() -> None:
            self._adopted()
            self._decisions.follow_epoch(epoch, operator=operator)

        self.inside(act)
