"""Health readings of a PCI function from sysfs alone.

What no vendor-neutral interface tells is listed as not applicable: it is no reading of this back
end at all. What the interface has and this machine does not answer stays unknown.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from fleet.backends import kmsg
from fleet.backends.kmsg import KernelLog
from fleet.backends.pcie.inventory import driver_version
from fleet.backends.sysfs import Aer, Function, Life, read_text
from fleet.errors import DeviceLost
from fleet.health import kernel_log
from fleet.health.readings import Readings

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
    ecc = _ras(function)
    told = TOLD | ({"ecc_uncorrected_volatile", "ecc_corrected_volatile"} if ecc else set())
    if function.reports_errors() is False and aer == Aer():
        told = told - {"aer_fatal", "aer_nonfatal", "aer_corrected"}
    uncorrected, corrected = ecc or (None, None)
    return Readings(
        at=at,
        present=True if life is Life.ALIVE else None,
        ecc_uncorrected_volatile=uncorrected,
        ecc_corrected_volatile=corrected,
        pcie_gen=link.gen,
        pcie_gen_max=link.gen_max,
        pcie_width=link.width,
        pcie_width_max=link.width_max,
        aer_fatal=aer.fatal,
        aer_nonfatal=aer.nonfatal,
        aer_corrected=aer.corrected,
        driver_version=driver_version(function),
        reset_methods=function.reset_methods(),
        not_applicable=frozenset(field.name for field in fields(Readings)) - told,
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


def _ras(function: Function) -> tuple[int, int] | None:
    """(uncorrectable, correctable) errors of all blocks, as amdgpu tells; None: it does not."""
    totals = {"ue": 0, "ce": 0}
    found = False
    for path in sorted(function.path.glob("ras/*_err_count")):
        for line in (read_text(path) or "").splitlines():
            name, _, count = line.partition(":")
            if name.strip() in totals and count.strip().isdecimal():
                totals[name.strip()] += int(count)
                found = True
    return (totals["ue"], totals["ce"]) if found else None
