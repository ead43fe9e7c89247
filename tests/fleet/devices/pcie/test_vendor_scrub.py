"""Vendors' switches, read and judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.devices.pcie.vendor_scrub import Scrub, Switch, scrub_of
from fleet.devices.sysfs import Function
from tests.drivers.pci_tree import GAUDI2, MI300X, TPU_V5E
from tests.fleet.devices.pcie.benches import address, bench


def judged(function: Function) -> Scrub:
    """The switch of a function's part."""
    return scrub_of(function)


@pytest.mark.parametrize(
    ("text", "state"),
    [("1", Switch.ON), ("Y", Switch.ON), ("0", Switch.OFF), ("N", Switch.OFF), ("?", "unknown")],
)
def test_gaudis_switch_must_be_on(tmp_path: Path, text: str, state: Switch) -> None:
    """gpus-5.5, 10.28: memory_scrub is off by default, and off or unknown does not count."""
    found = bench(tmp_path, GAUDI2)
    found.tree.module("habanalabs", "1", {"memory_scrub": text})
    scrub = judged(found.function())
    assert scrub.state == state
    assert bool(scrub.problem) is (state != Switch.ON)


def test_an_absent_switch_is_unknown(tmp_path: Path) -> None:
    """gpus-8.38: a driver without the parameter leaves it unknown, which is not on."""
    found = bench(tmp_path, GAUDI2)
    (found.tree.root / "sys/module/habanalabs/parameters/memory_scrub").unlink()
    scrub = judged(found.function())
    assert scrub.state is Switch.UNKNOWN
    assert "memory_scrub is unknown" in scrub.problem


@pytest.mark.parametrize(
    ("text", "state"),
    [("1", "on"), ("1 1", "on"), ("1 0", "off"), ("0", "off"), ("3", "off"), ("", "unknown")],
)
def test_amds_isolation_is_told_for_every_partition(tmp_path: Path, text: str, state: str) -> None:
    """gpus-4.6: one partition without it means off; it is told and not required."""
    found = bench(tmp_path, MI300X)
    found.tree.write(address(0), "enforce_isolation", text)
    scrub = judged(found.function())
    assert (scrub.state, scrub.problem) == (state, "")


def test_a_tpu_has_none(tmp_path: Path) -> None:
    """gpus-5.5, 10.28: no public switch is known, and the answer says just that."""
    found = bench(tmp_path, TPU_V5E)
    assert judged(found.function()) == Scrub(Switch.NONE)


def test_b64_memory_the_kernel_hands_out_does_not_count(tmp_path: Path) -> None:
    """B64: a reset proves nothing about memory that is a NUMA node of the host."""
    found = bench(tmp_path, replace(MI300X, numa=2))
    found.tree.put("sys/devices/system/node/node2/cpulist", "\n")
    found.tree.put("sys/devices/system/node/node2/meminfo", "Node 2 MemTotal: 1024 kB\n")
    assert "NUMA node 2" in judged(found.function()).problem
