"""NVML of the stand-ins, through the unmodified binding: identity, readings, faults, processes."""

from __future__ import annotations

import os

import pytest

from tests.drivers.caller import Caller, Refused
from tests.drivers.host import Gpu, Host
from tests.drivers.parts import MIB


def code(nvml: Caller, line: str) -> int:
    """The driver's code of a call that must be refused."""
    with pytest.raises(Refused) as refused:
        nvml(line)
    return refused.value.code


def test_identity_is_told_as_nvml_spells_it(host: Host, gpu: Gpu, nvml: Caller) -> None:
    """gpus-8.2: bus ids have eight digits, upper case; texts in structs are their own field."""
    found = nvml("n.nvmlDeviceGetPciInfo(h)")
    assert (found["busId"], found["busIdLegacy"]) == ("00000000:3B:00.0", "0000:3B:00.0")
    assert found["pciDeviceId"] == 0x233010DE
    assert nvml("n.nvmlDeviceGetName(h)").startswith("STAND-IN")
    assert nvml("n.nvmlDeviceGetUUID(h)") == gpu.uuid
    assert nvml("n.nvmlDeviceGetSerial(h)") == gpu.get("serial")
    assert nvml("n.nvmlDeviceGetCudaComputeCapability(h)") == [9, 0]
    assert nvml("n.nvmlSystemGetDriverVersion()") == "595.45.04"


def test_every_way_to_a_handle_leads_to_the_same_one(host: Host, gpu: Gpu, nvml: Caller) -> None:
    """gpus-8.2: index, UUID, bus id in either spelling and serial number name one GPU."""
    other = host.add_gpu()
    assert nvml("n.nvmlDeviceGetCount()") == 2
    for way in (
        f"ByUUID({other.uuid!r})",
        "ByPciBusId('00000000:3C:00.0')",
        f"ByPciBusId({other.bus_id!r})",
        f"BySerial({other.get('serial')!r})",
        "ByIndex(1)",
    ):
        assert nvml(f"n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandle{way})") == other.uuid
    assert code(nvml, "n.nvmlDeviceGetHandleByUUID('GPU-none')") == 6
    assert code(nvml, "n.nvmlDeviceGetHandleByIndex(2)") == 2


def test_an_event_set_of_a_closed_library_ends_who_uses_it(host: Host) -> None:
    """gpus-8.13: on the real library that is undefined; here nobody can overlook it."""
    with Caller(host.environment()) as doomed:
        for line in ("n.nvmlInit()", "s = n.nvmlEventSetCreate()", "n.nvmlShutdown()"):
            doomed(line)
        doomed("n.nvmlInit()")
        with pytest.raises(ValueError, match="Expecting value"):  # its last answer is empty
            doomed("n.nvmlEventSetFree(s)")


def test_memory_versions_differ_in_what_they_call_used(gpu: Gpu, nvml: Caller) -> None:
    """gpus-8.4: version 2 tells the reserve apart; a foreign process takes from what is free."""
    gpu.process(4242, size=3 * MIB)
    second = nvml("n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)")
    assert (second["total"], second["reserved"]) == (32 * MIB, MIB)
    assert (second["used"], second["free"]) == (3 * MIB, 28 * MIB)
    assert nvml("n.nvmlDeviceGetMemoryInfo(h)")["used"] == 4 * MIB
    assert code(nvml, "n.nvmlDeviceGetMemoryInfo(h, version=1)") == 25


def test_foreign_processes_are_listed_by_kind(gpu: Gpu, nvml: Caller) -> None:
    """gpus-8.16: name, memory (None when unknown) and no instance are told of each."""
    assert nvml("n.nvmlDeviceGetComputeRunningProcesses_v3(h)") == []
    gpu.process(41, size=5, name="a tenant")
    gpu.process(42, kind="mps", size=6)
    found = nvml("n.nvmlDeviceGetComputeRunningProcesses_v3(h)")
    none = 0xFFFFFFFF
    assert found == [
        {"pid": 41, "usedGpuMemory": 5, "gpuInstanceId": none, "computeInstanceId": none}
    ]
    assert [row["pid"] for row in nvml("n.nvmlDeviceGetMPSComputeRunningProcesses_v3(h)")] == [42]
    assert nvml("n.nvmlDeviceGetGraphicsRunningProcesses_v3(h)") == []
    assert nvml("n.nvmlSystemGetProcessName(41)") == "a tenant"
    assert code(nvml, "n.nvmlSystemGetProcessName(4194999)") == 6


