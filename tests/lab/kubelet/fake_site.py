"""A node whose plugin keeps the promises by the simplest means, or breaks one of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleet.kube.base import CLAIMS, SLICES, Name
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.kubelet.cgroups import PodCgroups
from tests.lab.kubelet.control import ControlPlane
from tests.lab.kubelet.fake_plugin import DRIVER, FakePlugin
from tests.lab.kubelet.kubelet import KubeletSim
from tests.lab.kubelet.pods import PodEvent
from tests.lab.kubelet.runtime import Runtime
from tests.lab.kubelet.story import Stage
from tests.lab.kubelet.timings import Timings

NODE = "node-a"
FAST = replace(
    Timings(),
    poll_s=0.02,
    backoff_first_s=0.05,
    prepare_retry_s=0.1,
    unprepare_retry_s=0.1,
    container_retry_s=0.1,
    grace_s=0.5,
    force_grace_s=0.5,
    orphan_period_s=0.5,
    health_reopen_s=0.1,
)


class HonestPlugin(FakePlugin):
    """One device, one holder; wiped when it is given back and after a reboot."""

    wipes = True
    exclusive = True
    proves = True
    """Whether a claim is given up only once its containers are gone."""
    offers = True
    rebuilds = True
    """Whether a claim prepared before a reboot gets its spec again."""

    def __init__(self, directory: Path) -> None:
        memory = directory / "memory.bin"
        memory.write_bytes(bytes(1 << 20))
        super().__init__(directory / "kubelet", directory / "cdi", memory)
        self.holder = ""
        self.rebooted = False
        self.in_use: Callable[[str], bool] = lambda _: False
        """Whether a container of the claim runs."""

    def prepare_one(self, uid: str, entry: Any) -> None:
        """Refuse a device that another claim holds."""
        if self.exclusive and self.holder not in ("", uid):
            entry.error = "gpu-0 is held by another claim"
            return
        if self.rebooted:
            self._wipe()
        self.holder = uid
        super().prepare_one(uid, entry)
        self.rebooted = False

    def write_spec(self, uid: str) -> Path:
        """Make a claim's spec visible; a careless plugin thinks that it still is."""
        if self.rebooted and not self.rebuilds:
            return self.cdi / "none"
        return super().write_spec(uid)

    def refusal(self, uid: str) -> str:
        """Refuse while the claim's tenant is not proven gone."""
        if self.proves and self.in_use(uid):
            return "its pod still runs"
        return super().refusal(uid)

    def take_back(self, uid: str) -> None:
        """End a claim; its device is wiped."""
        super().take_back(uid)
        if self.holder == uid:
            self._wipe()
            self.holder = ""

    def _wipe(self) -> None:
        if self.wipes:
            self.memory.write_bytes(bytes(1 << 20))


class FakeSite:
    """`Site` over a `HonestPlugin`, with everything the story acts on."""

    def __init__(self, directory: Path, plugin: HonestPlugin) -> None:
        self.plugin = plugin
        self.cluster = MemoryCluster()
        self.control = ControlPlane(self.cluster, node=NODE, now=time.time)
        self.heard: list[PodEvent] = []
        self.sim = KubeletSim(
            directory / "kubelet",
            Runtime(directory / "cdi", PodCgroups(directory / "cgroup")),
            read_claim=lambda namespace, name: self.cluster.get(CLAIMS, Name(name, namespace)),
            timings=FAST,
            delete_slices=self._delete_slices,
            told=self.heard.append,
        )
        self.sim.by_count = True
        plugin.in_use = self._in_use
        self.stage = Stage(self.control, self.sim, self, directory / "cdi")

    def publish(self) -> None:
        """Offer the one device, or nothing."""
        device = {"name": "gpu-0", "capacity": {"memory": {"value": "1Mi"}}}
        self.cluster.create(
            SLICES, slice_of("slice-0", [device, {"name": "agent"}] if self.plugin.offers else [])
        )

    def start_plugin(self) -> None:
        """Start it."""
        self.plugin.health_over.clear()
        self.plugin.start()
        self.control.delete_slices("")
        self.publish()

    def stop_plugin(self) -> None:
        """Stop it; its slices stay."""
        self.plugin.stop()

    def new_boot(self) -> None:
        """Everything is in doubt."""
        self.plugin.rebooted = True

    def _in_use(self, uid: str) -> bool:
        containers = [
            self.sim.runtime.container(pod)
            for entry in self.sim.resources.entries()
            if entry.uid == uid
            for pod in entry.pods
        ]
        return any(one is not None and one.running() for one in containers)

    def _delete_slices(self, driver: str) -> None:
        there = bool(self.control.devices())
        self.control.delete_slices(driver)
        if there:
            self.publish()


def slice_of(
    name: str, devices: list[dict[str, Any]], *, generation: int = 1, count: int = 1
) -> dict[str, Any]:
    """A slice of the node's pool."""
    return {
        "apiVersion": SLICES.api_version,
        "kind": SLICES.kind,
        "metadata": {"name": name},
        "spec": {
            "driver": DRIVER,
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": generation, "resourceSliceCount": count},
            "devices": devices,
        },
    }
