"""Rules of the registration with kubelet."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
import pytest

from node_plugin.listener import Listener
from node_plugin.proto import registration_pb2 as wire
from node_plugin.proto import registration_pb2_grpc as services
from node_plugin.registration import Registered, Registration, RegistrationState
from tests.node_plugin.standins import DRIVER, dialled, plugin, started, told, until


async def ask(channel: grpc.aio.Channel) -> object:
    """Who is there."""
    return await services.RegistrationStub(channel).GetInfo(wire.InfoRequest())


PERCENT = "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fgpu.example.com-reg.sock"


def test_kubelet_learns_who_we_are(place: Path) -> None:
    """Invariant 1, B82: type, driver, absolute endpoint, and versions with the best one first."""

    async def story() -> None:
        async with started(plugin(place)) as server:
            answer = await told(server.paths.registration, registered=True)
            assert (answer.type, answer.name) == ("DRAPlugin", DRIVER)
            assert answer.endpoint == str(place / "plugins" / DRIVER / "dra.sock")
            assert list(answer.supported_versions) == [
                "v1.DRAPlugin",
                "v1beta1.DRAPlugin",
                "v1alpha1.DRAResourceHealth",
            ]

    asyncio.run(story())


def test_kubelet_may_tell_the_status_any_number_of_times(place: Path) -> None:
    """Invariants 1 and 5: each start of kubelet asks and tells again on the same socket."""

    async def story() -> RegistrationState:
        async with started(plugin(place)) as server:
            inode = server.paths.registration.lstat().st_ino
            assert server.registration.state is Registered.WAITING
            for _ in range(5):
                await told(server.paths.registration, registered=True)
            assert server.paths.registration.lstat().st_ino == inode
            return server.registration

    found = asyncio.run(story())
    assert (found.state, found.accepted, found.refused) == (Registered.ACCEPTED, 5, 0)


@pytest.mark.parametrize("authority", [PERCENT, "/var/lib/kubelet/plugins_registry/x", "localhost"])
def test_the_server_takes_kubelets_strange_authority(place: Path, authority: str) -> None:
    """Reference 1.1: kubelet dials the registration socket with a path for `:authority`."""

    async def story() -> None:
        async with (
            started(plugin(place)) as server,
            dialled(server.paths.registration, ("grpc.default_authority", authority)) as channel,
        ):
            answer = await services.RegistrationStub(channel).GetInfo(wire.InfoRequest(), timeout=5)
            assert answer.name == DRIVER

    asyncio.run(story())


def test_a_refusal_is_kept_with_its_reason(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    """B82: a failed registration is logged, answered with OK, and stays visible until accepted."""

    async def story() -> None:
        async with started(plugin(place)) as server:
            reason = "no supported\nversion " + "x" * 5000
            await told(server.paths.registration, registered=False, error=reason)
            refused = server.registration
            assert refused.state is Registered.REFUSED
            assert refused.reason.startswith("no supported version x")
            assert len(refused.reason) <= 1024
            await told(server.paths.registration, registered=True)
            accepted = server.registration
            assert (accepted.state, accepted.reason) == (Registered.ACCEPTED, "")
            assert (accepted.accepted, accepted.refused) == (1, 1)

    asyncio.run(story())
    assert "kubelet refused" in caplog.text


def test_a_refused_registration_is_offered_again_with_a_new_socket(place: Path) -> None:
    """B82: after a pause the socket is removed and made anew, as long as kubelet refuses."""

    async def story() -> None:
        async with started(plugin(place, retry_s=(0.01, 0.02))) as server:
            path = server.paths.registration

            def mark() -> int:
                return path.lstat().st_mtime_ns if path.exists() else 0

            seen = {mark(), 0}
            for _ in range(3):
                await told(path, registered=False, error="not now")
                await until(lambda: mark() not in seen, "a new socket")
                seen.add(mark())
            before = mark()
            for _ in range(20):
                await told(path, registered=True)
            assert mark() == before

    asyncio.run(story())


def test_a_listener_that_fails_does_not_fail_the_call(place: Path) -> None:
    """An error in Notify would make kubelet drop the plugin, so nothing of ours can cause one."""

    def fail(_: RegistrationState) -> None:
        raise OSError("disk")

    async def story() -> None:
        service = Registration(driver=DRIVER, endpoint=place, heard=fail, now=lambda: 5.0)
        status = wire.RegistrationStatus(plugin_registered=True)
        path = place / "reg.sock"
        listener = Listener(
            path,
            lock=place / "lock",
            services=lambda server: services.add_RegistrationServicer_to_server(service, server),
            check=ask,
        )
        await listener.open()
        async with dialled(path) as channel:
            stub = services.RegistrationStub(channel)
            await stub.NotifyRegistrationStatus(status)
        await listener.close(0)
        assert service.state == RegistrationState(Registered.ACCEPTED, at=5.0, accepted=1)

    asyncio.run(story())