def test_a_context_is_a_process_until_it_dies(gpu: Gpu, nvml: Caller) -> None:
    """gpus-8.16: contexts count while their process lives, whose start time tells it apart."""
    gpu.context(os.getpid())
    contexts = gpu.path / "contexts"
    (contexts / f"{os.getpid()}-1").write_text("1 4294967295 4294967295\n")
    found = nvml("n.nvmlDeviceGetComputeRunningProcesses_v3(h)")
    assert [row["pid"] for row in found] == [os.getpid()]
    assert sorted(path.name for path in contexts.iterdir()) == [f"{os.getpid()}-0"]
    assert nvml("n.nvmlDeviceGetCurrPcieLinkGeneration(h)") == 5  # under load


def test_readings_follow_their_files(gpu: Gpu, nvml: Caller) -> None:
    """gpus-8.19, gpus-8.23: a file is a reading; "error 3" in it is a refusal of that call."""
    assert nvml("n.nvmlDeviceGetCurrPcieLinkGeneration(h)") == 1  # idle
    gpu.set(temperature=71, pcie_width=8, clocks_reasons=0x48, remap_pending=1, remap_failed=0)
    assert nvml("n.nvmlDeviceGetTemperature(h, 0)") == 71
    assert nvml("n.nvmlDeviceGetCurrPcieLinkWidth(h)") == 8
    assert nvml("n.nvmlDeviceGetCurrentClocksEventReasons(h)") == 0x48
    assert nvml("n.nvmlDeviceGetRemappedRows(h)") == [0, 0, 1, 0]
    gpu.set(temperature="error 3")
    assert code(nvml, "n.nvmlDeviceGetTemperature(h, 0)") == 3
    gpu.set(inforom_valid=0)
    assert code(nvml, "n.nvmlDeviceValidateInforom(h)") == 14


def test_counters_of_errors_are_told_by_kind(gpu: Gpu, nvml: Caller) -> None:
    """gpus-8.20: volatile and aggregate, corrected and uncorrected are four counters."""
    gpu.set(ecc_uncorrected_volatile=2, ecc_uncorrected_aggregate=9, ecc_corrected_volatile_l2=4)
    assert nvml("n.nvmlDeviceGetTotalEccErrors(h, 1, 0)") == 2
    assert nvml("n.nvmlDeviceGetTotalEccErrors(h, 1, 1)") == 9
    assert nvml("n.nvmlDeviceGetTotalEccErrors(h, 0, 0)") == 0
    assert nvml("n.nvmlDeviceGetMemoryErrorCounter(h, 0, 0, 1)") == 4
    assert nvml("n.nvmlDeviceGetEccMode(h)") == [1, 1]
    nvml("n.nvmlDeviceClearEccErrorCounts(h, 0)")
    assert nvml("n.nvmlDeviceGetTotalEccErrors(h, 1, 0)") == 0
    assert nvml("n.nvmlDeviceGetTotalEccErrors(h, 1, 1)") == 9


def test_structs_have_the_size_the_binding_passes(gpu: Gpu, nvml: Caller) -> None:
    """gpus-8.43: versioned structs are filled where the binding has its fields."""
    gpu.set(sram_threshold_exceeded=1, sram_volatile_parity=3, repair_tpc=1)
    gpu.set(sram_unique="1 2 3 4 5 1 7\n2 2 3 4 5 0 8", fabric_state=3, fabric_mask=1)
    gpu.set(fabric_summary=2, remap_histogram="600 30 8 1 1")
    nvml("s = n.c_nvmlEccSramErrorStatus_v1_t()")
    nvml("n.nvmlDeviceGetSramEccErrorStatus(h, c.byref(s))")
    assert (nvml("s.volatileUncParity"), nvml("s.bThresholdExceeded")) == (3, 1)
    nvml("u = n.c_nvmlEccSramUniqueUncorrectedErrorCounts_v1_t()")
    assert code(nvml, "n.nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts(h, c.byref(u))") == 7
    nvml("e = (n.c_nvmlEccSramUniqueUncorrectedErrorEntry_v1_t * 2)()")
    nvml("u.entries = e")
    nvml("n.nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts(h, c.byref(u))")
    assert [row["count"] for row in nvml("e")] == [7, 8]
    assert nvml("n.nvmlDeviceGetRepairStatus(h)") == [0, 1]
    histogram = nvml("n.nvmlDeviceGetRowRemapperHistogram(h)")
    assert list(histogram.values()) == [600, 30, 8, 1, 1]


