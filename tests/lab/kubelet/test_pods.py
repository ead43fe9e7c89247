"""One pod's worker: phases, retries, and that it leaves everything when kubelet ends."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fleet.core.errors import PluginUnavailable
from fleet.kube.base import Object
from fleet.plugin.requests import AskedClaim
from tests.lab.kubelet.cgroups import PodCgroups
from tests.lab.kubelet.connection import Answer
from tests.lab.kubelet.pods import Phase, Pod, PodEvent, PodWorker, Surroundings
from tests.lab.kubelet.resources import PodIdentity, Resources
from tests.lab.kubelet.runtime import Runtime
from tests.lab.kubelet.timings import Timings

POD = Pod(PodIdentity("ns", "a", "d0d0d0d0-0000-4000-8000-000000000001", ("c",)))
SLOW = Timings(prepare_retry_s=60, unprepare_retry_s=60, container_retry_s=60, grace_s=5)
CLAIM: Object = {
    "metadata": {"name": "c", "namespace": "ns", "uid": "u1"},
    "status": {
        "allocation": {"devices": {"results": [{"driver": "d"}]}},
        "reservedFor": [{"resource": "pods", "name": "a", "uid": POD.uid}],
    },
}


class Calls:
    """A plugin without a socket; claims get no devices."""

    def __init__(self) -> None:
        self.broken = False
        self.calls: list[str] = []

    def prepare(self, claims: Sequence[AskedClaim], *, timeout_s: float) -> dict[str, Answer]:
        return self._answer("prepare", claims, timeout_s)

    def unprepare(self, claims: Sequence[AskedClaim], *, timeout_s: float) -> dict[str, Answer]:
        return self._answer("unprepare", claims, timeout_s)

    def _answer(
        self, call: str, claims: Sequence[AskedClaim], timeout_s: float
    ) -> dict[str, Answer]:
        assert timeout_s == 1.0
        self.calls.append(call)
        if self.broken:
            raise PluginUnavailable("away")
        return {claim.uid: Answer() for claim in claims}


class Bench:
    """A worker with its surroundings and what it told."""

    def __init__(self, directory: Path) -> None:
        self.calls = Calls()
        self.told: list[PodEvent] = []
        self._news = threading.Condition()
        self.runtime = Runtime(directory / "cdi", PodCgroups(directory / "cgroup"))
        resources = Resources(
            directory / "state",
            read_claim=lambda *_: copy.deepcopy(CLAIM),
            find=lambda _: self.calls,
            call_s=1.0,
        )
        self.around = Surroundings(resources, self.runtime, SLOW, self._hear)

    def worker(self) -> PodWorker:
        found = PodWorker(POD, self.around)
        found.start()
        return found

    def _hear(self, event: PodEvent) -> None:
        with self._news:
            self.told.append(event)
            self._news.notify_all()

    def heard(self, what: str) -> None:
        self.until(lambda: any(event.what == what for event in self.told))

    def until(self, condition: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(condition, timeout=15), self.told


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_pod_passes_through_its_phases(bench: Bench) -> None:
    """Pending, running, terminating, gone; each call once."""
    worker = bench.worker()
    bench.heard("Started")
    assert worker.phase() is Phase.RUNNING
    worker.delete(forced=False)
    worker.join()
    assert worker.phase() is Phase.GONE
    assert bench.calls.calls == ["prepare", "unprepare"]
    assert bench.runtime.sandboxes() == ()


def test_a_pod_that_waits_can_be_woken(bench: Bench) -> None:
    """Reference 1.4: another event of the pod brings the retry forward."""
    bench.calls.broken = True
    worker = bench.worker()
    bench.heard("FailedPrepareDynamicResources")
    assert (worker.phase(), worker.error) == (Phase.PENDING, "away")
    bench.calls.broken = False
    worker.retry()
    bench.heard("Started")
    assert worker.error == ""
    worker.delete(forced=True)
    worker.join()


def test_a_worker_that_ends_leaves_the_pod(bench: Bench) -> None:
    """Kubelet's end is not the pod's: the next worker finds the container and asks nobody."""
    worker = bench.worker()
    bench.heard("Started")
    worker.end()
    worker.join()
    container = bench.runtime.container(POD.uid)
    assert container is not None
    assert container.running()
    second = bench.worker()
    assert second.phase() is Phase.RUNNING
    second.delete(forced=True)
    second.join()
    assert bench.calls.calls == ["prepare", "unprepare"]


def test_a_failed_unprepare_keeps_the_sandbox(bench: Bench) -> None:
    """Reference 1.5: the pod is terminating, its cgroup there and empty, until it works."""
    worker = bench.worker()
    bench.heard("Started")
    bench.calls.broken = True
    worker.delete(forced=False)
    bench.heard("FailedUnprepareDynamicResources")
    assert worker.phase() is Phase.TERMINATING
    assert bench.runtime.container(POD.uid) is None
    assert bench.runtime.sandboxes() == (POD.uid,)
    bench.calls.broken = False
    worker.retry()
    worker.join()
    assert worker.phase() is Phase.GONE


def test_a_forced_deletion_shortens_one_under_way(bench: Bench) -> None:
    """A second, forced deletion does not wait for the first one's grace."""
    bench.around = Surroundings(
        bench.around.resources,
        bench.runtime,
        Timings(grace_s=3600, force_grace_s=0.05),
        bench._hear,
    )
    worker = PodWorker(Pod(POD.identity, stubborn=True), bench.around)
    worker.start()
    bench.heard("Started")
    worker.delete(forced=False)
    worker.delete(forced=True)
    worker.join()
    assert [event.what for event in bench.told].count("Killed") == 1
