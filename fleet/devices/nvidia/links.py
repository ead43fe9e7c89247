"""What connects a GPU: PCIe, its error counters, NVLink and the fabric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleet.devices.nvidia import nvml
from fleet.devices.nvidia.probe import Answers, Probe
from fleet.devices.sysfs import Function

MOST_LINKS = 36
UP, SLEEPING = 1, 2
LINK_STATE = 165
NO_LINK = frozenset({nvml.NOT_SUPPORTED, nvml.INVALID_ARGUMENT})
LINK_TOTALS = (38, 45, 52, 59)
"""Flow control CRC, data CRC, replays and recoveries over all links of a GPU."""
LINK_COUNTERS = range(5)
REPLAYS, CORRECTABLE, NON_FATAL, FATAL = 94, 173, 179, 180
PCI_EXPRESS = 2
PCIE = ("pcie_gen", "pcie_gen_max", "pcie_gen_device_max", "pcie_width", "pcie_width_max")
AER = ("aer_fatal", "aer_nonfatal", "aer_corrected")
FABRIC_STATES = {1: "not-started", 2: "in-progress"}
FABRIC_COMPLETED = 3
HOPPER = 9
FABRIC_FAULTS = (0, 2, 4, 6)
"""Places of two bits each that are 1 where bandwidth is degraded, a route recovers or is unhealthy,
or accesses timed out. How the fabric is partitioned (12, 14) says nothing about its health."""
CONFIGURATION_SHIFT, CONFIGURATION_BITS, CONFIGURATION_RIGHT = 8, 0xF, (0, 1)
HEALTHY, UNHEALTHY = (1,), (2, 3)


def pcie(probe: Probe, function: Function | None) -> Answers:
    """Link and error counters; what NVML does not tell is read from the kernel."""
    found = Answers()
    kernel = function.link() if function else None
    for name, call, other in (
        ("pcie_gen", "GetCurrPcieLinkGeneration", kernel and kernel.gen),
        ("pcie_gen_max", "GetMaxPcieLinkGeneration", kernel and kernel.gen_max),
        ("pcie_width", "GetCurrPcieLinkWidth", kernel and kernel.width),
        ("pcie_width_max", "GetMaxPcieLinkWidth", kernel and kernel.width_max),
        ("pcie_gen_device_max", "GetGpuMaxPcieLinkGeneration", None),
    ):
        said = probe.ask(call)
        found.values[name] = other if said is None else said
    fields = probe.fields([REPLAYS, CORRECTABLE, NON_FATAL, FATAL])
    replays = probe.ask("GetPcieReplayCounter")
    found.values["pcie_replays"] = fields.get(REPLAYS) if replays is None else replays
    bus = probe.ask("GetBusType")
    if bus not in (None, 0, PCI_EXPRESS) and found.values["pcie_gen_max"] is None:
        found.absent(*PCIE, *AER, "pcie_replays")
    _aer(found, fields, function)
    return found


def _aer(found: Answers, fields: dict[Any, int], function: Function | None) -> None:
    """The kernel's totals; without them the device's own counters.

    Firmware or a hypervisor may do the error reporting, and then there are none: what only the
    kernel log counts is added by who judges. A card without a place to report errors in has none.
    """
    kept = function.aer() if function else None
    for name, total, field in (
        ("aer_fatal", kept and kept.fatal, FATAL),
        ("aer_nonfatal", kept and kept.nonfatal, NON_FATAL),
        ("aer_corrected", kept and kept.corrected, CORRECTABLE),
    ):
        found.values[name] = fields.get(field) if total is None else total
    nothing = all(found.values[name] is None for name in AER)
    if nothing and function is not None and function.reports_errors() is False:
        found.absent(*AER)


def has_any(probe: Probe) -> bool:
    """Whether the GPU has NVLinks, up or not."""
    return any(
        probe.ask("GetNvLinkState", link) is not None
        or probe.refused("GetNvLinkState") not in NO_LINK
        for link in range(MOST_LINKS)
    )


def nvlink(probe: Probe, *, switched: bool, seen: Callable[[int], int]) -> Answers:
    """Links up of those that are expected, and their errors. One unread: the number is unknown.

    Links that lead nowhere (a card without a bridge, one GPU of a board in a virtual machine) say
    what broken ones say. Where there is a fabric (`switched`) all of them are expected; else as
    many as were ever up at once on this card. `seen` keeps that: it is told how many are up now,
    and says how many there were at most.
    """
    found = Answers()
    links: dict[int, bool | None] = {}
    for link in range(MOST_LINKS):
        state = probe.ask("GetNvLinkState", link)
        if state is not None:
            links[link] = state == UP or _sleeps(probe, link)
        elif probe.refused("GetNvLinkState") not in NO_LINK:
            links[link] = None
    found.values["nvlinks_up"] = found.values["nvlinks_expected"] = None
    if None in links.values():
        found.values["nvlink_errors"] = _link_errors(probe, list(links))
        return found
    up = sum(bool(one) for one in links.values())
    most = seen(up)
    found.values["nvlinks_expected"] = len(links) if switched else min(most, len(links))
    if not found.values["nvlinks_expected"]:
        found.absent("nvlinks_up", "nvlink_errors")
        return found
    found.values["nvlinks_up"] = up
    found.values["nvlink_errors"] = _link_errors(probe, list(links))
    return found


def has_nvlinks(probe: Probe) -> bool:
    """Whether there is any link at all, up or not, or one whose state is not told."""
    return any(
        probe.ask("GetNvLinkState", link) is not None
        or probe.refused("GetNvLinkState") not in NO_LINK
        for link in range(MOST_LINKS)
    )


def _sleeps(probe: Probe, link: int) -> bool:
    """Whether a link that is not active only saves power."""
    return probe.fields([(LINK_STATE, link)]).get((LINK_STATE, link)) == SLEEPING


def _link_errors(probe: Probe, links: list[int]) -> int | None:
    totals = probe.fields(LINK_TOTALS)
    if totals:
        return sum(totals.values())
    counts = [
        count
        for link in links
        for counter in LINK_COUNTERS
        if (count := probe.ask("GetNvLinkErrorCounter", link, counter)) is not None
    ]
    return sum(counts) if counts else None


def fabric(
    probe: Probe, architecture: int | None, *, expected: bool = False, served: bool = True
) -> Answers:
    """State of the fabric, and its health once it is completed.

    Parts before Hopper tell no state; drivers of their time lack the call or its structs.
    `expected`: whether this GPU is known to have a fabric, so that "not supported" is no answer.
    `served`: False where switches are on this node and the service for them does not run: then
    nothing is known, whatever the driver says (F18).
    """
    found = Answers({"fabric_state": None, "fabric_healthy": None})
    if not served:
        return found
    said, refused = _fabric_told(probe)
    if said is None or said.state == 0:
        older = architecture is not None and architecture < HOPPER
        none_told = said is not None or refused == nvml.NOT_SUPPORTED
        if (older and (none_told or refused in nvml.OLDER_FORM)) or (none_told and not expected):
            found.absent("fabric_state", "fabric_healthy")
        return found
    mask, summary = getattr(said, "healthMask", 0), getattr(said, "healthSummary", 0)
    if said.state != FABRIC_COMPLETED:
        found.values["fabric_state"] = FABRIC_STATES.get(said.state, f"unknown-{said.state}")
    else:
        found.values["fabric_state"] = f"failed-{said.status}" if said.status else "completed"
        found.values["fabric_healthy"] = _healthy(mask, summary)
        if not mask and not summary and not said.status:
            found.absent("fabric_healthy")
    return found


def _fabric_told(probe: Probe) -> tuple[Any, int]:
    """The newest of the driver's structs that it has, and the code of the last refusal.

    The first call of all, of R525, tells no health (F47). An older form is asked only where the
    driver does not have a newer one.
    """
    refused = 0
    for call, struct in (
        ("GetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
        ("GetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
        ("GetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
    ):
        said = probe.filled(call, struct)
        if said is not None:
            return said, 0
        refused = probe.refused(call)
        if refused not in nvml.OLDER_FORM:
            break
    return None, refused


def _healthy(mask: int, summary: int) -> bool | None:
    if not mask and not summary:
        return None
    faulty = any(mask >> place & 0b11 == 1 for place in FABRIC_FAULTS)
    configured = mask >> CONFIGURATION_SHIFT & CONFIGURATION_BITS in CONFIGURATION_RIGHT
    return summary not in UNHEALTHY and not faulty and configured
