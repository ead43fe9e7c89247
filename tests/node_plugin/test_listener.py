"""Rules of one server behind one published socket."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import grpc
import grpc.aio
import pytest

from fleet.core import errors
from node_plugin.listener import Listener
from node_plugin.proto import registration_pb2, registration_pb2_grpc
from node_plugin.registration import Registration
from tests.node_plugin.standins import dialled


async def ask(channel: grpc.aio.Channel) -> object:
    """Who is there."""
    stub = registration_pb2_grpc.RegistrationStub(channel)
    answer = await stub.GetInfo(registration_pb2.InfoRequest())
    return answer.name


def listener(path: Path, name: str = "one") -> Listener:
    """A listener that tells its name."""
    service = Registration(driver=name, endpoint=path, heard=lambda _: None)

    def add(server: grpc.aio.Server) -> None:
        registration_pb2_grpc.add_RegistrationServicer_to_server(service, server)

    return Listener(path, lock=path.with_name("lock"), services=add, check=ask)


def test_it_answers_before_it_is_seen(place: Path) -> None:
    """Invariant 2: the path does not exist while the check runs, and works when it appears."""
    path = place / "dra.sock"
    seen_while_checked: list[bool] = []

    async def check(channel: grpc.aio.Channel) -> object:
        seen_while_checked.append(path.exists())
        return await ask(channel)

    async def story() -> object:
        found = listener(path)
        found._check = check
        await found.open()
        assert found.seen
        async with dialled(path) as channel:
            name = await ask(channel)
        await found.close(0)
        return name

    assert asyncio.run(story()) == "one"
    assert seen_while_checked == [False]
    assert not path.exists()


def test_a_server_that_does_not_answer_is_never_seen(place: Path) -> None:
    """A failed check leaves no path, no private socket and no server."""
    path = place / "dra.sock"

    async def story() -> None:
        found = Listener(path, lock=place / "lock", services=lambda _: None, check=ask)
        with pytest.raises(errors.SocketTaken, match="does not answer"):
            await found.open()
        assert not found.seen

    asyncio.run(story())
    assert list(place.iterdir()) == []


def test_it_may_be_opened_again(place: Path) -> None:
    """Closing and opening makes a new socket at the same path; closing twice is harmless."""
    path = place / "dra.sock"

    async def story() -> None:
        found = listener(path)
        for _ in range(3):
            await found.open()
            async with dialled(path) as channel:
                assert await ask(channel) == "one"
            await found.close(0)
            await found.close(0)
            assert not path.exists()

    asyncio.run(story())


def test_withdrawing_leaves_connections_alone(place: Path) -> None:
    """Once hidden, the server still answers on the connections it has."""
    path = place / "dra.sock"

    async def story() -> None:
        found = listener(path)
        await found.open()
        async with dialled(path) as channel:
            assert await ask(channel) == "one"
            await found.withdraw()
            assert not path.exists()
            assert await ask(channel) == "one"
        await found.close(0)

    asyncio.run(story())


def test_the_end_of_one_server_never_takes_anothers_path(place: Path) -> None:
    """B46: a server whose path was taken over ends without unlinking its successor's socket."""
    path = place / "dra.sock"

    async def story() -> None:
        old, new = listener(path, "old"), listener(path, "new")
        await old.open()
        with pytest.raises(errors.SocketTaken, match="another instance"):
            await new.open()
        path.unlink()
        await new.open()
        assert not old.seen
        await old.close(0)
        async with dialled(path) as channel:
            assert await ask(channel) == "new"
        assert new.seen
        await new.close(0)

    asyncio.run(story())
    assert not path.exists()


def test_a_directory_that_takes_no_socket_is_named(place: Path) -> None:
    """Where nothing can be bound, the error names the place."""
    (place / "file").write_text("")

    async def story() -> None:
        with pytest.raises(errors.SocketTaken, match="file"):
            await listener(place / "file" / "dra.sock").open()

    asyncio.run(story())


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_b47_a_socket_is_its_owners_alone_from_the_moment_it_is_bound(
    place: Path, mask: int
) -> None:
    """B47: whatever umask a plugin was started under, no other user can connect to its socket, not
    even before it is published; the process's umask is as before."""
    modes: list[int] = []

    def add(server: grpc.aio.Server) -> None:
        service = Registration(driver="one", endpoint=place / "r", heard=lambda _: None)
        registration_pb2_grpc.add_RegistrationServicer_to_server(service, server)

    async def check(channel: grpc.aio.Channel) -> object:
        modes.extend(stat.S_IMODE(path.lstat().st_mode) for path in place.iterdir())
        return await ask(channel)

    async def story() -> None:
        found = Listener(place / "dra.sock", lock=place / "lock", services=add, check=check)
        await found.open()
        await found.close(0)

    before = os.umask(mask)
    try:
        asyncio.run(story())
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert [mode & 0o077 for mode in modes] == [0]