def test_the_fabric_is_told_in_two_versions(gpu: Gpu, nvml: Caller) -> None:
    """gpus-8.27: an older driver refuses version 3 and answers version 2, without the summary."""
    gpu.set(fabric_state=3, fabric_status=15, fabric_mask=2, fabric_summary=2)
    nvml("f = n.c_nvmlGpuFabricInfo_v3_t()")
    nvml("n.nvmlDeviceGetGpuFabricInfoV(h, c.byref(f))")
    found = nvml("f")
    assert (found["state"], found["status"], found["healthMask"]) == (3, 15, 2)
    assert found["healthSummary"] == 2
    gpu.set(fabric_version=2)
    assert code(nvml, "n.nvmlDeviceGetGpuFabricInfoV(h, c.byref(f))") == 25
    nvml("f = n.c_nvmlGpuFabricInfo_v2_t()")
    nvml("n.nvmlDeviceGetGpuFabricInfoV(h, c.byref(f))")
    assert nvml("f.state") == 3


def test_each_field_has_its_own_return_code(gpu: Gpu, nvml: Caller) -> None:
    """gpus-8.19: one call, and the field that this part lacks is refused alone."""
    gpu.set(recovery_action=1, field_180=6, nvlink_2_state=0)
    found = nvml("n.nvmlDeviceGetFieldValues(h, [230, 180, 9999, (165, 2), 184])")
    assert [row["nvmlReturn"] for row in found] == [0, 0, 3, 0, 0]
    values = nvml("[v.value.uiVal for v in n.nvmlDeviceGetFieldValues(h, [230, 180, (165, 2)])]")
    assert values == [1, 6, 0]


def test_links_that_are_not_there_are_refused(gpu: Gpu, nvml: Caller) -> None:
    """gpus-8.28: a link that is down says 0; one that does not exist is no link at all."""
    gpu.set(nvlink_1_state=0, nvlink_0_errors_2=5)
    assert [nvml(f"n.nvmlDeviceGetNvLinkState(h, {link})") for link in range(4)] == [1, 0, 1, 1]
    assert code(nvml, "n.nvmlDeviceGetNvLinkState(h, 4)") == 3
    assert code(nvml, "n.nvmlDeviceGetNvLinkState(h, 36)") == 2
    assert nvml("n.nvmlDeviceGetNvLinkErrorCounter(h, 0, 2)") == 5


def test_an_older_part_retires_pages_instead(host: Host, nvml: Caller) -> None:
    """gpus-8.22: before Ampere rows are not remapped, and after it no pages are retired."""
    old = host.add_gpu("pascal", retired_pages_dbe="0x1000 7\n0x2000 8", retired_pending=1)
    nvml("p = n.nvmlDeviceGetHandleByIndex(1)")
    assert nvml("n.nvmlDeviceGetUUID(p)") == old.uuid
    pages = nvml("n.nvmlDeviceGetRetiredPages_v2(p, 1)")
    assert pages == [{"address": 0x1000, "timestamp": 7}, {"address": 0x2000, "timestamp": 8}]
    assert nvml("n.nvmlDeviceGetRetiredPages(p, 0)") == []
    assert nvml("n.nvmlDeviceGetRetiredPagesPendingStatus(p)") == 1
    assert code(nvml, "n.nvmlDeviceGetRemappedRows(p)") == 3
    assert code(nvml, "n.nvmlDeviceGetRetiredPages_v2(h, 1)") == 3
    assert code(nvml, "n.nvmlDeviceGetMigMode(p)") == 3


def test_modes_are_kept(gpu: Gpu, nvml: Caller) -> None:
    """gpus-8.35: what is set is what the next process reads."""
    nvml("n.nvmlDeviceSetPersistenceMode(h, 1)")
    nvml("n.nvmlDeviceSetComputeMode(h, 3)")
    nvml("n.nvmlDeviceSetAccountingMode(h, 1)")
    nvml("n.nvmlDeviceSetPowerManagementLimit(h, 350000)")
    nvml("n.nvmlDeviceSetApplicationsClocks(h, 1593, 1200)")
    assert code(nvml, "n.nvmlDeviceSetPowerManagementLimit(h, 1)") == 2
    assert nvml("n.nvmlDeviceGetPowerManagementLimit(h)") == 350000
    assert [nvml(f"n.nvmlDeviceGetApplicationsClock(h, {kind})") for kind in (0, 2)] == [1200, 1593]
    gpu.set(accounting_pids="11\n12")
    assert nvml("n.nvmlDeviceGetAccountingPids(h)") == [11, 12]
    nvml("n.nvmlDeviceClearAccountingPids(h)")
    assert nvml("n.nvmlDeviceGetAccountingPids(h)") == []
    assert [gpu.get(name) for name in ("persistence", "compute_mode", "accounting")] == list("131")


