"""Which GPUs there are: by UUID, one failing GPU at a time, on the vendor's own binding."""

from __future__ import annotations

import pytest

from fleet.core.errors import BackendFailed, DeviceLost, DriverAbsent, DriverRefused
from fleet.core.model import Accelerator, Uuid
from fleet.core.settings import HealthPolicy
from fleet.devices.health.checks import judge, reasons_of
from fleet.devices.nvidia.backend import NvidiaBackend
from tests.drivers.host import Host

GIB = 1 << 30


def by_uuid(backend: NvidiaBackend) -> dict[str, Accelerator]:
    """The inventory by UUID."""
    accelerators = backend.inventory()
    found = {str(accelerator.uuid): accelerator for accelerator in accelerators}
    assert len(found) == len(accelerators)
    return found


def names(backend: NvidiaBackend) -> dict[str, str]:
    """Names of the whole GPUs by UUID."""
    return {uuid: accelerator.device.name for uuid, accelerator in by_uuid(backend).items()}


# --- by identity, never by number ---------------------------------------------------------------


def test_8_2_one_spelling_of_an_address(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.2, B57: NVML's 00000000:3B:00.0 is sysfs' 0000:3b:00.0, and both lead to the GPU."""
    gpu = host.add_gpu(bus_id="0000:3b:00.0")
    (found,) = backend.inventory()
    assert found.uuid == gpu.uuid
    assert found.device.attributes["pci"] == "0000:3b:00.0"
    assert found.device.name.startswith("gpu-3b-00-")
    assert backend.readings(found.uuid).present is True


def test_b13_a_gpu_keeps_its_name_when_numbers_move(host: Host, backend: NvidiaBackend) -> None:
    """B13: the card before it is pulled and every index moves; UUIDs, names and answers do not."""
    first, second, third = (host.add_gpu() for _ in range(3))
    third.set(temperature=77)
    before, gone = names(backend), first.uuid
    first.remove()
    assert names(backend) == {uuid: name for uuid, name in before.items() if uuid != gone}
    assert backend.readings(Uuid(third.uuid)).temperature_c == 77
    with pytest.raises(DeviceLost, match=gone):
        backend.readings(Uuid(gone))
    assert second.uuid in before


VISIBLE = ("", "3,1", "GPU-00000000", "MIG-00000000-0000-5000-8000-00000000b001", "-1", "1,1")


def test_b13_visible_devices_change_nothing(
    host: Host, backend: NvidiaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B13: whatever CUDA_VISIBLE_DEVICES our parent left us, a UUID is the same GPU."""
    gpus = [host.add_gpu(temperature=40 + number) for number in range(4)]
    for visible in VISIBLE:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert set(by_uuid(backend)) == {gpu.uuid for gpu in gpus}
        assert [backend.readings(Uuid(gpu.uuid)).temperature_c for gpu in gpus] == [40, 41, 42, 43]


def test_b24_a_swapped_card_is_another_device(host: Host, backend: NvidiaBackend) -> None:
    """B24: a new card in the slot has its own UUID and name; the old one is gone, not renamed."""
    old = host.add_gpu()
    before = names(backend)
    new = old.swap()
    after = names(backend)
    assert set(after) == {new.uuid}
    assert not set(after.values()) & set(before.values())


def test_a_card_that_moved_is_the_same_device(host: Host, backend: NvidiaBackend) -> None:
    """Hot remove and add: another slot means another address, and the same UUID."""
    gpu = host.add_gpu(bus_id="0000:3b:00.0")
    uuid, serial = gpu.uuid, gpu.get("serial")
    backend.inventory()
    gpu.remove()
    host.add_gpu(uuid=uuid, serial=serial, bus_id="0000:5e:00.0")
    (found,) = backend.inventory()
    assert (found.uuid, found.device.attributes["pci"]) == (uuid, "0000:5e:00.0")
    assert backend.readings(found.uuid).present is True


def test_cards_that_changed_places_are_told_apart(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.2, B24: two cards change slots between two readings: each answers for itself."""
    one, other = host.add_gpu(temperature=51), host.add_gpu(temperature=62)
    assert backend.readings(Uuid(one.uuid)).temperature_c == 51
    here, there = one.bus_id, other.bus_id
    one.set(bus_id=there)
    other.set(bus_id=here)
    for gpu in (one, other):
        host.tree.put(
            f"proc/driver/nvidia/gpus/{gpu.bus_id}/information",
            f"GPU UUID: {gpu.uuid}\nDevice Minor: {gpu.get('minor')}\n",
        )
    assert backend.readings(Uuid(one.uuid)).temperature_c == 51
    assert backend.readings(Uuid(other.uuid)).temperature_c == 62


def test_a_card_given_to_another_driver_says_to_whom(host: Host, backend: NvidiaBackend) -> None:
    """B24: a card bound to vfio is on the bus and not the driver's: lost, and why is told."""
    gpu = host.add_gpu()
    uuid = gpu.uuid
    backend.inventory()
    gpu.set(removed=1)
    host.tree.link(f"sys/bus/pci/devices/{gpu.bus_id}/driver", "../../drivers/vfio-pci")
    with pytest.raises(DeviceLost, match="vfio-pci drives"):
        backend.readings(Uuid(uuid))


def test_8_26_a_minor_is_read_again(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.26: a MIG toggle may change minors; the attribute and the holders follow at once."""
    gpu = host.add_gpu(minor=0)
    backend.inventory()
    gpu.set(minor=7)
    (found,) = backend.inventory()
    assert found.device.attributes["minor"] == "7"


# --- one GPU's failure is its own ---------------------------------------------------------------

PROFILES = {
    "handle is lost": {"nvmlDeviceGetHandleByIndex_v2": 15, "nvmlDeviceGetHandleByPciBusId_v2": 15},
    "handle is not found": {
        "nvmlDeviceGetHandleByIndex_v2": 28,
        "nvmlDeviceGetHandleByPciBusId_v2": 28,
        "nvmlDeviceGetHandleByUUID": 28,
    },
    "every query is lost": {"nvmlDeviceGetMemoryInfo_v2": 15, "nvmlDeviceGetRemappedRows": 15},
}


def test_b24_a_dead_gpu_keeps_identity_and_hides_nobody(host: Host, backend: NvidiaBackend) -> None:
    """B24: seven healthy GPUs stay as they were, the dead one keeps UUID, name and units."""
    gpus = [host.add_gpu() for _ in range(8)]
    before = by_uuid(backend)
    for profile, faults in PROFILES.items():
        for function, code in faults.items():
            gpus[3].fault(function, f"return {code}")
        assert by_uuid(backend) == before, profile
        with pytest.raises(DeviceLost):
            backend.readings(Uuid(gpus[3].uuid))
        assert all(backend.readings(Uuid(gpu.uuid)).present for gpu in gpus if gpu != gpus[3])
        for function in faults:
            gpus[3].heal(function)
        assert backend.readings(Uuid(gpus[3].uuid)).present is True


def test_b24_a_gpu_that_must_be_reset_says_so(host: Host, backend: NvidiaBackend) -> None:
    """B24: handles answer 16: listed, with readings that fail for "reset required" and no more."""
    gpu = host.add_gpu()
    before = by_uuid(backend)
    gpu.fault("nvmlDeviceGetHandleByIndex_v2", "return 16")
    gpu.fault("nvmlDeviceGetHandleByPciBusId_v2", "return 16")
    gpu.fault("nvmlDeviceGetHandleByUUID", "return 16")
    assert by_uuid(backend) == before
    found = backend.readings(Uuid(gpu.uuid))
    assert (found.present, found.reset_required) == (True, True)
    reasons = reasons_of(judge(found, HealthPolicy()), since=0.0)
    assert "reset-required" in {reason.code for reason in reasons}


def test_b24_a_card_on_the_bus_that_the_driver_does_not_list(
    host: Host, backend: NvidiaBackend
) -> None:
    """B24: fewer GPUs than cards on the bus: the missing one is an accelerator that is lost."""
    host.add_gpu()
    hidden = host.add_gpu()
    uuid, before = hidden.uuid, by_uuid(backend)
    hidden.set(removed=1)
    assert by_uuid(backend) == before
    with pytest.raises(DeviceLost):
        backend.readings(Uuid(uuid))


def test_b24_a_dead_card_nobody_ever_knew_is_listed_too(host: Host, backend: NvidiaBackend) -> None:
    """B24: first start with a dead card: it gets a stable identity of its slot, without memory."""
    living, dead = host.add_gpu(), host.add_gpu()
    dead.lose()
    host.tree.put(f"proc/driver/nvidia/gpus/{dead.bus_id}/information", "GPU UUID: GPU-????\n")
    found = by_uuid(backend)
    (other,) = set(found) - {living.uuid}
    assert other.startswith("PCI-")
    assert found[other].memory_bytes == 0
    assert found[other].device.attributes["pci"] == dead.bus_id
    assert by_uuid(backend) == found
    with pytest.raises(DeviceLost):
        backend.readings(Uuid(other))


def test_8_25_all_ones_are_dead_whatever_the_driver_says(
    host: Host, backend: NvidiaBackend
) -> None:
    """gpus-8.25, gpus-8.12: the bus still lists the card, its config space reads all ones: lost."""
    gpu = host.add_gpu()
    backend.inventory()
    host.tree.lose(gpu.bus_id)
    with pytest.raises(DeviceLost, match="all ones"):
        backend.readings(Uuid(gpu.uuid))


# --- no driver ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "said"), [(12, "not installed"), (9, "not loaded")])
def test_8_1_no_driver_names_the_cards_it_leaves_unknown(
    host: Host, backend: NvidiaBackend, code: int, said: str
) -> None:
    """gpus-8.1: no library or no module is "unknown", naming what is on the bus; never empty."""
    gpu = host.add_gpu()
    host.fault("nvmlInit", f"return {code}")
    with pytest.raises(DriverAbsent, match=said) as caught:
        backend.inventory()
    assert gpu.bus_id in caught.value.detail
    assert "modprobe nvidia" in caught.value.remedy
    assert caught.value.exit_code == 2


def test_8_1_no_driver_and_no_card_is_no_driver(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.1: without any card too it is "no driver answers", not an inventory of none."""
    host.fault("nvmlInit", "return 12")
    with pytest.raises(DriverAbsent):
        backend.inventory()


def test_8_1_library_and_module_that_differ(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.1: after an upgrade in place (18) nothing is known but what is on the bus, and the
    remedy says what to do."""
    gpu = host.add_gpu()
    host.fault("nvmlInit", "return 18")
    with pytest.raises(DriverAbsent) as caught:
        backend.inventory()
    assert "reload the module" in caught.value.remedy
    assert gpu.bus_id in caught.value.detail
    assert caught.value.code == 18


def test_a_driver_that_was_loaded_again_is_opened_again(host: Host, backend: NvidiaBackend) -> None:
    """A module unloaded and loaded under a long-lived process is unknown once, not for ever."""
    gpu = host.add_gpu()
    backend.readings(Uuid(gpu.uuid))
    host.fault("nvmlDeviceGetHandleByPciBusId_v2", "return 9")
    with pytest.raises(DriverRefused):
        backend.readings(Uuid(gpu.uuid))
    assert not backend.opened
    host.heal("nvmlDeviceGetHandleByPciBusId_v2")
    assert backend.readings(Uuid(gpu.uuid)).present is True


def test_no_permission_is_not_lost(host: Host, backend: NvidiaBackend) -> None:
    """A GPU our cgroup keeps from us is unknown with the driver's reason, not a lost one."""
    gpu = host.add_gpu()
    before = by_uuid(backend)
    for name in ("Index_v2", "PciBusId_v2", "UUID"):
        gpu.fault(f"nvmlDeviceGetHandleBy{name}", "return 4")
    assert by_uuid(backend) == before
    with pytest.raises(DriverRefused) as caught:
        backend.readings(Uuid(gpu.uuid))
    assert caught.value.code == 4


# --- what it is ---------------------------------------------------------------------------------


def test_attributes_for_slices_and_certificates(host: Host, backend: NvidiaBackend) -> None:
    """Identity a certificate needs: product, serial, board, firmware, driver, place, memory."""
    gpu = host.add_gpu(max_memory_clock=2619)
    (found,) = backend.inventory()
    told = found.device.attributes
    assert told["product"] == "STAND-IN H100"
    assert told["vendor"] == "nvidia"
    assert told["architecture"] == "hopper"
    assert told["compute_capability"] == "9.0"
    assert told["serial"] == gpu.get("serial")
    assert told["board"] == gpu.get("part_number")
    assert told["vbios"] == gpu.get("vbios")
    assert told["inforom"] == gpu.get("inforom")
    assert told["driver"] == "595.45.04"
    assert told["mig"] == "off"
    assert told["memory"] == "dedicated"
    assert told["memory_total"] == gpu.get("total")
    assert told["memory_reserved"] == gpu.get("reserved")
    assert found.memory_bytes == int(gpu.get("total"))
    assert [unit.id for unit in found.units] == [f"{gpu.uuid}/all"]
    assert int(told["memory_rate_bytes_per_s"]) == 5120 // 8 * 2_000_000


def test_with_mig_on_memory_is_cut_into_slices(host: Host, backend: NvidiaBackend) -> None:
    """A partitioned GPU has a unit per memory slice, together all of its memory, and parts."""
    gpu = host.add_gpu(mig_current=1, mig_pending=1)
    (found,) = backend.inventory()
    assert [unit.id for unit in found.units] == [f"{gpu.uuid}/m{place}" for place in range(8)]
    assert found.memory_bytes == int(gpu.get("total"))
    assert found.device.attributes["partitionable"] == "true"
    assert all(device.uuid.startswith("PART-") for device in found.devices if not device.whole)
    assert len(found.devices) > 1


def test_b71_figures_that_include_the_reserve(host: Host, backend: NvidiaBackend) -> None:
    """B71: an idle GPU "uses" its reserve; a driver without newer figures leaves it unknown."""
    newer, older, mismatched = (host.add_gpu() for _ in range(3))
    older.fault("nvmlDeviceGetMemoryInfo_v2", "return 13")
    mismatched.fault("nvmlDeviceGetMemoryInfo_v2", "return 25")
    found = by_uuid(backend)
    assert found[newer.uuid].device.attributes["memory_reserved"] == newer.get("reserved")
    for gpu in (older, mismatched):
        assert found[gpu.uuid].device.attributes["memory_reserved"] == ""
        assert found[gpu.uuid].memory_bytes == int(gpu.get("total"))


def test_b64_memory_that_is_the_hosts_has_no_size(host: Host, backend: NvidiaBackend) -> None:
    """B64: no framebuffer: listed, with no size and no plausible number from elsewhere."""
    gpu = host.add_gpu()
    gpu.fault("nvmlDeviceGetMemoryInfo_v2", "return 3")
    gpu.fault("nvmlDeviceGetMemoryInfo", "return 3")
    (found,) = backend.inventory()
    assert found.memory_bytes == 0
    assert found.device.attributes["memory_total"] == ""
    assert "none of its own" in found.device.attributes["memory"]
    with pytest.raises(BackendFailed, match="cannot be proven clean"):
        backend.session(found.uuid, found.device.units)


def test_b64_memory_that_is_a_node_of_the_host(host: Host, backend: NvidiaBackend) -> None:
    """B64: GPU memory the kernel hands out as a NUMA node is refused, until that is offline."""
    gpu = host.add_gpu()
    node = "sys/devices/system/node/node2"
    host.tree.put(f"sys/bus/pci/devices/{gpu.bus_id}/numa_node", "2\n")
    host.tree.put(f"{node}/cpulist", "\n")
    host.tree.put(f"{node}/meminfo", "Node 2 MemTotal:       98304000 kB\n")
    (found,) = backend.inventory()
    assert found.device.attributes["memory"] == "numa node 2 of the host"
    with pytest.raises(BackendFailed, match="cannot be proven clean"):
        backend.session(found.uuid, found.device.units)
    host.tree.put(f"{node}/meminfo", "Node 2 MemTotal:       0 kB\n")
    (found,) = backend.inventory()
    assert found.device.attributes["memory"] == "dedicated"


def test_b85_a_name_that_is_no_text(host: Host, backend: NvidiaBackend) -> None:
    """B85: bytes that are no UTF-8 in a name are replaced, and the GPU stays usable."""
    gpu = host.add_gpu()
    (gpu.path / "name").write_bytes(b"\xf8NV\n")
    (found,) = backend.inventory()
    assert found.uuid == gpu.uuid
    assert found.device.attributes["product"] == "\N{REPLACEMENT CHARACTER}NV"


def test_b85_a_uuid_that_identifies_nobody(host: Host, backend: NvidiaBackend) -> None:
    """B85: an empty UUID, or one of two cards: unusable under identities of their slots."""
    good, empty = host.add_gpu(), host.add_gpu(uuid="")
    twin = host.add_gpu()
    host.add_gpu(uuid=twin.uuid)
    found = by_uuid(backend)
    assert len(found) == 4
    assert good.uuid in found
    assert twin.uuid not in found
    assert "" not in found
    for uuid in set(found) - {good.uuid}:
        assert uuid.startswith("PCI-")
        with pytest.raises(DeviceLost):
            backend.readings(Uuid(uuid))
    assert empty.bus_id in {one.device.attributes["pci"] for one in found.values()}
    assert not any(
        "b'" in text for one in found.values() for text in one.device.attributes.values()
    )
