"""Libraries and programs of the loaded driver, found on the host: what a container lacks for CUDA.

User space and kernel module have to be of one version, to the last digit. So only files that carry
the loaded module's version in their name count; one of another version that a package left behind,
or that a link still points at, is never offered (B79).

Paths are the host's: below `root` here, without it in what is returned.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fleet.core import errors
from fleet.devices import host_paths
from fleet.devices.base import Mount
from fleet.devices.sysfs import read_text

VERSION = "proc/driver/nvidia/version"
LIBRARIES = "/usr/local/nvidia/lib64"
"""Where a container finds the libraries: CUDA images have it in their loader's path.

``LD_LIBRARY_PATH`` is not set: a spec replaces an image's own value and would break what is there.
"""
PROGRAMS = "/usr/local/nvidia/bin"
DIRECTORIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib64/nvidia",
    "/lib64",
    "/usr/lib",
    "/usr/lib/nvidia",
    "/usr/local/nvidia/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
)
"""Where distributions put the driver's libraries. Those with 64 in their name come first: where
both exist, the plain one has 32-bit libraries."""
_PROGRAM_DIRECTORIES = (
    "/usr/bin",
    "/usr/local/bin",
    "/usr/local/nvidia/bin",
    "/home/kubernetes/bin/nvidia/bin",
)
_PROGRAMS = ("nvidia-smi", "nvidia-debugdump")
_NUMBER = re.compile(r"\d{2,4}\.\d+(?:\.\d+)?")
_ELF_32_BIT = b"\x7fELF\x01"


@dataclass(frozen=True, slots=True)
class Library:
    """A library of the driver: its name, and under which names programs load it."""

    name: str
    """Without version: ``libcuda.so``."""
    sonames: tuple[str, ...]
    needed: bool = False
    """Whether nothing works without it."""


WANTED = (
    Library("libcuda.so", ("libcuda.so.1", "libcuda.so"), needed=True),
    Library("libnvidia-ml.so", ("libnvidia-ml.so.1",), needed=True),
    Library("libnvidia-ptxjitcompiler.so", ("libnvidia-ptxjitcompiler.so.1",)),
    Library("libnvidia-nvvm.so", ("libnvidia-nvvm.so.4",)),
    Library("libnvidia-nvvm70.so", ("libnvidia-nvvm70.so.4",)),
    Library("libnvidia-gpucomp.so", ()),
    Library("libnvidia-tileiras.so", ()),
    Library("libcudadebugger.so", ("libcudadebugger.so.1",)),
    Library("libnvidia-cfg.so", ("libnvidia-cfg.so.1",)),
    Library("libnvidia-allocator.so", ("libnvidia-allocator.so.1",)),
    Library("libnvidia-opencl.so", ("libnvidia-opencl.so.1",)),
    Library("libnvidia-pkcs11.so", ()),
    Library("libnvidia-pkcs11-openssl3.so", ()),
    Library("libnvcuvid.so", ("libnvcuvid.so.1",)),
    Library("libnvidia-encode.so", ("libnvidia-encode.so.1",)),
    Library("libnvidia-opticalflow.so", ("libnvidia-opticalflow.so.1",)),
    Library("libnvidia-ngx.so", ("libnvidia-ngx.so.1",)),
)
"""What compute needs, and video beside it. Graphics libraries are not given: they need files of
the display server too. Names as the driver's own installer links them."""


def version(root: Path) -> str:
    """Version of the loaded kernel module, such as ``595.45.04``. Raises `DriverAbsent`."""
    for line in (read_text(root / VERSION) or "").splitlines():
        if line.startswith("NVRM"):
            for word in line.split():
                if _NUMBER.fullmatch(word):
                    return word
    raise errors.DriverAbsent(f"{root / VERSION} names no version of a loaded NVIDIA driver")


def mounts(root: Path) -> tuple[Mount, ...]:
    """Read-only mounts of all libraries of exactly the loaded version, and of the programs.

    Each file appears under its own name and under every name programs load it by, as a mount of the
    same file: links in a container would need a hook. Raises `DriverAbsent` without a driver and
    `BackendFailed` naming the file that is missing.
    """
    loaded = version(root)
    return (*_libraries(root, loaded), *_programs(root))


def _libraries(root: Path, loaded: str) -> Iterator[Mount]:
    for library in WANTED:
        file = f"{library.name}.{loaded}"
        place = _first(root, DIRECTORIES, file)
        if place:
            for name in (file, *library.sonames):
                yield Mount(place, f"{LIBRARIES}/{name}")
        elif library.needed:
            raise errors.BackendFailed(
                f"{file}, which the loaded driver {loaded} needs, is in none of"
                f" {', '.join(DIRECTORIES)} below {root}",
                remedy="install the libraries of the driver that is loaded, or reboot into the"
                " one that is installed",
            )


def _programs(root: Path) -> Iterator[Mount]:
    for program in _PROGRAMS:
        place = _first(root, _PROGRAM_DIRECTORIES, program)
        if place:
            yield Mount(place, f"{PROGRAMS}/{program}")


def _first(root: Path, directories: Iterable[str], name: str) -> str:
    """The host's path of the first usable file of that name; "" without one."""
    for directory in directories:
        path = f"{directory}/{name}"
        try:
            if host_paths.exists(root, path) and not _is_32_bit(root, path):
                return path
        except OSError as error:
            raise errors.BackendFailed(f"{path} cannot be looked at: {error}") from error
    return ""


def _is_32_bit(root: Path, path: str) -> bool:
    """Whether it is a library for the other word length, which lies under the same name."""
    try:
        with (root / path.lstrip("/")).open("rb") as file:
            return file.read(len(_ELF_32_BIT)) == _ELF_32_BIT
    except OSError:
        return False  # a link into the host's tree: only its being there was asked
