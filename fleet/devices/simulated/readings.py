"""Health readings of a simulated accelerator: a healthy device, changed by counters and faults.

The numbers are those of a current data-centre part, so that the same checks judge them as judge
real hardware. Pure.
"""

from __future__ import annotations

from typing import Any

from fleet.devices.health.readings import Readings
from fleet.devices.simulated.registers import Register

HEALTHY: dict[str, Any] = {
    "present": True,
    "ecc_uncorrected_volatile": 0,
    "ecc_uncorrected_aggregate": 0,
    "ecc_corrected_volatile": 0,
    "sram_uncorrected": 0,
    "row_remap_pending": False,
    "row_remap_failed": False,
    "uncorrectable_remaps": 0,
    "pcie_gen": 1,
    "pcie_gen_max": 5,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_replays": 0,
    "aer_fatal": 0,
    "aer_nonfatal": 0,
    "aer_corrected": 0,
    "nvlinks_up": 18,
    "nvlinks_expected": 18,
    "nvlink_errors": 0,
    "temperature_c": 41,
    "hw_slowdown": False,
    "thermal_slowdown": False,
    "xids": [],
    "logged": [],
    "recovery_action": "NONE",
    "reset_required": False,
    "scrub_on_free": True,
    "driver_version": "simulated",
    "sram_threshold_exceeded": False,
    "repair_pending": False,
    "inforom_valid": True,
    "fabric_state": "completed",
    "fabric_healthy": True,
    "pcie_gen_device_max": 5,
    "pstate": 8,
    "power_brake": False,
    "memory_temperature_c": 38,
    "persistence": True,
    "ecc_enabled": True,
    "ecc_change_pending": False,
    "preserves_memory": False,
    "accounting": False,
    "not_applicable": [
        "retired_pages",
        "retired_pages_pending",
        "mig_enabled",
        "mig_change_pending",
        "unpartitioned",
        "reset_methods",
    ],
}
"""An idle device: its link rests at the first generation, which is no fault."""
UNDER_LOAD: dict[str, Any] = {
    "pcie_gen": 5,
    "pstate": 0,
    "temperature_c": 63,
    "memory_temperature_c": 71,
}
VOLATILE = (
    "ecc_uncorrected_volatile",
    "ecc_corrected_volatile",
    "sram_uncorrected",
    "pcie_replays",
    "aer_fatal",
    "aer_nonfatal",
    "aer_corrected",
    "nvlink_errors",
    "xids",
)
"""Readings that start again at a reset or reboot."""


def readings(register: Register, *, at: float, under_load: bool) -> Readings:
    """The readings a driver would give now."""
    found = {**HEALTHY, **(UNDER_LOAD if under_load else {}), **register.values}
    for fault in register.faults.values():
        found.update(fault.readings)
        if under_load:
            found.update(fault.load_readings)
    return Readings.from_json({**found, "at": at, "under_load": under_load})


def count(register: Register, name: str, by: int = 1) -> None:
    """Let a counter rise."""
    register.values[name] = register.values.get(name, HEALTHY[name]) + by


def after_reset(register: Register) -> None:
    """What a reset or a reboot clears: volatile counters, pending states, a lost device."""
    for name in VOLATILE:
        register.values.pop(name, None)
    register.faults = {
        name: fault for name, fault in register.faults.items() if not fault.reset_clears
    }
    register.lost = False
    register.resets += 1
