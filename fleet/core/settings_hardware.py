"""How the node meets its hardware: section ``[hardware]`` of the settings. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from fleet.core.settings_section import Section


class HardwareKind(StrEnum):
    """By which driver accelerators are reached."""

    AUTO = "auto"
    NVIDIA = "nvidia"
    PCIE = "pcie"


class MpsPolicy(StrEnum):
    """What is done about a CUDA MPS daemon on a device that is to be wiped."""

    REFUSE = "refuse"
    SHUT_DOWN = "shut-down"


class ResetMethod(StrEnum):
    """Ways of the kernel to reset a PCI function."""

    FLR = "flr"
    AF_FLR = "af_flr"
    DEVICE_SPECIFIC = "device_specific"
    ACPI = "acpi"
    PM = "pm"
    BUS = "bus"
    CXL_BUS = "cxl_bus"


class HardwareSettings(Section):
    """Real accelerators of a node. Nothing here matters to a simulated one."""

    kind: HardwareKind = Field(
        strict=False,
        default=HardwareKind.AUTO,
        description="auto: nvidia where the PCI bus shows a device of that vendor, else pcie.",
    )
    root: str = Field(
        default="/",
        min_length=1,
        description="Where the node service sees the host's /proc, /sys, /dev and libraries.",
    )
    run_directory: str = Field(
        default="/run/fleetscrub",
        min_length=1,
        description="Where locks and the journal's witness are kept: they must not survive a boot.",
    )
    kernel_log: str = Field(
        default="/dev/kmsg",
        description="The kernel log, where drivers report faults. Empty: not read, and then fault"
        " codes are unknown.",
    )
    mps: MpsPolicy = Field(
        strict=False,
        default=MpsPolicy.REFUSE,
        description="refuse: a device with a CUDA MPS daemon is not wiped. shut-down: the daemon is"
        " asked to end once nobody uses it.",
    )
    mps_deadline_s: float = Field(
        default=20.0, gt=0, description="Time, s, an MPS daemon has to end before it is a holder."
    )
    reset_methods: tuple[Annotated[ResetMethod, Field(strict=False)], ...] = Field(
        strict=False,
        default=(ResetMethod.FLR, ResetMethod.DEVICE_SPECIFIC),
        description="Kernel reset methods allowed, tried in this order. A bus reset hits every"
        " function behind the bridge and is not in the default.",
    )
    reset_tool: str = Field(
        default="nvidia-smi",
        description="Program that resets NVIDIA devices: the driver's library has no call for it."
        " Empty: only the kernel's methods are used.",
    )
    host_readback: bool = Field(
        default=True,
        description="Whether memory may be written and read back by the host where the driver"
        " cannot compile our kernels: slow, and named on the certificate. Else such a wipe fails.",
    )
    partition_retries: int = Field(
        default=5, ge=1, description="Tries to remove a partition that the driver says is in use."
    )
    accept_unread: bool = Field(
        default=False,
        description="Whether a device whose memory nothing can read back, and which was only reset,"
        " may be given to a claim under profile strict.",
    )
