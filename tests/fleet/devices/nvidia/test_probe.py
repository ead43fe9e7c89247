"""Asking the driver about one GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.core.errors import DeviceLost
from fleet.devices.nvidia import nvml
from fleet.devices.nvidia.probe import Answers, Probe, flag
from tests.drivers.host import Gpu, Host


@pytest.fixture
def gpu(host: Host) -> Gpu:
    """The only GPU."""
    return host.add_gpu()


@pytest.fixture
def probe(gpu: Gpu) -> Iterator[Probe]:
    """Asking it."""
    library = nvml.Library()
    yield Probe(library, library.call("nvmlDeviceGetHandleByUUID", gpu.uuid))
    library.close()


def test_why_a_call_was_refused_is_kept(gpu: Gpu, probe: Probe) -> None:
    """gpus-8.19: "not supported" is told from every other refusal, until the call answers again."""
    gpu.set(temperature="error 3")
    assert probe.ask("GetTemperature", 0) is None
    assert probe.lacks("GetTemperature")
    gpu.set(temperature="error 4")
    assert probe.ask("GetTemperature", 0) is None
    assert not probe.lacks("GetTemperature")
    assert probe.refused("GetTemperature") == nvml.NO_PERMISSION
    gpu.set(temperature=40)
    assert probe.ask("GetTemperature", 0) == 40
    assert probe.answered("GetTemperature")


def test_a_field_is_refused_alone(gpu: Gpu, probe: Probe) -> None:
    """gpus-1.7: each field has its own return code; a scope is part of what is asked."""
    gpu.set(nvlinks=2, nvlink_1_state=0, memory_temperature="error 3", pcie_replays=5)
    assert probe.fields([82, 94, (165, 0), (165, 1)]) == {94: 5, (165, 0): 1, (165, 1): 0}


def test_what_a_field_says_of_the_gpu_is_heard(gpu: Gpu, probe: Probe) -> None:
    """gpus-1.2: a field whose code is 16 asks for a reset, and 15 is lost."""
    gpu.set(pcie_replays="error 16")
    assert probe.fields([94]) == {}
    assert probe.reset_required
    gpu.set(pcie_replays="error 15")
    with pytest.raises(DeviceLost):
        probe.fields([94])


def test_a_struct_is_filled_or_refused(gpu: Gpu, probe: Probe) -> None:
    """A struct comes back filled; of a refused call nothing comes back."""
    gpu.set(sram_volatile_parity=3)
    filled = probe.filled("GetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t")
    assert filled is not None
    assert filled.volatileUncParity == 3
    gpu.fault("nvmlDeviceGetSramEccErrorStatus", "return 3")
    assert probe.filled("GetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t") is None


def test_answers_of_parts_add_up() -> None:
    """What one part has and another has not are kept together."""
    found = Answers({"pstate": 0})
    other = Answers({"accounting": None})
    other.absent("accounting")
    found.add(other)
    assert found.values == {"pstate": 0, "accounting": None}
    assert found.not_applicable == {"accounting"}
    assert [flag(0), flag(1), flag(None)] == [False, True, None]
