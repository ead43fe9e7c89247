"""What a certificate says it did not cover."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.core.model import Process, ProcessKind
from fleet.devices.base import Coverage
from fleet.evidence import scope
from tests.fleet.evidence.samples import device_named, wipe_of


def test_regions_out_of_reach_are_named_not_covered() -> None:
    """B18: on-chip memory, reserved memory, contexts and firmware are listed as not covered."""
    device = device_named("a")
    found = {r.name: r for r in scope.regions(device, wipe_of(device), reset_method="")}
    assert [name for name, region in found.items() if region.covered] == ["allocatable-memory"]
    assert found["on-chip-memory"].cleared_by == "not covered"
    assert found["driver-reserved-memory"].size_bytes == 3 * 1024 * 1024
    assert found["residual-memory"].size_bytes == 1024 * 1024
    assert "monitor" in found["context-of-process"].words


def test_reset_covers_on_chip_memory_and_says_how() -> None:
    """B18: the on-chip step is separate, and what cannot be read back is said to be so."""
    device = device_named("a")
    found = {r.name: r for r in scope.regions(device, wipe_of(device), reset_method="flr")}
    assert found["on-chip-memory"].covered
    assert "flr" in found["on-chip-memory"].cleared_by
    assert "cannot be read back" in found["on-chip-memory"].verified


def test_partition_names_the_memory_of_others() -> None:
    """A partition's certificate says that the rest of the accelerator was not touched."""
    part = device_named("a-0", ("0", "1"), accelerator="a")
    names = [r.name for r in scope.regions(part, wipe_of(part), reset_method="")]
    assert "other-partitions" in names


@pytest.mark.parametrize("simulated", [True, False])
@pytest.mark.parametrize("reset_method", ["", "flr"])
def test_summary_never_claims_a_clean_device(reset_method: str, *, simulated: bool) -> None:
    """B18: no sentence says that device memory is clean while a region is uncovered."""
    device = device_named("a")
    found = scope.regions(device, wipe_of(device), reset_method=reset_method)
    words = scope.summary(found, simulated=simulated)
    assert "clean" not in words.lower()
    assert "purge" not in words.lower()
    assert "Not covered: driver-reserved-memory, residual-memory" in words
    assert words.startswith("SIMULATED") is simulated


def test_empty_regions_are_not_complained_about() -> None:
    """A region of zero bytes is not listed as missing; our own workers are no holder."""
    device = device_named("a")
    wipe = replace(
        wipe_of(device),
        coverage=Coverage(10, 0, 10),
        holders=(Process(1, "worker", ProcessKind.OURS),),
    )
    words = scope.summary(scope.regions(device, wipe, reset_method="flr"), simulated=False)
    assert words.endswith("Not covered: firmware-and-non-volatile-storage.")