def test_events_are_those_after_the_registration(gpu: Gpu, nvml: Caller) -> None:
    """gpus-8.13: a wait without an event is TIMEOUT; what came before is not told."""
    gpu.xid(31)
    nvml("s = n.nvmlEventSetCreate()")
    nvml("n.nvmlDeviceRegisterEvents(h, 8 & n.nvmlDeviceGetSupportedEventTypes(h), s)")
    assert code(nvml, "n.nvmlEventSetWait_v2(s, 0)") == 10
    gpu.event(0x1, 0)
    gpu.xid(79)
    found = nvml("n.nvmlEventSetWait_v2(s, 1000)")
    assert (found["eventType"], found["eventData"]) == (8, 79)
    assert code(nvml, "n.nvmlEventSetWait_v2(s, 0)") == 10
    nvml("n.nvmlEventSetFree(s)")


def test_faults_strike_after_some_calls_and_for_some(gpu: Gpu, host: Host, nvml: Caller) -> None:
    """A function fails on one GPU, from the k-th call on, for so many calls."""
    line = "n.nvmlDeviceGetTemperature(h, 0)"
    gpu.fault("nvmlDeviceGetTemperature", "after 1 times 1 return 999")
    assert nvml(line) == 34
    assert code(nvml, line) == 999
    assert nvml(line) == 34
    host.fault("nvml*", "return 17")
    assert code(nvml, "n.nvmlDeviceGetName(h)") == 17
    host.heal("nvml*")
    host.fault("nvmlDeviceGetCount", "return 18")  # the binding calls its _v2
    assert code(nvml, "n.nvmlDeviceGetCount()") == 18


def test_a_hanging_call_goes_on_when_its_fault_is_gone(host: Host, gpu: Gpu, nvml: Caller) -> None:
    """gpus-8.14: a call into a sick driver blocks, and only the outside can end it."""
    gpu.fault("nvmlDeviceGetName", "times 1 hang")
    nvml.send("n.nvmlDeviceGetName(h)")
    assert not nvml.answered(0.1)
    assert host.calls(f"nvmlDeviceGetName@{gpu.uuid}") == 1
    gpu.heal("nvmlDeviceGetName")
    assert nvml.receive() == "STAND-IN H100"


def test_a_lost_gpu_answers_nothing_and_is_still_counted(
    host: Host, gpu: Gpu, nvml: Caller
) -> None:
    """gpus-8.12, gpus-8.25: every call says 15, and PCI config space reads all ones."""
    gpu.lose()
    assert code(nvml, "n.nvmlDeviceGetUUID(h)") == 15
    assert code(nvml, "n.nvmlDeviceGetHandleByIndex(0)") == 15
    assert nvml("n.nvmlDeviceGetCount()") == 1
    device = host.hardware_root / "sys/bus/pci/devices" / gpu.bus_id
    assert (device / "config").read_bytes() == b"\xff" * 256
    assert (device / "vendor").read_text() == "0x10de\n"
    gpu.recover()
    assert nvml("n.nvmlDeviceGetUUID(h)") == gpu.uuid
    assert (device / "config").read_bytes()[:2] == b"\xde\x10"


def test_a_card_put_in_its_place_is_not_the_old_one(gpu: Gpu, nvml: Caller) -> None:
    """gpus-8.26: the old handle is lost; the same address leads to another UUID."""
    before = gpu.uuid
    gpu.swap()
    assert code(nvml, "n.nvmlDeviceGetUUID(h)") == 15
    found = nvml("n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByPciBusId('0000:3b:00.0'))")
    assert found == gpu.uuid != before


def test_removing_is_refused_while_somebody_is_there(gpu: Gpu, nvml: Caller) -> None:
    """gpus-8.17, gpus-8.37: a GPU leaves the driver only without clients, and comes back."""
    nvml("p = n.nvmlDeviceGetPciInfo(h)")
    nvml("n.nvmlDeviceModifyDrainState(p, 1)")
    assert nvml("n.nvmlDeviceQueryDrainState(p)") == 1
    gpu.process(4242)
    assert code(nvml, "n.nvmlDeviceRemoveGpu(p)") == 19
    gpu.process_gone(4242)
    nvml("n.nvmlDeviceRemoveGpu(p)")
    assert nvml("n.nvmlDeviceGetCount()") == 0
    nvml("n.nvmlDeviceDiscoverGpus(p)")
    assert nvml("n.nvmlDeviceGetCount()") == 1
