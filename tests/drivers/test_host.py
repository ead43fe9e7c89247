"""The machine around the stand-ins: its tree of files, its reset tool, what survives a process."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fleet.core.pci import address
from tests.drivers.caller import Caller
from tests.drivers.host import Gpu, Host
from tests.drivers.tree import capability


def reset(host: Host, wanted: str) -> subprocess.CompletedProcess[str]:
    """Run the machine's nvidia-smi as the product does."""
    tool = host.hardware_root / "usr/bin/nvidia-smi"
    return subprocess.run(
        [str(tool), "--gpu-reset", "-i", wanted],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_sysfs_and_the_driver_name_one_gpu(host: Host, gpu: Gpu) -> None:
    """gpus-8.2: one function in /sys, one entry in /proc, one node in /dev."""
    device = host.hardware_root / "sys/bus/pci/devices" / gpu.bus_id
    assert address(device.name) == gpu.bus_id
    assert (device / "config").read_bytes()[:4] == b"\xde\x10\x30\x23"
    assert (device / "current_link_speed").read_text() == "2.5 GT/s PCIe\n"
    assert (device / "max_link_width").read_text() == "16\n"
    assert (device / "iommu_group").resolve().name == "59"
    assert (device / "driver").resolve().name == "nvidia"
    assert (device / "aer_dev_fatal").read_text().splitlines()[-1] == "TOTAL_ERR_FATAL 0"
    proc = host.hardware_root / "proc/driver/nvidia/gpus" / gpu.bus_id
    assert gpu.uuid in (proc / "information").read_text()
    assert (host.hardware_root / "dev/nvidia0").exists()


def test_the_drivers_version_is_told_everywhere(host: Host) -> None:
    """gpus-8.38: proc, sys and the names of the user libraries follow one version."""
    host.set_driver("600.01.02")
    assert "600.01.02" in (host.hardware_root / "proc/driver/nvidia/version").read_text()
    place = next((host.hardware_root / "usr/lib").iterdir())
    assert (place / "libcuda.so.1").resolve().name == "libcuda.so.600.01.02"
    assert len(list(place.glob("*.so.600.01.02"))) == 3


def test_a_removed_gpu_leaves_nothing_behind(host: Host, gpu: Gpu) -> None:
    """gpus-8.26: what is taken out vanishes from /sys, /proc and /dev."""
    other = host.add_gpu()
    gpu.remove()
    assert [found.uuid for found in host.gpus] == [other.uuid]
    assert not (host.hardware_root / "sys/bus/pci/devices" / "0000:3b:00.0").exists()
    assert not (host.hardware_root / "dev/nvidia0").exists()
    assert (host.hardware_root / "dev/nvidia1").exists()


def test_a_reset_clears_what_was_waiting_for_it(host: Host, gpu: Gpu) -> None:
    """gpus-8.21: volatile counters and pending flags go, aggregate history stays."""
    gpu.set(remap_pending=1, remap_failed=1, ecc_uncorrected_volatile=3, recovery_action=1)
    gpu.set(ecc_uncorrected_aggregate=3, mig_pending=1)
    done = reset(host, gpu.uuid)
    assert (done.returncode, "successfully reset" in done.stdout) == (0, True)
    names = ("remap_pending", "remap_failed", "ecc_uncorrected_volatile", "recovery_action")
    assert [gpu.get(name) for name in names] == ["0", "1", "0", "0"]
    assert (gpu.get("ecc_uncorrected_aggregate"), gpu.get("mig_current")) == ("3", "1")
    assert gpu.get("resets") == "1"


def test_a_reset_is_refused_while_somebody_is_there(host: Host, gpu: Gpu) -> None:
    """gpus-8.17: the tool says who is in the way only by saying that somebody is."""
    gpu.process(4242)
    done = reset(host, gpu.uuid)
    assert done.returncode == 255
    assert "In use by another client" in done.stdout
    assert gpu.get("resets") == ""
    gpu.process_gone(4242)
    gpu.fault("nvidia-smi", "return 1")
    assert reset(host, gpu.bus_id).returncode == 1


def test_processes_of_the_tree_hold_files(host: Host) -> None:
    """gpus-8.17: a holder of a device node is seen by its file descriptors."""
    host.tree.process(77, "dcgm", files=["/dev/nvidia0", "/dev/nvidiactl"])
    held = [path.readlink() for path in sorted((host.hardware_root / "proc/77/fd").iterdir())]
    assert held == [Path("/dev/nvidia0"), Path("/dev/nvidiactl")]


def test_an_unbind_lock_may_stay_open(host: Host, gpu: Gpu) -> None:
    """gpus-8.37: only hosts of virtual GPUs have one; it reads back as 1 only while nobody uses
    the device."""
    lock = host.hardware_root / "proc/driver/nvidia/gpus" / gpu.bus_id / "unbindLock"
    assert not lock.exists()
    host.tree.lock_unbinding(gpu.bus_id)
    lock.write_text("1")
    assert lock.read_text() == "1"
    host.tree.lock_unbinding(gpu.bus_id, used=True)
    lock.write_text("1")
    assert lock.read_text() == ""


def test_memory_survives_processes(gpu: Gpu) -> None:
    """gpus-8.7: what a tenant left is there for the next reader, whoever wrote it."""
    gpu.write_memory(4096, b"secret")
    assert gpu.memory()[4096:4102] == b"secret"
    assert len(gpu.memory()) == 32 << 20


def test_a_foreign_instance_appears_as_nvml_would_make_it(
    host: Host, gpu: Gpu, nvml: Caller
) -> None:
    """gpus-8.29: an instance of somebody else's has its id, its UUID and its nodes."""
    gpu.set(mig_current=1)
    number, uuid = gpu.instance("3g", 0)
    assert number == 1
    assert nvml(f"n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID({uuid!r}))") == uuid
    assert (host.hardware_root / f"dev/nvidia-caps/nvidia-cap{capability(0, 1, 0)}").exists()
    gpu.instance_gone(number)
    assert gpu.instances() == {}
