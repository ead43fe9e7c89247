"""Whether this node can wipe any NVIDIA GPU at all: causes that are the node's and no GPU's.

A worker that meets one of them fails, whichever GPU it was sent to. Found beforehand, it is told
once, with what to do on the node, and no GPU goes out of service for it (F44).

``python -m fleet.devices.nvidia.fitness`` says in one line of JSON what of CUDA this process can
load: a process of its own, because a library once loaded stays, and the node outlives upgrades.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fleet.core import errors
from fleet.core.model import Accelerator
from fleet.devices.base import Unfit
from fleet.devices.nvidia import attributes, cuda, fabric, libraries, nvml

PROBE_LIMIT_S = 20.0
COMPILER = "libnvidia-ptxjitcompiler.so.1"
_LIBRARY = "install the driver's own libcuda.so.1, of the version of the loaded kernel module"
_IN_POD = "; a pod gets it from the device `agent`, with lib64 in LD_LIBRARY_PATH"
_CONFIDENTIAL_ON = 1


def found(
    library: nvml.Library,
    root: Path,
    accelerators: Iterable[Accelerator],
    *,
    host_readback: bool,
) -> tuple[Unfit, ...]:
    """Everything that keeps GPUs of this node from being wiped, whichever is taken."""
    return (
        *_cuda(root, host_readback=host_readback),
        *_fabric(root),
        *_confidential(library),
        *_coherent(accelerators),
    )


def _cuda(root: Path, *, host_readback: bool) -> Iterator[Unfit]:
    told = _probed()
    if told.get("problem"):
        yield Unfit(str(told["problem"]), f"{_LIBRARY}{_IN_POD}")
        return
    loaded, file = libraries.version(root), str(told.get("version", ""))
    if loaded and file and loaded != file:
        yield Unfit(
            f"libcuda.so.1 is of driver {file}, the loaded kernel module of {loaded}",
            "library and kernel module differ since an upgrade: reload the module or reboot",
        )
    if not host_readback and not told.get("compiler"):
        yield Unfit(
            f"{COMPILER} is not installed, and reading back by the host is not allowed",
            f"install {COMPILER} of the driver, or allow hardware.host_readback",
        )


def _fabric(root: Path) -> Iterator[Unfit]:
    """F18: without the service for its switches CUDA starts on none of the node's GPUs."""
    if fabric.switched(root) and not fabric.served(root):
        yield Unfit(fabric.NOT_SERVED, fabric.START)


def _confidential(library: nvml.Library) -> Iterator[Unfit]:
    """F84: in confidential computing GPUs take no work before an administrator has said so."""
    state = library.ask("nvmlSystemGetConfComputeState")
    if state is None or int(state.ccFeature) != _CONFIDENTIAL_ON:
        return
    ready = library.ask("nvmlSystemGetConfComputeGpusReadyState")
    if not ready:
        said = "are not set ready" if ready is not None else "do not say whether they are ready"
        yield Unfit(f"confidential computing is on and the GPUs {said}", cuda.SET_READY)


def _coherent(accelerators: Iterable[Accelerator]) -> Iterator[Unfit]:
    """B64: memory that is the host's too is of no GPU alone."""
    shared = [
        (one.uuid, kind)
        for one in accelerators
        if (kind := one.device.attributes.get("memory", "")) not in ("", attributes.OWN_MEMORY)
    ]
    nodes = [uuid for uuid, kind in shared if kind.startswith("numa")]
    if nodes:
        yield Unfit(
            f"the memory of {len(nodes)} GPUs is memory of the host too (coherent, a NUMA node)",
            attributes.COHERENT_REMEDY,
            tuple(nodes),
        )
    others = [uuid for uuid, kind in shared if not kind.startswith("numa")]
    if others:
        yield Unfit(
            f"{len(others)} GPUs have no memory of their own",
            "they share the host's, which nothing here can wipe: do not offer them",
            tuple(others),
        )


def _probed() -> dict[str, Any]:
    """What `probe` says in a process of its own."""
    command = (sys.executable, "-P", "-m", "fleet.devices.nvidia.fitness")
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_LIMIT_S,
            check=False,
        )
        told = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"problem": f"libcuda.so.1 does not load within {PROBE_LIMIT_S:g} s"}
    except (OSError, ValueError) as error:
        return {"problem": f"libcuda.so.1 cannot be tried: {error}"}
    return told if isinstance(told, dict) else {}


def probe() -> dict[str, Any]:
    """Load CUDA as a worker does, opening no device: what is wrong, and what is there."""
    try:
        cuda.Driver().require()
    except errors.FleetError as error:
        return {"problem": error.detail}
    compiler = True
    try:
        ctypes.CDLL(COMPILER)
    except OSError:
        compiler = False
    return {"version": _version_loaded(), "compiler": compiler}


def _version_loaded() -> str:
    """Version in the name of the file that was loaded; "": it has none."""
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        if match := re.search(r"/libcuda\.so\.(\d+\.\d+(?:\.\d+)?)$", line):
            return match[1]
    return ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(probe()) + "\n")
