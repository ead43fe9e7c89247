"""Health readings of one GPU as a whole."""

from __future__ import annotations

import pytest

from fleet.core.errors import DeviceLost
from fleet.core.model import Uuid
from fleet.core.settings import HealthPolicy
from fleet.devices.health import tables
from fleet.devices.health.checks import Verdict, judge, needs_reset, passed
from fleet.devices.health.readings import Readings
from fleet.devices.nvidia.backend import NvidiaBackend
from tests.drivers.host import Gpu, Host

POLICY = HealthPolicy()


def read(backend: NvidiaBackend, gpu: Gpu) -> Readings:
    """Readings of the GPU."""
    return backend.readings(Uuid(gpu.uuid))


def test_a_healthy_gpu_passes_every_check(host: Host, backend: NvidiaBackend) -> None:
    """B1: with a whole machine around it nothing mandatory of an idle GPU is unknown or fails."""
    gpu = host.add_gpu(persistence=1)
    found = read(backend, gpu)
    findings = judge(found, POLICY, before=found)
    assert passed(findings, POLICY)
    assert not [one for one in findings if one.verdict in (Verdict.FAIL, Verdict.WARN)]
    assert found.driver_version == "595.45.04"
    assert (found.temperature_c, found.memory_temperature_c) == (34, 41)


def test_8_12_lost_is_lost_in_every_answer(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.12: the card falls off the bus between two readings: lost, not "all unknown"."""
    gpu = host.add_gpu()
    read(backend, gpu)
    gpu.lose()
    with pytest.raises(DeviceLost):
        read(backend, gpu)


def test_8_12_lost_in_one_call_is_lost(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.12, B24: whichever call says 15, the GPU is lost; a field's own code counts too."""
    gpu = host.add_gpu()
    for name in ("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetTemperature"):
        gpu.fault(name, "return 15")
        with pytest.raises(DeviceLost):
            read(backend, gpu)
        gpu.heal(name)
    gpu.set(recovery_action="error 15")
    with pytest.raises(DeviceLost):
        read(backend, gpu)


@pytest.mark.parametrize("row", tables.rows("recovery", "recovery"), ids=lambda row: row["word"])
def test_the_drivers_own_verdict(
    host: Host, backend: NvidiaBackend, row: dict[str, object]
) -> None:
    """gpus-1.10: field 230 becomes the word of the table, and a reset asked for is required."""
    gpu = host.add_gpu(recovery_action=row["number"])
    found = read(backend, gpu)
    assert found.recovery_action == row["word"]
    assert found.reset_required is (row.get("action") == "reset")


def test_a_verdict_nobody_knows_fails(host: Host, backend: NvidiaBackend) -> None:
    """gpus-1.10: a number no table explains is taken at its worst, not for "none"."""
    found = read(backend, host.add_gpu(recovery_action=99))
    assert found.recovery_action == "CODE_99"
    judged = {one.check: one.verdict for one in judge(found, POLICY)}
    assert judged["recovery-action"] is Verdict.FAIL


def test_the_log_tells_the_verdict_where_the_driver_has_no_field(
    host: Host, backend: NvidiaBackend
) -> None:
    """gpus-8.42: a driver without field 230 still logs code 154; the field comes first."""
    gpu = host.add_gpu(recovery_action="error 3")
    place = gpu.bus_id.rpartition(".")[0]
    (host.root / "kmsg").write_text(
        f"4,1,1000000,-;NVRM: Xid (PCI:{place}): 154, GPU recovery action changed from 0x0 (None)"
        " to 0x1 (GPU Reset Required)\n"
    )
    assert read(backend, gpu).recovery_action == "GPU_RESET"
    gpu.set(recovery_action=0)
    assert read(backend, gpu).recovery_action == "NONE"


def test_any_call_may_say_that_a_reset_is_required(host: Host, backend: NvidiaBackend) -> None:
    """gpus-1.2: 16 from one call means that the GPU must be reset, whatever the others answer."""
    gpu = host.add_gpu()
    assert read(backend, gpu).reset_required is False
    gpu.fault("nvmlDeviceGetTemperature", "return 16")
    found = read(backend, gpu)
    assert found.reset_required is True
    assert needs_reset(judge(found, POLICY))


def test_an_older_driver_says_reset_in_another_field(host: Host, backend: NvidiaBackend) -> None:
    """gpus-1.10: the fields before the recovery action are read as well."""
    found = read(backend, host.add_gpu(recovery_action="error 3", field_226=1))
    assert (found.recovery_action, found.reset_required) == (None, True)


@pytest.mark.parametrize(
    ("bits", "slow", "hot", "brake"),
    [
        (0x1, False, False, False),
        (0x4, False, False, False),
        (0x8, True, False, False),
        (0x48, True, True, False),
        (0x20, False, True, False),
        (0x88, True, False, True),
    ],
)
def test_what_slows_the_clocks_down(
    host: Host, backend: NvidiaBackend, bits: int, slow: bool, hot: bool, brake: bool
) -> None:
    """gpus-1.8: idle and the power cap are no fault; slowdown, heat and brake are told apart."""
    found = read(backend, host.add_gpu(clocks_reasons=bits))
    assert (found.hw_slowdown, found.thermal_slowdown, found.power_brake) == (slow, hot, brake)


def test_another_name_is_used_where_the_driver_has_only_that(
    host: Host, backend: NvidiaBackend
) -> None:
    """gpus-1.8: a call that changed its name over releases answers under the other one."""
    gpu = host.add_gpu(clocks_reasons=0x8, temperature=44)
    gpu.fault("nvmlDeviceGetCurrentClocksEventReasons", "return 13")
    gpu.fault("nvmlDeviceGetTemperature", "return 13")
    found = read(backend, gpu)
    assert (found.hw_slowdown, found.temperature_c) == (True, 44)


def test_what_the_driver_fails_to_tell_is_unknown(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.19: a refusal of any other kind than "not supported" is unknown, never zero."""
    gpu = host.add_gpu(temperature="error 999", memory_temperature="error 4")
    found = read(backend, gpu)
    assert (found.temperature_c, found.memory_temperature_c) == (None, None)
    assert not {"temperature_c", "memory_temperature_c"} & found.not_applicable


def test_b64_readings_of_memory_nobody_has_are_no_numbers(
    host: Host, backend: NvidiaBackend
) -> None:
    """B64: a GPU without memory of its own is read too, without numbers from elsewhere."""
    gpu = host.add_gpu(ecc_capable=0, memory_temperature="error 3")
    gpu.fault("nvmlDeviceGetMemoryInfo_v2", "return 3")
    gpu.fault("nvmlDeviceGetMemoryInfo", "return 3")
    found = read(backend, gpu)
    assert found.present is True
    assert found.memory_temperature_c is None
    assert found.ecc_uncorrected_volatile is None
