"""Readings: unknown is not "not there", and counters are compared, not trusted."""

from __future__ import annotations

import json
from dataclasses import fields, replace

from hypothesis import given
from hypothesis import strategies as st

from fleet.devices.health.readings import COUNTERS, VENDOR_ONLY, Readings, narrowed, risen

COUNTS = st.none() | st.integers(0, 2**64 - 1)
READINGS = st.builds(
    Readings,
    at=st.floats(0, 1e10),
    under_load=st.booleans(),
    xids=st.none() | st.lists(st.integers(1, 200), max_size=3).map(tuple),
    xid_severities=st.lists(st.sampled_from(["", "fatal"]), max_size=3).map(tuple),
    xid_instances=st.lists(st.none() | st.integers(0, 14), max_size=3).map(tuple),
    xid_times=st.lists(st.none() | st.floats(0, 1e6), max_size=3).map(tuple),
    reset_methods=st.none() | st.just(("flr", "bus")),
    not_applicable=st.frozensets(st.sampled_from(COUNTERS), max_size=2),
    **dict.fromkeys(COUNTERS, COUNTS),
)


@given(READINGS)
def test_readings_survive_the_way_from_the_worker(readings: Readings) -> None:
    """What a worker read is what the node judges: JSON there and back changes nothing."""
    assert Readings.from_json(json.loads(json.dumps(readings.as_json()))) == readings


def test_a_newer_worker_may_read_more() -> None:
    """Unknown names are ignored, so that a worker of a newer version can still report."""
    assert Readings.from_json({"at": 1.0, "of_tomorrow": 3}) == Readings(at=1.0)


@given(READINGS)
def test_a_counter_that_was_not_read_is_not_zero(readings: Readings) -> None:
    """B1: unknown is left out of the counters, never shown as a number."""
    assert set(readings.counters()) == {
        name for name in COUNTERS if getattr(readings, name) is not None
    }


def test_only_what_rose_has_risen() -> None:
    """Equal, smaller, appeared and vanished counters did not rise."""
    before = Readings(at=0.0, retired_pages=1, pcie_replays=5, aer_fatal=2, nvlink_errors=1)
    after = Readings(at=1.0, retired_pages=3, pcie_replays=5, aer_fatal=1, aer_corrected=9)
    assert risen(before, after) == {"retired_pages": (1, 3)}


def test_what_only_a_vendor_knows_are_readings() -> None:
    """A back end without a vendor's library lists these as absent: each must be a reading."""
    assert {field.name for field in fields(Readings)} > VENDOR_ONLY
    assert not {"present", "pcie_gen", "pcie_width", "aer_fatal", "reset_methods"} & VENDOR_ONLY


def test_b70_only_faults_of_other_instances_are_left_out() -> None:
    """B70: a fault of the whole device concerns everybody, and so does all that was not told."""
    readings = Readings(
        at=1.0,
        xids=(79, 94, 45),
        xid_severities=("", "fatal", ""),
        xid_instances=(None, 2, 1),
        xid_times=(5.0, 6.0, None),
    )
    asked: list[tuple[int, float | None]] = []

    def concerns(gi: int, at_s: float | None) -> bool:
        asked.append((gi, at_s))
        return gi == 1

    found = narrowed(readings, concerns)
    assert (found.xids, found.xid_severities) == ((79, 45), ("", ""))
    assert (found.xid_instances, found.xid_times) == ((None, 1), (5.0, None))
    assert asked == [(2, 6.0), (1, None)]
    unread = replace(readings, xid_times=())
    assert narrowed(unread, lambda _gi, _at: False) == unread
