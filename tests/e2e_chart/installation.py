"""The chart, installed by Helm: its pods, its verbs, the node it serves, and the tenants on it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.core import errors
from fleet.core.settings import Settings, StoreKind, StoreSettings
from fleet.kube.base import (
    CLAIMS,
    EVENTS,
    PODS,
    Object,
    Resource,
    Selection,
    name_of,
    uid_of,
)
from fleet.node.cgroups import CgroupTree
from fleet.stores.factory import StorePlace
from tests.e2e import workloads
from tests.e2e.ground import Footing
from tests.e2e.node_state import NodeState
from tests.e2e.place import Component
from tests.e2e.polling import eventually
from tests.e2e_chart.site import CHART, IMAGE, REPOSITORY, Site

RELEASE = "fleetscrub"
NAMESPACE = "fleetscrub"
PLUGIN, WORKER, HEAD = "node-plugin", "worker", "ray-head"
PARTS = (PLUGIN, WORKER, HEAD)
COORDINATOR = "ray::CoordinatorActor"
"""Command line of the coordinator's process, in the head."""
DEVICES = 4
MEMORY_BYTES = 16 * 1024 * 1024
STORAGE_CLASS = "fleet-e2e"
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
STORAGE = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
READY_S = 240.0
"""Time, s, until everything is ready: Ray's start is most of it."""
SERVES_S = 150.0
FACE = 200
"""Characters of a log line that are shown."""
Values = Mapping[str, Any]


class InstalledNode(NodeState):
    """The node of this machine; its leases are at the API server."""

    def store(self) -> StorePlace:
        """Where its leases are."""
        store = StoreSettings(kind=StoreKind.KUBERNETES, namespace=NAMESPACE)
        return StorePlace(Settings(store=store), self.state, str(self.place.kubeconfig), qps=100.0)


