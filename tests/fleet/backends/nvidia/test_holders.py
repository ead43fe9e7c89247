"""Who holds a GPU, as the node counts it."""

from __future__ import annotations

import os

from fleet.backends.nvidia.backend import NvidiaBackend
from fleet.model import ProcessKind, Uuid
from fleet.wipe.identity import MARKER
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
    """gpus-8.16: the marker of a worker, in a process of the host, makes it ours."""
    gpu = host.add_gpu()
    opens(host, gpu, marker="worker-1")
    assert kinds(backend, gpu) == [ProcessKind.OURS]


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


def test_8_34_a_daemon_of_mps_holds_the_gpu(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.34: without leave to end it, an MPS daemon keeps the GPU from being wiped."""
    gpu = host.add_gpu()
    host.tree.process(PID, "nvidia-cuda-mps-control")
    (found,) = backend.processes(Uuid(gpu.uuid))
    assert (found.pid, found.kind) == (PID, ProcessKind.FOREIGN)
    assert found.pid != os.getpid()
