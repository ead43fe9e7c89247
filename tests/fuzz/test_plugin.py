"""The plugin's sockets: arbitrary messages and bytes, and the next good call is served."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.core import errors
from fleet.core.errors import FleetError
from fleet.plugin.requests import AskedClaim, PreparedClaim
from node_plugin.proto import dra_v1_pb2 as v1
from node_plugin.proto import registration_pb2
from node_plugin.server import PluginServer, serve_in_thread
from tests.fuzz.mutations import damaged
from tests.fuzz.running import bounded, fuzzed
from tests.node_plugin.standins import ActedClaims, claims, device_of, plugin, to_prepare

WAIT_S = 20.0
"""Time, s, a call may take before the test fails."""
Prepared = dict[str, v1.NodePrepareResourceResponse]
WATCH = "/v1alpha1.DRAResourceHealth/NodeWatchResources"
"""Answers for as long as it is listened to."""
LISTENED_S = 0.1
METHODS = (
    "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
    "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
    "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
    "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources",
    "/grpc.health.v1.Health/Check",
    "/x/y",
    WATCH,
)
REGISTRATION = (
    "/pluginregistration.Registration/GetInfo",
    "/pluginregistration.Registration/NotifyRegistrationStatus",
)
PROPER = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNKNOWN,  # what the library says of a message it cannot decode
}
GOOD = to_prepare("a", "b").SerializeToString()
STATUS = registration_pb2.RegistrationStatus(plugin_registered=True, error="e").SerializeToString()
FRAMES = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\xff" * 9,
    b"\x00\x40\x00\x00\x00\x00\x00\x00\x00" + bytes(0x4000),
    b"\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x08",
)


def act(claim: AskedClaim) -> PreparedClaim | FleetError:
    """Prepared; whoever is named oddly is told so."""
    if claim.uid.isprintable():
        return device_of(claim)
    return errors.ClaimUnready(f"claim {claim.namespace}/{claim.name} ({claim.uid}) is none")


@pytest.fixture(scope="module", name="server")
def server_fixture(place: Path) -> Iterator[PluginServer]:
    """A plugin that serves."""
    root = place / "plugin"
    root.mkdir()
    made = plugin(root, ActedClaims(act))
    running = serve_in_thread(made)
    yield made
    running.stop(1.0)


@pytest.fixture(scope="module", name="channels")
def channels_fixture(server: PluginServer) -> Iterator[tuple[grpc.Channel, grpc.Channel]]:
    """Connections to both sockets."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    paths = (server.paths.dra, server.paths.registration)
    made = [grpc.insecure_channel(f"unix:{path}", options) for path in paths]
    yield made[0], made[1]
    for channel in made:
        channel.close()


def called(channel: grpc.Channel, method: str, sent: bytes) -> tuple[grpc.StatusCode, str, bytes]:
    """The answer to these bytes: status, what is said about it, and the bytes of the answer."""
    call: Any = channel.unary_unary(method, request_serializer=None, response_deserializer=None)
    try:
        return grpc.StatusCode.OK, "", call(sent, timeout=LISTENED_S if method == WATCH else WAIT_S)
    except grpc.RpcError as error:
        status: Any = error
        return status.code(), status.details() or "", b""


def prepared(channel: grpc.Channel, request: v1.NodePrepareResourcesRequest) -> Prepared:
    """The entries of the answer by UID."""
    code, said, answer = called(channel, METHODS[0], request.SerializeToString())
    assert code is grpc.StatusCode.OK, said
    return dict(v1.NodePrepareResourcesResponse.FromString(answer).claims)


def serves(channel: grpc.Channel) -> None:
    """The next good call gets its answer."""
    found = prepared(channel, to_prepare("good"))["good"]
    assert found.devices[0].device_name == "dev-good"
    assert not found.error


