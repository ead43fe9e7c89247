"""Health readings of a PCI function from sysfs alone.

What no vendor-neutral interface tells is listed as not applicable: it is no reading of this back
end at all. What the interface has and this machine does not answer stays unknown.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from fleet.core.errors import DeviceLost
from fleet.devices import kmsg
from fleet.devices.health import kernel_log
from fleet.devices.health.readings import Readings
from fleet.devices.kmsg import KernelLog
from fleet.devices.pcie.inventory import driver_version
from fleet.devices.pcie.obstacles import obstacles
from fleet.devices.sysfs import Aer, Function, Life, read_text

TOLD = frozenset(
    {
        "at",
        "under_load",
        "present",
        "pcie_gen",
        "pcie_gen_max",
        "pcie_width",
        "pcie_width_max",
        "aer_fatal",
        "aer_nonfatal",
        "aer_corrected",
        "driver_version",
        "reset_methods",
        "obstacles",
        "not_applicable",
    }
)
"""Readings any PCI function may have."""


def readings(
    function: Function, *, at: float, log: KernelLog | None = None, now_s: float = 0.0
) -> Readings:
    """Readings now. Raises `DeviceLost` for a function that is dead or gone.

    `log`: where errors of the bus are told that the kernel keeps no totals of; `now_s`: s since
    boot.
    """
    life = function.life()
    if life in (Life.DEAD, Life.GONE):
        why = "its configuration space reads all ones" if life is Life.DEAD else "it left the bus"
        raise DeviceLost(f"{function.address} is {life}: {why}")
    link = function.link()
    if link.dead:
        raise DeviceLost(f"{function.address} is dead: its link shows a width of 63")
    aer = function.aer()
    errors = {**_errors(function), **_bad_pages(function)}
    told = TOLD | errors.keys()
    if function.reports_errors() is False and aer == Aer():
        told = told - {"aer_fatal", "aer_nonfatal", "aer_corrected"}
    return Readings(
        at=at,
        present=True if life is Life.ALIVE else None,
        pcie_gen=link.gen,
        pcie_gen_max=link.gen_max,
        pcie_width=link.width,
        pcie_width_max=link.width_max,
        aer_fatal=aer.fatal,
        aer_nonfatal=aer.nonfatal,
        aer_corrected=aer.corrected,
        driver_version=driver_version(function),
        reset_methods=function.reset_methods(),
        obstacles=obstacles(function),
        not_applicable=frozenset(field.name for field in fields(Readings)) - told,
        **errors,
        **_logged(function, log, now_s),
    )


def _logged(function: Function, log: KernelLog | None, now_s: float) -> dict[str, Any]:
    """What the kernel log has of the function's bus; the other things it tells are of a driver that
    is not ours to know, so that the reading as a whole stays not applicable."""
    found = log.records() if log is not None else None
    if log is None or found is None:
        return {}
    bus = [one for one in kernel_log.others(found, function.address) if one.kind in kernel_log.BUS]
    return {"logged": kmsg.logged(bus), "log": log.state(now_s)}


def _errors(function: Function) -> dict[str, Any]:
    """Errors of all blocks, as amdgpu counts them; empty where it offers no counter.

    A deferred error (``de``) is an uncorrectable one that nobody has read yet. A counter that is
    there and cannot be read leaves the total unknown, unless the others alone show errors.
    """
    totals: dict[str, int] = {}
    unread = False
    paths = sorted(function.path.glob("ras/*_err_count"))
    for path in paths:
        counts = _counts(read_text(path) or "")
        unread = unread or not {"ue", "ce"} <= counts.keys()
        for name, count in counts.items():
            totals[name] = totals.get(name, 0) + count
    if not paths:
        return {}
    uncorrected = totals.get("ue", 0) + totals.get("de", 0)
    return {
        "ecc_uncorrected_volatile": None if unread and not uncorrected else uncorrected,
        "ecc_corrected_volatile": None if unread else totals["ce"],
    }


def _counts(text: str) -> dict[str, int]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {
        name.strip(): int(count)
        for name, _, count in pairs
        if name.strip() in ("ue", "ce", "de") and count.strip().isdecimal()
    }


def _bad_pages(function: Function) -> dict[str, Any]:
    """Pages of memory taken out of use, as amdgpu lists them; empty where it keeps no list.

    Lines are ``<page> : <size> : <flag>``: R is out of use, P will be after a reset, F could not
    be taken out and may be handed out. Any other line leaves it unknown.
    """
    path = function.path / "ras/gpu_vram_bad_pages"
    if not path.exists():
        return {}
    text = read_text(path)
    flags = [line.rpartition(":")[2].strip() for line in (text or "").splitlines() if line]
    if text is None or not set(flags) <= {"R", "P", "F"}:
        return {"retired_pages": None, "retired_pages_pending": None}
    return {
        "retired_pages": len(flags),
        "retired_pages_pending": not {"P", "F"}.isdisjoint(flags),
    }
