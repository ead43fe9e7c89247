"""Vendors' own switches for clearing memory: what they say and what that is worth.

Nothing here clears anything. A switch that is on is the vendor's word that memory is cleared when a
device is closed or reset; nobody reads it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleet.devices.pcie.catalogue import vendor_of
from fleet.devices.sysfs import Function, read_text


class Switch(StrEnum):
    """Where a switch stands."""

    ON = "on"
    OFF = "off"
    UNKNOWN = "unknown"
    """There is one for this part, and it cannot be read."""
    NONE = "none"
    """No switch is known for this part."""


@dataclass(frozen=True, slots=True)
class Scrub:
    """The switch of one part on one machine."""

    state: Switch
    name: str = ""
    problem: str = ""
    """Why a reset of this device does not count, "" when it does."""


def scrub_of(function: Function) -> Scrub:
    """Read and judge the switch of the vendor for `function`."""
    ids = function.ids
    if ids is None:
        return Scrub(Switch.UNKNOWN, "", "what it is cannot be read")
    vendor = vendor_of(ids)
    name, read = SWITCHES[vendor.scrub]
    state = read(function)
    node_bytes = function.memory_only_node()
    if node_bytes:
        why = (
            f"its memory is NUMA node {function.numa} ({node_bytes} B), which the kernel hands out"
            " to any process: a reset proves nothing about it"
        )
        return Scrub(state, name, why)
    if ids.device < vendor.cleared_from:
        why = (
            "memory of this generation keeps its content through a reset, and only overwriting it"
            " counts: let the vendor's driver have it, and wipe it by that"
        )
        return Scrub(state, name, why)
    if vendor.required and state is not Switch.ON:
        why = (
            f"{name} is {state}: memory keeps its content through a reset; load the driver with it"
            " switched on"
        )
        return Scrub(state, name, why)
    return Scrub(state, name)


def _none(_function: Function) -> Switch:
    return Switch.NONE


def _habanalabs(function: Function) -> Switch:
    """Module parameter; scrubs on close and after a reset. Off unless somebody switched it on.

    The driver scrubs only what it drives: of a card bound to another one it says nothing.
    """
    if function.driver != "habanalabs":
        return Switch.UNKNOWN
    found = read_text(function.root / "sys/module/habanalabs/parameters/memory_scrub")
    return {"1": Switch.ON, "Y": Switch.ON, "0": Switch.OFF, "N": Switch.OFF}.get(
        found or "", Switch.UNKNOWN
    )


def _amdgpu(function: Function) -> Switch:
    """One figure for each partition of the device: 1 runs the cleaner between processes.

    It clears registers and local memory. Device memory is wiped by the driver when it is released,
    for which there is no switch.
    """
    figures = (read_text(function.path / "enforce_isolation") or "").split()
    if not figures or not all(figure.isdecimal() for figure in figures):
        return Switch.UNKNOWN
    return Switch.ON if set(figures) == {"1"} else Switch.OFF


SWITCHES: Mapping[str, tuple[str, Callable[[Function], Switch]]] = {
    "none": ("", _none),
    "habanalabs": ("habanalabs memory_scrub", _habanalabs),
    "amdgpu": ("amdgpu enforce_isolation", _amdgpu),
}
