"""A DRA plugin that does nothing, as a yardstick: ``python -m tests.e2e.idle_plugin``.

It publishes one device, answers every prepare from memory with one CDI name that never changes,
and every unprepare with success: no claim is read, nothing is written, nothing is durable. What a
pod takes with it is Kubernetes' own time. Runs until SIGTERM; takes away what it made.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc.aio

from fleet.core import errors
from fleet.kube import client
from fleet.kube.base import CLASSES, NODES, SLICES, Cluster, Name, Object, name_of, uid_of
from node_plugin.proto import dra_v1_pb2 as v1
from node_plugin.proto import dra_v1_pb2_grpc, registration_pb2_grpc
from node_plugin.proto import registration_pb2 as registration

DRIVER = "idle.fleetscrub.test"
"""Also the name of its device class."""
DEVICE = "idle-0"
KIND = f"{DRIVER}/device"
SERVICE = "v1.DRAPlugin"


class Idle(dra_v1_pb2_grpc.DRAPluginServicer):
    """Answers kubelet at once."""

    def __init__(self, pool: str) -> None:
        self._device = v1.Device(
            pool_name=pool, device_name=DEVICE, cdi_device_ids=[f"{KIND}={DEVICE}"]
        )

    async def NodePrepareResources(  # noqa: N802 - kubelet names it
        self,
        request: v1.NodePrepareResourcesRequest,
        _context: grpc.aio.ServicerContext[
            v1.NodePrepareResourcesRequest, v1.NodePrepareResourcesResponse
        ],
    ) -> v1.NodePrepareResourcesResponse:
        """The one device, for every claim."""
        answer = v1.NodePrepareResourceResponse(devices=[self._device])
        return v1.NodePrepareResourcesResponse(claims={one.uid: answer for one in request.claims})

    async def NodeUnprepareResources(  # noqa: N802 - kubelet names it
        self,
        request: v1.NodeUnprepareResourcesRequest,
        _context: grpc.aio.ServicerContext[
            v1.NodeUnprepareResourcesRequest, v1.NodeUnprepareResourcesResponse
        ],
    ) -> v1.NodeUnprepareResourcesResponse:
        """Done."""
        answer = v1.NodeUnprepareResourceResponse()
        return v1.NodeUnprepareResourcesResponse(claims={one.uid: answer for one in request.claims})


class Greeting(registration_pb2_grpc.RegistrationServicer):
    """Tells kubelet's plugin watcher where it is."""

    def __init__(self, endpoint: Path) -> None:
        self._answer = registration.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(endpoint), supported_versions=[SERVICE]
        )

    async def GetInfo(  # noqa: N802 - kubelet names it
        self,
        _request: registration.InfoRequest,
        _context: grpc.aio.ServicerContext[registration.InfoRequest, registration.PluginInfo],
    ) -> registration.PluginInfo:
        """Who it is."""
        return self._answer

    async def NotifyRegistrationStatus(  # noqa: N802 - kubelet names it
        self,
        _request: registration.RegistrationStatus,
        _context: grpc.aio.ServicerContext[
            registration.RegistrationStatus, registration.RegistrationStatusResponse
        ],
    ) -> registration.RegistrationStatusResponse:
        """Taken note of."""
        return registration.RegistrationStatusResponse()


def device_class() -> Object:
    """The class of its device."""
    return {
        "apiVersion": CLASSES.api_version,
        "kind": CLASSES.kind,
        "metadata": {"name": DRIVER},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
    }


def pool_slice(node: Object) -> Object:
    """Its ResourceSlice."""
    name = name_of(node).name
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid_of(node)}
    return {
        "apiVersion": SLICES.api_version,
        "kind": SLICES.kind,
        "metadata": {"name": f"{name}-{DRIVER}", "ownerReferences": [owner]},
        "spec": {
            "driver": DRIVER,
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": DEVICE}],
        },
    }


@contextmanager
def published(cluster: Cluster, node: str) -> Iterator[None]:
    """Class and slice, for as long as the block runs."""
    found = pool_slice(cluster.get(NODES, Name(node)))
    cluster.apply(CLASSES, device_class(), manager=DRIVER)
    cluster.apply(SLICES, found, manager=DRIVER)
    try:
        yield
    finally:
        for kind, name in ((SLICES, name_of(found)), (CLASSES, Name(DRIVER))):
            with suppress(errors.ApiNotFound):
                cluster.delete(kind, name)


@contextmanager
def described(directory: Path) -> Iterator[None]:
    """Its CDI spec, for as long as the block runs."""
    device = {"name": DEVICE, "containerEdits": {"env": ["IDLE_DEVICE=1"]}}
    path = directory / f"{DRIVER}.json"
    path.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": KIND, "devices": [device]}))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


async def serve(kubelet_root: Path, pool: str) -> None:
    """Serve until SIGTERM."""
    dra = kubelet_root / "plugins" / DRIVER / "dra.sock"
    reg = kubelet_root / "plugins_registry" / f"{DRIVER}-reg.sock"
    dra.parent.mkdir(parents=True, exist_ok=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    servers = []
    for path in (dra, reg):
        path.unlink(missing_ok=True)
        server = grpc.aio.server()
        server.add_insecure_port(f"unix:{path}")
        servers.append(server)
    dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(Idle(pool), servers[0])
    registration_pb2_grpc.add_RegistrationServicer_to_server(Greeting(dra), servers[1])
    for server in servers:
        await server.start()
    await stop.wait()
    for server in reversed(servers):
        await server.stop(1.0)
    reg.unlink(missing_ok=True)


def main() -> None:
    """Publish, describe, serve."""
    parser = argparse.ArgumentParser()
    for name in ("--kubeconfig", "--node"):
        parser.add_argument(name, required=True)
    for name in ("--kubelet-root", "--cdi"):
        parser.add_argument(name, required=True, type=Path)
    asked = parser.parse_args()
    cluster = client.connect(asked.kubeconfig, qps=100.0, timeout_s=10.0)
    with described(asked.cdi), published(cluster, asked.node):
        asyncio.run(serve(asked.kubelet_root, asked.node))


if __name__ == "__main__":
    main()
