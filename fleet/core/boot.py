"""Which boot of this machine it is."""

from __future__ import annotations

from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def kernel_boot_id() -> str:
    """The id the kernel gave this boot."""
    return _BOOT_ID.read_text().strip()
