"""Multi-instance mode of the NVML stand-in, through the unmodified binding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.drivers.caller import Caller, Refused
from tests.drivers.host import Gpu, Host
from tests.drivers.parts import MIB, PARTS
from tests.drivers.tree import capability

PROFILES = {profile.name: profile for profile in PARTS["h100"].profiles}


def code(nvml: Caller, line: str) -> int:
    """The driver's code of a call that must be refused."""
    with pytest.raises(Refused) as refused:
        nvml(line)
    return refused.value.code


@pytest.fixture
def make(gpu: Gpu, nvml: Caller) -> Callable[[str, int], None]:
    """Turns MIG on and makes instances: `gi`, `ci` and the MIG handle `m` in the child."""
    assert nvml("n.nvmlDeviceSetMigMode(h, 1)") == 0

    def make_one(name: str, start: int) -> None:
        profile = PROFILES[name]
        place = f"c.byref(n.c_nvmlGpuInstancePlacement_t({start}, {profile.memory_slices}))"
        nvml(f"gi = n.nvmlDeviceCreateGpuInstanceWithPlacement(h, {profile.id}, {place})")
        whole = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[profile.slices]
        nvml(f"ci = n.nvmlGpuInstanceCreateComputeInstance(gi, {whole})")
        nvml("m = n.nvmlComputeInstanceGetInfo(ci).device")

    return make_one


def test_the_mode_is_refused_by_a_value(host: Host, gpu: Gpu, nvml: Caller) -> None:
    """gpus-8.30: no exception says that a GPU is in use, or that it must be reset first."""
    gpu.process(4242)
    assert nvml("n.nvmlDeviceSetMigMode(h, 1)") == 19
    assert nvml("n.nvmlDeviceGetMigMode(h)") == [0, 1]
    gpu.process_gone(4242)
    assert nvml("n.nvmlDeviceSetMigMode(h, 1)") == 0
    assert nvml("n.nvmlDeviceGetMigMode(h)") == [1, 1]
    host.add_gpu("a30")
    assert nvml("n.nvmlDeviceSetMigMode(n.nvmlDeviceGetHandleByIndex(1), 1)") == 16
    gpu.set(mig_activation=16)
    assert nvml("n.nvmlDeviceSetMigMode(h, 0)") == 16
    assert nvml("n.nvmlDeviceGetMigMode(h)") == [1, 0]


def test_changing_the_mode_may_change_the_minor(gpu: Gpu, nvml: Caller) -> None:
    """gpus-8.26: the number of the device node is not for keeps."""
    gpu.set(minor_after_mig=5)
    nvml("n.nvmlDeviceSetMigMode(h, 1)")
    assert nvml("n.nvmlDeviceGetMinorNumber(h)") == 5


def test_profiles_are_found_by_a_walk_with_holes(nvml: Caller) -> None:
    """NOT_SUPPORTED is a hole, INVALID_ARGUMENT the end, and the id is not the index."""
    found = {}
    codes = set()
    for index in range(0x13):
        try:
            found[index] = nvml(f"n.nvmlDeviceGetGpuInstanceProfileInfo(h, {index})")
        except Refused as refused:
            codes.add((refused.code, index < 0x12))
    assert codes == {(3, True), (2, False)}
    assert {index: row["id"] for index, row in found.items()} == {
        profile.enum: profile.id for profile in PROFILES.values()
    }
    assert found[9]["memorySizeMB"] == 8
    assert found[9]["sliceCount"] == 1


def test_placements_are_told_with_mig_on(gpu: Gpu, nvml: Caller) -> None:
    """Memory slices of each place a profile may take; nothing while MIG is off."""
    line = "n.nvmlDeviceGetGpuInstancePossiblePlacements(h, 9, a, c.byref(k))"
    nvml("k = c.c_uint(2); a = (n.c_nvmlGpuInstancePlacement_t * 2)()")
    assert code(nvml, line) == 3
    nvml("n.nvmlDeviceSetMigMode(h, 1)")
    nvml(line)
    assert nvml("a") == [{"start": 0, "size": 4}, {"start": 4, "size": 4}]
    assert nvml("n.nvmlDeviceGetGpuInstanceRemainingCapacity(h, 19)") == 7


