"""Which real accelerators a machine has, and by which back end they are reached.

Looked up on the PCI bus and not in a driver: a card whose driver is missing is a card all the same,
and must not be taken for a machine without accelerators.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fleet.core import errors, privileges
from fleet.core.privileges import Lacks, Standing
from fleet.core.settings import HardwareKind, HardwareSettings, MpsPolicy
from fleet.devices import openers, registry, sysfs

NVIDIA = 0x10DE
GPU_CLASSES = frozenset({0x030000, 0x030200})
"""VGA and 3D controllers."""
_NVIDIAS = frozenset({"partitions", "partitioning-switch", "tool-reset", "mps-shut-down"})
"""Features that other accelerators have not."""
IDENTITIES = "identities.json"
"""What was known of each card, kept beside the journal: a dead one still has its name."""


def discover(asked: HardwareSettings) -> str:
    """The kind of back end for this machine. Raises `DriverAbsent` where no accelerator is seen."""
    require_root(asked)
    if asked.kind is not HardwareKind.AUTO:
        return asked.kind.value
    root = Path(asked.root)
    if sysfs.discover(root, vendors={NVIDIA}, classes=GPU_CLASSES):
        return HardwareKind.NVIDIA.value
    looking = {**arguments(asked, Path()), "identities": ""}  # nothing is remembered by a look
    if registry.build(HardwareKind.PCIE.value, looking).inventory():
        return HardwareKind.PCIE.value
    raise errors.DriverAbsent(
        f"no accelerator is on the PCI bus below {root}",
        remedy="plug one in, set hardware.root to where the host's /sys is seen, or ask for a"
        " simulated fleet with `--simulate 2x8`",
    )


def require_root(asked: HardwareSettings) -> None:
    """Raises `SettingsInvalid` where no host is seen: nothing found there means nothing."""
    root = Path(asked.root)
    if not root.is_absolute() or not (root / "sys").is_dir():
        problem = (
            f"hardware.root {asked.root!r} is no directory with the host's /sys, /proc and /dev"
        )
        raise errors.SettingsInvalid(
            problem,
            remedy="set it to where the host is mounted, / outside of containers",
            problems=(problem,),
        )


def arguments(asked: HardwareSettings, directory: Path) -> dict[str, Any]:
    """Settings for the back end as JSON; `directory`: of the node, for what it remembers."""
    found = asked.model_dump(mode="json", exclude={"kind", "run_directory", "accept_unread"})
    return {**found, "identities": str(directory / IDENTITIES)}


def lacks(kind: str, asked: HardwareSettings) -> Lacks:
    """What this process may not do to the accelerators of its back end `kind`; "": none are real.

    Judged by the kernel's own word below hardware.root; where that has none, by nothing.
    """
    if not kind:
        return Lacks()
    besides = set() if kind == HardwareKind.NVIDIA else {*_NVIDIAS}
    besides |= set() if asked.mps is MpsPolicy.SHUT_DOWN else {"mps-shut-down"}
    besides |= set() if asked.reset_tool else {"tool-reset"}
    besides |= set() if asked.kernel_log else {privileges.KERNEL_LOG.name}
    return privileges.judge(standing(Path(asked.root)), besides)


def standing(root: Path) -> Standing:
    """What this process has, by ``<root>/proc``."""
    status = sysfs.read_text(root / "proc/self/status")
    return Standing(
        capabilities=privileges.effective(status or ""),
        host_pid=openers.sees_all(root),
        log_restricted=sysfs.read_text(root / "proc/sys/kernel/dmesg_restrict") != "0",
    )
