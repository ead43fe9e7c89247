"""Plugins come, go, misbehave and come back: what kubelet makes of it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.core import errors
from tests.lab.kubelet.connection import V1, V1BETA1
from tests.lab.kubelet.fake_plugin import DRIVER, FakePlugin
from tests.lab.kubelet.registration import PluginRegistry
from tests.lab.kubelet.timings import Timings

FAST = Timings(health_reopen_s=0.05, absent_s=10.0, greet_s=0.5)


class Bench:
    """A registry over a directory, its plugins, and what it told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.told: list[tuple[str, str]] = []
        self.plugins: list[FakePlugin] = []
        self.registry = PluginRegistry(
            directory / "plugins_registry",
            FAST,
            lambda what, detail: self.told.append((what, detail)),
        )

    def plugin(self, name: str = "a") -> FakePlugin:
        found = FakePlugin(
            self.directory, self.directory / "cdi", self.directory / "memory", name=name
        )
        self.plugins.append(found)
        return found

    def drivers(self) -> list[str]:
        return [one.driver for one in self.registry.registered()]

    def words(self) -> list[str]:
        return [what for what, _ in self.told]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="kr-") as short:
        found = Bench(Path(short))
        yield found
        for plugin in found.plugins:
            plugin.stop()
        found.registry.close()


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15.0
    while not condition():
        assert time.monotonic() < deadline


def test_a_socket_is_found_greeted_and_told(bench: Bench) -> None:
    """Reference 1.1: GetInfo, then NotifyRegistrationStatus(true), once."""
    plugin = bench.plugin()
    bench.registry.tick(0.0)
    assert bench.drivers() == []
    plugin.start()
    bench.registry.tick(1.0)
    bench.registry.tick(2.0)
    assert bench.drivers() == [DRIVER]
    assert (plugin.greeted, plugin.notified) == (1, ["ok"])
    assert bench.registry.find(DRIVER).connected or bench.registry.find(DRIVER).service == V1


def test_the_first_supported_service_of_the_plugins_list_is_used(bench: Bench) -> None:
    """Reference 1.1: order matters; unknown names are passed over."""
    plugin = bench.plugin()
    plugin.versions = ["v9.DRAPlugin", V1BETA1, V1]
    plugin.start()
    bench.registry.tick(0.0)
    assert bench.registry.find(DRIVER).service == V1BETA1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kind": "DevicePlugin"}, "DevicePlugin"),
        ({"driver": ""}, "no name"),
        ({"versions": ["v9.DRAPlugin"]}, "supported"),
        ({"endpoint": Path("relative.sock")}, "absolute"),
    ],
)
def test_a_plugin_that_does_not_fit_is_told_why(
    bench: Bench, wrong: dict[str, object], said: str
) -> None:
    """Reference 1.1: NotifyRegistrationStatus(false, message), and no registration."""
    plugin = bench.plugin()
    plugin.start()
    for name, value in wrong.items():
        setattr(plugin, name, value)
    bench.registry.tick(0.0)
    assert bench.drivers() == []
    assert len(plugin.notified) == 1
    assert said in plugin.notified[0]
    plugin.endpoint = bench.directory / "plugins" / "a.sock"


def test_a_failed_attempt_is_repeated_later_and_later(bench: Bench) -> None:
    """Reference 1.1: 0.5 s, then twice as long each time, from GetInfo on."""
    plugin = bench.plugin()
    plugin.refuse_notify = True
    plugin.start()
    tries = []
    for tenths in range(40):
        before = plugin.greeted
        bench.registry.tick(tenths / 10)
        if plugin.greeted > before:
            tries.append(tenths)
    assert tries == [0, 5, 15, 35]
    assert bench.drivers() == []
    plugin.refuse_notify = False
    bench.registry.tick(100.0)
    assert bench.drivers() == [DRIVER]


def test_a_socket_that_goes_deregisters(bench: Bench) -> None:
    """Invariant 4: removing the registration socket is leaving."""
    plugin = bench.plugin()
    plugin.start()
    bench.registry.tick(0.0)
    plugin.stop()
    bench.registry.tick(1.0)
    assert bench.drivers() == []
    with pytest.raises(errors.PluginUnavailable, match="not registered"):
        bench.registry.find(DRIVER)
    plugin.start()
    bench.registry.tick(2.0)
    assert bench.words() == ["registered", "deregistered", "registered"]


