"""Rules of the history that watches read."""

from __future__ import annotations

import pytest

from tests.lab.apiserver.history import Entry, History
from tests.lab.apiserver.refusal import Refusal


def history(*versions: int, entries_max: int = 100) -> History:
    """A history of changes with these versions."""
    found = History(entries_max=entries_max)
    for version in versions:
        found.append(Entry(version, deleted=False, after="{}", before=""))
    return found


def test_changes_after_a_version_come_in_order() -> None:
    """The version itself is not delivered again; versions of other kinds leave gaps."""
    found = history(3, 5, 9)
    assert [entry.version for entry in found.since(3)] == [5, 9]
    assert [entry.version for entry in found.since(4)] == [5, 9]
    assert found.since(9) == []


def test_a_start_before_what_is_kept_is_a_410() -> None:
    """410 Expired, as a compacted etcd answers; starting at the edge is fine."""
    found = history(3, 5, 9)
    found.forget(5)
    assert [entry.version for entry in found.since(5)] == [9]
    with pytest.raises(Refusal) as caught:
        found.since(4)
    assert (caught.value.code, caught.value.reason) == (410, "Expired")


def test_the_oldest_changes_are_forgotten() -> None:
    """Memory stays bounded, and a start before what is kept is never answered with a gap."""
    found = history(*range(1, 31), entries_max=10)
    kept = [entry.version for entry in found.since(29)]
    assert kept == [30]
    with pytest.raises(Refusal):
        found.since(1)
    assert len(found.since(25)) == 5
