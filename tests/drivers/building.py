"""Builds the driver stand-ins once per machine: shared objects, from the C sources beside it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

SOURCES = Path(__file__).parent
LIBRARIES = {
    "libnvidia-ml.so.1": ("nvml.c", "nvml_*.c", "standin.c"),
    "libcuda.so.1": ("cuda.c", "cuda_*.c", "ptx*.c", "standin.c"),
}
GLIBC = "2.17"
"""The oldest C library the objects load on: a cache may outlive the system it was built on."""


class BuildFailed(Exception):
    """The compiler refused a stand-in; the text is what it said."""


def libraries() -> Path:
    """Directory with ``libnvidia-ml.so.1`` and ``libcuda.so.1``, for LD_LIBRARY_PATH.

    Built on first use and kept under the user's cache directory for each state of the sources; any
    number of processes may ask at once. Raises `BuildFailed` with the compiler's own text.
    """
    cache = _cache()
    built = cache / _state()
    if built.is_dir():
        return built
    with (cache / "building.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if built.is_dir():
            return built
        fresh = Path(tempfile.mkdtemp(dir=cache))
        try:
            _compile(fresh, cache / "zig")
            fresh.chmod(0o755)
            fresh.rename(built)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return built


def _compile(target: Path, cache: Path) -> None:
    running = [
        (name, subprocess.Popen(command, env=_environment(cache), stderr=subprocess.PIPE))
        for name, command in _commands(target).items()
    ]
    said = {name: compiler.communicate()[1].decode(errors="replace") for name, compiler in running}
    for name, compiler in running:
        if compiler.returncode != 0:
            raise BuildFailed(f"{name}: {said[name]}")


def _commands(target: Path) -> dict[str, list[str]]:
    triple = f"{platform.machine()}-linux-gnu.{GLIBC}"
    flags = ["-shared", "-fPIC", "-O2", "-g0", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", triple, *flags]
    commands = {}
    for name, patterns in LIBRARIES.items():
        sources = [str(path) for glob in patterns for path in sorted(SOURCES.glob(glob))]
        if (SOURCES / patterns[0]).exists():
            output = ["-o", str(target / name), f"-Wl,-soname,{name}"]
            commands[name] = [*compiler, *output, *sources, "-lm", "-lpthread"]
    return commands


def _environment(cache: Path) -> dict[str, str]:
    zig = {"ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)}
    return {**os.environ, **zig}


def _state() -> str:
    found = hashlib.sha256(f"{version('ziglang')} {platform.machine()}".encode())
    for path in sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.h"), Path(__file__)]):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:24]


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    wanted = Path(home) / "fleetscrub" / "drivers"
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        usable = os.access(wanted, os.W_OK)
    except OSError:
        usable = False
    if not usable:
        wanted = Path(tempfile.gettempdir()) / f"fleetscrub-drivers-{os.getuid()}"
        wanted.mkdir(mode=0o700, exist_ok=True)
    return wanted
