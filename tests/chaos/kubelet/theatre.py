"""A node plugin as its users run it, with bridge, standby and a Ray of its own, and a world around.

The plugin is ``python -m node_plugin`` in a process of its own; Ray is a head and a node as two
trees of processes. Whatever was killed can be started again.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from fleet.core import errors
from fleet.core.settings import MIB, HealthPolicy, KubernetesSettings, NodeSettings, Settings
from fleet.kube.base import NODES
from fleet.wiring import adapters
from fleet.wiring.plans import NodePlan, plan_fleet
from tests.actors.trees import Rays
from tests.chaos import checks
from tests.chaos.kubelet.roles import Site
from tests.chaos.kubelet.story import DEVICES, Call, Story
from tests.chaos.kubelet.world import World
from tests.chaos.life import MARKER
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.server import StandIn

T = TypeVar("T")

NODE = "node-1"
POLICY = """\
[kubernetes]
kubelet_root = "{root}/kubelet"
cdi_directory = "{root}/cdi"
cgroup_root = "{root}/cgroup"
budget_s = {budget_s}
publish_period_s = 0.2
api_qps = 1000.0
[node]
idle_delay_s = 0.0
[health]
sweep_period_s = 5.0
reading_timeout_s = 4.0
"""
BUDGET_S = 5.0
"""What a call may wait for its work, s."""
WAIT_S = 120.0
"""Time, s, for anything: Ray starts slowly on a busy machine."""


@dataclass
class Theatre:
    """One node with everything. `start`, then whatever is to happen, then `end`."""

    story: Story
    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="th-")))
    rays: Rays = field(default_factory=Rays)
    broken: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    plugin: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        """Make files and the API server; nothing else runs yet."""
        for name in ("plugins", "plugins_registry"):
            (self.root / "kubelet" / name).mkdir(parents=True)
        (self.root / "cdi").mkdir()
        self._policy = self.root / "policy.toml"
        self._policy.write_text(POLICY.format(root=self.root, budget_s=BUDGET_S))
        self.plan = self._planned()
        self.standin = StandIn().start()
        site = Site(self.root, self.plan)
        self.standin.kubeconfig(site.kubeconfig)
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        MemoryCluster(self.standin.engine).create(NODES, body)
        self.world = World(self.story, site, self.standin, self.broken, self.log)

    def start(self) -> None:
        """Ray and the plugin, at the same time."""
        self.start_plugin()
        self.rays.start()

    def start_plugin(self) -> None:
        """Start the plugin; it starts its standby and its bridge."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, "-P", "-m", "node_plugin", "--node", NODE]
        command += ["--state", str(self.root / "state"), "--policy", str(self._policy)]
        command += ["--profile", self.story.profile, "--simulate", str(DEVICES)]
        command += ["--memory", "1MiB", "--kubeconfig", str(self.root / "kubeconfig")]
        command += ["--ray-address", self.rays.address, "--http", f"127.0.0.1:{port}"]
        with (self.root / "plugin.log").open("ab") as log:
            self.plugin = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**self.rays.environment(), MARKER: str(self.root)},
            )

    def end(self, *, keep: bool = False) -> None:
        """End everything that was started; the files as well unless they are to be kept."""
        self.world.runtime.power_off()
        self.world.connection.close()
        self.world.door.close()
        if self.plugin is not None:
            self.plugin.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.plugin.wait(30)
            self.plugin.kill()
            self.plugin.wait()
        self.rays.end()
        for pid in checks.living(MARKER, str(self.root)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.standin.close()
        if not keep:
            shutil.rmtree(self.root, ignore_errors=True)

    # --- looking ---

    def owner(self) -> tuple[str, int]:
        """Kind and pid of whoever owns the node; "" and 0 for nobody."""
        with closing(adapters.open_door(self.plan)) as door:
            try:
                pulse = door.pulse(timeout_s=1.0)
            except errors.FleetError:
                return "", 0
        return str(pulse["owner"]), int(pulse["pid"])

    def await_owner(self, kind: str) -> float:
        """Wait until one of this kind owns the node; how long that took, s."""
        began = time.monotonic()
        self.until(lambda: self.owner()[0] == kind, f"the {kind} does not own the node")
        return time.monotonic() - began

    def until(self, ask: Callable[[], T], why: str) -> T:
        """Wait until it is something. Raises AssertionError with the plugin's log."""
        deadline, pause = time.monotonic() + WAIT_S, threading.Event()
        while not (found := ask()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{why}: {(self.root / 'plugin.log').read_text()[-6000:]}")
            pause.wait(0.05)
        return found

    def child(self, word: str) -> int:
        """Pid of the plugin's child whose command line has `word`, 0 without one."""
        for pid in checks.living(MARKER, str(self.root)):
            with suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if word.encode() in command:
                    return pid
        return 0

    def perform(self, call: Call) -> None:
        """One call of kubelet. Raises AssertionError on whatever is broken."""
        self.world.perform(call)
        assert self.broken == [], (self.broken, self.log)

    def _planned(self) -> NodePlan:
        settings = Settings(
            profile=self.story.profile,
            node=NodeSettings(idle_delay_s=0.0),
            health=HealthPolicy(sweep_period_s=5.0, reading_timeout_s=4.0),
            kubernetes=KubernetesSettings(
                kubelet_root=str(self.root / "kubelet"),
                cdi_directory=str(self.root / "cdi"),
                cgroup_root=str(self.root / "cgroup"),
                budget_s=BUDGET_S,
                publish_period_s=0.2,
                api_qps=1000.0,
            ),
        )
        fleet = plan_fleet(
            self.root / "state",
            simulate=f"1x{DEVICES}",
            memory_bytes=MIB,
            settings=settings,
            serve=NODE,
        )
        adapters.open_coordinator(fleet.coordinator)  # begins the log of heads
        return fleet.nodes[0]
