"""Instances of one plugin take turns as the writer of a pool.

During a rolling update two of them run on a node. Both would be right, and still they would fight:
whoever lacks the locks of the devices would take them out of the pool that the other just wrote.
So an instance steps only while it has the lock of the pool; the other one looks on, and takes over
within one step once that process has ended, however it ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from fleet.core.messages import NodeView
from fleet.kube.base import Event
from fleet.plugin.slices.exclusivity import HostLocks
from fleet.plugin.slices.report import PublishReport
from fleet.plugin.slices.takeover import Record


class Writer(Protocol):
    """What publishes; see `fleet.plugin.slices.publisher`."""

    def step(self, now: float, view: NodeView | None) -> PublishReport:
        """Bring the slices in line with the view."""
        ...

    def changed(self, event: Event) -> None:
        """Take what a watch reports."""
        ...

    def evicting(self, uuids: Iterable[str]) -> None:
        """Devices bound to a pod but not exposed to it."""
        ...

    def merged(self, records: Iterable[Record]) -> None:
        """The node has taken the reasons of these."""
        ...

    def close(self) -> None:
        """Let go of what is held on this host."""
        ...


@dataclass(frozen=True, slots=True)
class PublishingInstance:
    """One instance's publisher. `pool` names the pool among all of the host."""

    writer: Writer
    locks: HostLocks
    pool: str

    def step(self, now: float, view: NodeView | None) -> PublishReport:
        """As the publisher's, or nothing but word of who publishes instead.

        Raises `BackendFailed` when the locks cannot be used: two writers are worse than none.
        """
        elsewhere = self.locks.take((self.pool,)).get(self.pool, "")
        return PublishReport(elsewhere=elsewhere) if elsewhere else self.writer.step(now, view)

    def changed(self, event: Event) -> None:
        """Take what a watch on the node's slices reports; also while looking on."""
        self.writer.changed(event)

    def evicting(self, uuids: Iterable[str]) -> None:
        """Devices bound to a pod but not exposed to it."""
        self.writer.evicting(uuids)

    def merged(self, records: Iterable[Record]) -> None:
        """The node has taken the reasons of these, which a step of this instance reported."""
        self.writer.merged(records)

    def close(self) -> None:
        """Let go of the host's locks, the pool's last: who comes next finds the devices free."""
        self.writer.close()
        self.locks.close()
