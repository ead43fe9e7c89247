"""PCI addresses as one spelling, so that the same slot is recognised whoever wrote it down. Pure.

Drivers print eight digits of domain, sysfs four, both in either case (B57). Slices carry, and
comparisons use, the form of sysfs: ``dddd:bb:dd.f`` in lower case, the domain as wide as it needs.
"""

from __future__ import annotations

import re

_ADDRESS = re.compile(
    r"^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])$", re.IGNORECASE | re.ASCII
)
DEVICES_PER_BUS = 32


def address(text: str) -> str:
    """The address in the form of sysfs, or "" when `text` is no complete PCI address.

    A doubtful spelling (no function, a device above 1f) is no address rather than a guess: two
    slots must never collapse into one.
    """
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or int(found[3], 16) >= DEVICES_PER_BUS:
        return ""
    return f"{int(found[1] or '0', 16):04x}:{found[2]}:{found[3]}.{found[4]}".lower()
