"""Kubelet's side of the sockets: deadlines, rules for answers, both versions of the service."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.plugin.requests import AskedClaim
from tests.lab.kubelet.connection import (
    HEALTH,
    V1,
    V1BETA1,
    Connection,
    DeviceHealth,
    Greeting,
    Registration,
)
from tests.lab.kubelet.fake_plugin import DRIVER, FakePlugin

A, B = AskedClaim("ns", "u1", "a"), AskedClaim("ns", "u2", "b")


@pytest.fixture
def plugin() -> Iterator[FakePlugin]:
    with tempfile.TemporaryDirectory(prefix="kc-") as short:
        found = FakePlugin(Path(short), Path(short) / "cdi", Path(short) / "memory")
        found.start()
        yield found
        found.stop()


@pytest.fixture
def connection(plugin: FakePlugin) -> Iterator[Connection]:
    found = Connection(str(plugin.endpoint), V1)
    yield found
    found.close()


def test_a_plugin_says_who_it_is(plugin: FakePlugin) -> None:
    """Invariant 1: type, driver, endpoint and services come by GetInfo."""
    registration = Registration(plugin.registration)
    found = registration.greet(timeout_s=1.0)
    registration.notify(timeout_s=5.0)
    registration.notify("not you", timeout_s=5.0)
    registration.close()
    assert found == Greeting("DRAPlugin", DRIVER, str(plugin.endpoint), (V1, V1BETA1, HEALTH))
    assert plugin.notified == ["ok", "not you"]


def test_a_socket_without_a_server_is_given_up_in_time(tmp_path: Path) -> None:
    """Reference 1.1: GetInfo has one second, whatever is behind the socket."""
    registration = Registration(tmp_path / "none.sock")
    began = time.monotonic()
    with pytest.raises(errors.PluginUnavailable, match="GetInfo"):
        registration.greet(timeout_s=0.2)
    registration.close()
    assert time.monotonic() - began < 5.0


def test_claims_are_answered_one_by_one(plugin: FakePlugin, connection: Connection) -> None:
    """Reference 1.3: devices for one claim, an error for its neighbour."""
    plugin.errors["u2"] = "no such device"
    plugin.share_id = "5a5a"
    found = connection.prepare([A, B], timeout_s=10.0)
    assert found["u2"].error == "no such device"
    (device,) = found["u1"].devices
    assert (device.requests, device.pool, device.device) == (("gpu",), "node-a", "gpu-0")
    assert (device.cdi_ids, device.share_id) == (("example.com/gpu=u1",), "5a5a")
    assert connection.unprepare([A], timeout_s=10.0)["u1"].error == ""


def test_v1beta1_has_no_share_id(plugin: FakePlugin) -> None:
    """Invariant 39: the older service carries everything else."""
    plugin.share_id = "5a5a"
    connection = Connection(str(plugin.endpoint), V1BETA1)
    (device,) = connection.prepare([A], timeout_s=10.0)["u1"].devices
    connection.close()
    assert (device.device, device.share_id) == ("gpu-0", None)


def test_a_share_id_that_is_not_set_is_absent(connection: Connection) -> None:
    """Invariant 12: absent is not the empty text."""
    (device,) = connection.prepare([A], timeout_s=10.0)["u1"].devices
    assert device.share_id is None


def test_missing_and_unknown_entries_fail_the_call(
    plugin: FakePlugin, connection: Connection
) -> None:
    """Invariant 10: exactly the requested UIDs, else the whole answer is void."""
    plugin.silent.add("u2")
    with pytest.raises(errors.InputInvalid, match="u2"):
        connection.prepare([A, B], timeout_s=10.0)
    plugin.silent.clear()
    plugin.extra["u9"] = "surprise"
    with pytest.raises(errors.InputInvalid, match="u9"):
        connection.prepare([A, B], timeout_s=10.0)


def test_a_call_has_its_deadline(plugin: FakePlugin, connection: Connection) -> None:
    """Invariant 16: kubelet stops waiting, whatever the plugin does."""
    plugin.gate.clear()
    with pytest.raises(errors.PluginUnavailable) as caught:
        connection.prepare([A], timeout_s=0.2)
    assert caught.value.code == "DEADLINE_EXCEEDED"


def test_health_is_a_complete_list(plugin: FakePlugin, connection: Connection) -> None:
    """Reference 1.7: the first message comes at once, with every device."""
    stream = connection.health()
    assert next(stream) == (DeviceHealth("node-a", "gpu-0", "UNHEALTHY", "hot"),)
    plugin.health_over.set()
    assert list(stream) == []


def test_a_connection_comes_back_with_its_plugin(
    plugin: FakePlugin, connection: Connection
) -> None:
    """Reference 1.2: after a crash kubelet reconnects by itself."""
    connection.prepare([A], timeout_s=10.0)
    plugin.stop()
    with pytest.raises(errors.PluginUnavailable):
        connection.prepare([A], timeout_s=10.0)
    plugin.start()
    deadline = time.monotonic() + 15.0
    while not connection.connected:
        assert time.monotonic() < deadline
    assert connection.prepare([A], timeout_s=10.0)["u1"].devices


def test_a_connection_that_was_hung_up_answers_nothing(plugin: FakePlugin) -> None:
    """After `close` a call is an error of ours, not of the library."""
    connection = Connection(str(plugin.endpoint), V1)
    connection.close()
    with pytest.raises(errors.PluginUnavailable):
        connection.prepare([A], timeout_s=1.0)
    with pytest.raises(errors.PluginUnavailable):
        next(connection.health())
