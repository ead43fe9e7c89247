"""A small plugin for kubelet to meet: does as told, well or badly, and remembers every call."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from node_plugin.proto import (
    dra_v1_pb2,
    dra_v1beta1_pb2,
    health_v1alpha1_pb2,
    registration_pb2,
)
from tests.lab.kubelet.connection import HEALTH, V1, V1BETA1

DRIVER = "gpu.example.com"
Unary = Callable[[Any, grpc.ServicerContext], Any]


class FakePlugin:
    """Serves both sockets below a kubelet root; each claim gets one memory file by CDI."""

    def __init__(self, root: Path, cdi: Path, memory: Path, *, name: str = "a") -> None:
        self.registration = root / "plugins_registry" / f"{DRIVER}-{name}-reg.sock"
        self.endpoint = root / "plugins" / f"{name}.sock"
        self.cdi = cdi
        self.memory = memory
        self.kind = "DRAPlugin"
        self.driver = DRIVER
        self.versions = [V1, V1BETA1, HEALTH]
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.notified: list[str] = []
        self.greeted = 0
        self.errors: dict[str, str] = {}
        """Claim UID to the error it gets from either call."""
        self.silent: set[str] = set()
        """Claims that get no entry at all."""
        self.extra: dict[str, str] = {}
        self.share_id: str | None = None
        self.gate = threading.Event()
        """Cleared: prepares wait."""
        self.gate.set()
        self.refuse_notify = False
        self.health_over = threading.Event()
        self._servers: list[grpc.Server] = []

    def start(self) -> None:
        """Serve the DRA socket, then the registration socket."""
        for path, add in ((self.endpoint, self._dra), (self.registration, self._greetings)):
            path.parent.mkdir(parents=True, exist_ok=True)
            server = grpc.server(ThreadPoolExecutor(16))
            add(server)
            server.add_insecure_port(f"unix:{path}")
            server.start()
            self._servers.append(server)

    def stop(self, *, leave_sockets: bool = False) -> None:
        """End; with `leave_sockets` as if killed."""
        self.gate.set()
        self.health_over.set()
        for server in reversed(self._servers):
            server.stop(0).wait()
        self._servers.clear()
        for path in (self.registration, self.endpoint):
            path.unlink(missing_ok=True)
            if leave_sockets:
                _stale_socket(path)

    def prepared(self) -> set[str]:
        """UIDs that have a spec."""
        return {path.stem.removeprefix("claim-") for path in self.cdi.glob("*.json")}

    def _greetings(self, server: grpc.Server) -> None:
        handlers = {
            "GetInfo": _unary(self._greet, registration_pb2.InfoRequest),
            "NotifyRegistrationStatus": _unary(self._notify, registration_pb2.RegistrationStatus),
        }
        name = "pluginregistration.Registration"
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))

    def _dra(self, server: grpc.Server) -> None:
        for version, messages in (("v1", dra_v1_pb2), ("v1beta1", dra_v1beta1_pb2)):
            name = f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin"
            handlers = {
                "NodePrepareResources": _unary(
                    self._prepare(messages), messages.NodePrepareResourcesRequest
                ),
                "NodeUnprepareResources": _unary(
                    self._unprepare(messages), messages.NodeUnprepareResourcesRequest
                ),
            }
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        if HEALTH not in self.versions:
            return
        watch = grpc.unary_stream_rpc_method_handler(
            self._watch,
            request_deserializer=health_v1alpha1_pb2.NodeWatchResourcesRequest.FromString,
            response_serializer=health_v1alpha1_pb2.NodeWatchResourcesResponse.SerializeToString,
        )
        handlers = {"NodeWatchResources": watch}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(HEALTH, handlers),))

    def _greet(self, _: Any, __: grpc.ServicerContext) -> Any:
        self.greeted += 1
        return registration_pb2.PluginInfo(
            type=self.kind,
            name=self.driver,
            endpoint=str(self.endpoint),
            supported_versions=self.versions,
        )

    def _notify(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.notified.append("ok" if request.plugin_registered else request.error)
        if self.refuse_notify:
            context.abort(grpc.StatusCode.INTERNAL, "not now")
        return registration_pb2.RegistrationStatusResponse()

    def _prepare(self, messages: Any) -> Unary:
        def prepare(request: Any, context: grpc.ServicerContext) -> Any:
            self.calls.append(("prepare", tuple(claim.uid for claim in request.claims)))
            self.gate.wait()
            answer = messages.NodePrepareResourcesResponse()
            for claim in request.claims:
                if claim.uid not in self.silent:
                    self.prepare_one(claim.uid, answer.claims[claim.uid])
            for uid, text in self.extra.items():
                answer.claims[uid].error = text
            return answer

        return prepare

    def prepare_one(self, uid: str, entry: Any) -> None:
        """Answer for one claim."""
        if uid in self.errors:
            entry.error = self.errors[uid]
            return
        self.cdi.mkdir(exist_ok=True)
        self.write_spec(uid)
        device = entry.devices.add(request_names=["gpu"], pool_name="node-a", device_name="gpu-0")
        device.cdi_device_ids.append(f"example.com/gpu={uid}")
        if self.share_id is not None and "share_id" in device.DESCRIPTOR.fields_by_name:
            device.share_id = self.share_id

    def write_spec(self, uid: str) -> Path:
        """Make a claim's spec visible."""
        mount = {
            "hostPath": str(self.memory),
            "containerPath": "/dev/fleetsim/gpu-0",
            "options": ["rbind", "rw"],
        }
        spec = {
            "cdiVersion": "0.5.0",
            "kind": "example.com/gpu",
            "devices": [{"name": uid, "containerEdits": {"env": ["A=1"], "mounts": [mount]}}],
        }
        path = self.cdi / f"claim-{uid}.json"
        path.write_text(json.dumps(spec))
        return path

    def _unprepare(self, messages: Any) -> Unary:
        def unprepare(request: Any, context: grpc.ServicerContext) -> Any:
            self.calls.append(("unprepare", tuple(claim.uid for claim in request.claims)))
            answer = messages.NodeUnprepareResourcesResponse()
            for claim in request.claims:
                refusal = self.refusal(claim.uid)
                answer.claims[claim.uid].error = refusal
                if not refusal:
                    self.take_back(claim.uid)
            return answer

        return unprepare

    def refusal(self, uid: str) -> str:
        """Why a claim cannot be unprepared now; empty when it can."""
        return self.errors.get(uid, "")

    def take_back(self, uid: str) -> None:
        """End a claim."""
        (self.cdi / f"claim-{uid}.json").unlink(missing_ok=True)

    def _watch(self, _: Any, __: grpc.ServicerContext) -> Iterator[Any]:
        answer = health_v1alpha1_pb2.NodeWatchResourcesResponse()
        device = answer.devices.add(health=2, message="hot")
        device.device.pool_name, device.device.device_name = "node-a", "gpu-0"
        self.calls.append(("health", ()))
        yield answer
        self.health_over.wait()


def _unary(behaviour: Unary, request: Any) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(
        behaviour,
        request_deserializer=request.FromString,
        response_serializer=lambda found: found.SerializeToString(),
    )


def _stale_socket(path: Path) -> None:
    """A socket file nobody listens on."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