@dataclass(kw_only=True)
class Installation(Footing):
    """One release of the chart on the cluster of a site, with everything an operator does to it."""

    site: Site
    scratch: Path
    """Directory of this machine for state, run directory and volumes."""
    scheduler: Component
    kubelet: Component
    chart: Path = REPOSITORY / CHART
    tag: str = "now"
    extra: dict[str, Any] = field(default_factory=dict)
    """Values beyond `values`, by top-level key."""

    # --- the release ---

    def values(self) -> dict[str, Any]:
        """What an operator of this machine would write: its directories, and simulated devices."""
        root = self.place.kubelet_root
        return {
            "image": {"repository": IMAGE, "tag": self.tag},
            "simulate": {"enabled": True, "devices": DEVICES, "memory": "16MiB"},
            "kubeletPlugin": {
                "kubeletRegistrarDirectoryPath": str(root / "plugins_registry"),
                "kubeletPluginsDirectoryPath": str(root / "plugins"),
                "cdiDirectoryPath": str(self.place.cdi_directory),
                "stateDirectoryPath": str(self.scratch / "state"),
                "runDirectoryPath": str(self.scratch / "run"),
            },
            "controller": {"persistence": {"storageClassName": STORAGE_CLASS}},
            "campaign": {"suspend": True},
            **self.extra,
        }

    def helm(self, *words: str, timeout_s: float = 300, good: Sequence[int] = (0,)) -> str:
        """What helm says in our namespace."""
        place = ("--namespace", NAMESPACE)
        return self.site.run("helm", *words, *place, timeout_s=timeout_s, good=good)

    def kubectl(self, *words: str, timeout_s: float = 60, good: Sequence[int] = (0,)) -> str:
        """What kubectl says in our namespace."""
        return self.site.run(
            "kubectl", "--namespace", NAMESPACE, *words, timeout_s=timeout_s, good=good
        )

    def install(self) -> str:
        """As docs/install.md has it: namespace, label, `helm install`; what helm says."""
        if not self._namespaced():
            self.site.run("kubectl", "create", "namespace", NAMESPACE)
        label = "pod-security.kubernetes.io/enforce=privileged"
        self.site.run("kubectl", "label", "--overwrite", "namespace", NAMESPACE, label)
        return self.helm("install", RELEASE, str(self.chart), "--values", str(self._written()))

    def upgrade(self, *words: str) -> str:
        """`helm upgrade` to the chart, image and values of now; what helm says."""
        chart, values = str(self.chart), str(self._written())
        return self.helm("upgrade", RELEASE, chart, "--reset-values", "--values", values, *words)

    def uninstall(self, *, good: Sequence[int] = (0,)) -> str:
        """`helm uninstall`; what helm says."""
        return self.helm("uninstall", RELEASE, "--timeout", "5m", timeout_s=400, good=good)

    def forget(self) -> None:
        """What `helm uninstall` leaves goes, as docs/install.md has it: nothing is remembered."""
        self.site.run("kubectl", "delete", "namespace", NAMESPACE, timeout_s=300)
        self.site.run("kubectl", "delete", "persistentvolume", "--all")
        for name in ("state", "run", "volumes"):
            shutil.rmtree(self.scratch / name)

    def _written(self) -> Path:
        path = self.scratch / "values.json"
        path.write_text(json.dumps(self.values()))
        return path

    def _namespaced(self) -> bool:
        return bool(self.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found"))

    def volume(self, name: str = "coordinator") -> Path:
        """Make a volume of this machine for which kubelet honours fsGroup; where it is."""
        path = self.scratch / "volumes" / name
        path.mkdir(parents=True, exist_ok=True)
        node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [self.plugin.node]}
        self.cluster.apply(
            STORAGE,
            {
                "apiVersion": STORAGE.api_version,
                "kind": STORAGE.kind,
                "metadata": {"name": STORAGE_CLASS},
                "provisioner": "kubernetes.io/no-provisioner",
                "volumeBindingMode": "WaitForFirstConsumer",
            },
            manager="fleet-e2e",
        )
        self.cluster.apply(
            VOLUMES,
            {
                "apiVersion": VOLUMES.api_version,
                "kind": VOLUMES.kind,
                "metadata": {"name": name},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "capacity": {"storage": "2Gi"},
                    "storageClassName": STORAGE_CLASS,
                    "persistentVolumeReclaimPolicy": "Retain",
                    "local": {"path": str(path)},
                    "nodeAffinity": {
                        "required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}
                    },
                },
            },
            manager="fleet-e2e",
        )
        return path

    # --- its pods ---

    def pods(self, part: str = "") -> list[Object]:
        """Pods of the release, or of one part of it, that are not on their way out."""
        labels = f"app.kubernetes.io/instance={RELEASE}"
        labels += f",app.kubernetes.io/component={part}" if part else ""
        found = self.cluster.list(PODS, Selection(namespace=NAMESPACE, labels=labels)).items
        return [one for one in found if "deletionTimestamp" not in one["metadata"]]

    def part(self, part: str) -> Object:
        """The pod of one part, once there is just one."""
        return eventually(
            f"one pod of {part}",
            lambda: found[0] if len(found := self.pods(part)) == 1 else None,
            timeout_s=SERVES_S,
        )

    def unready(self) -> list[str]:
        """What keeps the pods of the three parts from being all there and ready."""
        found = []
        for part in PARTS:
            pods = self.pods(part)
            found += [] if pods else [f"no pod of {part}"]
            for one in pods:
                status = one.get("status") or {}
                states = [
                    f"{each['name']} {each['state']}"
                    for each in status.get("containerStatuses") or []
                    if not each.get("ready")
                ]
                if not status.get("containerStatuses"):
                    states = [str(status.get("conditions"))]
                found += [f"{name_of(one).name}: {text}" for text in states]
        return found

    def restarts(self, part: str) -> dict[str, int]:
        """How often each container of the part's pod was started again."""
        statuses = (self.part(part).get("status") or {}).get("containerStatuses") or []
        return {one["name"]: int(one["restartCount"]) for one in statuses}

    def log(self, part: str, container: str = "", *, previous: bool = False) -> str:
        """The log of a part's container."""
        words = ["logs", name_of(self.part(part)).name, *(["--previous"] if previous else [])]
        return self.kubectl(*words, *(["--container", container] if container else []))

    def processes(self, part: str) -> dict[int, str]:
        """Command lines of all processes of the part's pod on this machine, by process id."""
        tree = CgroupTree(self.place.cgroup_root)
        found: dict[int, str] = {}
        for path in tree.pods(uid_of(self.part(part))):
            for procs in path.rglob("cgroup.procs"):
                for pid in map(int, _text(procs).split()):
                    found[pid] = _text(Path(f"/proc/{pid}/cmdline")).replace("\0", " ").strip()
        return found

    def kill(self, part: str, words: str) -> list[int]:
        """kill -9 of the part's processes whose command line has these words; which they were."""
        found = [pid for pid, line in self.processes(part).items() if words in line]
        assert found, f"no process of {part} has {words!r}: {self.processes(part)}"
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return found

    def delete_part(self, part: str) -> None:
        """Delete the pod of one part, as the documents say; another one takes its place."""
        old = name_of(self.part(part))
        self.kubectl("delete", "pod", old.name, "--wait=false")

    # --- its verbs ---

    def fleet(self, *words: str, good: Sequence[int] = (0,)) -> str:
        """What `fleet ... --state` says in the standby's container of this node."""
        state = str(self.plugin.state)
        return self.standby("fleet", *words, "--state", state, good=good)

    def standby(self, *words: str, good: Sequence[int] = (0,)) -> str:
        """What a command says in the standby's container."""
        pod = name_of(self.part(WORKER)).name
        return self.kubectl("exec", pod, "--container", "standby", "--", *words, good=good)

    def head(self, *words: str, good: Sequence[int] = (0,)) -> str:
        """What a command says in the head's container."""
        pod = name_of(self.part(HEAD)).name
        return self.kubectl("exec", pod, "--container", "ray-head", "--", *words, good=good)

    # --- what is whole ---

    def serve(self, *, timeout_s: float = READY_S) -> float:
        """Wait until every pod is ready and every device clean; seconds it took."""
        began = time.monotonic()
        eventually(
            "every pod is ready",
            lambda: not self.unready(),
            timeout_s=timeout_s,
            period_s=0.5,
            tell=lambda: "\n".join((*self.unready(), self.told_parts())),
        )
        eventually(
            "every device is clean",
            lambda: not self.left(),
            timeout_s=timeout_s,
            period_s=0.5,
            tell=lambda: "\n".join((*self.left(), self.told_parts())),
        )
        return time.monotonic() - began

    def left(self) -> list[str]:
        """What pods and claims of tenants have left, here and at the API."""
        try:
            return super().left()
        except errors.FleetError as error:
            return [str(error)]

    def remembered(self) -> list[str]:
        """UIDs of the claims that kubelet has on record, but for our worker's own."""
        own = {
            uid_of(self.cluster.get(CLAIMS, claim))
            for one in self.pods(WORKER)
            for claim in workloads.claims_of(one)
        }
        return [uid for uid in super().remembered() if uid not in own]

    def told_parts(self) -> str:
        """The last lines of every container that is not ready, and the latest warnings."""
        found = []
        for one in self.pods():
            for each in (one.get("status") or {}).get("containerStatuses") or []:
                if not each.get("ready"):
                    name = name_of(one).name
                    for extra in ([], ["--previous"]) if each.get("restartCount") else ([],):
                        words = ["logs", name, "--container", each["name"], "--tail=15", *extra]
                        found += [f"--- {name} {each['name']}", self.kubectl(*words, good=(0, 1))]
        for one in self.cluster.list(EVENTS, Selection(namespace=NAMESPACE)).items[-15:]:
            found.append(f"{one.get('reason')}: {str(one.get('message'))[:FACE]}")
        return "\n".join(found)

    # --- what happens to it ---

    def reboot(self) -> None:
        """The machine goes down and comes up: what lay in memory only is gone.

        Its kernel is not really a new one, so the journal is told of another boot before this one.
        """
        self.site.go_down()
        with closing(sqlite3.connect(self.plugin.directory / "journal.db")) as journal, journal:
            journal.execute("UPDATE meta SET value = 'before' WHERE key = 'boot_id'")
        for directory in (self.scratch / "run", self.place.cdi_directory):
            for path in sorted(directory.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
        self.site.come_up()

    @contextmanager
    def away(self, component: Component) -> Iterator[None]:
        """Kill a component of the cluster; it comes back at the end."""
        component.kill()
        try:
            yield
        finally:
            component.start()


def conditions(node: Object) -> dict[str, Object]:
    """Conditions of a node by type."""
    found = (node.get("status") or {}).get("conditions") or []
    return {one["type"]: one for one in found}


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # the process has ended
        return ""
