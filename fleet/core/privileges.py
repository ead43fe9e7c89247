"""What every feature needs of the host beyond its device nodes, and what is so without it. Pure.

One table, as data: pods get what it names and nothing else, docs/privilege.md shows it, and a node
service looks at its start which of it it has. CAP_SYS_ADMIN is given to none of our pods. A feature
that needs it works where the service runs on the host itself, and is off elsewhere, and says so.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

NUMBERS = {
    "DAC_OVERRIDE": 1,
    "DAC_READ_SEARCH": 2,
    "FOWNER": 3,
    "SYS_PTRACE": 19,
    "SYS_ADMIN": 21,
    "SYSLOG": 34,
    "CHECKPOINT_RESTORE": 40,
}
"""The kernel's numbers of the capabilities that matter here."""
WORKER = ("CHECKPOINT_RESTORE", "DAC_READ_SEARCH", "SYSLOG", "SYS_PTRACE")
"""Capabilities of the containers that own a node's devices (Ray worker, standby): no more."""
PLUGIN: tuple[str, ...] = ()
"""Capabilities of the node plugin, which opens no device: none."""
HOST_PID = "the host's PID namespace"
"""What `Standing.lacks` calls it."""


class Lack(StrEnum):
    """What becomes of a node without a feature."""

    BLOCKS = "blocks"
    """Nothing can be proven: no device of the node is offered."""
    OFF = "off"
    """The feature fails with its reason when it is asked for; all else goes on."""
    NARROWS = "narrows"
    """Something is known less well."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One thing the product does on a host."""

    name: str
    what: str
    without: str
    """What is so where something of it is missing."""
    instead: str
    """What to do then."""
    lack: Lack
    capabilities: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    """Paths of the host, in the pod under the same path or below hardware.root."""
    host_pid: bool = False
    modules: tuple[str, ...] = ()
    """Where it is done."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a process has. `capabilities` None: it cannot be told, and nothing is judged by it."""

    capabilities: frozenset[str] | None
    host_pid: bool = True
    log_restricted: bool = True
    """Whether the kernel keeps its log from those without SYSLOG (kernel.dmesg_restrict)."""

    def lacks(self, feature: Feature) -> tuple[str, ...]:
        """What of a feature's needs is missing, by name."""
        if self.capabilities is None:
            return ()
        missing = [f"CAP_{one}" for one in feature.capabilities if one not in self.capabilities]
        if feature is KERNEL_LOG and not self.log_restricted:
            missing = []
        return (*missing, *((HOST_PID,) if feature.host_pid and not self.host_pid else ()))


@dataclass(frozen=True, slots=True)
class Lacks:
    """What a node service says of itself, each with what to do."""

    blocking: tuple[str, ...] = ()
    """Why nothing can be proven on this node."""
    off: tuple[str, ...] = ()
    """What does not work here, or less well, while everything else does."""


