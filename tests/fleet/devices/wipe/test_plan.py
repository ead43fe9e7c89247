"""Orders and the arithmetic that judges a wipe."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.core.errors import InputInvalid
from fleet.core.model import UnitId, Uuid
from fleet.core.settings import WipePolicy
from fleet.devices.base import Coverage
from fleet.devices.health.readings import Readings
from fleet.devices.wipe import plan

GIB = 1 << 30
UUID = Uuid("GPU-00000000-0000-4000-8000-0000000000a1")
ORDER = plan.WipeOrder(
    worker_id="ab" * 16,
    backend="simulated",
    settings={"root": "/x"},
    accelerator=UUID,
    device=UUID,
    units=(UnitId(f"{UUID}/all"),),
    nonce="01" * 32,
    deadline_s=10.0,
)


def test_an_order_survives_json() -> None:
    """What a worker reads is what the node wrote."""
    assert plan.WipeOrder.from_json(json.loads(json.dumps(ORDER.as_json()))) == ORDER


@pytest.mark.parametrize(
    "named", ["", "0", "3,1", "-1", "1,1", "GPU-00000000", "gpu-0", f"{UUID},{UUID}", f"{UUID} "]
)
@pytest.mark.parametrize("name", ["accelerator", "device"])
def test_b13_only_a_whole_uuid_names_a_device(name: str, named: str) -> None:
    """B13: an index, a list, a prefix or an empty name is refused, never resolved."""
    with pytest.raises(InputInvalid, match="not a device UUID"):
        plan.WipeOrder.from_json({**ORDER.as_json(), name: named})


@pytest.mark.parametrize(
    "wrong",
    [
        {"worker_id": "short"},
        {"nonce": "01" * 15},
        {"nonce": "01" * 33},
        {"nonce": "zz" * 32},
        {"units": []},
        {"chunk_smallest_bytes": 0},
        {"chunk_smallest_bytes": 9 * GIB},
    ],
)
def test_an_order_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    """A worker never starts on an order it would have to guess about."""
    with pytest.raises(InputInvalid):
        plan.WipeOrder.from_json({**ORDER.as_json(), **wrong})


def test_an_order_takes_its_figures_from_the_policy() -> None:
    """The policy's floor, chunks, rate and deadline reach the worker."""
    policy = WipePolicy(coverage_floor=0.5, deadline_base_s=1.0, deadline_s_per_gib=2.0)
    target = plan.Target("simulated", {}, UUID, UUID, ORDER.units, 3 * GIB)
    order = plan.order(target, policy, worker_id="ab" * 16, nonce="01" * 32)
    assert (order.coverage_floor, order.deadline_s) == (0.5, 7.0)


def test_b06_coverage_is_judged_in_64_bits() -> None:
    """B06: of 80 GiB with 700 MiB reserved, one missing GiB is named in bytes and fails."""
    total, reserved = 80 * GIB, 734003200
    whole = Coverage(total, reserved, total - reserved)
    assert plan.coverage_problem(whole, 0.98) == ""
    short = replace(whole, covered=whole.covered - 2 * GIB)
    assert "2147483648 B not reached" in plan.coverage_problem(short, 0.98)


@pytest.mark.parametrize(
    "coverage", [Coverage(0, 0, 0), Coverage(10, 0, 0), Coverage(10, 0, 11), Coverage(10, 11, 0)]
)
def test_coverage_that_does_not_add_up_fails(coverage: Coverage) -> None:
    """Nothing covered, or more covered than there is, is never enough."""
    assert plan.coverage_problem(coverage, 0.01)


@given(total=st.integers(1, 1 << 60), part=st.floats(0, 1), floor=st.floats(0.01, 1))
def test_coverage_fails_exactly_below_the_floor(total: int, part: float, floor: float) -> None:
    """The floor is a fraction of what can be reached, whatever the size."""
    covered = int(total * part)
    enough = covered > 0 and covered >= floor * total
    assert (plan.coverage_problem(Coverage(total, 0, covered), floor) == "") is enough


def test_a_pass_is_slow_only_beyond_factor_and_allowance() -> None:
    """Healthy memory on a busy host is not at fault; memory ten times too slow is."""
    order = replace(ORDER, expected_bytes_per_s=200e6, slow_factor=10.0, slow_allowance_s=5.0)
    assert plan.slow_problem(order, int(200e6), 14.9) == ""
    assert "MB/s" in plan.slow_problem(order, int(200e6), 15.1)


def test_a_pass_ten_times_slower_by_the_devices_own_clock_is_a_fault() -> None:
    """gpus-4.3: on a busy host only the device's clock tells; what was not taken is not judged."""
    order = replace(ORDER, device_bytes_per_s=2e12, slow_factor=10.0)
    assert plan.slow_on_device(order, int(140e9), 0.7) == ""
    assert "2000 GB/s" in plan.slow_on_device(order, int(140e9), 0.8)
    assert plan.slow_on_device(replace(order, device_bytes_per_s=0.0), int(140e9), 99.0) == ""
    assert plan.slow_on_device(order, 1, plan.DEVICE_ALLOWANCE_S) == ""


def test_b06_all_ones_is_a_failed_read_out() -> None:
    """B06: 0xFFFFFFFF is neither four billion errors nor none."""
    readings = Readings(at=0.0, aer_fatal=0xFFFFFFFF, sram_uncorrected=0)
    assert plan.unread(readings) == "aer_fatal reads 0xffffffff"
    assert plan.unread(Readings(at=0.0, aer_fatal=0)) == ""


def test_a_counter_that_got_smaller_is_named() -> None:
    """Counters only ever rise: a smaller one means that a reading is wrong."""
    before, after = Readings(at=0.0, aer_fatal=5), Readings(at=1.0, aer_fatal=4)
    assert plan.shrunk(before, after) == "aer_fatal fell from 5 to 4"
    assert plan.shrunk(after, before) == ""


GIB = 1 << 30
H200 = 141 * GIB


@pytest.mark.parametrize(
    ("free", "covered", "problem"),
    [
        (H200 - GIB // 2, H200 - GIB // 2 - (64 << 20), ""),
        (H200 - GIB // 2, H200 - GIB // 2 - (65 << 20), "free at the start and could not be taken"),
        (H200 - 2 * GIB, H200 - 2 * GIB, "more than the worker's own context has"),
        (None, H200 - 2 * GIB, ""),
    ],
)
def test_f86_gigabytes_that_a_share_would_hide_are_not_covered(
    free: int | None, covered: int, problem: str
) -> None:
    """F86: of 141 GiB the floor leaves 2.8: what was free has to be taken but for 64 MiB, and what
    was in use before has to be no more than a context of our own."""
    found = plan.coverage_problem(Coverage(H200, 0, covered, free), 0.98)
    assert problem in found
    assert bool(found) is bool(problem)
