"""Scheduler and claim controller of the twin, in real time, against an API server over HTTP."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from fleet.core import errors
from fleet.core.clock import SystemClock
from fleet.kube.base import (
    Cluster,
    Event,
    Listing,
    Name,
    Object,
    PatchKind,
    Resource,
    Selection,
    name_of,
)
from fleet.kube.cel import Selector
from fleet.plugin.slices.pool_view import PoolReading
from tests.e2e.plugin_process import DRIVER
from tests.twin.controller import Controller
from tests.twin.pools import Place, Pools
from tests.twin.scheduler import Scheduler
from tests.twin.sight import WATCHED, Cache

LOG = logging.getLogger(__name__)
TICK_S = 0.5
"""Period, s, in which the scheduler looks at binding conditions; the real one takes 5 s."""
WATCH_S = 5.0
REST_S = 0.5


class Live(Cache):
    """Lists a kind again once something was heard of it, or written by ourselves."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._behind = cluster
        self.cluster: Cluster = Noting(cluster, self)
        self.stirred = threading.Event()
        self._stale = set(WATCHED)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(kind,), daemon=True) for kind in WATCHED
        ]

    def start(self) -> None:
        """Begin to watch."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()

    def note(self, resource: Resource) -> None:
        """Something may have changed in this kind."""
        with self._lock:
            self._stale.add(resource)
        self.stirred.set()

    def refresh(self) -> bool:
        """List what may have changed; whether anything has."""
        with self._lock:
            stale, self._stale = self._stale, set()
        changed = False
        for resource in WATCHED:
            if resource not in stale:
                continue
            try:
                changed |= self._list(resource)
            except errors.FleetError:
                with self._lock:
                    self._stale |= stale
                raise
        return changed

    def _list(self, resource: Resource) -> bool:
        known = self.all(resource)
        fresh = {name_of(item): item for item in self._behind.list(resource).items}
        gone = [name for name in known if name not in fresh]
        changed = [name for name, item in fresh.items() if known.get(name) != item]
        for name in gone:
            self.put(resource, name, None)
        for name in changed:
            self.put(resource, name, fresh[name])
        return bool(gone or changed)

    def _follow(self, resource: Resource) -> None:
        while not self._closed.is_set():
            with suppress(errors.FleetError):
                for _ in self._behind.watch(resource, timeout_s=WATCH_S):
                    if self._closed.is_set():
                        return
                    # Also once it is read whole: of what went between two watches nothing is told.
                    self.note(resource)
            self._closed.wait(0.05)


class Noting:
    """A cluster whose writes are noted."""

    def __init__(self, cluster: Cluster, sight: Live) -> None:
        self._cluster = cluster
        self._sight = sight

    @contextmanager
    def _noted(self, resource: Resource) -> Iterator[None]:
        try:
            yield
        finally:
            self._sight.note(resource)

    def get(self, resource: Resource, name: Name) -> Object:
        return self._cluster.get(resource, name)

    def list(self, resource: Resource, selection: Selection = Selection()) -> Listing:  # noqa: B008 - frozen
        return self._cluster.list(resource, selection)

    def watch(
        self,
        resource: Resource,
        selection: Selection = Selection(),  # noqa: B008 - frozen
        *,
        timeout_s: float,
        alive: bool = False,
    ) -> Iterator[Event]:
        return self._cluster.watch(resource, selection, timeout_s=timeout_s, alive=alive)

    def create(self, resource: Resource, body: Object) -> Object:
        with self._noted(resource):
            return self._cluster.create(resource, body)

    def replace(self, resource: Resource, body: Object, *, subresource: str = "") -> Object:
        with self._noted(resource):
            return self._cluster.replace(resource, body, subresource=subresource)

    def apply(
        self, resource: Resource, body: Object, *, manager: str, subresource: str = ""
    ) -> Object:
        with self._noted(resource):
            return self._cluster.apply(resource, body, manager=manager, subresource=subresource)

    def patch(
        self,
        resource: Resource,
        name: Name,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        kind: PatchKind,
        subresource: str = "",
    ) -> Object:
        with self._noted(resource):
            return self._cluster.patch(resource, name, body, kind=kind, subresource=subresource)

    def delete(
        self, resource: Resource, name: Name, *, uid: str = "", resource_version: str = ""
    ) -> None:
        with self._noted(resource):
            self._cluster.delete(resource, name, uid=uid, resource_version=resource_version)


class SelectingPools(Pools):
    """Devices are chosen by the selectors of class and request, as CEL."""

    def __init__(self, classes: Sequence[Object]) -> None:
        """`classes`: the DeviceClass objects."""
        super().__init__({name_of(one).name: (DRIVER, 0) for one in classes})
        self._selectors = {
            name_of(one).name: tuple(_selectors(one["spec"], name_of(one).name)) for one in classes
        }

    def _free(self, node: str, asked: Object) -> Iterator[tuple[Place, Object, PoolReading]]:
        wanted = (*self._selectors[asked["deviceClassName"]], *_selectors(asked, "request"))
        for place, device, reading in super()._free(node, asked):
            if all(one.matches(device, driver=place[0]) for one in wanted):
                yield place, device, reading


def _selectors(spec: Object, where: str) -> Iterator[Selector]:
    for one in spec.get("selectors") or ():
        yield Selector.parse(one["cel"]["expression"], where=where)


class ControlSide:
    """One thread in which controller and scheduler take their steps when something has stirred."""

    def __init__(self, cluster: Cluster, classes: Sequence[Object]) -> None:
        clock = SystemClock()
        self.sight = Live(cluster)
        self.controller = Controller(self.sight.cluster, self.sight, clock)
        self.scheduler = Scheduler(
            self.sight.cluster,
            self.sight,
            clock,
            SelectingPools(classes),
            random.Random(4),
            tick_s=TICK_S,
        )
        self._clock = clock
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Begin."""
        self.sight.start()
        self._thread.start()

    def close(self) -> None:
        """End, and wait for that."""
        self._closed.set()
        self.sight.close()
        self.sight.stirred.set()
        self._thread.join(10)

    def _run(self) -> None:
        due = 0.0
        while not self._closed.is_set():
            pause_s = min(REST_S, due - self._clock.now())
            if pause_s > 0:
                self.sight.stirred.wait(pause_s)
            self.sight.stirred.clear()
            due = self._step()

    def _step(self) -> float:
        try:
            return min(self.controller.step(), self.scheduler.step())
        except errors.FleetError:
            return self._clock.now() + 0.1  # the server is away, or starts
        except Exception:
            LOG.exception("a step of the control plane failed")  # the others go on
            return self._clock.now() + 0.1
