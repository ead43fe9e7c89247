"""The environment a wipe worker, or a tenant of a proof, is started in: one device and no more."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import fleet
from fleet.core.processes import MARKER

VISIBILITY = "CUDA_VISIBLE_DEVICES"
MPS_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
NOWHERE = "/proc/self/fdinfo/no-daemon"
"""A directory that nobody can make: no MPS daemon can be met there, and so none captures us."""
_INHERITED_VISIBILITY = (
    VISIBILITY,
    "CUDA_DEVICE_ORDER",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    MPS_PIPES,
    "NVIDIA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
)


def environment(inherited: Mapping[str, str], worker_id: str, device: str) -> dict[str, str]:
    """The worker's environment: whatever visibility we inherited is replaced by the one device.

    Ray hands its own CUDA_VISIBLE_DEVICES down even to actors without accelerators, and an index
    means another device in every list (case B13). Kernels are loaded before memory is taken, and
    an MPS daemon would make the worker a client that shares its limits with tenants.
    """
    found = {name: text for name, text in inherited.items() if name not in _INHERITED_VISIBILITY}
    source = str(Path(fleet.__file__).parent.parent)
    paths = [source, *filter(None, [found.get("PYTHONPATH")])]
    return {
        **found,
        MARKER: worker_id,
        VISIBILITY: device,
        MPS_PIPES: NOWHERE,
        "CUDA_MODULE_LOADING": "EAGER",
        "PYTHONPATH": os.pathsep.join(paths),
    }
