"""The product's registry and recovery over a journal in memory, with no file and no process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from fleet.core.claim_states import ClaimState
from fleet.core.clock import Clock
from fleet.core.model import BootId, NodeName, UnitId
from fleet.devices.base import Backend
from fleet.node.journal import journal as durable
from fleet.node.journal import mirror, witness
from fleet.node.journal.startup import Place
from fleet.node.journal_copies import Copies
from fleet.node.recovery import Recovery
from fleet.node.registry import Registry, Work
from tests.twin.hardware import Hardware
from tests.twin.journal import Kept

NOWHERE = Path("/nonexistent/twin")


class TwinCopies(Copies):
    """Copy and witness are written to `kept`, which outlives the service."""

    def __init__(self, kept: Kept, place: Place, boot_id: BootId) -> None:
        super().__init__(place, boot_id)
        self._kept = kept

    def _read(self) -> mirror.Reasons:
        return self._kept.reasons

    def _write(self, reasons: mirror.Reasons) -> None:
        self._kept.reasons = dict(reasons)

    def _bear(self, seen: witness.Witness) -> None:
        self._kept.witness = seen


class TwinRegistry(Registry):
    """Reasons and witness are copied to `kept`; `changed` is told of each commit."""

    def __init__(
        self, kept: Kept, hardware: Hardware, clock: Clock, changed: Callable[[], None]
    ) -> None:
        """`kept` is opened: a journal that is lost, or contradicted, begins anew."""
        place = Place(NOWHERE, NOWHERE, NodeName(kept.node), kept.node)
        journal = cast("durable.Journal", kept.open())
        backend = cast("Backend", hardware)
        super().__init__(backend, journal, place, clock, boot_id=hardware.boot_id)
        self.kept = kept
        self.copies = TwinCopies(kept, place, hardware.boot_id)
        self.stop: Callable[[Work], None] = lambda work: None  # noqa: ARG005 - set by whoever wipes
        self._changed = changed

    @contextmanager
    def commit(self) -> Iterator[durable.Commit]:
        """One transaction, and whoever watches is told."""
        with super().commit() as commit:
            yield commit
        self._changed()

    def reserve_over_idle(self, work: Work, *, wait_s: float) -> Work | None:  # noqa: ARG002 - nothing takes time
        """Idle cleaning gives way at once."""
        other = self.reserve(work)
        if other is not None and other.idle and not work.idle:
            self.stop(other)
            other = self.reserve(work)
        return other

    def claim_for(self, work: Work, *, wait_s: float) -> Work | None:  # noqa: ARG002 - nothing takes time
        """Stop whatever has the units, and take them."""
        while (other := self.reserve(work)) is not None:
            self.stop(other)
        return None


@dataclass
class TwinRecovery(Recovery):
    """Recovery with workers that are looked for in `hardware`, and reasons in `registry.kept`."""

    hardware: Hardware | None = None

    def _kept(self) -> mirror.Remembered:
        return mirror.Remembered(cast("TwinRegistry", self.registry).kept.reasons)

    def _end_workers(self, only: frozenset[UnitId] | None) -> None:
        assert self.hardware is not None
        rows = [r for r in self.registry.journal.workers() if not only or only & set(r.units)]
        alive = {
            unit: f"worker {row.worker_id} of an earlier service still lives"
            for row in rows
            if row.worker_id in self.hardware.workers
            for unit in row.units
        }
        with self.registry.commit() as commit:
            for row in rows:
                if row.worker_id not in self.hardware.workers:
                    commit.drop_worker(row.worker_id)
            for unit in list(self.registry.journal.units.values()):
                if only is None or unit.id in only:
                    self._end_work(commit, unit, alive.get(unit.id))

    def _rebuild(self) -> None:
        for claim in self.registry.journal.claims.values():
            if claim.state is ClaimState.PREPARED:
                self.specs.write(claim, {})