def test_a_socket_made_anew_is_another_plugin(bench: Bench) -> None:
    """Reference 1.2: removed and recreated between two looks is unregister, then register."""
    plugin = bench.plugin()
    plugin.start()
    bench.registry.tick(0.0)
    plugin.stop()
    plugin.start()
    bench.registry.tick(1.0)
    assert bench.words() == ["registered", "deregistered", "registered"]


def test_a_crash_does_not_deregister(bench: Bench) -> None:
    """Reference 1.2: the registration stays with the socket, and the connection recovers."""
    plugin = bench.plugin()
    plugin.start()
    bench.registry.tick(0.0)
    connection = bench.registry.find(DRIVER)
    wait(lambda: connection.connected)
    for server in plugin._servers[:1]:
        server.stop(0).wait()
    wait(lambda: not connection.connected)
    bench.registry.tick(1.0)
    assert bench.drivers() == [DRIVER]


def test_other_files_are_not_plugins(bench: Bench) -> None:
    """Reference 1.2: dot files and whatever is no socket are passed over."""
    directory = bench.directory / "plugins_registry"
    directory.mkdir()
    (directory / "x-reg.sock").touch()
    plugin = bench.plugin()
    plugin.registration = directory / ".hidden.sock"
    plugin.start()
    bench.registry.tick(0.0)
    assert (bench.told, plugin.greeted) == ([], 0)


def test_of_two_instances_the_newest_connected_one_is_asked(bench: Bench) -> None:
    """Invariant 40: a rolling update has both; the one that is left is asked when one goes."""
    old, new = bench.plugin("a"), bench.plugin("b")
    old.start()
    bench.registry.tick(0.0)
    first = bench.registry.find(DRIVER)
    new.start()
    bench.registry.tick(1.0)
    second = max(bench.registry.registered(), key=lambda one: one.number).connection
    wait(lambda: first.connected and second.connected)
    assert bench.registry.find(DRIVER) is second
    new.stop()
    wait(lambda: not second.connected)
    assert bench.registry.find(DRIVER) is first


def test_the_same_endpoint_is_refused_to_a_second_instance(bench: Bench) -> None:
    """Reference 1.1: the endpoint must be unique per instance."""
    old, new = bench.plugin("a"), bench.plugin("b")
    old.start()
    bench.registry.tick(0.0)
    new.start()
    own, new.endpoint = new.endpoint, old.endpoint
    bench.registry.tick(1.0)
    assert "already registered" in new.notified[0]
    new.endpoint = own


def test_a_driver_that_stays_away_is_reported_once_per_time(bench: Bench) -> None:
    """B34: after 30 s without a connection its slices are deleted; a reconnect cancels that."""
    plugin = bench.plugin()
    plugin.start()
    bench.registry.tick(0.0)
    wait(lambda: bench.registry.find(DRIVER).connected)
    assert bench.registry.tick(100.0) == ()
    plugin.stop()
    assert bench.registry.tick(105.0) == ()
    assert bench.registry.tick(109.9) == ()
    assert bench.registry.tick(110.0) == (DRIVER,)
    assert bench.registry.tick(500.0) == ()


def test_health_is_known_as_long_as_the_stream_lives(bench: Bench) -> None:
    """Reference 1.7: the end of a stream clears the driver's health, and it is opened again."""
    plugin = bench.plugin()
    plugin.start()
    bench.registry.tick(0.0)
    wait(lambda: [one.health for one in bench.registry.health()] == ["UNHEALTHY"])
    plugin.health_over.set()
    wait(lambda: sum(call == "health" for call, _ in plugin.calls) >= 2)
    plugin.stop()
    bench.registry.tick(1.0)
    wait(lambda: bench.registry.health() == ())


def test_a_plugin_without_health_is_left_in_peace(bench: Bench) -> None:
    """Reference 1.7: Unimplemented ends the watching, not the registration."""
    plugin = bench.plugin()
    plugin.versions = [V1]
    plugin.start()
    bench.registry.tick(0.0)
    for stream in bench.registry._streams:
        stream.join(15.0)
        assert not stream.is_alive()
    assert bench.drivers() == [DRIVER]
