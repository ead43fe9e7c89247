"""The machine's /proc, /sys, /dev and /usr as far as back ends look: plain files below a root."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

SPEEDS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
"""GT/s of each PCIe generation."""
LIBRARIES = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")
INSTANCES_PER_GPU = 15
PARTS_PER_INSTANCE = 8
FIRST_CAPABILITY = 3
_DEVICES = """Character devices:
  1 mem
  5 /dev/tty
195 nvidia
195 nvidia-modeset
195 nvidiactl
234 nvidia-caps-imex-channels
235 nvidia-caps
511 nvidia-uvm

Block devices:
259 blkext
"""
_AER = {
    "correctable": ("RxErr BadTLP BadDLLP Rollover Timeout NonFatalErr CorrIntErr HeaderOF", "COR"),
    "nonfatal": ("Undefined DLP SDES TLP FCP CmpltTO CmpltAbrt UnxCmplt RxOF MalfTLP", "NONFATAL"),
    "fatal": ("Undefined DLP SDES TLP FCP CmpltTO CmpltAbrt UnxCmplt RxOF MalfTLP", "FATAL"),
}


def capability(minor: int, instance: int, part: int | None = None) -> int:
    """Minor of ``/dev/nvidia-caps/nvidia-cap<n>`` for an instance of the GPU with that minor."""
    per_instance = PARTS_PER_INSTANCE + 1
    first = FIRST_CAPABILITY + (minor * INSTANCES_PER_GPU + instance) * per_instance
    return first if part is None else first + 1 + part


class Tree:
    """Files of a fake machine below `root`; `state` is where the stand-ins keep theirs."""

    def __init__(self, root: Path, state: Path) -> None:
        self.root = root
        self.state = state
        self.put("proc/devices", _DEVICES)
        self.parameters()
        self.put("proc/driver/nvidia-caps/mig-minors", "config 1\nmonitor 2\n")
        for node in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"):
            self.put(f"dev/{node}", "")
        for number in (1, 2):
            self.put(f"dev/nvidia-caps/nvidia-cap{number}", "")
        for control in ("bind", "unbind"):
            self.put(f"sys/bus/pci/drivers/nvidia/{control}", "")
        self.put("sys/bus/pci/rescan", "")
        self.process(1, "systemd")
        self._tools()

    def put(self, name: str, content: str | bytes) -> Path:
        """Write one file, with its directories."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def link(self, name: str, target: str) -> None:
        """Make a symbolic link, with its directories."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def driver(self, version: str) -> None:
        """Write what names the driver's version: proc, sys, and its user libraries."""
        machine = platform.machine()
        said = f"NVRM version: STAND-IN UNIX Open Kernel Module for {machine}  {version}  Release\n"
        self.put("proc/driver/nvidia/version", said)
        self.put("sys/module/nvidia/version", f"{version}\n")
        place = f"usr/lib/{machine}-linux-gnu"
        shutil.rmtree(self.root / place, ignore_errors=True)
        for library in LIBRARIES:
            self.put(f"{place}/{library}.so.{version}", f"stand-in {library} {version}\n")
            self.link(f"{place}/{library}.so.1", f"{library}.so.{version}")
        self.link(f"{place}/libcuda.so", "libcuda.so.1")

    def parameters(self, **values: str) -> None:
        """Write the kernel module's parameters, e.g. ``RegistryDwords='"RMDisable...=1"'``."""
        said = {
            "RegistryDwords": '""',
            "PreserveVideoMemoryAllocations": "0",
            "InitializeSystemMemoryAllocations": "1",
            "ModifyDeviceFiles": "1",
            "DeviceFileUID": "0",
            "DeviceFileGID": "0",
            "DeviceFileMode": "438",
            **values,
        }
        lines = "".join(f"{name}: {value}\n" for name, value in said.items())
        self.put("proc/driver/nvidia/params", lines)

    def process(self, pid: int, name: str, *, files: Iterable[str] = ()) -> None:
        """Show a process in /proc that holds `files` open, by their paths on the machine."""
        shutil.rmtree(self.root / f"proc/{pid}", ignore_errors=True)
        fields = " ".join(["S", "1", *["0"] * 17, "100", *["0"] * 30])
        self.put(f"proc/{pid}/stat", f"{pid} ({name[:15]}) {fields}\n")
        self.put(f"proc/{pid}/comm", f"{name[:15]}\n")
        self.put(f"proc/{pid}/cmdline", f"{name}\0")
        self.put(f"proc/{pid}/status", f"Name:\t{name[:15]}\nPid:\t{pid}\nUid:\t0\t0\t0\t0\n")
        self.put(f"proc/{pid}/cgroup", "0::/\n")
        self.put(f"opt/bin/{name}", "")
        self.link(f"proc/{pid}/exe", f"../../opt/bin/{name}")
        self.put(f"proc/{pid}/maps", "")
        self.link(f"proc/{pid}/ns/pid", "pid:[4026531836]")
        self.link(f"proc/{pid}/ns/mnt", "mnt:[4026531841]")
        (self.root / f"proc/{pid}/fd").mkdir()
        for number, target in enumerate(files, start=3):
            self.link(f"proc/{pid}/fd/{number}", target)

    def process_gone(self, pid: int) -> None:
        """End what `process` showed."""
        shutil.rmtree(self.root / f"proc/{pid}", ignore_errors=True)

    def add(self, address: str, reading: Callable[[str], str]) -> None:
        """A GPU with these readings appears at a PCI address, in /sys, /proc and /dev."""
        self._function(address, reading)
        minor = int(reading("minor"))
        facts = {
            "Model": reading("name"),
            "GPU UUID": reading("uuid"),
            "Video BIOS": reading("vbios"),
            "Bus Type": "PCIe",
            "Bus Location": address,
            "Device Minor": str(minor),
            "GPU Excluded": "No",
        }
        said = "".join(f"{name + ':':<16} {value}\n" for name, value in facts.items())
        proc = f"proc/driver/nvidia/gpus/{address}"
        self.put(f"{proc}/information", said)
        self.put(f"{proc}/registry", 'Binary: ""\n')
        self.put(f"dev/nvidia{minor}", "")
        for node in (f"card{minor}", f"renderD{128 + minor}"):
            (self.root / f"sys/bus/pci/devices/{address}/drm/{node}").mkdir(
                parents=True, exist_ok=True
            )
            self.put(f"dev/dri/{node}", "")
        if reading("slices"):
            self._capabilities(minor)

    def remove(self, address: str, minor: str) -> None:
        """The GPU at an address disappears."""
        shutil.rmtree(self.root / "sys/bus/pci/devices" / address, ignore_errors=True)
        shutil.rmtree(self.root / "proc/driver/nvidia/gpus" / address, ignore_errors=True)
        render = str(128 + int(minor))
        for node in (f"nvidia{minor}", f"dri/card{minor}", f"dri/renderD{render}"):
            (self.root / "dev" / node).unlink(missing_ok=True)

    def lose(self, address: str) -> None:
        """What a dead device shows: config space of ones, and a link nobody knows."""
        device = f"sys/bus/pci/devices/{address}"
        self.put(f"{device}/config", b"\xff" * 256)
        self.put(f"{device}/current_link_speed", "Unknown\n")
        self.put(f"{device}/current_link_width", "63\n")

    def aer(self, address: str, severity: str, **counts: int) -> None:
        """Write counters of one severity (correctable, nonfatal, fatal), by their short names."""
        names, total = _AER[severity]
        rows = {name: counts.get(name, 0) for name in names.split()}
        lines = [f"{name} {count}" for name, count in rows.items()]
        lines.append(f"TOTAL_ERR_{total} {sum(rows.values())}")
        self.put(f"sys/bus/pci/devices/{address}/aer_dev_{severity}", "\n".join(lines) + "\n")

    def link_state(self, address: str, *, generation: int, width: int) -> None:
        """Write what the PCIe link runs at now."""
        device = f"sys/bus/pci/devices/{address}"
        self.put(f"{device}/current_link_speed", f"{SPEEDS[generation]} GT/s PCIe\n")
        self.put(f"{device}/current_link_width", f"{width}\n")

    def lock_unbinding(self, address: str, *, used: bool = False) -> None:
        """The driver is that of a virtual GPU host, which alone offers an unbind lock.

        `used`: the lock cannot be had, as while the device is open: what is written is lost.
        """
        name = f"proc/driver/nvidia/gpus/{address}/unbindLock"
        if used:
            self.link(name, "/dev/null")
        else:
            self.put(name, "0\n")

    def kernel_module(self, name: str, *, users: int = 0, **parameters: str) -> None:
        """A module of the kernel is loaded, with what counts as its users and its parameters."""
        self.put(f"sys/module/{name}/refcnt", f"{users}\n")
        self.put(f"sys/module/{name}/initstate", "live\n")
        for parameter, value in parameters.items():
            self.put(f"sys/module/{name}/parameters/{parameter}", f"{value}\n")

    def instance(self, minor: int, instance: int, part: int | None = None) -> None:
        """Capability node and proc entry of a GPU instance or of a compute instance of it."""
        number = capability(minor, instance, part)
        place = "" if part is None else f"/ci{part}"
        self.put(f"dev/nvidia-caps/nvidia-cap{number}", "")
        said = f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        proc = f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{instance}{place}/access"
        self.put(proc, said)

    def _function(self, address: str, reading: Callable[[str], str]) -> None:
        device = f"sys/bus/pci/devices/{address}"
        product, subsystem = int(reading("pci_device_id")), int(reading("pci_subsystem_id"))
        vendor, model = product & 0xFFFF, product >> 16
        config = vendor.to_bytes(2, "little") + model.to_bytes(2, "little")
        config = (config + b"\x07\x04\x10\x00\xa1\x00\x02\x03").ljust(256, b"\0")
        best, lanes = int(reading("pcie_gen_max")), reading("pcie_width_max")
        contents: dict[str, str | bytes] = {
            "vendor": f"{vendor:#06x}\n",
            "device": f"{model:#06x}\n",
            "subsystem_vendor": f"{subsystem & 0xFFFF:#06x}\n",
            "subsystem_device": f"{subsystem >> 16:#06x}\n",
            "class": "0x030200\n",
            "revision": "0xa1\n",
            "config": config,
            "max_link_speed": f"{SPEEDS[best]} GT/s PCIe\n",
            "max_link_width": f"{lanes}\n",
            "numa_node": f"{reading('numa_node') or -1}\n",
            "local_cpulist": "0-1\n",
            "power_state": "D0\n",
            "enable": "1\n",
            "reset": "",
            "reset_method": "flr bus\n",
            "remove": "",
        }
        for name, content in contents.items():
            self.put(f"{device}/{name}", content)
        self.link_state(
            address, generation=int(reading("pcie_gen")), width=int(reading("pcie_width"))
        )
        for severity in _AER:
            self.aer(address, severity)
        group = int(address[5:7], 16)
        (self.root / f"sys/kernel/iommu_groups/{group}").mkdir(parents=True, exist_ok=True)
        self.link(f"{device}/iommu_group", f"../../../../kernel/iommu_groups/{group}")
        self.link(f"{device}/driver", "../../drivers/nvidia")

    def _capabilities(self, minor: int) -> None:
        path = self.root / "proc/driver/nvidia-caps/mig-minors"
        lines = []
        for instance in range(INSTANCES_PER_GPU):
            place = f"gpu{minor}/gi{instance}"
            lines.append(f"{place}/access {capability(minor, instance)}\n")
            lines += [
                f"{place}/ci{part}/access {capability(minor, instance, part)}\n"
                for part in range(PARTS_PER_INSTANCE)
            ]
        known = [line for line in path.read_text().splitlines(keepends=True) if line not in lines]
        path.write_text("".join(known + lines))

    def _tools(self) -> None:
        tool = Path(__file__).with_name("reset_tool.py")
        script = f'#!/bin/sh\nexec "{sys.executable}" -I -S "{tool}" "{self.state}" "$@"\n'
        self.put("usr/bin/nvidia-smi", script).chmod(0o755)