def test_a_taken_place_is_a_lack_of_resources(
    nvml: Caller, make: Callable[[str, int], None]
) -> None:
    """The code does not tell an occupied placement from a full GPU."""
    make("3g.16mb", 4)
    place = "c.byref(n.c_nvmlGpuInstancePlacement_t(4, 1))"
    assert code(nvml, f"n.nvmlDeviceCreateGpuInstanceWithPlacement(h, 19, {place})") == 23
    assert code(nvml, "n.nvmlDeviceCreateGpuInstance(h, 0)") == 23
    assert nvml("n.nvmlDeviceGetGpuInstanceRemainingCapacity(h, 19)") == 4
    info = nvml("n.nvmlGpuInstanceGetInfo(gi)")
    assert (info["id"], info["profileId"], info["placement"]) == (1, 9, {"start": 4, "size": 4})


def test_a_slice_has_its_own_memory_and_identity(
    gpu: Gpu, nvml: Caller, make: Callable[[str, int], None]
) -> None:
    """gpus-8.32, gpus-8.31: total and reserve are those of the slice; its UUID leads to it."""
    make("2g.8mb", 2)
    memory = nvml("n.nvmlDeviceGetMemoryInfo(m, version=n.nvmlMemory_v2)")
    assert (memory["total"], memory["reserved"]) == (8 * MIB, MIB // 4)
    uuid = nvml("n.nvmlDeviceGetUUID(m)")
    assert uuid.startswith("MIG-")
    assert nvml(f"n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID({uuid!r}))") == uuid
    parent = "n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(m)"
    assert nvml(f"n.nvmlDeviceGetUUID({parent})") == gpu.uuid
    assert (
        nvml("n.nvmlDeviceGetGpuInstanceId(m)"),
        nvml("n.nvmlDeviceGetComputeInstanceId(m)"),
    ) == (3, 0)
    assert nvml("n.nvmlDeviceGetAttributes_v2(m)")["memorySizeMB"] == 8
    assert nvml("n.nvmlDeviceIsMigDeviceHandle(m)") == {"c_uint": 1}


def test_indices_of_mig_devices_have_holes(nvml: Caller, make: Callable[[str, int], None]) -> None:
    """NOT_FOUND is a hole to be stepped over up to the largest count."""
    make("2g.8mb", 2)
    make("1g.4mb", 6)
    assert nvml("n.nvmlDeviceGetMaxMigDeviceCount(h)") == 7
    for index in range(7):
        line = f"n.nvmlDeviceGetMigDeviceHandleByIndex(h, {index})"
        if index in (2, 6):
            assert nvml(f"n.nvmlDeviceIsMigDeviceHandle({line})") == {"c_uint": 1}
        else:
            assert code(nvml, line) == 6


def test_destroying_goes_from_the_inside_out(
    gpu: Gpu, nvml: Caller, make: Callable[[str, int], None]
) -> None:
    """gpus-8.29: in use by a compute instance or a process; half deleted, it can be ended."""
    make("1g.4mb", 0)
    assert code(nvml, "n.nvmlGpuInstanceDestroy(gi)") == 19
    gpu.process(77, gi=7)
    assert code(nvml, "n.nvmlComputeInstanceDestroy(ci)") == 19
    gpu.process_gone(77)
    nvml("n.nvmlComputeInstanceDestroy(ci)")
    gpu.fault("nvmlGpuInstanceDestroy", "times 1 return 19")
    assert code(nvml, "n.nvmlGpuInstanceDestroy(gi)") == 19
    assert list(gpu.instances()) == [7]
    nvml("n.nvmlGpuInstanceDestroy(gi)")
    assert gpu.instances() == {}
    assert code(nvml, "n.nvmlGpuInstanceDestroy(gi)") == 6
    assert code(nvml, "n.nvmlDeviceGetGpuInstanceById(h, 7)") == 6


def test_instances_are_listed_by_profile(
    gpu: Gpu, nvml: Caller, make: Callable[[str, int], None]
) -> None:
    """What somebody else made is found by its profile, its compute instance likewise."""
    make("1g.4mb", 0)
    foreign, uuid = gpu.instance("1g", 3)
    nvml("k = c.c_uint(); a = (n.c_nvmlGpuInstance_t * 7)()")
    nvml("n.nvmlDeviceGetGpuInstances(h, 19, a, c.byref(k))")
    assert nvml("[n.nvmlGpuInstanceGetInfo(a[i]).id for i in range(k.value)]") == [7, foreign]
    nvml("b = (n.c_nvmlComputeInstance_t * 7)()")
    nvml("n.nvmlGpuInstanceGetComputeInstances(a[1], 0, b, c.byref(k))")
    assert nvml("n.nvmlDeviceGetUUID(n.nvmlComputeInstanceGetInfo(b[0]).device)") == uuid


def test_a_handle_is_used_again_for_another_device(
    nvml: Caller, make: Callable[[str, int], None]
) -> None:
    """gpus-8.31: after a destroy the old handle may name what came next: only the UUID tells."""
    make("1g.4mb", 0)
    nvml("old = m")
    first = nvml("n.nvmlDeviceGetUUID(old)")
    nvml("n.nvmlComputeInstanceDestroy(ci); n.nvmlGpuInstanceDestroy(gi)")
    assert code(nvml, "n.nvmlDeviceGetUUID(old)") == 2
    make("2g.8mb", 0)
    second = nvml("n.nvmlDeviceGetUUID(old)")
    assert second.startswith("MIG-")
    assert second != first


def test_what_mig_takes_away(gpu: Gpu, nvml: Caller, make: Callable[[str, int], None]) -> None:
    """gpus-8.19: counters, remaps, accounting and events are refused, each in its own way."""
    gpu.set(accounting=1, ecc_uncorrected_volatile_l2=3)
    assert nvml("n.nvmlDeviceGetRemappedRows(h)") == [0, 0, 0, 0]  # no instance yet
    make("1g.4mb", 0)
    assert code(nvml, "n.nvmlDeviceGetRemappedRows(h)") == 3
    assert code(nvml, "n.nvmlDeviceGetTotalEccErrors(h, 1, 0)") == 3
    assert nvml("n.nvmlDeviceGetTotalEccErrors(h, 1, 1)") == 0
    assert nvml("n.nvmlDeviceGetMemoryErrorCounter(m, 1, 0, 1)") == 3
    assert code(nvml, "n.nvmlDeviceGetMemoryErrorCounter(m, 1, 0, 2)") == 3
    assert nvml("n.nvmlDeviceGetAccountingMode(h)") == 0
    assert code(nvml, "n.nvmlDeviceSetAccountingMode(h, 1)") == 3
    nvml("s = n.nvmlEventSetCreate()")
    assert code(nvml, "n.nvmlDeviceRegisterEvents(m, 8, s)") == 3
    nvml("n.nvmlEventSetFree(s)")


def test_instances_bring_their_capabilities(
    host: Host, gpu: Gpu, nvml: Caller, make: Callable[[str, int], None]
) -> None:
    """gpus-8.26: nodes of an instance are named by the minor, come with it and go with it."""
    make("1g.4mb", 0)
    nodes = {f"nvidia-cap{capability(0, 7)}", f"nvidia-cap{capability(0, 7, 0)}"}
    caps = host.hardware_root / "dev/nvidia-caps"
    proc = host.hardware_root / "proc/driver/nvidia/capabilities/gpu0/mig/gi7"
    assert nodes <= {path.name for path in caps.iterdir()}
    assert f"DeviceFileMinor: {capability(0, 7, 0)}\n" in (proc / "ci0/access").read_text()
    minors = (host.hardware_root / "proc/driver/nvidia-caps/mig-minors").read_text()
    assert f"gpu0/gi7/ci0/access {capability(0, 7, 0)}\n" in minors
    nvml("n.nvmlComputeInstanceDestroy(ci); n.nvmlGpuInstanceDestroy(gi)")
    assert not nodes & {path.name for path in caps.iterdir()}


def test_a_smaller_part_has_its_own_table(host: Host, nvml: Caller) -> None:
    """Nothing about eight slices is the same on a part with four."""
    part = host.add_gpu("a30", mig_current=1)
    nvml("a = n.nvmlDeviceGetHandleByIndex(1)")
    assert nvml("n.nvmlDeviceGetMaxMigDeviceCount(a)") == 4
    nvml("gi = n.nvmlDeviceCreateGpuInstance(a, 5)")
    assert part.instances() == {1: (0, 2)}
    assert Path(part.path / "gi" / "1" / "profile").read_text().strip() == "5"