@fuzzed(50, cost=2)
@given(
    method=st.sampled_from(METHODS),
    sent=st.one_of(damaged(GOOD), st.binary(max_size=200), st.just(b"\x0a" * 7_000)),
)
def test_any_message_gets_an_answer_and_the_next_call_its_devices(
    channels: tuple[grpc.Channel, grpc.Channel], method: str, sent: bytes
) -> None:
    """B03, B20: bytes that are no message are a status, in time, and nobody else's trouble."""
    with bounded():
        code, said, answer = called(channels[0], method, sent)
        serves(channels[0])
    assert code in PROPER or (method == WATCH and code is grpc.StatusCode.DEADLINE_EXCEEDED)
    assert code in (grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND) or said.strip()
    if code is grpc.StatusCode.OK and method == METHODS[0]:
        asked = v1.NodePrepareResourcesRequest.FromString(sent)
        found = v1.NodePrepareResourcesResponse.FromString(answer)
        assert set(found.claims) == {claim.uid for claim in asked.claims}
        assert all(entry.error or entry.devices for entry in found.claims.values())


@fuzzed(40, cost=2)
@given(
    method=st.sampled_from(REGISTRATION), sent=st.one_of(damaged(STATUS), st.binary(max_size=99))
)
def test_any_word_about_the_registration_leaves_the_plugin_serving(
    channels: tuple[grpc.Channel, grpc.Channel], method: str, sent: bytes
) -> None:
    """B20: whatever is said on the registration socket, kubelet's next question is answered."""
    with bounded():
        code, said, _ = called(channels[1], method, sent)
        again, _, answer = called(channels[1], REGISTRATION[0], b"")
        serves(channels[0])
    assert code in PROPER
    assert code is grpc.StatusCode.OK or said.strip()
    assert again is grpc.StatusCode.OK
    assert registration_pb2.PluginInfo.FromString(answer).name == "gpu.example.com"


ODD_TEXT = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=30),
    st.sampled_from(["", "/", "../../x", "a\x00b", "x" * 70_000, "\u202e", "a\nb", "good", " "]),
)


@fuzzed(50, cost=2)
@given(asked=st.lists(st.tuples(ODD_TEXT, ODD_TEXT, ODD_TEXT), max_size=5))
def test_claims_of_any_name_get_one_entry_each(
    channels: tuple[grpc.Channel, grpc.Channel], asked: list[tuple[str, str, str]]
) -> None:
    """Invariant 10, B20: odd uids, names and namespaces are answered beside a good claim's."""
    odd = [v1.Claim(namespace=space, uid=uid, name=name) for space, uid, name in asked]
    request = v1.NodePrepareResourcesRequest(claims=[*odd, *claims("beside")])
    with bounded():
        found = prepared(channels[0], request)
        undo = v1.NodeUnprepareResourcesRequest(claims=request.claims)
        code, said, answer = called(channels[0], METHODS[1], undo.SerializeToString())
    assert code is grpc.StatusCode.OK, said
    gone = v1.NodeUnprepareResourcesResponse.FromString(answer).claims
    assert set(found) == set(gone) == {uid for _, uid, _ in asked} | {"beside"}
    assert found["beside"].devices or any(uid == "beside" for _, uid, _ in asked)
    for entry in found.values():
        assert bool(entry.error) != bool(entry.devices)
        assert len(entry.error.encode()) <= 1024
        assert entry.error.isprintable()


@fuzzed(30, cost=4)
@given(
    sent=st.one_of(st.sampled_from(FRAMES), st.binary(max_size=300)),
    more=st.binary(max_size=64),
    registration=st.booleans(),
)
def test_garbage_on_a_socket_ends_that_connection_alone(
    server: PluginServer,
    channels: tuple[grpc.Channel, grpc.Channel],
    sent: bytes,
    more: bytes,
    *,
    registration: bool,
) -> None:
    """B20: what is no HTTP/2 costs who sent it the connection, and nobody else anything."""
    path = server.paths.registration if registration else server.paths.dra
    with bounded(), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(WAIT_S)
        connection.connect(str(path))
        with suppress(OSError):
            connection.sendall(sent + more)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
    serves(channels[0])
    assert server.serving
