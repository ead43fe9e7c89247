"""How kubelet gets to know the plugin: who it is, and whether kubelet took it.

Both answers come from memory at once: kubelet waits 1 s for the first, and an error or a delay in
the second makes it drop a plugin it had just accepted. Kubelet asks again after each of its starts
on the same socket, any number of times.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import grpc.aio

from node_plugin import translate
from node_plugin.proto import registration_pb2 as wire
from node_plugin.proto.registration_pb2_grpc import RegistrationServicer

PLUGIN_TYPE = "DRAPlugin"
SUPPORTED_VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")
"""Short names of the services, best first: kubelet takes the first it knows, and only v1 carries
share ids."""
REASON_BYTES_MAX = 1024

_log = logging.getLogger(__name__)


class Registered(StrEnum):
    """What kubelet last said."""

    WAITING = "waiting"
    """Nothing yet."""
    ACCEPTED = "accepted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class RegistrationState:
    """The registration as last told by kubelet, and how often it was accepted and refused."""

    state: Registered = Registered.WAITING
    reason: str = ""
    """Why kubelet refused; in kubelet's words, on one line."""
    at: float = 0.0
    """When kubelet said so, s since the epoch."""
    accepted: int = 0
    refused: int = 0


class Registration(RegistrationServicer):
    """Serves kubelet's plugin watcher. `heard` is called on the event loop and must not block."""

    def __init__(
        self,
        *,
        driver: str,
        endpoint: Path,
        heard: Callable[[RegistrationState], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._answer = wire.PluginInfo(
            type=PLUGIN_TYPE,
            name=driver,
            endpoint=str(endpoint),
            supported_versions=SUPPORTED_VERSIONS,
        )
        self._heard = heard
        self._now = now
        self._state = RegistrationState()

    @property
    def state(self) -> RegistrationState:
        """What kubelet last said. Safe for threads."""
        return self._state

    async def GetInfo(  # noqa: N802 - kubelet names it
        self,
        _request: wire.InfoRequest,
        _context: grpc.aio.ServicerContext[wire.InfoRequest, wire.PluginInfo],
    ) -> wire.PluginInfo:
        """Who the plugin is."""
        return self._answer

    async def NotifyRegistrationStatus(  # noqa: N802 - kubelet names it
        self,
        request: wire.RegistrationStatus,
        _context: grpc.aio.ServicerContext[
            wire.RegistrationStatus, wire.RegistrationStatusResponse
        ],
    ) -> wire.RegistrationStatusResponse:
        """Take note; nothing that happens here may fail the call."""
        old = self._state
        if request.plugin_registered:
            self._state = replace(
                old,
                state=Registered.ACCEPTED,
                reason="",
                at=self._now(),
                accepted=old.accepted + 1,
            )
            _log.info("kubelet registered %s at %s", self._answer.name, self._answer.endpoint)
        else:
            self._state = replace(
                old,
                state=Registered.REFUSED,
                reason=translate.shortened(request.error, limit_bytes=REASON_BYTES_MAX),
                at=self._now(),
                refused=old.refused + 1,
            )
            _log.error("kubelet refused %s: %s", self._answer.name, self._state.reason)
        try:
            self._heard(self._state)
        except Exception:  # noqa: BLE001 - an error here would make kubelet drop the plugin
            _log.exception("the registration's listener failed")
        return wire.RegistrationStatusResponse()
