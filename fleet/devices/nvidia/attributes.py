"""What a GPU is, as texts for slices and certificates. Unknown is "", never a guess.

Nothing here changes while nobody changes the hardware or the driver: a value that moves by itself
(free memory, temperatures) would make every inventory another one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fleet.devices import sysfs
from fleet.devices.nvidia import nvml
from fleet.devices.nvidia.probe import Probe

VENDOR = "nvidia"
OWN_MEMORY = "dedicated"
COHERENT_REMEDY = (
    "have the driver keep the memory for itself: `options nvidia"
    " NVreg_CoherentGPUMemoryMode=driver` in /etc/modprobe.d, then reboot; or do not offer these"
    " GPUs"
)
ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}
BRANDS = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaVGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}
MEMORY_CLOCK = 2
TRANSFERS_PER_CLOCK = 2
_NO_NODE = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Memory:
    """Sizes in bytes. `reserved` None: this driver does not tell it apart (B71)."""

    total: int
    reserved: int | None


def memory(probe: Probe) -> Memory | None:
    """Sizes as NVML has them; None: it has none. Raises `DeviceLost`."""
    second = probe.ask("GetMemoryInfo", version=nvml.Library.constant("nvmlMemory_v2"))
    if second is not None:
        return Memory(int(second.total), int(second.reserved))
    if probe.refused("GetMemoryInfo") not in nvml.OLDER_FORM:
        return None
    first = probe.ask("GetMemoryInfo")
    return None if first is None else Memory(int(first.total), None)


def host_memory(probe: Probe, root: Path, function: sysfs.Function | None) -> str:
    """How a GPU's memory is the host's too, or "": then our wipe does not reach all of it (B64).

    A NUMA node of the GPU that is offline, or has no memory, is no such case.
    """
    if memory(probe) is None and probe.lacks("GetMemoryInfo"):
        return "the host's: it has none of its own"
    node = probe.ask("GetNumaNodeId")
    if node is not None and 0 <= node < _NO_NODE and _node_bytes(root, node) != 0:
        return f"numa node {node} of the host"
    if function is not None and function.memory_only_node() is not None:
        return f"numa node {function.numa} of the host"
    return ""


def _node_bytes(root: Path, node: int) -> int | None:
    """Memory of a NUMA node: 0 where it is offline; None: cannot be told."""
    place = root / "sys/devices/system/node" / f"node{node}"
    if not place.is_dir():
        return 0 if place.parent.is_dir() else None
    found = re.search(r"MemTotal:\s*(\d+) kB", sysfs.read_text(place / "meminfo") or "")
    return int(found[1]) * 1024 if found else None


def read(
    library: nvml.Library,
    probe: Probe,
    function: sysfs.Function | None,
    *,
    architecture: int | None,
) -> dict[str, str]:
    """Everything but sizes. Raises `DeviceLost`."""
    capability = probe.ask("GetCudaComputeCapability")
    mig = probe.ask("GetMigMode")
    cuda = library.ask("nvmlSystemGetCudaDriverVersion_v2")
    return {
        **of_slot(function, product=_text(probe.ask("GetName"))),
        "driver": _text(library.ask("nvmlSystemGetDriverVersion")),
        "cuda_driver": "" if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        "brand": BRANDS.get(probe.ask("GetBrand"), ""),
        "architecture": ARCHITECTURES.get(architecture or 0, ""),
        "serial": _text(probe.ask("GetSerial")),
        "board": _text(probe.ask("GetBoardPartNumber")),
        "vbios": _text(probe.ask("GetVbiosVersion")),
        "inforom": _text(probe.ask("GetInforomImageVersion")),
        "compute_capability": "" if capability is None else "{}.{}".format(*capability),
        "minor": _text(probe.ask("GetMinorNumber")),
        "module_id": _text(probe.ask("GetModuleId")),
        "platform": _platform(probe),
        "memory_rate_bytes_per_s": _rate(probe),
        "mig": "none" if mig is None else ("off", "on")[bool(mig[0])],
        "partitionable": str(bool(mig and mig[0])).lower(),
    }


def of_slot(function: sysfs.Function | None, *, product: str) -> dict[str, str]:
    """What the slot tells, which is all that is known of a card that does not answer."""
    return {
        "product": product,
        "vendor": VENDOR,
        "pci": function.address if function else "",
        "numa": _text(function.numa if function else None),
        "pcie_root": (function.pcie_root or "") if function else "",
        "iommu": (function.iommu_group or "") if function else "",
    }


def _text(value: object) -> str:
    return "" if value is None else nvml.text(value)


def _rate(probe: Probe) -> str:
    """Peak memory traffic: bus width times both edges of the highest memory clock."""
    width_bits = probe.ask("GetMemoryBusWidth")
    clock_mhz = probe.ask("GetMaxClockInfo", MEMORY_CLOCK)
    if not width_bits or not clock_mhz:
        return ""
    return str(width_bits // 8 * clock_mhz * 1_000_000 * TRANSFERS_PER_CLOCK)


def _platform(probe: Probe) -> str:
    """Where a GPU of a rack-scale machine sits: chassis, slot, tray."""
    said = probe.filled("GetPlatformInfo", "c_nvmlPlatformInfo_v2_t")
    if said is None:
        return ""
    chassis = _text(said.chassisSerialNumber)
    place = "/".join(str(ord(byte)) for byte in (said.slotNumber, said.trayIndex))
    return f"{chassis}/{place}" if chassis else ""
