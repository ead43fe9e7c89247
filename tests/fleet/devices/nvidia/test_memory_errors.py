"""Errors of a GPU's memory: what is unknown, what a part has not, what MIG hides."""

from __future__ import annotations

import pytest

from fleet.core.model import Uuid
from fleet.core.settings import HealthPolicy
from fleet.devices.health.checks import Verdict, judge
from fleet.devices.health.readings import Readings, risen
from fleet.devices.nvidia.backend import NvidiaBackend
from tests.drivers.host import Gpu, Host

POLICY = HealthPolicy()


def read(backend: NvidiaBackend, gpu: Gpu) -> Readings:
    """Readings of the GPU."""
    return backend.readings(Uuid(gpu.uuid))


def verdicts(now: Readings, before: Readings | None = None) -> dict[str, Verdict]:
    """Verdict of each check."""
    return {found.check: found.verdict for found in judge(now, POLICY, before=before)}


def test_8_20_a_rise_of_uncorrected_errors_fails(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.20: uncorrected errors during the wipe fail; errors of earlier lives only warn."""
    gpu = host.add_gpu(ecc_uncorrected_aggregate=3)
    before = read(backend, gpu)
    assert verdicts(before)["ecc-uncorrected"] is Verdict.PASS
    assert verdicts(before)["ecc-uncorrected-lifetime"] is Verdict.WARN
    gpu.set(ecc_uncorrected_volatile=1, ecc_uncorrected_aggregate=4)
    after = read(backend, gpu)
    assert set(risen(before, after)) == {"ecc_uncorrected_volatile", "ecc_uncorrected_aggregate"}
    assert verdicts(after, before)["ecc-uncorrected"] is Verdict.FAIL


@pytest.mark.parametrize("location", ["dram", "l2", "shared", "cbu"])
def test_8_20_an_error_only_one_location_shows_counts(
    host: Host, backend: NvidiaBackend, location: str
) -> None:
    """gpus-8.20: a total that missed a location hides nothing: the locations are added up."""
    gpu = host.add_gpu()
    gpu.set(**{f"ecc_uncorrected_volatile_{location}": 2})
    assert read(backend, gpu).ecc_uncorrected_volatile == 2


def test_corrected_and_sram_errors_are_read(host: Host, backend: NvidiaBackend) -> None:
    """Corrected errors, SRAM errors of both kinds, and the driver's own limit on these."""
    gpu = host.add_gpu(
        ecc_corrected_volatile=9,
        sram_volatile_parity=1,
        sram_volatile_secded=2,
        sram_threshold_exceeded=1,
    )
    found = read(backend, gpu)
    assert (found.ecc_corrected_volatile, found.sram_uncorrected) == (9, 3)
    assert found.sram_threshold_exceeded is True
    assert verdicts(found)["sram-uncorrected"] is Verdict.FAIL


def test_8_21_remaps_pending_and_failed(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.21: pending asks for a reset and clears; failed is for replacement at any count."""
    gpu = host.add_gpu(remap_uncorrected=1, remap_pending=1)
    pending = read(backend, gpu)
    assert verdicts(pending)["remap-pending"] is Verdict.FAIL
    assert pending.uncorrectable_remaps == 1
    gpu.set(remap_pending=0)
    assert verdicts(read(backend, gpu))["remap-pending"] is Verdict.PASS
    gpu.set(remap_uncorrected=0, remap_failed=1)
    assert verdicts(read(backend, gpu))["remap-failed"] is Verdict.FAIL


def test_b40_the_uncorrected_count_is_the_second_column(host: Host, backend: NvidiaBackend) -> None:
    """gpus-10.20: corrected, uncorrected, pending, failed: a column too far would never fire."""
    gpu = host.add_gpu(remap_corrected=700, remap_uncorrected=513)
    found = read(backend, gpu)
    assert found.uncorrectable_remaps == 513
    assert verdicts(found)["remaps"] is Verdict.FAIL


def test_8_22_early_parts_retire_pages(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.22: before Ampere pages retire and remaps do not exist; afterwards it is reversed."""
    early = host.add_gpu("pascal", retired_pages_sbe="4096 1\n8192 2", retired_pending=1)
    late = host.add_gpu()
    found = read(backend, early)
    assert (found.retired_pages, found.retired_pages_pending) == (2, True)
    assert {"row_remap_pending", "row_remap_failed", "uncorrectable_remaps"} <= found.not_applicable
    assert verdicts(found)["retirement-pending"] is Verdict.FAIL
    assert verdicts(found)["remap-pending"] is Verdict.NOT_APPLICABLE
    found = read(backend, late)
    assert {"retired_pages", "retired_pages_pending"} <= found.not_applicable
    assert found.row_remap_pending is False


def test_8_19_not_supported_where_it_should_be_is_unknown(
    host: Host, backend: NvidiaBackend
) -> None:
    """gpus-8.19: a mandatory reading that the driver "does not support" is unknown and blocks."""
    gpu = host.add_gpu()
    gpu.fault("nvmlDeviceGetTotalEccErrors", "return 3")
    gpu.fault("nvmlDeviceGetMemoryErrorCounter", "return 3")
    gpu.fault("nvmlDeviceGetRemappedRows", "return 3")
    found = read(backend, gpu)
    assert found.ecc_uncorrected_volatile is None
    assert not {"ecc_uncorrected_volatile", "row_remap_pending"} & found.not_applicable
    judged = {one.check: one for one in judge(found, POLICY)}
    for check in ("ecc-uncorrected", "ecc-uncorrected-lifetime", "remap-pending", "remap-failed"):
        assert judged[check].verdict is Verdict.UNKNOWN
        assert judged[check].reason == "health-unknown"


def test_a_part_without_ecc_has_no_counts(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.19: no ECC mode at all: counts, remaps and retirements do not exist on the part."""
    found = read(backend, host.add_gpu(ecc_capable=0))
    assert found.ecc_enabled is None
    assert {
        "ecc_enabled",
        "ecc_uncorrected_volatile",
        "ecc_uncorrected_aggregate",
        "row_remap_pending",
        "retired_pages",
    } <= found.not_applicable


def test_ecc_that_is_off_counts_nothing(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.19: ECC switched off is told as that, and a change that waits for a reboot too."""
    found = read(backend, host.add_gpu(ecc_current=0, ecc_pending=1))
    assert (found.ecc_enabled, found.ecc_change_pending) == (False, True)
    assert "ecc_uncorrected_volatile" in found.not_applicable
    assert found.row_remap_pending is False


def test_mig_hides_volatile_counts_but_not_the_lifetime(host: Host, backend: NvidiaBackend) -> None:
    """gpus-10.22: with MIG on the volatile count gives way to the lifetime one, which is judged."""
    gpu = host.add_gpu(mig_current=1, mig_pending=1, ecc_uncorrected_aggregate=2)
    found = read(backend, gpu)
    assert found.ecc_uncorrected_aggregate == 2
    assert "ecc_uncorrected_volatile" in found.not_applicable
    gpu.set(ecc_uncorrected_aggregate=3)
    assert verdicts(read(backend, gpu), found)["ecc-uncorrected-lifetime"] is Verdict.FAIL
    gpu.fault("nvmlDeviceGetTotalEccErrors", "return 3")
    gpu.fault("nvmlDeviceGetMemoryErrorCounter", "return 3")
    assert "ecc_uncorrected_volatile" not in read(backend, gpu).not_applicable


def test_mig_hides_remaps_behind_the_drivers_verdict(host: Host, backend: NvidiaBackend) -> None:
    """gpus-10.22: with instances remaps are not told: the driver's verdict and codes stand in."""
    gpu = host.add_gpu(mig_current=1, mig_pending=1)
    assert read(backend, gpu).row_remap_pending is False
    gpu.instance("1g", 0)
    found = read(backend, gpu)
    assert {"row_remap_pending", "row_remap_failed"} <= found.not_applicable
    gpu.set(recovery_action="error 3")
    found = read(backend, gpu)
    assert found.row_remap_pending is None
    assert "row_remap_pending" not in found.not_applicable
    assert verdicts(found)["remap-pending"] is Verdict.UNKNOWN


def test_repairs_and_the_inforom(host: Host, backend: NvidiaBackend) -> None:
    """A repair that waits for a reset, and a checksum that says history is lost."""
    gpu = host.add_gpu(repair_tpc=1, inforom_valid=0)
    found = read(backend, gpu)
    assert (found.repair_pending, found.inforom_valid) == (True, False)
    gpu.set(repair_tpc=0, inforom_valid=1)
    found = read(backend, gpu)
    assert (found.repair_pending, found.inforom_valid) == (False, True)


@pytest.mark.parametrize(
    ("architecture", "answer", "absent"),
    [
        (9, "return 3", True),
        (10, "return 3", False),
        (9, "return 999", False),
        (8, "return 4", False),
    ],
)
def test_b40_a_repair_nobody_tells_is_absent_only_where_parts_have_none(
    host: Host, backend: NvidiaBackend, architecture: int, answer: str, absent: bool
) -> None:
    """B40: "not supported" by a part before Blackwell is no repair at all; by a later one, or any
    other refusal, it is unknown.
    """
    gpu = host.add_gpu(architecture=architecture)
    gpu.fault("nvmlDeviceGetRepairStatus", answer)
    found = read(backend, gpu)
    assert found.repair_pending is None
    assert ("repair_pending" in found.not_applicable) is absent


@pytest.mark.parametrize(
    ("architecture", "ecc", "absent"), [(8, 1, False), (6, 1, True), (8, 0, True)]
)
def test_f20_a_threshold_nobody_tells_is_absent_only_where_parts_have_none(
    host: Host, backend: NvidiaBackend, architecture: int, ecc: int, absent: bool
) -> None:
    """F20: "not supported" is no such thing only on a part known to lack it: before Ampere, or
    without error correction; else it is unknown.
    """
    gpu = host.add_gpu(architecture=architecture, ecc_capable=ecc)
    gpu.fault("nvmlDeviceGetSramEccErrorStatus", "return 3")
    found = read(backend, gpu)
    assert found.sram_threshold_exceeded is None
    assert ("sram_threshold_exceeded" in found.not_applicable) is absent
