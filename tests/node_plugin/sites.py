"""Places for whole plugins: an API server, kubelet's directories, and calls as kubelet makes them.

Everything lies below one short path: socket addresses end at 107 bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from fleet.core.settings import KubernetesSettings, Settings
from fleet.kube.base import CLAIMS, NODES, PODS, SLICES, Cluster, Object, uid_of
from fleet.plugin.requests import AskedClaim
from node_plugin.proto import dra_v1_pb2 as v1
from tests.fleet.node.conftest import quick_settings
from tests.fleet.node.trees import checkpoint_text
from tests.node_plugin.standins import ALONE

DRIVER = "gpu.fleetscrub.dev"
NODE = "node1"
SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


@dataclass
class Place:
    """The directories of one node and the API objects a test needs."""

    root: Path
    cluster: Cluster
    serial: int = field(default=0)

    def __post_init__(self) -> None:
        for name in ("kubelet/plugins_registry", "kubelet/plugins", "cgroup/kubepods"):
            (self.root / name).mkdir(parents=True)
        (self.root / "cgroup" / "cgroup.procs").touch()
        (self.root / "cgroup" / "kubepods" / "cgroup.procs").touch()
        (self.root / "kubelet" / "dra_manager_state").write_text(checkpoint_text({}))
        self.cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})

    @property
    def settings(self) -> Settings:
        """Profile `fast`, everything below the root, quick about idle devices."""
        base = quick_settings()
        section = KubernetesSettings(
            cdi_directory=str(self.root / "cdi"),
            kubelet_root=str(self.root / "kubelet"),
            cgroup_root=str(self.root / "cgroup"),
            publish_period_s=0.1,
            budget_s=6.0,
        )
        node = base.node.model_copy(update={"idle_delay_s": 0.1})
        return Settings.model_validate(
            {**base.model_dump(), "profile": "fast", "node": node, "kubernetes": section}
        )

    @property
    def registry(self) -> list[str]:
        """Registration sockets that kubelet would see."""
        return sorted(p.name for p in (self.root / "kubelet" / "plugins_registry").iterdir())

    @property
    def dra(self) -> Path:
        """The plugin's socket."""
        return self.root / "kubelet" / "plugins" / DRIVER / "dra.sock"

    @property
    def specs(self) -> list[Path]:
        """CDI specs that a runtime would read."""
        return sorted((self.root / "cdi").glob("*.json"))

    def ids(self) -> set[str]:
        """CDI ids that a runtime would resolve."""
        found = [json.loads(path.read_text()) for path in self.specs]
        return {f"{one['kind']}={device['name']}" for one in found for device in one["devices"]}

    def taints(self) -> Mapping[str, Sequence[str]]:
        """Keys of taints, without the driver, by device in the slices."""
        slices = self.cluster.list(SLICES).items
        return {
            str(device["name"]): [t["key"].partition("/")[2] for t in device.get("taints", [])]
            for one in slices
            for device in one["spec"].get("devices", [])
        }

    def allocatable(self, count: int) -> bool:
        """Whether that many devices are published without a taint."""
        return list(self.taints().values()).count([]) == count

    def claim(self, device: str = "gpu-0") -> AskedClaim:
        """A claim allocated the device and reserved for a pod of this node."""
        self.serial += 1
        name = f"claim-{self.serial}"
        pod = self.cluster.create(
            PODS,
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"pod-{self.serial}", "namespace": "default"},
                "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": "x"}]},
            },
        )
        requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]
        claim = self.cluster.create(
            CLAIMS,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": requests}},
            },
        )
        chosen = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device}
        status: Object = {
            "allocation": {"devices": {"results": [chosen]}},
            "reservedFor": [{"resource": "pods", "name": f"pod-{self.serial}", "uid": uid_of(pod)}],
        }
        self.cluster.replace(CLAIMS, {**claim, "status": status}, subresource="status")
        return AskedClaim("default", uid_of(claim), name)


@dataclass(frozen=True)
class Kubelet:
    """Kubelet's calls at a plugin's socket."""

    channel: grpc.Channel

    def prepare(self, *asked: AskedClaim) -> Mapping[str, v1.NodePrepareResourceResponse]:
        """NodePrepareResources within kubelet's deadline."""
        call = self.channel.unary_unary(
            f"{SERVICE}/NodePrepareResources",
            request_serializer=v1.NodePrepareResourcesRequest.SerializeToString,
            response_deserializer=v1.NodePrepareResourcesResponse.FromString,
        )
        request = v1.NodePrepareResourcesRequest(claims=[_claim(one) for one in asked])
        return dict(call(request, timeout=45).claims)

    def unprepare(self, *asked: AskedClaim) -> Mapping[str, str]:
        """NodeUnprepareResources; the errors by UID, "" for success."""
        call = self.channel.unary_unary(
            f"{SERVICE}/NodeUnprepareResources",
            request_serializer=v1.NodeUnprepareResourcesRequest.SerializeToString,
            response_deserializer=v1.NodeUnprepareResourcesResponse.FromString,
        )
        request = v1.NodeUnprepareResourcesRequest(claims=[_claim(one) for one in asked])
        return {uid: one.error for uid, one in call(request, timeout=45).claims.items()}


def _claim(asked: AskedClaim) -> v1.Claim:
    return v1.Claim(namespace=asked.namespace, uid=asked.uid, name=asked.name)


@contextmanager
def kubelet(place: Place, instance: str = "") -> Iterator[Kubelet]:
    """A connection of its own to the socket of the plugin, or of one instance of it."""
    path = place.dra.with_name(f"dra-{instance}.sock") if instance else place.dra
    with grpc.insecure_channel(f"unix:{path}", ALONE) as channel:
        yield Kubelet(channel)
