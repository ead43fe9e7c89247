"""Errors of a GPU's memory: ECC, remapped rows, retired pages, repairs.

What exists depends on the part, and under MIG the driver stops telling part of it. The rules, all
on the side of "unknown" (which blocks):

1. No ECC mode at all (`NOT_SUPPORTED`), or ECC off: its counters are not applicable when they are
   not supported either. A counter that answers is always believed.
2. Ampere and later remap rows, earlier parts retire pages: the other one is not applicable. A part
   without ECC has neither.
3. MIG on: volatile counts are not told for the whole GPU. They are not applicable if the lifetime
   count was read, which counts the same events and whose rise fails the device; else unknown.
   Remapped rows are not told while instances exist. They are not applicable if the driver's own
   verdict on what the GPU needs and its fault codes were both read: a pending or failed remap shows
   in these; else unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet.devices.nvidia.probe import Answers, Probe, flag

CORRECTED, UNCORRECTED = 0, 1
VOLATILE, AGGREGATE = 0, 1
SRAM = 7
LOCATIONS = range(7)
"""L1, L2, device memory, registers, texture, shared, CBU; SRAM is their sum on newer parts."""
RETIREMENT_CAUSES = (0, 1)
"""Several single-bit errors, one double-bit error."""
AMPERE, BLACKWELL = 7, 10
REMAPPED = {142: "corrected", 143: "uncorrected", 144: "pending", 145: "failed"}
"""Field values with the same facts as the call for remapped rows."""

ECC = (
    "ecc_uncorrected_volatile",
    "ecc_uncorrected_aggregate",
    "ecc_corrected_volatile",
    "sram_uncorrected",
    "sram_threshold_exceeded",
)
VOLATILES = ("ecc_uncorrected_volatile", "ecc_corrected_volatile", "sram_uncorrected")
REMAPS = ("row_remap_pending", "row_remap_failed", "uncorrectable_remaps")
RETIREMENTS = ("retired_pages", "retired_pages_pending")


def read(probe: Probe, architecture: int | None) -> Answers:
    """All readings of memory errors. Raises `DeviceLost`."""
    found = Answers()
    mode = probe.ask("GetEccMode")
    without_ecc = mode is None and probe.lacks("GetEccMode")
    current = flag(mode[0]) if mode else None
    found.values["ecc_enabled"] = current
    found.values["ecc_change_pending"] = mode[0] != mode[1] if mode else None
    if without_ecc:
        found.absent("ecc_enabled", "ecc_change_pending")
    _counters(probe, found, silent=without_ecc or current is False)
    _sram(probe, found, architecture, silent=without_ecc or current is False)
    _remaps(probe, found, architecture, without_ecc=without_ecc)
    _retirements(probe, found, architecture, without_ecc=without_ecc)
    _repairs(probe, found, architecture)
    return found


def under_mig(found: Answers, *, verdict: str | None, xids: object) -> None:
    """Rule 3 of this module for a GPU whose MIG mode is on; `found` is changed.

    `verdict`: the recovery action read, `xids` the fault codes read; None each: not read.
    """
    if found.values.get("ecc_uncorrected_aggregate") is not None:
        found.absent(*(name for name in VOLATILES if found.values.get(name) is None))
    if verdict is not None and xids is not None:
        found.absent(*(name for name in REMAPS if found.values.get(name) is None))


def _counters(probe: Probe, found: Answers, *, silent: bool) -> None:
    """Totals; `silent`: the part does not count, so that "not supported" means it has none."""
    for name, kind, counter in (
        ("ecc_uncorrected_volatile", UNCORRECTED, VOLATILE),
        ("ecc_uncorrected_aggregate", UNCORRECTED, AGGREGATE),
        ("ecc_corrected_volatile", CORRECTED, VOLATILE),
    ):
        total = probe.ask("GetTotalEccErrors", kind, counter)
        lacking = probe.lacks("GetTotalEccErrors")
        if kind == UNCORRECTED:
            total = _most(total, _by_location(probe, counter))
        found.values[name] = total
        if total is None and lacking and silent:
            found.absent(name)


def _by_location(probe: Probe, counter: int) -> int | None:
    """Uncorrected errors over all locations: a total that missed one must not hide it."""
    counts = [
        count
        for location in LOCATIONS
        if (count := probe.ask("GetMemoryErrorCounter", UNCORRECTED, counter, location)) is not None
    ]
    return sum(counts) if counts else None


def _most(*counts: int | None) -> int | None:
    known = [count for count in counts if count is not None]
    return max(known, default=None)


def _sram(probe: Probe, found: Answers, architecture: int | None, *, silent: bool) -> None:
    status = probe.filled("GetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t")
    lacking = probe.lacks("GetSramEccErrorStatus")
    if status is not None:
        found.values["sram_uncorrected"] = status.volatileUncParity + status.volatileUncSecDed
        found.values["sram_threshold_exceeded"] = bool(status.bThresholdExceeded)
        return
    counted = probe.ask("GetMemoryErrorCounter", UNCORRECTED, VOLATILE, SRAM)
    found.values["sram_uncorrected"] = counted
    earlier = architecture is not None and architecture < AMPERE
    if lacking and (silent or earlier):
        found.absent("sram_threshold_exceeded")
    if lacking and silent and counted is None:
        found.absent("sram_uncorrected")


def _remaps(probe: Probe, found: Answers, architecture: int | None, *, without_ecc: bool) -> None:
    rows = probe.ask("GetRemappedRows")
    lacking = probe.lacks("GetRemappedRows")
    remapped: Mapping[str, Any] = (
        dict(zip(REMAPPED.values(), rows, strict=True)) if rows else _as_fields(probe)
    )
    found.values["row_remap_pending"] = flag(remapped.get("pending"))
    found.values["row_remap_failed"] = flag(remapped.get("failed"))
    found.values["uncorrectable_remaps"] = remapped.get("uncorrected")
    earlier = architecture is not None and architecture < AMPERE
    if not remapped and lacking and (earlier or without_ecc):
        found.absent(*REMAPS)


def _as_fields(probe: Probe) -> dict[str, int]:
    said = probe.fields(list(REMAPPED))
    return {name: said[field] for field, name in REMAPPED.items() if field in said}


def _retirements(
    probe: Probe, found: Answers, architecture: int | None, *, without_ecc: bool
) -> None:
    counts, lacking = [], False
    for cause in RETIREMENT_CAUSES:
        pages = probe.ask("GetRetiredPages", cause)
        lacking = lacking or probe.lacks("GetRetiredPages")
        if pages is not None:
            counts.append(len(pages))
    whole = len(counts) == len(RETIREMENT_CAUSES)
    found.values["retired_pages"] = sum(counts) if whole else None
    pending = flag(probe.ask("GetRetiredPagesPendingStatus"))
    found.values["retired_pages_pending"] = pending
    later = architecture is not None and architecture >= AMPERE
    if (later or without_ecc) and lacking and pending is None:
        found.absent(*RETIREMENTS)


def _repairs(probe: Probe, found: Answers, architecture: int | None) -> None:
    status = probe.ask("GetRepairStatus")
    found.values["repair_pending"] = None if status is None else any(status)
    earlier = architecture is not None and architecture < BLACKWELL
    if status is None and probe.lacks("GetRepairStatus") and earlier:
        found.absent("repair_pending")
    probe.ask("ValidateInforom")
    valid = {0: True, CORRUPTED: False}.get(probe.refused("ValidateInforom"))
    found.values["inforom_valid"] = valid
    if valid is None and probe.lacks("ValidateInforom"):
        probe.ask("GetInforomImageVersion")
        if probe.lacks("GetInforomImageVersion"):
            found.absent("inforom_valid")


CORRUPTED = 14
"""NVML's code for a wrong checksum of the infoROM."""
