"""Readings from sysfs alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core.errors import DeviceLost
from fleet.core.settings import HealthPolicy
from fleet.devices.health import checks
from fleet.devices.health.readings import COUNTERS
from tests.drivers.pci_tree import GAUDI2, MI300X, TPU_V5E
from tests.fleet.devices.pcie.benches import Bench, address, bench


def read(found: Bench) -> object:
    """Readings of the first card."""
    return found.backend.readings(found.accelerator().uuid)


def test_link_errors_and_driver_are_read(tmp_path: Path) -> None:
    """gpus-8.24: what sysfs tells is there, and nothing else is guessed."""
    found = bench(tmp_path, GAUDI2)
    found.tree.write(address(0), "aer_dev_fatal", "DLP 0\nTOTAL_ERR_FATAL 3")
    seen = found.backend.readings(found.accelerator().uuid)
    assert (seen.present, seen.pcie_gen, seen.pcie_width, seen.aer_fatal) == (True, 4, 16, 3)
    assert seen.aer_nonfatal is None
    assert "aer_nonfatal" not in seen.not_applicable
    assert seen.driver_version == "1.22.0-stand-in"
    assert seen.reset_methods == ("flr", "bus")
    assert set(seen.counters()) == {"aer_fatal"}
    assert not seen.counters().keys() & seen.not_applicable


def test_what_no_interface_tells_is_not_applicable(tmp_path: Path) -> None:
    """gpus-8.19: readings of another vendor are none of this back end's, and block nothing."""
    found = bench(tmp_path, TPU_V5E)
    for name in ("correctable", "nonfatal", "fatal"):
        word = {"correctable": "COR"}.get(name, name.upper())
        found.tree.write(address(0), f"aer_dev_{name}", f"TOTAL_ERR_{word} 0")
    seen = found.backend.readings(found.accelerator().uuid)
    assert set(COUNTERS) - seen.not_applicable == {"aer_fatal", "aer_nonfatal", "aer_corrected"}
    findings = checks.judge(seen, HealthPolicy())
    assert checks.passed(findings, HealthPolicy())


def test_amds_own_error_counts_are_read(tmp_path: Path) -> None:
    """gpus-8.20: where the driver counts memory errors they are judged like anybody's."""
    found = bench(tmp_path, MI300X)
    found.tree.write(address(0), "ras/umc_err_count", "ue: 2\nce: 7")
    found.tree.write(address(0), "ras/gfx_err_count", "ue: 1\nce: 0")
    seen = found.backend.readings(found.accelerator().uuid)
    assert (seen.ecc_uncorrected_volatile, seen.ecc_corrected_volatile) == (3, 7)


def test_a_dead_card_is_lost(tmp_path: Path) -> None:
    """gpus-8.25: ones in the configuration space, or 63 lanes, are a lost device."""
    found = bench(tmp_path, GAUDI2)
    found.tree.write(address(0), "current_link_width", "63")
    with pytest.raises(DeviceLost, match="width of 63"):
        read(found)
    found.tree.die(address(0))
    with pytest.raises(DeviceLost, match="reads all ones"):
        read(found)


def test_a_card_that_sleeps_is_neither(tmp_path: Path) -> None:
    """gpus-5.2: ones without power are no proof; presence is unknown and not false."""
    found = bench(tmp_path, GAUDI2)
    own = found.accelerator().uuid
    found.tree.die(address(0))
    found.tree.write(address(0), "power_state", "D3cold")
    assert found.backend.readings(own).present is None
