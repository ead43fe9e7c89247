"""Rules of the health stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from node_plugin.health import (
    MESSAGE_BYTES_MAX,
    RESEND_S,
    TIMEOUT_S,
    DeviceHealth,
    Health,
    HealthBoard,
    ResourceHealth,
)
from node_plugin.proto import health_v1alpha1_pb2 as wire
from node_plugin.proto.health_v1alpha1_pb2_grpc import (
    DRAResourceHealthStub,
    add_DRAResourceHealthServicer_to_server,
)
from tests.node_plugin.standins import PATIENCE_S, dialled, until

NOW = 1_000_000.0
GOOD = DeviceHealth("node-1", "dev-0", Health.HEALTHY, checked_at=NOW)
BAD = DeviceHealth("node-1", "dev-1", Health.UNHEALTHY, "ecc errors", checked_at=NOW)

Stream = AsyncIterator[wire.NodeWatchResourcesResponse]


@asynccontextmanager
async def watched(
    directory: Path, board: HealthBoard, *, resend_s: float = RESEND_S
) -> AsyncIterator[DRAResourceHealthStub]:
    """A client of a server over `board`."""
    server = grpc.aio.server()
    add_DRAResourceHealthServicer_to_server(ResourceHealth(board, resend_s=resend_s), server)
    server.add_insecure_port(f"unix:{directory}/health.sock")
    await server.start()
    async with dialled(directory / "health.sock") as channel:
        yield DRAResourceHealthStub(channel)
    board.close()
    await server.stop(1)


def opened(stub: DRAResourceHealthStub) -> Stream:
    """A new stream."""
    return stub.NodeWatchResources(wire.NodeWatchResourcesRequest()).__aiter__()


async def following(stream: Stream) -> dict[str, int]:
    """Health by device in the next message."""
    message = await asyncio.wait_for(anext(stream), PATIENCE_S)
    return {device.device.device_name: device.health for device in message.devices}


def board() -> HealthBoard:
    """A board at a fixed time."""
    return HealthBoard(now=lambda: NOW)


def test_the_period_is_well_within_kubelets_time_out() -> None:
    """Invariant 33: the list is repeated before half of the time after which kubelet forgets it."""
    assert 0 < RESEND_S < TIMEOUT_S / 2


def test_a_stream_gets_everything_at_once_and_every_change_at_once(place: Path) -> None:
    """Invariant 33: the full list on connect and again, complete, at each change; a change from
    another thread too."""
    found = board()

    async def story() -> None:
        found.update([GOOD, BAD])
        async with watched(place, found) as stub:
            stream = opened(stub)
            assert await following(stream) == {"dev-0": wire.HEALTHY, "dev-1": wire.UNHEALTHY}
            await asyncio.to_thread(found.update, [BAD])
            assert await following(stream) == {"dev-1": wire.UNHEALTHY}
            other = opened(stub)
            assert await following(other) == {"dev-1": wire.UNHEALTHY}
            assert found.streams == 2
            found.update([GOOD])
            for each in (stream, other):
                assert await following(each) == {"dev-0": wire.HEALTHY}

    asyncio.run(story())


def test_the_list_is_repeated_without_a_change(place: Path) -> None:
    """Invariant 33: kubelet hears of unchanged devices again before its time-out."""
    found = board()

    async def story() -> None:
        found.update([GOOD])
        async with watched(place, found, resend_s=0.02) as stub:
            stream = opened(stub)
            for _ in range(4):
                assert await following(stream) == {"dev-0": wire.HEALTHY}

    asyncio.run(story())


def test_nothing_is_said_before_something_is_known(place: Path) -> None:
    """A stream opened before the first sweep stays silent: an empty list says something."""
    found = board()

    async def story() -> None:
        async with watched(place, found, resend_s=0.01) as stub:
            first = asyncio.ensure_future(following(opened(stub)))
            await until(lambda: found.streams == 1, "a stream")
            assert found.current() is None
            assert not first.done()
            found.update([])
            assert await first == {}

    asyncio.run(story())


def test_streams_come_and_go_without_a_trace(place: Path) -> None:
    """Invariant 33: kubelet opens and drops streams every few seconds; none stays behind."""
    found = board()

    async def story() -> None:
        found.update([GOOD])
        async with watched(place, found) as stub:
            for _ in range(100):
                call = stub.NodeWatchResources(wire.NodeWatchResourcesRequest())
                message = await asyncio.wait_for(anext(call.__aiter__()), PATIENCE_S)
                assert len(message.devices) == 1
                call.cancel()
            await until(lambda: found.streams == 0, "the end of all streams")

    asyncio.run(story())


def test_closing_the_board_ends_its_streams(place: Path) -> None:
    """A stop does not wait for streams that kubelet would keep open for ever."""
    found = board()

    async def story() -> None:
        found.update([GOOD])
        async with watched(place, found) as stub:
            stream = opened(stub)
            await following(stream)
            found.close()
            with pytest.raises(StopAsyncIteration):
                await asyncio.wait_for(anext(stream), PATIENCE_S)

    asyncio.run(story())


def test_what_nobody_can_see_is_not_pushed() -> None:
    """A new time of check or another order of devices wakes no stream; a new message does."""

    async def story() -> None:
        found = board()
        found.update([GOOD, BAD])
        with found.listening() as bell:
            found.update([BAD, DeviceHealth("node-1", "dev-0", Health.HEALTHY, checked_at=NOW + 1)])
            await asyncio.sleep(0)
            assert not bell._rung.is_set()
            found.update([BAD, DeviceHealth("node-1", "dev-0", Health.HEALTHY, "hot")])
            await asyncio.sleep(0)
            assert bell._rung.is_set()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("checked_at", "health"),
    [(NOW, Health.HEALTHY), (NOW - 60, Health.HEALTHY), (NOW - 61, Health.UNKNOWN)],
)
def test_an_old_verdict_is_unknown(checked_at: float, health: Health) -> None:
    """Kubelet stamps every message with its arrival, so only we can say that a verdict is old."""
    found = board()
    found.update([DeviceHealth("node-1", "dev-0", Health.HEALTHY, checked_at=checked_at)])
    current = found.current()
    assert current is not None
    assert current[0].health is health


def test_a_device_never_checked_is_unknown() -> None:
    """Checked at 0.0 means never since the service started, and is said so."""
    found = board()
    found.update([DeviceHealth("node-1", "dev-0", Health.HEALTHY)])
    current = found.current()
    assert current is not None
    assert current[0].health is Health.UNKNOWN
    assert current[0].message == "health not read since the node service started"


def test_messages_are_short_ascii(place: Path) -> None:
    """Kubelet cuts long messages between bytes: ours are ASCII and fit."""
    found = board()

    async def story() -> wire.DeviceHealth:
        found.update([DeviceHealth("p", "d", Health.UNHEALTHY, "é — " * 1000, checked_at=NOW)])
        async with watched(place, found) as stub:
            message = await asyncio.wait_for(anext(opened(stub)), PATIENCE_S)
            return message.devices[0]

    device = asyncio.run(story())
    assert device.message.isascii()
    assert len(device.message) == MESSAGE_BYTES_MAX
    assert device.last_updated_time == int(NOW)
    assert device.health_check_timeout_seconds == TIMEOUT_S
