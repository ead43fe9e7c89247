"""The two kinds of cluster the stories are told on: a real one, and the stand-in with models.

On both the node plugin and the coordinator are the real processes, and pods run real commands. On
the stand-in scheduler and claim controller are the twin's, kubelet is `tests.stories.kubelet`, and
the API server is a process of its own; nothing but time is shorter.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Protocol

from fleet.core import errors
from fleet.kube import client
from fleet.kube.base import (
    CLAIMS,
    CLASSES,
    NODES,
    PODS,
    Cluster,
    Name,
    Selection,
    name_of,
)
from fleet.kube.cluster import KubernetesCluster
from tests.deploy import manifests
from tests.e2e import place as places
from tests.e2e import workloads
from tests.e2e.place import Place
from tests.e2e.polling import eventually
from tests.lab.kubelet.cgroups import PodCgroups
from tests.lab.kubelet.runtime import Runtime
from tests.stories.control import ControlSide
from tests.stories.kubelet import PodKubelet

ROOT = Path(__file__).parents[2]
NODE = "node-1"
START_S = 60.0


class World(Protocol):
    """A cluster with one node of ours."""

    real: bool
    place: Place
    node: str
    cluster: Cluster

    def open_namespace(self, name: str) -> None:
        """Make a namespace in which pods can be created."""
        ...

    def end_namespace(self, name: str) -> None:
        """Delete a namespace with all in it; not waited for."""
        ...

    def has_namespace(self, name: str) -> bool:
        """Whether the namespace, or anything in it, is still there."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class RealWorld:
    """The cluster that the environment names."""

    real = True

    def __init__(self) -> None:
        self.place = places.named()
        self.cluster: Cluster = client.connect(
            str(self.place.kubeconfig), qps=1000.0, timeout_s=10.0
        )
        names = [name_of(one).name for one in self.cluster.list(NODES).items]
        assert self.place.node in names or len(names) == 1, "say which Node: FLEET_E2E_NODE"
        self.node = self.place.node or names[0]
        for one in manifests.objects("classes.yaml"):
            self.cluster.apply(CLASSES, one, manager="fleet-e2e")

    def open_namespace(self, name: str) -> None:
        """As `World`."""
        self.cluster.create(workloads.NAMESPACES, workloads.namespace(name))
        eventually("it has its account", lambda: self._has_account(name), timeout_s=30)

    def end_namespace(self, name: str) -> None:
        """As `World`."""
        self.cluster.delete(workloads.NAMESPACES, Name(name))

    def has_namespace(self, name: str) -> bool:
        """As `World`."""
        try:
            self.cluster.get(workloads.NAMESPACES, Name(name))
        except errors.ApiNotFound:
            return False
        return True

    def close(self) -> None:
        """As `World`."""
        for one in manifests.objects("classes.yaml"):
            self.cluster.delete(CLASSES, name_of(one))

    def _has_account(self, namespace: str) -> bool:
        listed = self.cluster.list(workloads.ACCOUNTS, Selection(namespace=namespace))
        return any(name_of(one).name == "default" for one in listed.items)


class StandInWorld:
    """The stand-in API server as a process, with models of what else a cluster is."""

    real = False

    def __init__(self, root: Path) -> None:
        """Everything is below `root`, which is there and empty."""
        self.place = Place(
            kubeconfig=root / "kubeconfig",
            kubelet_root=root / "kubelet",
            cdi_directory=root / "cdi",
            node=NODE,
            image="busybox",
            cgroup_root=root / "cgroup",
        )
        self.node = NODE
        self.place.cdi_directory.mkdir()
        self._server = _served(root, self.place.kubeconfig)
        self._connection: KubernetesCluster = client.connect(
            str(self.place.kubeconfig), qps=1000.0, timeout_s=10.0
        )
        self.cluster: Cluster = self._connection
        self.cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        classes = manifests.objects("classes.yaml")
        for one in classes:
            self.cluster.create(CLASSES, one)
        runtime = Runtime(self.place.cdi_directory, PodCgroups(self.place.cgroup_root))
        self._kubelet = PodKubelet(self.place.kubelet_root, self.cluster, NODE, runtime)
        self._control = ControlSide(self.cluster, classes)
        self._control.sight.listen(self._kubelet.seen)
        self._kubelet.start()
        self._control.start()

    def open_namespace(self, name: str) -> None:
        """As `World`: the stand-in takes objects of any namespace."""

    def end_namespace(self, name: str) -> None:
        """As `World`."""
        self._control.controller.namespaces.add(name)
        self._control.sight.stirred.set()

    def has_namespace(self, name: str) -> bool:
        """As `World`."""
        kinds = (PODS, CLAIMS, workloads.TEMPLATES)
        return any(self.cluster.list(one, Selection(namespace=name)).items for one in kinds)

    def close(self) -> None:
        """As `World`."""
        self._kubelet.close()
        self._control.close()
        self._connection.close()
        self._server.terminate()
        self._server.wait(10)


def _served(root: Path, kubeconfig: Path) -> subprocess.Popen[bytes]:
    ports = root / "port"
    command = [
        "-m",
        "tests.lab.apiserver",
        "--port-file",
        str(ports),
        "--kubeconfig",
        str(kubeconfig),
    ]
    server = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdin=subprocess.DEVNULL)
    eventually("the stand-in serves", ports.exists, timeout_s=START_S)
    return server
