"""Runs on Kubernetes keep the contract, small ones in one object and large ones in several."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.messages import Outcome
from fleet.core.model import RunId
from fleet.kube.base import CONFIGMAPS, Cluster, Name, Selection
from fleet.kube.client import connect
from fleet.stores.base import RUNS_KEPT, RunRecord, RunState, Target
from fleet.stores.kubernetes import open_kubernetes_stores
from fleet.stores.kubernetes_maps import PLAIN_BYTES, Patience, size_of
from fleet.stores.kubernetes_runs import INLINE_TARGETS, STORE, KubernetesRunStore
from tests.contracts.api_server import KUBECONFIG
from tests.contracts.run_store_contract import RUN, START, RunStoreContract, record, result
from tests.lab.apiserver.cluster import MemoryCluster

NAMESPACE = "default"
OURS = Selection(namespace=NAMESPACE, labels=f"{STORE} in (run, results)")
SERVERS = [pytest.param("memory")]
if KUBECONFIG:
    SERVERS.append(pytest.param("real", marks=pytest.mark.e2e))


def runs_of(cluster: Cluster, clock: ManualClock) -> KubernetesRunStore:
    """The runs as another process would open them."""
    patience = Patience(10.0)
    return open_kubernetes_stores(cluster, NAMESPACE, clock=clock, patience=patience).runs


def cleared(cluster: Cluster) -> Cluster:
    """The cluster without runs."""
    for found in cluster.list(CONFIGMAPS, OURS).items:
        cluster.delete(CONFIGMAPS, Name(found["metadata"]["name"], NAMESPACE))
    return cluster


def large(run: str = RUN, started_at: float = START) -> RunRecord:
    """A run about more devices than one object takes results of."""
    targets = [
        Target(node=f"node-{number // 8}", uuid=f"gpu-{number}", name="0")
        for number in range(INLINE_TARGETS * 3)
    ]
    return record(run, started_at).model_copy(update={"targets": tuple(targets)})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


class TestKubernetesRunStore(RunStoreContract):
    """The run contract over ConfigMaps."""

    @pytest.fixture(params=SERVERS)
    def runs(
        self, request: pytest.FixtureRequest, clock: ManualClock
    ) -> Iterator[KubernetesRunStore]:
        cluster: Cluster = MemoryCluster()
        if request.param == "real":
            cluster = cleared(connect(KUBECONFIG, qps=500.0, timeout_s=10.0))
        yield runs_of(cluster, clock)
        cleared(cluster)


def test_a_large_run_spreads_its_results(cluster: MemoryCluster, clock: ManualClock) -> None:
    """E5: no object grows with the fleet; all results come back, each once, repeated or not."""
    runs = runs_of(cluster, clock)
    runs.create(large())
    results = [result(target.uuid) for target in large().targets]
    assert runs.append(RUN, results) == len(results)
    assert runs.append(RUN, results[:5]) == 0
    assert runs.append(RUN, [result("gpu-3", Outcome.FAILED, attempt=2), results[4]]) == 1
    objects = cluster.list(CONFIGMAPS, OURS).items
    assert len(objects) == 4
    assert max(size_of(found) for found in objects) < PLAIN_BYTES
    found = runs_of(cluster, clock).get(RUN)
    assert len(found.results) == len(results)
    assert found.results["gpu-3"].outcome is Outcome.FAILED
    assert found.model_copy(update={"results": {}}) == large()
    assert runs.runs(1) == runs.unfinished() == [found]


def test_a_finished_large_run_takes_only_repetitions(
    cluster: MemoryCluster, clock: ManualClock
) -> None:
    """B43: the rule of small runs holds for large ones."""
    runs = runs_of(cluster, clock)
    runs.create(large())
    runs.append(RUN, [result("gpu-0")])
    assert runs.finish(RUN, RunState.FINISHED, "complete").results == {"gpu-0": result("gpu-0")}
    assert runs.append(RUN, [result("gpu-0")]) == 0
    with pytest.raises(errors.InputInvalid):
        runs.append(RUN, [result("gpu-1")])


def test_a_forgotten_run_takes_its_results_along(
    cluster: MemoryCluster, clock: ManualClock
) -> None:
    """E5: no result outlives its run."""
    runs = runs_of(cluster, clock)
    runs.create(large())
    runs.append(RUN, [result("gpu-0"), result("gpu-1"), result("gpu-2")])
    runs.finish(RUN, RunState.FINISHED, "complete")
    for number in range(RUNS_KEPT):
        run = RunId(runs.create(record(f"later-{number}", START + 1 + number)).id)
        runs.finish(run, RunState.FINISHED, "complete")
    runs.create(record("last", START + 10**6))
    with pytest.raises(errors.RunUnknown):
        runs.get(RUN)
    assert len(cluster.list(CONFIGMAPS, OURS).items) == RUNS_KEPT + 1


def test_lost_answers_change_nothing(cluster: MemoryCluster, clock: ManualClock) -> None:
    """B43: each call says what it did, also when its first answer was lost."""
    runs = runs_of(cluster, clock)
    cluster.faults.lose_answer_next("create")
    assert runs.create(record()) == record()
    cluster.faults.lose_answer_next("replace")
    assert runs.append(RUN, [result("gpu-0")]) == 1
    cluster.faults.lose_answer_next("replace")
    assert runs.finish(RUN, RunState.STOPPED, "interrupted").state is RunState.STOPPED
    cluster.faults.lose_answer_next("replace")
    assert runs.resume(RUN).results == {"gpu-0": result("gpu-0")}


def test_two_writers_lose_no_result(cluster: MemoryCluster, clock: ManualClock) -> None:
    """B5: who was overtaken adds to what the other wrote."""
    runs, other = runs_of(cluster, clock), runs_of(MemoryCluster(cluster.engine), clock)
    runs.create(record())
    cluster.faults.before_next("replace", lambda: other.append(RUN, [result("gpu-1")]))
    assert runs.append(RUN, [result("gpu-0")]) == 1
    assert set(runs.get(RUN).results) == {"gpu-0", "gpu-1"}


@pytest.mark.parametrize("run", ["Run/1: ü", "run-1.2", "x" * 300, "-", "RUN-1"])
def test_any_id_has_an_object_of_its_own(
    cluster: MemoryCluster, clock: ManualClock, run: str
) -> None:
    """E2: ids are free text; names of objects are not, and no two ids share one."""
    runs = runs_of(cluster, clock)
    runs.create(record("run-1"))
    runs.create(record(run))
    assert runs.get(RunId(run)).id == run
    assert len(runs.runs(9)) == 2


@pytest.mark.parametrize("part", ["run.json", "record.json", "results.json"])
@pytest.mark.parametrize("text", ["", "{}", "null", "[1]"])
def test_a_damaged_run_is_an_error(
    cluster: MemoryCluster, clock: ManualClock, part: str, text: str
) -> None:
    """Promise 5: what cannot be read is told with the object's name, never as an empty run."""
    runs = runs_of(cluster, clock)
    runs.create(record())
    (found,) = cluster.list(CONFIGMAPS, OURS).items
    if (part, text) == ("results.json", "{}"):
        text = "{"
    found["data"][part] = text
    cluster.replace(CONFIGMAPS, found)
    with pytest.raises(errors.SettingsInvalid, match="fleetscrub-run-run-1-"):
        runs.get(RUN)
