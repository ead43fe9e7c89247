"""What a back end reads off an accelerator at one moment. Pure.

None means *unknown*: asked and not answered. A name in `not_applicable` means the hardware has no
such thing. The two are judged differently: unknown blocks where a check is mandatory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

COUNTERS = (
    "ecc_uncorrected_volatile",
    "ecc_uncorrected_aggregate",
    "ecc_corrected_volatile",
    "sram_uncorrected",
    "uncorrectable_remaps",
    "retired_pages",
    "pcie_replays",
    "aer_fatal",
    "aer_nonfatal",
    "aer_corrected",
    "nvlink_errors",
)
"""Readings that only ever rise while the driver stays loaded: compared before and after a wipe."""

XID_COLUMNS = ("xid_severities", "xid_instances", "xid_times")
"""Readings that go with `xids` position by position."""

VENDOR_ONLY = frozenset(
    {
        "ecc_uncorrected_volatile",
        "ecc_uncorrected_aggregate",
        "ecc_corrected_volatile",
        "ecc_enabled",
        "ecc_change_pending",
        "sram_uncorrected",
        "sram_threshold_exceeded",
        "row_remap_pending",
        "row_remap_failed",
        "uncorrectable_remaps",
        "retired_pages",
        "retired_pages_pending",
        "repair_pending",
        "inforom_valid",
        "pcie_gen_device_max",
        "pcie_replays",
        "nvlinks_up",
        "nvlinks_expected",
        "nvlink_errors",
        "fabric_state",
        "fabric_healthy",
        "pstate",
        "temperature_c",
        "memory_temperature_c",
        "hw_slowdown",
        "thermal_slowdown",
        "power_brake",
        "xids",
        "recovery_action",
        "reset_required",
        "scrub_on_free",
        "preserves_memory",
        "persistence",
        "accounting",
        "mig_enabled",
        "mig_change_pending",
        "unpartitioned",
    }
)
"""Readings that only a vendor's library or driver knows: not applicable to a bare PCI function,
except those its driver does offer."""


@dataclass(frozen=True, slots=True)
class Readings:
    """One set of readings. Counters are totals since driver load unless named aggregate."""

    at: float
    """When they were taken, seconds since the epoch."""
    under_load: bool = False
    """Whether memory traffic of ours was running: link speed and width are judged only then."""
    present: bool | None = None
    ecc_uncorrected_volatile: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    ecc_corrected_volatile: int | None = None
    sram_uncorrected: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    uncorrectable_remaps: int | None = None
    retired_pages: int | None = None
    retired_pages_pending: bool | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    aer_fatal: int | None = None
    aer_nonfatal: int | None = None
    aer_corrected: int | None = None
    nvlinks_up: int | None = None
    nvlinks_expected: int | None = None
    nvlink_errors: int | None = None
    temperature_c: int | None = None
    hw_slowdown: bool | None = None
    thermal_slowdown: bool | None = None
    xids: tuple[int, ...] | None = None
    """Driver fault codes logged since the driver was loaded or the device reset, in order."""
    xid_severities: tuple[str, ...] = ()
    """What the messages of `xids` say of themselves, position by position: ``fatal``, ``nonfatal``
    or "". Empty: not read."""
    xid_instances: tuple[int | None, ...] = ()
    """The GPU instance each of `xids` names, position by position; None: none, the whole device.
    Empty: not read."""
    xid_times: tuple[float | None, ...] = ()
    """When each was logged, s since boot by the log's clock; None: not known. Empty: not read."""
    recovery_action: str | None = None
    """The driver's own verdict: NONE, GPU_RESET, NODE_REBOOT, DRAIN_P2P, DRAIN_AND_RESET ..."""
    reset_required: bool | None = None
    scrub_on_free: bool | None = None
    """Driver posture: whether the driver zeroes memory when it is freed."""
    driver_version: str | None = None
    sram_threshold_exceeded: bool | None = None
    """The driver's own limit of uncorrected SRAM errors was passed."""
    repair_pending: bool | None = None
    """A repair of channels or cores waits for a reset."""
    inforom_valid: bool | None = None
    """Whether the checksum of the board's non-volatile memory is right: else history is lost."""
    fabric_state: str | None = None
    """``not-started``, ``in-progress``, ``completed`` or ``failed-<driver's code>``."""
    fabric_healthy: bool | None = None
    """What the fabric's health mask and summary say once it is completed."""
    fabric_waited_s: float | None = None
    """How long the fabric has been seen on its way, s; None: not known or not on its way."""
    pcie_gen_device_max: int | None = None
    """What the card alone can do; above `pcie_gen_max` where the slot is the slower one."""
    pstate: int | None = None
    """0: full speed. Link readings under load count only there."""
    power_brake: bool | None = None
    memory_temperature_c: int | None = None
    persistence: bool | None = None
    ecc_enabled: bool | None = None
    ecc_change_pending: bool | None = None
    mig_enabled: bool | None = None
    mig_change_pending: bool | None = None
    unpartitioned: bool | None = None
    """Partitioning is on and nothing can be used before an instance is made."""
    preserves_memory: bool | None = None
    """Driver posture: memory is written to a file at suspend."""
    accounting: bool | None = None
    """Driver posture: process accounting, which tells one tenant of another, is on."""
    reset_methods: tuple[str, ...] | None = None
    """What the kernel offers to reset the device by (PCI)."""
    why: Mapping[str, str] = field(default_factory=dict)
    """Why a reading is unknown, where that is known, by its name."""
    not_applicable: frozenset[str] = frozenset()

    def counters(self) -> Mapping[str, int]:
        """The counters that were read."""
        return {name: value for name in COUNTERS if (value := getattr(self, name)) is not None}

    def as_json(self) -> dict[str, Any]:
        """JSON-safe form; `from_json` reads it back."""
        found = asdict(self)
        found["xids"] = None if self.xids is None else list(self.xids)
        found["not_applicable"] = sorted(self.not_applicable)
        for name in XID_COLUMNS:
            found[name] = list(getattr(self, name))
        found["reset_methods"] = None if self.reset_methods is None else list(self.reset_methods)
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Readings:
        """Rebuild from `as_json`. Unknown keys are ignored: a newer worker may read more."""
        known = {f.name for f in fields(cls)}
        kept = {name: value for name, value in found.items() if name in known}
        xids = kept.get("xids")
        kept["xids"] = None if xids is None else tuple(xids)
        for name in XID_COLUMNS:
            kept[name] = tuple(kept.get(name, ()))
        methods = kept.get("reset_methods")
        kept["reset_methods"] = None if methods is None else tuple(methods)
        kept["not_applicable"] = frozenset(kept.get("not_applicable", ()))
        return cls(**kept)


def narrowed(readings: Readings, concerns: Callable[[int, float | None], bool]) -> Readings:
    """The readings without fault codes of instances that `concerns` denies.

    It is asked with the number of the instance a code names and when that was. Codes of the whole
    device stay, and all of them where it was not read which instance each one names.
    """
    codes = readings.xids or ()
    named = any(gi is not None for gi in readings.xid_instances)
    if not named or any(len(getattr(readings, name)) != len(codes) for name in XID_COLUMNS):
        return readings
    kept = [
        position
        for position, gi in enumerate(readings.xid_instances)
        if gi is None or concerns(gi, readings.xid_times[position])
    ]
    return replace(
        readings,
        xids=tuple(codes[i] for i in kept),
        xid_severities=tuple(readings.xid_severities[i] for i in kept),
        xid_instances=tuple(readings.xid_instances[i] for i in kept),
        xid_times=tuple(readings.xid_times[i] for i in kept),
    )


def risen(before: Readings, after: Readings) -> Mapping[str, tuple[int, int]]:
    """Counters that rose, as name: (before, after)."""
    old, new = before.counters(), after.counters()
    return {name: (old[name], new[name]) for name in old if name in new and new[name] > old[name]}
