"""Directories laid out as the cgroups of a Kubernetes node are, in every way there is."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CONTROLLERS = ("blkio", "cpu,cpuacct", "cpuset", "devices", "freezer", "memory", "pids", "systemd")
LAYOUTS = ("v1-cgroupfs", "v1-systemd", "v2-cgroupfs", "v2-systemd", "hybrid-cgroupfs")
POD = "3f9c1e0a-0000-4000-8000-00000000000a"
OTHER = "3f9c1e0a-0000-4000-8000-00000000000b"


@dataclass
class Tree:
    """The cgroups of one node; `layout` is one of LAYOUTS."""

    root: Path
    layout: str

    def __post_init__(self) -> None:
        for hierarchy in self.hierarchies:
            for quality in ("", "besteffort", "burstable"):
                _cgroup(hierarchy / self._quality(quality))
            _cgroup(hierarchy / "system.slice" / "containerd.service", "1234\n")
        if self.layout.startswith(("v1", "hybrid")):
            (self.root / "cpu").symlink_to("cpu,cpuacct")

    @property
    def hierarchies(self) -> list[Path]:
        """The top of each hierarchy."""
        if self.layout.startswith("v2"):
            return [self.root]
        unified = ("unified",) if self.layout.startswith("hybrid") else ()
        return [self.root / name for name in (*CONTROLLERS, *unified)]

    def pod(self, uid: str, quality: str = "burstable", *, containers: int = 2) -> list[Path]:
        """The cgroups of a pod, made with empty containers: one for each hierarchy."""
        name = self._pod(uid, quality)
        paths = [hierarchy / self._quality(quality) / name for hierarchy in self.hierarchies]
        for path in paths:
            for number in range(containers):
                _cgroup(path / self._container(number))
        return paths

    def enter(self, pod: list[Path], pid: int = 4321, *, container: int = 0) -> None:
        """Let a process be in a container of the pod, in every hierarchy."""
        for path in pod:
            (path / self._container(container) / "cgroup.procs").write_text(f"{pid}\n")

    def leave(self, pod: list[Path], *, container: int = 0) -> None:
        """Let the container be empty again."""
        for path in pod:
            (path / self._container(container) / "cgroup.procs").write_text("")

    @staticmethod
    def remove(pod: list[Path]) -> None:
        """Let the pod's cgroups be gone."""
        for path in pod:
            shutil.rmtree(path)

    def _quality(self, quality: str) -> str:
        if not self.layout.endswith("systemd"):
            return f"kubepods/{quality}".rstrip("/")
        return f"kubepods.slice/kubepods-{quality}.slice" if quality else "kubepods.slice"

    def _pod(self, uid: str, quality: str) -> str:
        if not self.layout.endswith("systemd"):
            return f"pod{uid}"
        prefix = f"kubepods-{quality}" if quality else "kubepods"
        return f"{prefix}-pod{uid.replace('-', '_')}.slice"

    def _container(self, number: int) -> str:
        identity = f"{number:064x}"
        return f"cri-containerd-{identity}.scope" if self.layout.endswith("systemd") else identity


def _cgroup(path: Path, processes: str = "") -> None:
    """A directory with the file every cgroup has; those above it are cgroups too."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.procs").write_text(processes)
    above = path.parent
    while "kubepods" in str(above) and not (above / "cgroup.procs").exists():
        (above / "cgroup.procs").write_text("")
        above = above.parent


def checkpoint_text(claims: Mapping[str, Sequence[str]] | Sequence[tuple[str, list[str]]]) -> str:
    """Kubelet's ``dra_manager_state`` naming these pods by claim."""
    pairs = claims.items() if isinstance(claims, Mapping) else claims
    inner = json.dumps(
        {
            "kind": "DRACheckpoint",
            "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
            "ClaimInfoStateList": [
                {
                    "ClaimUID": uid,
                    "ClaimName": f"name-of-{uid}",
                    "Namespace": "default",
                    "PodUIDs": {pod: {} for pod in pods},
                    "DriverState": {"gpu.fleetscrub.dev": {"Devices": None}},
                }
                for uid, pods in pairs
            ],
        }
    )
    return json.dumps({"Data": inner, "Checksum": zlib.crc32(inner.encode())})
