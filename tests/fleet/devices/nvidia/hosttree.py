"""A host with NVIDIA GPUs as far as /proc, /dev and /usr go: plain files below a directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

VERSION = "595.45.04"
FIRST_PID_NAMESPACE = "pid:[4026531836]"
HOST_MOUNTS, OTHER_MOUNTS = "mnt:[4026531841]", "mnt:[4026532999]"
MAJORS = """Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
195 nvidiactl
236 nvidia-nvswitch
237 nvidia-caps-imex-channels
238 nvidia-nvlink
239 nvidia-caps
510 nvidia-uvm

Block devices:
  8 nvidia-uvm
"""
_BINARY = b"\x7fELF\x02STAND-IN"


def put(root: Path, name: str, content: str | bytes = "") -> Path:
    """Write one file, with its directories."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def host(root: Path, *, gpus: int = 2, version: str = VERSION) -> Path:
    """A host with this many GPUs, ``GPU-stand-in-<n>`` at 0000:3b+n, minor n, and its driver."""
    load(root, version)
    install(root, version)
    put(root, "proc/devices", MAJORS)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        put(root, f"dev/{name}")
    for number in range(gpus):
        gpu(root, number)
    minors = ["config 1", "monitor 2"]
    for number in range(gpus):
        minors += [f"gpu{number}/gi{gi}/access {3 + 100 * number + 10 * gi}" for gi in range(3)]
        minors += [
            f"gpu{number}/gi{gi}/ci{ci}/access {4 + 100 * number + 10 * gi + ci}"
            for gi in range(3)
            for ci in range(2)
        ]
    put(root, "proc/driver/nvidia-caps/mig-minors", "\n".join(minors) + "\n")
    process(root, 1, "systemd")
    return root


def load(root: Path, version: str) -> None:
    """The kernel module of a version is loaded."""
    told = f"NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (stand-in)"
    put(root, "proc/driver/nvidia/version", f"NVRM version: {told}\nGCC version:  gcc 12.2.0\n")


def install(root: Path, version: str, *, place: str = "usr/lib/x86_64-linux-gnu") -> None:
    """The libraries and the tool of a version are on disk."""
    for name in ("libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so"):
        put(root, f"{place}/{name}.{version}", _BINARY)
    put(root, "usr/bin/nvidia-smi", "stand-in")


def address(number: int) -> str:
    """PCI address of GPU `number`."""
    return f"0000:{0x3B + number:02x}:00.0"


def gpu(root: Path, number: int, *, minor: int | None = None) -> None:
    """One GPU as the kernel module lists it, and its node."""
    minor = number if minor is None else minor
    text = (
        f"Model: \t\t STAND-IN\nGPU UUID: \t GPU-stand-in-{number}\n"
        f"Bus Location: \t {address(number)}\nDevice Minor: \t {minor}\n"
    )
    put(root, f"proc/driver/nvidia/gpus/{address(number)}/information", text)
    put(root, f"dev/nvidia{minor}")


def process(
    root: Path,
    pid: int,
    program: str,
    *,
    opens: Sequence[str] = (),
    environment: Sequence[str] = (),
    mounts: str = HOST_MOUNTS,
) -> Path:
    """A process of the host that has some paths open; its directory below proc."""
    place = root / "proc" / str(pid)
    name = program.rpartition("/")[2]
    put(place, "comm", name[:15] + "\n")
    put(place, "cmdline", program + "\0--stand-in\0")
    put(place, "environ", "".join(f"{one}\0" for one in environment))
    put(place, "maps")
    put(place, "stat", f"{pid} ({name[:15]}) S 1 " + "0 " * 17 + f"{1000 + pid} 0 0\n")
    put(place, "status", f"Name:\t{name[:15]}\nUid:\t0\t0\t0\t0\n")
    put(root, f"opt/bin/{name}")
    (place / "exe").symlink_to(f"../../opt/bin/{name}")
    for folder in ("fd", "ns"):
        (place / folder).mkdir()
    (place / "ns/pid").symlink_to(FIRST_PID_NAMESPACE)
    (place / "ns/mnt").symlink_to(mounts)
    for number, path in enumerate(opens, start=3):
        (place / "fd" / str(number)).symlink_to(path)
    return place
