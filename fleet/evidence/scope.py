"""What a wipe covered and what it did not, region by region, in words. Pure.

Overwriting allocatable memory says nothing about other places data may stay (case B18). Each place
is listed with what cleared it and how that was verified, or as not covered. No summary could be
read as more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fleet.core.model import Device, Process, ProcessKind
from fleet.devices.base import ResetScrub
from fleet.devices.wipe.result import Kind, WipeResult

NOT_COVERED = "not covered"
SIMULATED_LABEL = "SIMULATED DEVICE"
"""How the summary of a simulated device begins."""
TECHNIQUE = "Clear"
"""NIST SP 800-88: logical overwriting of addressable locations. Nothing stronger is claimed."""
RESET_TECHNIQUE = "reset"
"""No technique of the standard: where memory cannot be reached, nothing of it is claimed."""
RESET_METHOD = "reset and no holders; memory not read back"
ON_CHIP = "on_chip"
"""What a memory session says it did to memory on the chip (`fleet.devices.base.TellsMore`)."""
NOT_READ_BACK = "none: memory not read back"


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
        _allocatable(wipe),
        *_bytes_not_covered(wipe),
        _on_chip(reset_method, str(wipe.extra.get(ON_CHIP, ""))),
        *_contexts(wipe.holders),
        *_other_partitions(device),
        Region(
            "firmware-and-non-volatile-storage",
            NOT_COVERED,
            "not verified",
            words="infoROM, VBIOS and other non-volatile parts are outside the wipe.",
        ),
    )


def _allocatable(wipe: WipeResult) -> Region:
    if wipe.kind is Kind.RESET:
        return Region(
            "allocatable-memory",
            NOT_COVERED,
            NOT_READ_BACK,
            wipe.coverage.covered,
            "Nothing of ours can address this memory: no byte of it was written or read.",
        )
    return Region(
        "allocatable-memory",
        "overwritten with a pattern of nonce and address, then with zeros",
        "every byte read back twice: after the pattern and after the zeros",
        wipe.coverage.covered,
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


def _on_chip(reset_method: str, done: str) -> Region:
    """Never covered by a wipe: what was overwritten there cannot be read back."""
    words = "Registers, shared, local and tensor memory of execution units, caches."
    words += f" By our kernel: {done}." if done else ""
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


def summary(found: Sequence[Region], *, simulated: bool, reset: ResetScrub | None = None) -> str:
    """One sentence with the figures and everything not covered.

    `reset`: of a device that was only reset.
    """
    wiped = next(region for region in found if region.name == "allocatable-memory")
    # An empty region is covered by there being nothing in it; an unmeasured one is not.
    missing = [region.name for region in found if not region.covered and region.size_bytes != 0]
    label = (
        f"{SIMULATED_LABEL}, no hardware was touched: this proves nothing about a real device. "
        if simulated
        else ""
    )
    tail = f" Not covered: {', '.join(missing)}." if missing else " Every region listed is covered."
    if reset is not None:
        return (
            f"{label}No byte was overwritten and none was read back: the device was reset"
            f" ({reset.method}) with no foreign process on it (technique {RESET_TECHNIQUE}; the"
            f" vendor's own clearing of memory: {vendor_words(reset)}).{tail}"
        )
    return (
        f"{label}{wiped.size_bytes} bytes were overwritten and read back without a mismatch"
        f" (technique {TECHNIQUE}).{tail}"
    )


def vendor_words(reset: ResetScrub) -> str:
    """What the vendor's switch says, in words."""
    if reset.vendor_scrub == "none":
        return "no switch known"
    return f"{reset.switch} {reset.vendor_scrub}"
