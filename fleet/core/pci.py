"""PCI addresses as one spelling, so that the same slot is recognised whoever wrote it down. Pure.

Libraries print eight digits of domain, sysfs four, both in either case, and the kernel log leaves
the function out (B57). Slices carry, and comparisons use, the form of sysfs: ``dddd:bb:dd.f`` in
lower case, the domain as wide as it needs.
"""

from __future__ import annotations

import re

_ADDRESS = re.compile(
    r"(?P<log>PCI:)?(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})"
    r"(?:\.(?P<function>[0-7]))?",
    re.IGNORECASE | re.ASCII,
)
DEVICES_PER_BUS = 32


def address(text: str) -> str:
    """The address in the form of sysfs, or "" when `text` is no complete PCI address.

    ``PCI:`` is how the driver's log says it: it leaves the function out because it means the first.
    Any other doubtful spelling (no function, a device above 1f) is no address rather than a guess:
    two slots must never collapse into one.
    """
    found = _found(text)
    if found is None:
        return ""
    function = found["function"] or ("0" if found["log"] else "")
    return f"{_slot(found)}.{function}" if function else ""


def slot(text: str) -> str:
    """The address without its function, for comparison with what a log says; "" when doubtful.

    Takes any spelling with or without function. One with neither domain nor function could be a
    time of day and is none.
    """
    found = _found(text)
    if found is None or not (found["domain"] or found["function"] or found["log"]):
        return ""
    return _slot(found)


def _found(text: str) -> re.Match[str] | None:
    found = _ADDRESS.fullmatch(text.strip())
    return None if found is None or int(found["device"], 16) >= DEVICES_PER_BUS else found


def _slot(found: re.Match[str]) -> str:
    domain = int(found["domain"] or "0", 16)
    return f"{domain:04x}:{found['bus']}:{found['device']}".lower()
