"""The demo put together: the real plugin on simulated devices, everything around it a stand-in.

The plugin runs in this process on threads, the node service in a child process as on a node
without Ray. No cluster, no rights and no accelerator are needed; all files are below one directory.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from fleet.core.errors import InputInvalid
from fleet.core.profiles import Profile
from fleet.core.settings import MIB, HealthPolicy, KubernetesSettings, NodeSettings, Settings
from fleet.devices import registry as backends
from fleet.devices.simulated.backend import SimulatedBackend
from fleet.evidence import layout
from fleet.kube.base import CLAIMS, NODES, Cluster, Name
from fleet.wiring import adapters
from fleet.wiring.plans import NodePlan, plan_fleet
from node_plugin import wiring
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine
from tests.lab.kubelet.cgroups import PodCgroups
from tests.lab.kubelet.control import ControlPlane
from tests.lab.kubelet.kubelet import KubeletSim
from tests.lab.kubelet.narration import Say, Telling
from tests.lab.kubelet.runtime import Runtime
from tests.lab.kubelet.story import Stage, Story
from tests.lab.kubelet.timings import Timings

NODE = "node-1"
DEVICES = 2
MEMORY_BYTES = 16 * MIB
TIMINGS = replace(Timings().scaled(0.04), force_grace_s=4.0, absent_s=30.0)
"""Waits 25 times shorter than kubelet's, so that the story takes a minute. A process deleted by
force lingers for 4 s instead of 2 s, and slices are deleted after 30 s, as ever."""
BUDGET_S = 2.0
"""What a call may wait for its work, s: short, so that refusals can be seen."""


@dataclass(slots=True)
class PluginSite:
    """The plugin of one simulated node, started and stopped as an update or a reboot does."""

    plan: NodePlan
    cluster: Cluster
    plugin: wiring.Plugin | None = None

    def start_plugin(self) -> None:
        """Start plugin and node service."""
        plugin = wiring.open_plugin(self.plan, self.cluster)
        plugin.start()
        self.plugin = plugin

    def stop_plugin(self) -> None:
        """End them; nothing to end is fine."""
        plugin, self.plugin = self.plugin, None
        if plugin is not None:
            plugin.stop()

    def new_boot(self) -> None:
        """Give the simulated node a new boot id."""
        root = layout.node_directory(Path(self.plan.state), self.plan.node) / "sim"
        backend = backends.build("simulated", {"root": str(root)})
        if not isinstance(backend, SimulatedBackend):
            raise InputInvalid(f"{root} holds no simulated node")
        backend.reboot()


FOREWORD = (
    "SIMULATED devices. On the way calls are refused, a pod is killed and the node is rebooted:\n"
    "refusals and warnings between the steps are meant. Only a line that says BROKEN is a fault."
)


def run(directory: Path, say: Say, *, profile: Profile = Profile.FAST) -> int:
    """Tell the story below `directory`, which is made; exit code 0 when every promise held.

    `say` takes one line at a time, from several threads but never two at once.
    """
    telling = Telling(say)
    telling.line(FOREWORD)
    plan = _plan(directory, profile)
    cluster = MemoryCluster(Engine(seed=uuid.uuid4().hex))  # no UID is used twice
    kubernetes = plan.settings.kubernetes
    control = ControlPlane(cluster, node=plan.node, now=time.time)
    cgroups = PodCgroups(Path(kubernetes.cgroup_root))
    cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": plan.node}})
    sim = KubeletSim(
        Path(kubernetes.kubelet_root),
        Runtime(Path(kubernetes.cdi_directory), cgroups),
        read_claim=lambda namespace, name: cluster.get(CLAIMS, Name(name, namespace)),
        timings=TIMINGS,
        delete_slices=control.delete_slices,
        told=telling.heard,
    )
    sim.by_count = True
    site = PluginSite(plan, cluster)
    _introduce(telling, plan)
    sim.start()
    try:
        return Story(Stage(control, sim, site, Path(kubernetes.cdi_directory)), telling).run()
    finally:
        sim.power_off()
        site.stop_plugin()


def _plan(directory: Path, profile: Profile) -> NodePlan:
    """One simulated node whose every path is below `directory`."""
    directory = directory.absolute()
    settings = Settings(
        profile=profile,
        node=NodeSettings(idle_delay_s=0.0),
        health=HealthPolicy(sweep_period_s=5.0, reading_timeout_s=4.0),
        kubernetes=KubernetesSettings(
            kubelet_root=str(directory / "kubelet"),
            cdi_directory=str(directory / "cdi"),
            cgroup_root=str(directory / "cgroup"),
            budget_s=BUDGET_S,
            publish_period_s=0.2,
        ),
    )
    fleet = plan_fleet(
        directory / "state",
        simulate=f"1x{DEVICES}",
        memory_bytes=MEMORY_BYTES,
        settings=settings,
        serve=NODE,
    )
    adapters.open_coordinator(fleet.coordinator)  # makes the store of leases
    return fleet.nodes[0]


def _introduce(telling: Telling, plan: NodePlan) -> None:
    telling.line("SIMULATED devices: files on this machine, no accelerator is touched.")
    telling.line(
        f"Node {plan.node}, {DEVICES} devices of {MEMORY_BYTES // MIB} MiB, profile"
        f" {plan.settings.profile}; real are the plugin, the node service, every gRPC call, CDI"
        " file, wipe and certificate."
    )
    telling.line(
        "Stand-ins are kubelet, container runtime, scheduler and API server; kubelet's waits are"
        " 25 times shorter than on a real node."
    )
