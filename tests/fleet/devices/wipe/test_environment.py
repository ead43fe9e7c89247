"""A worker sees one device, and nobody's settings but ours."""

from __future__ import annotations

import pytest

from fleet.core.processes import MARKER
from fleet.devices.wipe.environment import MPS_PIPES, NOWHERE, VISIBILITY, environment

GPU = "GPU-11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize("inherited", [None, "", "3,1", "GPU-00000000", "-1", "1,1", "MIG-x"])
def test_b13_inherited_visibility_is_replaced_by_the_one_device(inherited: str | None) -> None:
    """B13: whatever list the parent has, the worker sees the UUID ordered and nothing else."""
    before = {} if inherited is None else {VISIBILITY: inherited, "ROCR_VISIBLE_DEVICES": "2"}
    found = environment(before, "id", GPU)
    assert found[VISIBILITY] == GPU
    assert found[MARKER] == "id"
    assert "ROCR_VISIBLE_DEVICES" not in found


def test_gpus_8_34_no_mps_daemon_captures_a_worker() -> None:
    """gpus-8.34: the worker looks for a daemon where there can be none, whatever it inherits."""
    found = environment(
        {MPS_PIPES: "/var/tenants", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}, "id", GPU
    )
    assert found[MPS_PIPES] == NOWHERE
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in found


def test_kernels_are_loaded_early_and_compiled_whatever_the_host_says() -> None:
    """gpus-8.9: settings of the host that forbid or delay our kernels do not reach the worker."""
    found = environment({"CUDA_DISABLE_PTX_JIT": "1", "CUDA_MODULE_LOADING": "LAZY"}, "id", GPU)
    assert "CUDA_DISABLE_PTX_JIT" not in found
    assert found["CUDA_MODULE_LOADING"] == "EAGER"
