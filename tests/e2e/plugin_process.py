"""The node plugin as a process of its own: started, killed, asked, and looked into."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.node_state import NodeState
from tests.e2e.polling import Hopeless, eventually

DEVICES = 4
MEMORY = "4MiB"
MEMORY_BYTES = 4 * 1024 * 1024
DRIVER = "gpu.fleetscrub.dev"
POLICY = """\
profile = "{profile}"
[kubernetes]
driver = "{driver}"
cdi_directory = "{cdi}"
kubelet_root = "{root}"
cgroup_root = "{cgroups}"
agent_namespace = "{agents}"
admin_namespaces = [{admins}]
[node]
idle_delay_s = 0.5
[health]
reading_timeout_s = 1.5
sweep_period_s = 2.0
retest_period_s = 3.0
"""
"""The health periods are short so that a fault is found, and found gone, within seconds."""
LOG_LINES = 40


@dataclass(slots=True)
class PluginProcess(NodeState):
    """One instance over a state directory; `instance` tells several apart."""

    instance: str = ""
    agent_namespace: str = ""
    """Namespace of our own node service: it may claim the device `agent`."""
    admin_namespaces: tuple[str, ...] = ()
    """Namespaces whose claims may look into devices with adminAccess."""
    profile: str = "fast"
    simulate: str = str(DEVICES)
    """Devices; ``MpK``: M accelerators, K of them with partitions. "": those of `hardware`."""
    hardware: str = ""
    """Lines of the section of that name: which machine has the devices."""
    standby_elsewhere: bool = False
    """Whether somebody else starts what owns the node's devices."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of its own."""
    log: Path = field(init=False)
    port: int = field(init=False)
    _process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.log = self.state.parent / f"plugin{self.instance}.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    # --- the process ---

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether it is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; `standing` says when it serves."""
        policy = self.state.parent / "policy.toml"
        policy.write_text(
            POLICY.format(
                profile=self.profile,
                driver=DRIVER,
                cdi=self.place.cdi_directory,
                root=self.place.kubelet_root,
                cgroups=self.place.cgroup_root,
                agents=self.agent_namespace,
                admins=", ".join(f'"{one}"' for one in self.admin_namespaces),
            )
            + (f"[hardware]\n{self.hardware}" if self.hardware else "")
        )
        command = [sys.executable, "-m", "node_plugin", "--node", self.node, "--verbose"]
        command += ["--state", str(self.state), "--policy", str(policy)]
        command += ["--simulate", self.simulate, "--memory", MEMORY] if self.simulate else []
        command += ["--no-standby"] if self.standby_elsewhere else []
        command += ["--kubeconfig", str(self.place.kubeconfig), "--http", f"127.0.0.1:{self.port}"]
        if self.instance:
            command += ["--instance", self.instance]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.environment},
            )

    def kill(self) -> None:
        """kill -9 of the plugin alone; its standby notices by itself and ends."""
        children = _children(self.pid)
        os.kill(self.pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait(10)
        eventually(
            "the plugin's children have ended",
            lambda: not any(Path(f"/proc/{child}").exists() for child in children),
            timeout_s=20,
            tell=self.told,
        )

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(60)

    def standby(self) -> int | None:
        """Process id of its standby."""
        found = [pid for pid in _children(self.pid) if "standby" in _command(pid)]
        return found[0] if found else None

    def told(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join((f"--- {self.log}", *lines))

    # --- what it says ---

    def page(self, name: str) -> str:
        """A page of its port, "" while it does not answer."""
        try:
            url = f"http://127.0.0.1:{self.port}/{name}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def figure(self, name: str) -> float | None:
        """One figure of its metrics, named with its labels; None while it is not there."""
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.page("metrics"), re.MULTILINE)
        return float(found[1]) if found else None

    def serves(self) -> bool:
        """Whether kubelet has it registered and an owner of the journal answers."""
        if not self.runs:
            raise Hopeless(f"the plugin has ended\n{self.told()}")
        names = ("fleet_plugin_registered", "fleet_plugin_owner_reachable")
        return all(self.figure(name) == 1.0 for name in names)


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if after_name[0] != "Z" and int(after_name[1]) == pid:
                found.append(int(entry.name))
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