KERNEL_LOG = Feature(
    "fault-codes",
    "read fault codes of the drivers, and note that we reset a device",
    "fault codes are unknown, which keeps every device out of service (health.unknown_blocks)",
    "give the service CAP_SYSLOG, or set kernel.dmesg_restrict to 0",
    Lack.OFF,
    capabilities=("SYSLOG",),
    mounts=("/dev/kmsg (through the agent claim)",),
    modules=("fleet.devices.kmsg",),
)
FEATURES = (
    Feature(
        "memory",
        "write and read back all memory of a device, read its health",
        "no driver answers: devices are unknown",
        "let the pod claim the device agent",
        Lack.BLOCKS,
        mounts=("device nodes and libraries of the driver (through the agent claim)",),
        modules=("fleet.devices.nvidia.session", "fleet.devices.nvidia.backend"),
    ),
    Feature(
        "holders",
        "find every process that has a device open, whosever it is",
        "who holds a device is unknown, and unknown is not idle: nothing is wiped or exposed",
        "run the service with hostPID, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
        Lack.BLOCKS,
        capabilities=("DAC_READ_SEARCH", "SYS_PTRACE"),
        mounts=("/proc",),
        host_pid=True,
        modules=("fleet.devices.openers", "fleet.devices.threads"),
    ),
    Feature(
        "mapped-holders",
        "recognise a device by its number where a process has only a mapping of it left",
        "such a holder is recognised by its path only: under another name it is not seen",
        "give the service CAP_CHECKPOINT_RESTORE",
        Lack.NARROWS,
        capabilities=("CHECKPOINT_RESTORE",),
        mounts=("/proc",),
        host_pid=True,
        modules=("fleet.devices.openers",),
    ),
    KERNEL_LOG,
    Feature(
        "tenants",
        "prove that the containers of a pod have ended",
        "a tenant is never proven gone: the node is blocked and says so",
        "show the service the host's cgroups and kubelet's directory",
        Lack.BLOCKS,
        mounts=("/sys/fs/cgroup (read-only)", "kubelet's root directory"),
        modules=("fleet.node.cgroups", "fleet.node.kubelet_checkpoint"),
    ),
    Feature(
        "state",
        "keep journal, ledger and keys, CDI specs, locks and the journal's witness",
        "nothing is served",
        "mount the directories named, writable",
        Lack.BLOCKS,
        mounts=("the state directory", "the CDI directory", "/run/fleetscrub"),
        modules=(
            "fleet.node.journal.journal",
            "fleet.node.cdi.directory",
            "fleet.plugin.slices.exclusivity",
        ),
    ),
    Feature(
        "kernel-reset",
        "reset a PCI function by the kernel, unbind and bind its driver",
        "the device is not reset; one that needs it stays out of service with the reason",
        "mount the host's /sys writable; for a bound NVIDIA GPU see tool-reset",
        Lack.OFF,
        mounts=("/sys/devices and /sys/bus/pci (writable)", "/run/fleetscrub"),
        modules=("fleet.devices.pci_reset",),
    ),
    Feature(
        "partitions",
        "make and remove MIG instances",
        "the driver refuses; partitions are not offered",
        "let the pod claim the device agent: it grants the driver's capability nodes",
        Lack.OFF,
        mounts=("/dev/nvidia-caps/* (through the agent claim)",),
        modules=("fleet.devices.nvidia.mig",),
    ),
    Feature(
        "partitioning-switch",
        "turn MIG on and off (`fleet devices partitioning`)",
        "the driver takes it from administrators of the host only; the command fails and says so",
        "drain the node, run `nvidia-smi -i GPU -mig 1` on the host, start the node service anew",
        Lack.OFF,
        capabilities=("SYS_ADMIN",),
        modules=("fleet.devices.nvidia.mig",),
    ),
    Feature(
        "tool-reset",
        "reset an NVIDIA GPU by `nvidia-smi`, with persistence mode off meanwhile",
        "the driver takes it from administrators of the host only: a GPU that asks for a reset, or"
        " whose policy demands one, stays out of service with the reason",
        "drain the node, run `nvidia-smi --gpu-reset` on the host or reboot it; it is wiped and"
        " checked again before it serves",
        Lack.OFF,
        capabilities=("SYS_ADMIN",),
        modules=("fleet.devices.nvidia.reset", "fleet.devices.nvidia.modes"),
    ),
    Feature(
        "mps-shut-down",
        "end a CUDA MPS daemon without clients (hardware.mps: shut-down)",
        "its files stay, and exclusive compute mode with them: the device is not wiped while the"
        " daemon lives, and the daemon is named",
        "end it on the host: `echo quit | nvidia-cuda-mps-control`",
        Lack.OFF,
        capabilities=("DAC_OVERRIDE", "FOWNER", "SYS_ADMIN"),
        mounts=("the daemon's directories",),
        modules=("fleet.devices.nvidia.mps",),
    ),
    Feature(
        "card-serials",
        "read the serial number of a PCI card from its extended configuration space",
        "the card is known by its slot and kind: another one of that kind in that slot cannot be"
        " told from it",
        "nothing, unless cards are swapped while the node service does not run",
        Lack.NARROWS,
        capabilities=("SYS_ADMIN",),
        mounts=("/sys",),
        modules=("fleet.devices.sysfs",),
    ),
)
"""Every feature that needs something of the host. NVIDIA's GPUs and PCIe cards alike."""


def effective(status: str) -> frozenset[str] | None:
    """Effective capabilities of the process whose ``/proc/<pid>/status`` this is.

    Of those in `NUMBERS`; None where the text does not tell.
    """
    for line in status.splitlines():
        name, _, mask = line.partition(":")
        if name == "CapEff":
            try:
                bits = int(mask, 16)
            except ValueError:
                return None
            return frozenset(one for one, number in NUMBERS.items() if bits >> number & 1)
    return None


def judge(standing: Standing, besides: Collection[str] = ()) -> Lacks:
    """What a service that has no more than this says of itself.

    `besides`: names of features that nobody asked for, and that are not spoken of.
    """
    blocking: list[str] = []
    off: list[str] = []
    for feature in FEATURES:
        missing = standing.lacks(feature)
        if not missing or feature.name in besides:
            continue
        word = "cannot prove anything here" if feature.lack is Lack.BLOCKS else "is off here"
        if feature.lack is Lack.NARROWS:
            word = "is less exact here"
        told = (
            f"{feature.name} {word}, without {' and '.join(missing)}: {feature.without};"
            f" {feature.instead}"
        )
        (blocking if feature.lack is Lack.BLOCKS else off).append(told)
    return Lacks(tuple(blocking), tuple(off))


def table() -> str:
    """The features as a table of Markdown, for docs/privilege.md."""
    rows = [
        "| feature | what it does | capabilities | of the host | without it | then |",
        "|---|---|---|---|---|---|",
    ]
    for one in FEATURES:
        needs = ", ".join(f"`{name}`" for name in one.capabilities) or "none"
        seen = [*one.mounts, *(["hostPID"] if one.host_pid else [])]
        place = "; ".join(seen) or "nothing"
        rows.append(
            f"| {one.name} | {one.what} | {needs} | {place} | **{one.lack}**: {one.without}"
            f" | {one.instead} |"
        )
    return "\n".join(rows)
