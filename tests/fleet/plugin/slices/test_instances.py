"""One instance of a plugin writes a pool, the other looks on until it has gone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from fleet.core.errors import BackendFailed
from fleet.core.messages import NodeView
from fleet.kube.base import Change, Event
from fleet.plugin.slices.exclusivity import HostLocks
from fleet.plugin.slices.instances import PublishingInstance
from fleet.plugin.slices.report import PublishReport
from fleet.plugin.slices.takeover import Record


class Counted:
    """A publisher that counts."""

    def __init__(self) -> None:
        self.steps = 0
        self.events = 0
        self.closed = 0
        self.bound: frozenset[str] = frozenset()
        self.records: tuple[Record, ...] = ()

    def step(self, now: float, view: NodeView | None) -> PublishReport:
        """One more step."""
        self.steps += 1
        return PublishReport(settled=now > 0 and view is None)

    def changed(self, event: Event) -> None:
        """One more event."""
        self.events += event.change is Change.ADDED

    def evicting(self, uuids: Iterable[str]) -> None:
        """Remembered."""
        self.bound = frozenset(uuids)

    def merged(self, records: Iterable[Record]) -> None:
        """Remembered."""
        self.records = tuple(records)

    def close(self) -> None:
        """Closed."""
        self.closed += 1


def instance(directory: Path, pool: str = "pool-a") -> tuple[Counted, PublishingInstance]:
    """An instance with a publisher to look at."""
    writer = Counted()
    return writer, PublishingInstance(writer, HostLocks(directory), pool)


def test_the_second_instance_looks_on(tmp_path: Path) -> None:
    """Invariant 40: it says who publishes, and its publisher neither reads nor writes."""
    first, leading = instance(tmp_path)
    second, looking = instance(tmp_path)
    for _ in range(3):
        assert leading.step(1.0, None) == PublishReport(settled=True)
        report = looking.step(1.0, None)
        assert "publishes pool-a" in report.elsewhere
        assert not report.settled
    assert (first.steps, second.steps) == (3, 0)
    looking.changed(Event(Change.ADDED, {}))
    assert second.events == 1
    looking.close()
    leading.close()


def test_it_takes_over_once_the_first_has_gone(tmp_path: Path) -> None:
    """The next step publishes; the one that comes back later looks on."""
    first, leading = instance(tmp_path)
    second, looking = instance(tmp_path)
    leading.step(1.0, None)
    leading.close()
    assert first.closed == 1
    assert looking.step(2.0, None).settled
    assert leading.step(3.0, None).elsewhere
    looking.close()
    leading.close()
    assert second.steps == 1


def test_pools_of_one_host_are_apart(tmp_path: Path) -> None:
    """Two drivers on a node each write their own."""
    _, one = instance(tmp_path, "pool-a")
    _, two = instance(tmp_path, "pool-b")
    assert one.step(1.0, None).settled
    assert two.step(1.0, None).settled
    one.close()
    two.close()


def test_without_locks_nobody_publishes(tmp_path: Path) -> None:
    """Two writers are worse than none: the trouble is told, and tried again at the next step."""
    place = tmp_path / "locks"
    place.write_text("")
    writer, alone = instance(place)
    with pytest.raises(BackendFailed, match="cannot be opened"):
        alone.step(1.0, None)
    assert writer.steps == 0
    place.unlink()
    assert alone.step(1.0, None).settled
    alone.close()


def test_what_the_node_took_is_passed_on(tmp_path: Path) -> None:
    """The records of a take-over reach the publisher that reported them."""
    writer, alone = instance(tmp_path)
    record = Record("gpu-0", "GPU-0", ("xid",), 1.0)
    alone.merged([record])
    assert writer.records == (record,)
    alone.close()
