"""A directory that looks like the host's cgroups: one per pod, one below it per container.

Written by the stand-in alone, so that the proof "the tenant is gone" can be shown on any machine
without rights. A cgroup appears and vanishes whole, as a real one does: it is made and taken apart
outside the tree and moved.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

_PROCS = "cgroup.procs"


class PodCgroups:
    """All pods' cgroups of the stand-in below one root, laid out as kubelet's cgroupfs driver."""

    def __init__(self, root: Path) -> None:
        """Makes ``<root>/kubepods``; what an earlier stand-in left below it stays."""
        self.root = root
        self._pods = root / "kubepods" / "besteffort"
        self._workshop = root.with_name(f".{root.name}.work")
        self._pods.mkdir(parents=True, exist_ok=True)
        for path in (self._pods.parent, self._pods):
            (path / _PROCS).touch()
        self._workshop.mkdir(exist_ok=True)

    def make_pod(self, uid: str) -> Path:
        """The pod's cgroup, without processes; one that exists is left as it is."""
        return self._made(self._pods / f"pod{uid}")

    def make_container(self, uid: str, name: str) -> Path:
        """A container's cgroup in its pod's, without processes yet."""
        return self._made(self.make_pod(uid) / name)

    def enter(self, container: Path, pid: int) -> None:
        """Put a process into a container's cgroup."""
        temporary = self._workshop / uuid.uuid4().hex
        temporary.write_text(f"{pid}\n")
        temporary.replace(container / _PROCS)

    def remove(self, path: Path) -> None:
        """Remove a cgroup and all below it; one that is gone is fine."""
        temporary = self._workshop / uuid.uuid4().hex
        try:
            path.rename(temporary)
        except FileNotFoundError:
            return
        shutil.rmtree(temporary)

    def remove_pod(self, uid: str) -> None:
        """Remove a pod's cgroup."""
        self.remove(self._pods / f"pod{uid}")

    def clear(self) -> None:
        """Remove all pods' cgroups: what a new boot finds."""
        for path in self._pods.glob("pod*"):
            self.remove(path)

    def pods(self) -> tuple[str, ...]:
        """UIDs of pods that have a cgroup."""
        return tuple(sorted(path.name.removeprefix("pod") for path in self._pods.glob("pod*")))

    def _made(self, path: Path) -> Path:
        if not path.exists():
            temporary = self._workshop / uuid.uuid4().hex
            temporary.mkdir()
            (temporary / _PROCS).touch()
            temporary.rename(path)
        return path
