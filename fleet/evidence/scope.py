"""What a wipe covered and what it did not, region by region, in words. Pure.

Overwriting allocatable memory says nothing about other places data may stay (case B18). Each place
is listed with what cleared it and how that was verified, or as not covered. No summary could be
read as more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fleet.model import Device, Process, ProcessKind
from fleet.wipe.result import WipeResult

NOT_COVERED = "not covered"
SIMULATED_LABEL = "SIMULATED DEVICE"
"""How the summary of a simulated device begins."""
TECHNIQUE = "Clear"
"""NIST SP 800-88: logical overwriting of addressable locations. Nothing stronger is claimed."""


@dataclass(frozen=True, slots=True)
class Region:
    """One place where a tenant's data may stay; ``cleared_by`` may be "not covered"."""

    name: str
    cleared_by: str
    verified: str
    size_bytes: int | None = None
    """None: not measured."""
    words: str = ""

    @property
    def covered(self) -> bool:
        return self.cleared_by != NOT_COVERED

    def as_json(self) -> dict[str, Any]:
        """JSON-safe form."""
        return {
            "region": self.name,
            "covered": self.covered,
            "cleared_by": self.cleared_by,
            "verified": self.verified,
            "bytes": self.size_bytes,
            "words": self.words,
        }


def regions(device: Device, wipe: WipeResult, *, reset_method: str) -> tuple[Region, ...]:
    """All regions of one wipe. `reset_method` "": the engine was not reset."""
    return (
        Region(
            "allocatable-memory",
            "overwritten with a pattern of nonce and address, then with zeros",
            "every byte read back twice: after the pattern and after the zeros",
            wipe.coverage.covered,
        ),
        *_bytes_not_covered(wipe),
        _on_chip(reset_method),
        *_contexts(wipe.holders),
        *_other_partitions(device),
        Region(
            "firmware-and-non-volatile-storage",
            NOT_COVERED,
            "not verified",
            words="infoROM, VBIOS and other non-volatile parts are outside the wipe.",
        ),
    )


def _bytes_not_covered(wipe: WipeResult) -> Sequence[Region]:
    return (
        Region(
            "driver-reserved-memory",
            NOT_COVERED,
            "not verified",
            wipe.coverage.reserved,
            "Memory the driver keeps for itself: neither tenants nor the wipe can address it.",
        ),
        Region(
            "residual-memory",
            NOT_COVERED,
            "not verified",
            wipe.coverage.residual,
            "Memory that is neither reserved nor was handed out to the wipe.",
        ),
    )


def _on_chip(reset_method: str) -> Region:
    words = "Registers, shared and local memory of execution units, caches."
    name = "on-chip-memory"
    if not reset_method:
        return Region(name, NOT_COVERED, "not verified", words=words)
    return Region(
        name,
        f"reset of the engine ({reset_method})",
        "the reset was reported as done; the content cannot be read back",
        words=words,
    )


def _contexts(holders: Sequence[Process]) -> Sequence[Region]:
    """Contexts of processes that stayed on the device (infrastructure, in a certificate)."""
    return [
        Region(
            "context-of-process",
            NOT_COVERED,
            "not verified",
            words=f"Process {holder.pid} ({holder.name}) had the device open during the wipe.",
        )
        for holder in holders
        if holder.kind is not ProcessKind.OURS
    ]


def _other_partitions(device: Device) -> Sequence[Region]:
    if device.whole:
        return ()
    return (
        Region(
            "other-partitions",
            NOT_COVERED,
            "not verified",
            words=f"Memory of accelerator {device.accelerator} outside units"
            f" {', '.join(device.units)} was not touched.",
        ),
    )


def summary(found: Sequence[Region], *, simulated: bool) -> str:
    """One sentence with the figures and everything not covered."""
    wiped = next(region for region in found if region.name == "allocatable-memory")
    # An empty region is covered by there being nothing in it; an unmeasured one is not.
    missing = [region.name for region in found if not region.covered and region.size_bytes != 0]
    label = (
        f"{SIMULATED_LABEL}, no hardware was touched: this proves nothing about a real device. "
        if simulated
        else ""
    )
    tail = f" Not covered: {', '.join(missing)}." if missing else " Every region listed is covered."
    return (
        f"{label}{wiped.size_bytes} bytes were overwritten and read back without a mismatch"
        f" (technique {TECHNIQUE}).{tail}"
    )
