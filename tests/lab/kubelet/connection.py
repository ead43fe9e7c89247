"""Kubelet's side of the two sockets of a plugin: calls, deadlines and the health stream.

A call that fails as a whole is `PluginUnavailable`; an answer that breaks the rules (an entry
missing or too many) is `InputInvalid`, as kubelet refuses it too.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc

from fleet.core import errors
from fleet.plugin.requests import AskedClaim, PreparedDevice
from node_plugin.proto import (
    dra_v1_pb2,
    dra_v1beta1_pb2,
    health_v1alpha1_pb2,
    registration_pb2,
)

V1 = "v1.DRAPlugin"
V1BETA1 = "v1beta1.DRAPlugin"
HEALTH = "v1alpha1.DRAResourceHealth"
SERVICES = (V1, V1BETA1)
"""DRA services this kubelet knows; it takes the first of the plugin's list that is one of them."""
PLUGIN_TYPE = "DRAPlugin"
_KNOCK_S = 0.5

_PREFIX = "/k8s.io.kubelet.pkg.apis.dra."
_MESSAGES: Mapping[str, Any] = {V1: dra_v1_pb2, V1BETA1: dra_v1beta1_pb2}


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a plugin says of itself."""

    kind: str
    driver: str
    endpoint: str
    services: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """A plugin's answer for one claim; an error that is not empty: the claim is not prepared."""

    error: str = ""
    devices: tuple[PreparedDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """Health of one device as the plugin last reported it: UNKNOWN, HEALTHY or UNHEALTHY."""

    pool: str
    device: str
    health: str
    message: str = ""
    timeout_s: int = 0


class Registration:
    """A connection to a registration socket, dialled by its bare path as kubelet does it."""

    def __init__(self, path: Path) -> None:
        authority = quote(str(path), safe="")
        self._channel = grpc.insecure_channel(
            f"unix:{path}", options=[("grpc.default_authority", authority)]
        )

    def greet(self, *, timeout_s: float) -> Greeting:
        """GetInfo. Raises `PluginUnavailable`."""
        call = self._channel.unary_unary(
            "/pluginregistration.Registration/GetInfo",
            request_serializer=registration_pb2.InfoRequest.SerializeToString,
            response_deserializer=registration_pb2.PluginInfo.FromString,
        )
        try:
            found = call(registration_pb2.InfoRequest(), timeout=timeout_s, wait_for_ready=True)
        except grpc.RpcError as error:
            raise failed("GetInfo", error) from error
        return Greeting(found.type, found.name, found.endpoint, tuple(found.supported_versions))

    def notify(self, error_text: str = "", *, timeout_s: float) -> None:
        """NotifyRegistrationStatus: registered, or why not. Raises `PluginUnavailable`."""
        call = self._channel.unary_unary(
            "/pluginregistration.Registration/NotifyRegistrationStatus",
            request_serializer=registration_pb2.RegistrationStatus.SerializeToString,
            response_deserializer=registration_pb2.RegistrationStatusResponse.FromString,
        )
        status = registration_pb2.RegistrationStatus(
            plugin_registered=not error_text, error=error_text
        )
        try:
            call(status, timeout=timeout_s)
        except grpc.RpcError as error:
            raise failed("NotifyRegistrationStatus", error) from error

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


class Connection:
    """The connection to a DRA socket; it reconnects by itself, as kubelet's does."""

    def __init__(self, endpoint: str, service: str) -> None:
        """`service` is one of `SERVICES`."""
        self.service = service
        self._messages = _MESSAGES[service]
        self._endpoint = endpoint
        self._channel = grpc.insecure_channel(
            f"unix:{endpoint}",
            options=[
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
            ],
        )

    @property
    def connected(self) -> bool:
        """Whether somebody listens at the endpoint now.

        Asked of the socket, not of the channel: the library's own thread that watches a channel
        fails when the channel is closed.
        """
        with socket.socket(socket.AF_UNIX) as knock:
            knock.settimeout(_KNOCK_S)
            return knock.connect_ex(self._endpoint) == 0

    def prepare(self, claims: Sequence[AskedClaim], *, timeout_s: float) -> dict[str, Answer]:
        """NodePrepareResources; one answer for each UID. Raises as the module says."""
        found = self._call("NodePrepareResources", claims, timeout_s)
        return {
            uid: Answer(entry.error, tuple(map(_device, entry.devices)))
            for uid, entry in found.items()
        }

    def unprepare(self, claims: Sequence[AskedClaim], *, timeout_s: float) -> dict[str, Answer]:
        """NodeUnprepareResources; one answer for each UID. Raises as the module says."""
        found = self._call("NodeUnprepareResources", claims, timeout_s)
        return {uid: Answer(entry.error) for uid, entry in found.items()}

    def _call(
        self, method: str, claims: Sequence[AskedClaim], timeout_s: float
    ) -> Mapping[str, Any]:
        messages = self._messages
        request_type = getattr(messages, f"{method}Request")
        response_type = getattr(messages, f"{method}Response")
        call = self._channel.unary_unary(
            f"{_PREFIX}{self.service}/{method}",
            request_serializer=request_type.SerializeToString,
            response_deserializer=response_type.FromString,
        )
        request = request_type(
            claims=[
                messages.Claim(namespace=one.namespace, uid=one.uid, name=one.name)
                for one in claims
            ]
        )
        try:
            # With somebody there the channel is given time to come back from its own pause.
            found = call(request, timeout=timeout_s, wait_for_ready=self.connected)
            entries: Mapping[str, Any] = found.claims
        except (grpc.RpcError, ValueError) as error:  # ValueError: hung up meanwhile
            raise failed(method, error) from error
        asked = {one.uid for one in claims}
        if set(entries) != asked:
            raise errors.InputInvalid(
                f"{method} answered for {sorted(entries)}, asked was {sorted(asked)}"
            )
        return entries

    def health(self) -> Iterator[tuple[DeviceHealth, ...]]:
        """NodeWatchResources: complete lists until the stream ends. Raises `PluginUnavailable`."""
        call = self._channel.unary_stream(
            f"/{HEALTH}/NodeWatchResources",
            request_serializer=health_v1alpha1_pb2.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health_v1alpha1_pb2.NodeWatchResourcesResponse.FromString,
        )
        try:
            for listed in call(health_v1alpha1_pb2.NodeWatchResourcesRequest()):
                yield tuple(map(_health, listed.devices))
        except (grpc.RpcError, ValueError) as error:
            raise failed("NodeWatchResources", error) from error

    def close(self) -> None:
        """Hang up; calls in flight fail."""
        self._channel.close()


def failed(method: str, error: Exception) -> errors.PluginUnavailable:
    """A call that failed as a whole; its field ``code`` is the gRPC status."""
    if not isinstance(error, grpc.Call):
        return errors.PluginUnavailable(f"{method}: {error}", code="CANCELLED")
    name = error.code().name
    return errors.PluginUnavailable(f"{method}: {name}: {error.details()}", code=name)


def _device(found: Any) -> PreparedDevice:
    share = None
    if "share_id" in found.DESCRIPTOR.fields_by_name and found.HasField("share_id"):
        share = str(found.share_id)
    return PreparedDevice(
        requests=tuple(found.request_names),
        pool=found.pool_name,
        device=found.device_name,
        cdi_ids=tuple(found.cdi_device_ids),
        share_id=share,
    )


def _health(found: health_v1alpha1_pb2.DeviceHealth) -> DeviceHealth:
    return DeviceHealth(
        pool=found.device.pool_name,
        device=found.device.device_name,
        health=health_v1alpha1_pb2.HealthStatus.Name(found.health),
        message=found.message,
        timeout_s=found.health_check_timeout_seconds,
    )
