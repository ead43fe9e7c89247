"""Who holds a GPU, as the node counts it."""

from __future__ import annotations

import os
from dataclasses import replace

from fleet.core.model import ProcessKind, Uuid
from fleet.core.pci import address
from fleet.core.processes import MARKER
from fleet.devices.nvidia.backend import NvidiaBackend
from tests.drivers.host import Gpu, Host

PID = 4711


def opens(
    host: Host, gpu: Gpu, *, name: str = "python3", marker: str = "", of_host: bool = True
) -> None:
    """A process has the GPU's node open; a marker of ours may be in its environment."""
    host.tree.process(PID, name, files=[f"/dev/nvidia{gpu.get('minor')}"])
    host.tree.put(f"proc/{PID}/environ", f"HOME=/\0{MARKER}={marker}\0" if marker else "HOME=/\0")
    for pid, namespace in ((1, "mnt:[1]"), (PID, "mnt:[1]" if of_host else "mnt:[2]")):
        host.tree.put(f"proc/{pid}/namespace-{namespace}", "")
        host.tree.link(f"proc/{pid}/ns/mnt", f"../namespace-{namespace}")


def kinds(backend: NvidiaBackend, gpu: Gpu) -> list[ProcessKind]:
    """Kinds of the holders."""
    return [found.kind for found in backend.processes(Uuid(gpu.uuid))]


def test_8_17_who_only_has_a_descriptor_is_a_holder(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.17: a process the driver does not list, with the node open, is found and foreign."""
    gpu = host.add_gpu()
    opens(host, gpu)
    assert kinds(backend, gpu) == [ProcessKind.FOREIGN]


def test_8_16_a_worker_of_ours_is_ours(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.16: the marker of a worker, in a process of the host, makes it ours, on the GPU that
    the driver lists it on: on another, whose node CUDA opens too, it is nobody. A stranger with the
    node alone stays a holder."""
    gpu, other = host.add_gpu(), host.add_gpu()
    nodes = [f"/dev/nvidia{one.get('minor')}" for one in (gpu, other)]
    opens(host, gpu, marker="worker-1")
    for number, node in enumerate(nodes, start=3):
        host.tree.link(f"proc/{PID}/fd/{number}", node)
    gpu.process(PID)
    assert kinds(backend, gpu) == [ProcessKind.OURS]
    assert kinds(backend, other) == []
    assert [one.pid for one in backend.in_the_way(Uuid(other.uuid))] == [PID], "no reset below it"
    opens(host, other)
    assert kinds(backend, other) == [ProcessKind.FOREIGN]


def test_8_16_a_worker_in_an_instance_is_ours(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.16, promise 9: who has an instance's own capability open is in it, listed or not."""
    host.add_gpu(mig_current=1, mig_pending=1)
    one, two = [device for device in backend.inventory()[0].devices if "1g" in device.profile][:2]
    for device in (one, two):
        backend.make(device)
    held = [node.path for node in backend.grant(one).nodes]
    host.tree.process(PID, "python3", files=[path for path in held if "nvidia-cap" in path])
    host.tree.put(f"proc/{PID}/environ", f"{MARKER}=worker-1\0")
    assert [found.kind for found in backend.processes(one.uuid)] == [ProcessKind.OURS]
    assert backend.processes(two.uuid) == ()


def test_who_reads_for_the_node_is_left_out(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.16: a child of the node that keeps NVML open would else refuse every wipe."""
    gpu = host.add_gpu()
    opens(host, gpu, marker=f"nvidia driver, {gpu.uuid}")
    assert kinds(backend, gpu) == []


def test_a_marker_from_within_a_container_is_nothing(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.17: a tenant may put our marker into his environment and stays what he is."""
    gpu = host.add_gpu()
    for marker in (f"nvidia driver, {gpu.uuid}", "worker-1"):
        opens(host, gpu, marker=marker, of_host=False)
        assert kinds(backend, gpu) == [ProcessKind.FOREIGN]


def test_b71_exported_memory_holds_the_gpu(host: Host, backend: NvidiaBackend) -> None:
    """B71: what a process exported lives on in a descriptor nobody lists; the GPU is not idle."""
    gpu = host.add_gpu(total=1 << 30)
    backend._holders = replace(backend._holders, freed_within_s=0.0)
    gpu.set(exported=256 << 20)
    (found,) = backend.processes(Uuid(gpu.uuid))
    assert (found.pid, found.kind) == (0, ProcessKind.FOREIGN)
    assert found.name == "256 MiB in use by nobody who can be seen"
    assert [one.pid for one in backend.holders(Uuid(gpu.uuid))[Uuid(gpu.uuid)]] == [0]
    gpu.set(exported=None)
    assert backend.processes(Uuid(gpu.uuid)) == ()


def test_8_34_a_daemon_of_mps_holds_the_gpu(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.34: without leave to end it, an MPS daemon keeps the GPU from being wiped."""
    gpu = host.add_gpu()
    host.tree.process(PID, "nvidia-cuda-mps-control")
    (found,) = backend.processes(Uuid(gpu.uuid))
    assert (found.pid, found.kind) == (PID, ProcessKind.FOREIGN)
    assert found.pid != os.getpid()


def test_f11_a_node_of_the_graphics_layer_holds_a_gpu_too(
    host: Host, backend: NvidiaBackend
) -> None:
    """F11: a GPU has more nodes than the vendor's; who has its render node open holds it."""
    gpu, other = host.add_gpu(), host.add_gpu()
    place = f"sys/bus/pci/devices/{backend_address(gpu)}/drm/renderD{128 + int(gpu.get('minor'))}"
    host.tree.put(f"{place}/dev", f"226:{128 + int(gpu.get('minor'))}\n")
    host.tree.process(PID, "Xorg", files=[f"/dev/dri/renderD{128 + int(gpu.get('minor'))}"])
    assert kinds(backend, gpu) == [ProcessKind.FOREIGN]
    assert kinds(backend, other) == []


def backend_address(gpu: Gpu) -> str:
    """Where the GPU is, as sysfs spells it."""
    return address(gpu.bus_id)
