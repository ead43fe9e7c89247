"""Finding plugins as kubelet does: sockets in a directory, greeted, judged and remembered.

`PluginRegistry.tick` looks once; whoever owns the registry calls it again and again. A socket that
is gone is deregistered; one made anew under the same name is another plugin. What a plugin leaves
behind when it is killed stays registered, and its connection comes back with it.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fleet.core import errors
from tests.lab.kubelet.connection import (
    PLUGIN_TYPE,
    SERVICES,
    Connection,
    DeviceHealth,
    Greeting,
    Registration,
)
from tests.lab.kubelet.timings import Timings

Told = Callable[[str, str], None]
"""Called with (what, detail) whenever something happens that a person would want to see."""


@dataclass(slots=True)
class Instance:
    """One registered instance of a driver."""

    socket: Path
    greeting: Greeting
    connection: Connection
    number: int
    """Rises with every registration: the newest connected instance is asked."""

    @property
    def driver(self) -> str:
        return self.greeting.driver


@dataclass(slots=True)
class _Socket:
    identity: tuple[int, int]
    next_at: float = 0.0
    backoff_s: float = 0.0
    instance: Instance | None = None


class PluginRegistry:
    """All plugins of one kubelet process. Safe for threads; `tick` is for one of them."""

    def __init__(self, directory: Path, timings: Timings, told: Told) -> None:
        """`directory` is kubelet's ``plugins_registry``."""
        self.directory = directory
        self.timings = timings
        self._told = told
        self._lock = threading.Lock()
        self._sockets: dict[Path, _Socket] = {}
        self._absent_since: dict[str, float] = {}
        self._number = 0
        self._health: dict[int, dict[tuple[str, str], DeviceHealth]] = {}
        self._closed = threading.Event()
        self._streams: list[threading.Thread] = []

    def tick(self, now: float) -> tuple[str, ...]:
        """Look once; `now` in seconds of any steady clock.

        Returns drivers of which no instance has been connected for too long, each once.
        """
        found = dict(_sockets(self.directory))
        with self._lock:
            known = dict(self._sockets)
        for path, entry in known.items():
            if found.get(path) != entry.identity:
                self._deregister(path, entry)
        for path, identity in found.items():
            with self._lock:
                entry = self._sockets.setdefault(path, _Socket(identity))
            if entry.instance is None and now >= entry.next_at:
                self._attempt(path, entry, now)
        return tuple(self._overdue(now))

    def find(self, driver: str) -> Connection:
        """The instance to ask: the newest connected one, else the newest.

        Raises `PluginUnavailable` when the driver is not registered.
        """
        with self._lock:
            instances = self._instances(driver)
        if not instances:
            raise errors.PluginUnavailable(f"DRA driver {driver} is not registered")
        return max(instances, key=lambda one: (one.connection.connected, one.number)).connection

    def registered(self) -> tuple[Instance, ...]:
        """All registered instances, oldest first."""
        with self._lock:
            found = [s.instance for s in self._sockets.values() if s.instance is not None]
        return tuple(sorted(found, key=lambda one: one.number))

    def health(self) -> tuple[DeviceHealth, ...]:
        """The devices' health as last reported, none of a stream that has ended."""
        with self._lock:
            return tuple(one for listed in self._health.values() for one in listed.values())

    def close(self) -> None:
        """Hang up everywhere, as a kubelet that ends does: nothing is told to the plugins."""
        self._closed.set()
        for instance in self.registered():
            instance.connection.close()
        for stream in self._streams:
            stream.join()

    def _instances(self, driver: str) -> list[Instance]:
        return [
            entry.instance
            for entry in self._sockets.values()
            if entry.instance is not None and entry.instance.driver == driver
        ]

    def _deregister(self, path: Path, entry: _Socket) -> None:
        with self._lock:
            del self._sockets[path]
        if entry.instance is not None:
            entry.instance.connection.close()
            self._told("deregistered", f"{entry.instance.driver} at {path.name}")

    def _attempt(self, path: Path, entry: _Socket, now: float) -> None:
        try:
            entry.instance = self._register(path)
        except errors.FleetError as error:
            first, last = self.timings.backoff_first_s, self.timings.backoff_last_s
            entry.backoff_s = min(entry.backoff_s * 2, last) if entry.backoff_s else first
            entry.next_at = now + entry.backoff_s
            self._told("registration failed", f"{path.name}: {error.detail}")
            return
        entry.backoff_s = 0.0
        instance = entry.instance
        self._told("registered", f"{instance.driver} at {path.name}, {instance.connection.service}")
        stream = threading.Thread(target=self._watch_health, args=(instance,), daemon=True)
        stream.start()  # before it is listed: who closes joins all that are
        self._streams.append(stream)

    def _register(self, path: Path) -> Instance:
        registration = Registration(path)
        try:
            greeting = registration.greet(timeout_s=self.timings.greet_s)
            try:
                service = self._judged(greeting)
            except errors.InputInvalid as error:
                registration.notify(error.detail, timeout_s=self.timings.notify_s)
                raise
            connection = Connection(greeting.endpoint or str(path), service)
            try:
                registration.notify(timeout_s=self.timings.notify_s)
            except errors.FleetError:
                connection.close()
                raise
        finally:
            registration.close()
        with self._lock:
            self._number += 1
            return Instance(path, greeting, connection, self._number)

    def _judged(self, greeting: Greeting) -> str:
        """The service to use. Raises `InputInvalid` saying what kubelet would say."""
        if greeting.kind != PLUGIN_TYPE:
            raise errors.InputInvalid(f"plugin type {greeting.kind!r} is not {PLUGIN_TYPE}")
        if not greeting.driver:
            raise errors.InputInvalid("the plugin has no name")
        if greeting.endpoint and not Path(greeting.endpoint).is_absolute():
            raise errors.InputInvalid(f"the endpoint {greeting.endpoint!r} is not absolute")
        with self._lock:
            endpoints = {one.greeting.endpoint for one in self._instances(greeting.driver)}
        if greeting.endpoint in endpoints:
            raise errors.InputInvalid(
                f"{greeting.driver} is already registered at {greeting.endpoint}"
            )
        service = next((one for one in greeting.services if one in SERVICES), None)
        if service is None:
            raise errors.InputInvalid(f"none of {list(greeting.services)} is supported")
        return service

    def _overdue(self, now: float) -> Iterator[str]:
        connected: dict[str, bool] = {}
        for instance in self.registered():
            connected[instance.driver] = (
                connected.get(instance.driver, False) or instance.connection.connected
            )
        for driver in {*connected, *self._absent_since}:
            if connected.get(driver):
                self._absent_since[driver] = now
            elif now - self._absent_since.setdefault(driver, now) >= self.timings.absent_s:
                del self._absent_since[driver]
                if driver in connected:
                    self._absent_since[driver] = now
                yield driver

    def _watch_health(self, instance: Instance) -> None:
        """Keep the stream open as long as the instance is registered."""
        while not self._closed.is_set() and instance in self.registered():
            try:
                for listed in instance.connection.health():
                    with self._lock:
                        known = self._health.setdefault(instance.number, {})
                        known.update({(one.pool, one.device): one for one in listed})
            except errors.PluginUnavailable as error:
                if error.code == "UNIMPLEMENTED":
                    return
            with self._lock:
                self._health.pop(instance.number, None)
            self._closed.wait(self.timings.health_reopen_s)


def _sockets(directory: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Sockets below the directory, each with what tells it from a later one of the same name."""
    for folder, _, names in os.walk(directory):
        for name in sorted(names):
            if name.startswith("."):
                continue
            path = Path(folder) / name
            with suppress(FileNotFoundError):
                found = path.lstat()
                if stat.S_ISSOCK(found.st_mode):
                    yield path, (found.st_ino, found.st_mtime_ns)
