"""The real cluster the suite is run against, as its environment names it, and its kubelet.

FLEET_E2E_KUBECONFIG    the administrator's kubeconfig
FLEET_E2E_KUBELET_ROOT  root directory of the kubelet on this machine
FLEET_E2E_CDI_DIR       directory of CDI specs its container runtime reads
FLEET_E2E_NODE          name of this machine's Node; not needed where there is one only
FLEET_E2E_IMAGE         image with busybox, present on the node
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.polling import eventually

KUBECONFIG = os.environ.get("FLEET_E2E_KUBECONFIG", "")
CGROUP_ROOT = Path("/sys/fs/cgroup")
IMAGE = "docker.io/library/busybox:local"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the parts of the cluster are on this machine."""

    kubeconfig: Path
    kubelet_root: Path
    cdi_directory: Path
    node: str
    """"" for the only one there is."""
    image: str
    cgroup_root: Path = CGROUP_ROOT

    @property
    def checkpoint(self) -> Path:
        """Kubelet's own record of claims."""
        return self.kubelet_root / "dra_manager_state"


def named() -> Place:
    """The place of the environment. Raises KeyError for a part that is not named."""
    return Place(
        kubeconfig=Path(KUBECONFIG),
        kubelet_root=Path(os.environ["FLEET_E2E_KUBELET_ROOT"]),
        cdi_directory=Path(os.environ["FLEET_E2E_CDI_DIR"]),
        node=os.environ.get("FLEET_E2E_NODE", ""),
        image=os.environ.get("FLEET_E2E_IMAGE", IMAGE),
    )


@dataclass(slots=True)
class Component:
    """A process of the cluster on this machine: found, ended, started again as it was."""

    name: str
    argument: str
    """An argument that tells it from others of its program; "": its network does."""
    network: int
    """Inode of its network namespace, that of the tests: clusters of one machine have one each."""
    record: Path
    """File with its process id, by which whoever started the cluster stops it; kept right."""
    _command: list[str]
    _directory: str
    _environment: Mapping[str, str]
    _log: str

    @classmethod
    def found(cls, name: str, *, root: Path, argument: str = "") -> Component:
        """The one that runs now, of the cluster whose kubelet has this root directory."""
        network = _network("self")
        pid = _pid_of(name, argument, network)
        assert pid is not None, f"no {name} {argument} runs on this machine"
        proc = Path(f"/proc/{pid}")
        variables = (v.partition(b"=") for v in (proc / "environ").read_bytes().split(b"\0") if v)
        return cls(
            name=name,
            argument=argument,
            network=network,
            record=root.parent / "run" / f"{name}.pid",
            _command=_arguments(pid),
            _directory=str((proc / "cwd").readlink()),
            _environment={os.fsdecode(name): os.fsdecode(value) for name, _, value in variables},
            _log=str((proc / "fd" / "1").readlink()),
        )

    @property
    def pid(self) -> int | None:
        """Its process id; None while it does not run."""
        return _pid_of(self.name, self.argument, self.network)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it by a signal and wait for that. Containers go on without it."""
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, number)
        eventually(f"{self.name} has ended", lambda: self.pid is None, timeout_s=30)

    def kill(self) -> None:
        """kill -9, and wait for that."""
        self.stop(signal.SIGKILL)

    def start(self) -> None:
        """Start it as it was started before, unless it runs."""
        if self.pid is not None:
            return
        with Path(self._log).open("ab") as log:
            subprocess.run(
                ["setsid", "--fork", *self._command],  # no child of ours: it outlives the tests
                cwd=self._directory,
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
            )
        pid = eventually(f"{self.name} runs", lambda: self.pid, timeout_s=10)
        if self.record.exists():
            self.record.write_text(f"{pid}\n")

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()


def kubelet(root: Path) -> Component:
    """The kubelet of one root directory."""
    return Component.found("kubelet", root=root, argument=f"--root-dir={root}")


def _pid_of(name: str, argument: str, network: int) -> int | None:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            found = _arguments(int(entry.name))
            named = bool(found) and Path(found[0]).name == name
            if named and (argument in found or not argument) and _network(entry.name) == network:
                return int(entry.name)
    return None


def _network(pid: str) -> int:
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:  # it has ended
        return 0


def _arguments(pid: int) -> list[str]:
    """The command line of a process; empty when it has ended, also while nobody has reaped it."""
    try:
        content = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(argument) for argument in content.split(b"\0")[:-1]]
