"""Health of all devices, streamed to kubelet, which shows it in the status of pods.

A stream gets the complete list when it opens, again at once when something changes, and again
before kubelet's time-out whether or not something did. Kubelet replaces our time stamps by its own
time of arrival, so a verdict repeated for ever would look fresh for ever: one that was not renewed
in time is reported as unknown instead.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum

import grpc.aio

from node_plugin import translate
from node_plugin.proto import health_v1alpha1_pb2 as wire
from node_plugin.proto.health_v1alpha1_pb2_grpc import DRAResourceHealthServicer

TIMEOUT_S = 30
"""Time, s, after which kubelet takes a device that was not reported again as unknown."""
RESEND_S = 10.0
"""Period, s, of repetition: a third of kubelet's time-out, so that one lost message is no harm."""
FRESH_S = 60.0
"""Age, s, up to which a verdict is repeated; the policy's limit for health (B7)."""
MESSAGE_BYTES_MAX = 1021
"""Kubelet cuts longer messages, between bytes."""


class Health(Enum):
    """Kubelet's three verdicts."""

    UNKNOWN = wire.UNKNOWN
    HEALTHY = wire.HEALTHY
    UNHEALTHY = wire.UNHEALTHY


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """Health of one device as published: names are those of its ResourceSlice."""

    pool: str
    device: str
    health: Health
    message: str = ""
    checked_at: float = 0.0
    """When it was last judged, s since the epoch; 0.0: not since the service started."""


class HealthBoard:
    """The latest list, and who wants to know of changes. `update` is safe for threads."""

    def __init__(self, *, now: Callable[[], float] = time.time, fresh_s: float = FRESH_S) -> None:
        self._now = now
        self._fresh_s = fresh_s
        self._lock = threading.Lock()
        self._devices: tuple[DeviceHealth, ...] | None = None
        self._bells: set[Bell] = set()
        self._closed = False

    def update(self, devices: Sequence[DeviceHealth]) -> None:
        """Replace the list by the complete new one. Streams are told only of what pods can see."""
        with self._lock:
            before, self._devices = self._devices, tuple(devices)
            changed = before is None or _visible(before) != _visible(self._devices)
        if changed:
            self._ring()

    def current(self) -> tuple[DeviceHealth, ...] | None:
        """The list with stale verdicts as unknown; None while nothing was ever reported."""
        with self._lock:
            devices = self._devices
        if devices is None:
            return None
        oldest = self._now() - self._fresh_s
        return tuple(_aged(device, oldest) for device in devices)

    @property
    def closed(self) -> bool:
        """Whether streams are to end."""
        return self._closed

    @property
    def streams(self) -> int:
        """Streams open now."""
        with self._lock:
            return len(self._bells)

    def close(self) -> None:
        """End all streams, and every later one at once."""
        self._closed = True
        self._ring()

    @contextmanager
    def listening(self) -> Iterator[Bell]:
        """A bell on the running event loop that rings at each change, until the block ends."""
        bell = Bell(asyncio.get_running_loop())
        with self._lock:
            self._bells.add(bell)
        try:
            yield bell
        finally:
            with self._lock:
                self._bells.discard(bell)

    def _ring(self) -> None:
        with self._lock:
            bells = tuple(self._bells)
        for bell in bells:
            bell.ring()


class Bell:
    """Wakes one coroutine from any thread; rings that nobody awaited yet count as one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake the coroutine."""
        with suppress(RuntimeError):  # its loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._rung.set)

    async def wait(self, timeout_s: float) -> None:
        """Return at the next ring, or after `timeout_s`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._rung.wait(), timeout_s)
        self._rung.clear()


class ResourceHealth(DRAResourceHealthServicer):
    """``v1alpha1.DRAResourceHealth``: any number of streams over one board."""

    def __init__(self, board: HealthBoard, *, resend_s: float = RESEND_S) -> None:
        self._board = board
        self._resend_s = resend_s

    async def NodeWatchResources(  # noqa: N802 - kubelet names it
        self,
        _request: wire.NodeWatchResourcesRequest,
        _context: grpc.aio.ServicerContext[
            wire.NodeWatchResourcesRequest, wire.NodeWatchResourcesResponse
        ],
    ) -> AsyncIterator[wire.NodeWatchResourcesResponse]:
        """Stream the list until kubelet or the plugin ends it.

        Before the first report nothing is sent: an empty list would say that there are no devices.
        """
        with self._board.listening() as bell:
            while not self._board.closed:
                devices = self._board.current()
                if devices is not None:
                    yield _message(devices)
                await bell.wait(self._resend_s)


def _visible(devices: Sequence[DeviceHealth]) -> list[tuple[str, str, Health, str]]:
    return sorted((d.pool, d.device, d.health, d.message) for d in devices)


def _aged(device: DeviceHealth, oldest: float) -> DeviceHealth:
    if device.health is Health.UNKNOWN or device.checked_at >= oldest:
        return device
    when = (
        f"since {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(device.checked_at))}"
        if device.checked_at
        else "since the node service started"
    )
    return replace(device, health=Health.UNKNOWN, message=f"health not read {when}")


def _message(devices: Sequence[DeviceHealth]) -> wire.NodeWatchResourcesResponse:
    return wire.NodeWatchResourcesResponse(
        devices=[
            wire.DeviceHealth(
                device=wire.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
                health=device.health.value,
                last_updated_time=int(device.checked_at),
                health_check_timeout_seconds=TIMEOUT_S,
                message=translate.shortened(
                    device.message, limit_bytes=MESSAGE_BYTES_MAX, encoding="ascii"
                ),
            )
            for device in devices
        ]
    )
