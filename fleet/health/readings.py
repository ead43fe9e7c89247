"""What a back end reads off an accelerator at one moment. Pure.

None means *unknown*: asked and not answered. A name in `not_applicable` means the hardware has no
such thing. The two are judged differently: unknown blocks where a check is mandatory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
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
    """Driver fault codes logged since the driver was loaded, in order."""
    recovery_action: str | None = None
    """The driver's own verdict: NONE, GPU_RESET, NODE_REBOOT, DRAIN_P2P, DRAIN_AND_RESET ..."""
    reset_required: bool | None = None
    scrub_on_free: bool | None = None
    """Driver posture: whether the driver zeroes memory when it is freed."""
    driver_version: str | None = None
    not_applicable: frozenset[str] = frozenset()

    def counters(self) -> Mapping[str, int]:
        """The counters that were read."""
        return {name: value for name in COUNTERS if (value := getattr(self, name)) is not None}

    def as_json(self) -> dict[str, Any]:
        """JSON-safe form; `from_json` reads it back."""
        found = asdict(self)
        found["xids"] = None if self.xids is None else list(self.xids)
        found["not_applicable"] = sorted(self.not_applicable)
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Readings:
        """Rebuild from `as_json`. Unknown keys are ignored: a newer worker may read more."""
        known = {f.name for f in fields(cls)}
        kept = {name: value for name, value in found.items() if name in known}
        xids = kept.get("xids")
        kept["xids"] = None if xids is None else tuple(xids)
        kept["not_applicable"] = frozenset(kept.get("not_applicable", ()))
        return cls(**kept)


def risen(before: Readings, after: Readings) -> Mapping[str, tuple[int, int]]:
    """Counters that rose, as name: (before, after)."""
    old, new = before.counters(), after.counters()
    return {name: (old[name], new[name]) for name in old if name in new and new[name] > old[name]}
