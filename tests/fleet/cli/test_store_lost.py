"""A fleet whose lease store was lost, restored or replaced: what verbs say, and what ends it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fleet.cli.main import main
from fleet.core.clock import SystemClock
from fleet.core.settings import MIB, KubernetesSettings, Settings, StoreKind, StoreSettings
from fleet.kube.base import CONFIGMAPS, Name
from fleet.stores.kubernetes import NAME
from fleet.stores.sqlite import open_stores, store_path
from fleet.wiring import adapters
from tests.fleet.cli.fleets import occupy
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.server import StandIn

VERBS = (
    ("status",),
    ("devices",),
    ("quarantine", "list"),
    ("runs",),
    ("audit",),
    ("reconcile", "--dry-run"),
    ("uninstall", "--plan"),
    ("node", "forget", "node-09", "--force", "node-09 is lost"),
)
"""Verbs that ask the store, of every kind, with or without a cluster."""

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a verb on a state directory: its exit code and all it said."""

    def call(state: Path, *arguments: str) -> tuple[int, str]:
        code = main([*arguments, "--state", str(state)])
        said = capsys.readouterr()
        return code, said.out + said.err

    return call


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """One node with one device, in use by a claim."""
    adapters.begin(adapters.plan_fleet(tmp_path, simulate="1x1", memory_bytes=2 * MIB).coordinator)
    occupy(tmp_path, "claim-1")
    return tmp_path


def lose(state: Path) -> None:
    """The store's file and what belongs to it."""
    for path in store_path(state).parent.glob("store.db*"):
        path.unlink()


def test_no_verb_makes_a_store_where_a_fleet_is(small: Path, run: Run) -> None:
    """Promise 7: a store that is lost, or not mounted, is told with what to do (exit code 2) by
    every verb, and none puts an empty one in its place; nor does a node or a coordinator."""
    lose(small)
    for verb in (*VERBS, ("scrub",)):
        code, said = run(small, *verb)
        assert (verb, code) == (verb, 2), said
        assert "is not there" in said.replace("\n", " ")
        assert "fleet store init" in " ".join(said.split())
    plan = adapters.plan_fleet(small)
    adapters.begin(plan.coordinator)
    adapters.open_node(plan.nodes[0]).close()
    assert not store_path(small).exists()


def test_a_lost_store_is_begun_anew_and_knows_who_holds_what(small: Path, run: Run) -> None:
    """Promise 2, promise 7: one init and one adopt are enough: the lease of the claim that has its
    device is back under the token of the node's record, all agree, and its teardown returns it."""
    before = adapters.open_coordinator(adapters.plan_fleet(small).coordinator).leases()
    lose(small)
    code, said = run(small, "store", "init")
    assert (code, "fleet store adopt" in " ".join(said.split())) == (0, True)
    assert run(small, "audit")[0] == 1
    code, said = run(small, "store", "adopt", "--operator", "me", "--json")
    told = json.loads(said)
    assert (code, told["reinstated"], told["leases"]) == (0, 1, 1)
    plan = adapters.plan_fleet(small)
    assert adapters.open_coordinator(plan.coordinator).leases() == before
    code, said = run(small, "audit")
    assert code == 0, said
    again = json.loads(run(small, "store", "adopt", "--json")[1])
    assert (again["reinstated"], again["leases"]) == (0, 1)
    with closing(adapters.open_node(plan.nodes[0])) as node:
        node.unprepare("claim-1")
        node.tick(node.view().at)
        assert node.view().outbox == 0
    assert adapters.open_coordinator(plan.coordinator).leases() == []
    assert run(small, "audit")[0] == 0


def test_an_older_copy_is_adopted_once(small: Path, run: Run) -> None:
    """Promise 7: of a copy from before an earlier adopt one more is enough, whatever epochs the
    nodes have seen meanwhile."""
    path = store_path(small)
    with closing(adapters.open_node(adapters.plan_fleet(small).nodes[0])) as node:
        node.unprepare("claim-1")
        node.tick(node.view().at)
    kept = small / "kept.db"
    with closing(open_stores(path, clock=SystemClock())) as stores:
        stores.database.backup(kept)
    assert run(small, "store", "adopt")[0] == 0
    occupy(small, "claim-2")
    lose(small)
    shutil.copy(kept, path)
    code, said = run(small, "store", "adopt", "--json")
    assert (code, json.loads(said)["reinstated"]) == (0, 1)
    coordinator = adapters.open_coordinator(adapters.plan_fleet(small).coordinator)
    assert [str(lease.holder) for lease in coordinator.leases()] == ["claim:claim-2"]
    code, said = run(small, "audit")
    assert code == 0, said


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, StandIn]]:
    """A served node whose store is on an API server."""
    with StandIn() as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig")))
        kubernetes = KubernetesSettings(
            cdi_directory=str(tmp_path / "cdi"),
            kubelet_root=str(tmp_path / "kubelet"),
            cgroup_root=str(tmp_path / "cgroup"),
            api_qps=1000.0,
            coordinator_qps=1000.0,
        )
        store = StoreSettings(kind=StoreKind.KUBERNETES, hosts=2)
        state = tmp_path / "state"
        adapters.plan_fleet(
            state,
            simulate="1x1",
            memory_bytes=2 * MIB,
            settings=Settings(kubernetes=kubernetes, store=store),
            serve="n1",
        )
        yield state, api


def test_a_deleted_object_is_told_by_every_verb(shared: tuple[Path, StandIn], run: Run) -> None:
    """Promise 7: the same of a cluster's store: nothing makes it in passing, and one init and one
    adopt go on."""
    state, api = shared
    for words in (("store", "init"), ("node", "adopt")):
        code, said = run(state, *words)
        assert code == 0, said
    MemoryCluster(api.engine).delete(CONFIGMAPS, Name(NAME, "fleetscrub"))
    for verb in (*VERBS, ("claim", "show", "team/job")):
        code, said = run(state, *verb)
        assert (verb, code) == (verb, 2), said
        assert "fleet store init" in " ".join(said.split())
    cluster = MemoryCluster(api.engine)
    assert NAME not in [one["metadata"]["name"] for one in cluster.list(CONFIGMAPS).items]
    assert run(state, "store", "init")[0] == 0
    code, said = run(state, "store", "adopt", "--json")
    assert (code, json.loads(said)["following"]) == (0, ["n1"])
