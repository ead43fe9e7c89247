"""The role fleet-store writes the ConfigMaps of the store, and no other one of our namespace."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet.core.clock import ManualClock
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind, RunId, UnitId
from fleet.kube.base import Object
from fleet.stores.base import RUNS_KEPT, RunState
from fleet.stores.kubernetes import open_kubernetes_stores
from fleet.stores.kubernetes_maps import Patience
from tests.contracts.run_store_contract import START, record, result
from tests.deploy.reviews import Recorded, Recorder, Review, refused
from tests.deploy.test_account_policies import (
    ADMIN,
    COORDINATOR,
    PLUGIN,
    POLICIES,
    WORKER,
    allowed,
)
from tests.fleet.plugin.benches import NODE
from tests.fleet.stores import test_kubernetes_runs
from tests.lab.apiserver.access import Caller
from tests.lab.apiserver.engine import Engine

MAPS = "configmaps"


@pytest.fixture(scope="module")
def store() -> Recorded:
    """Everything a store at the API writes: leases, runs small and large, old ones forgotten."""
    found = Recorder(Engine(), Caller(WORKER, NODE, "fleetscrub"))
    clock = ManualClock(START)
    stores = open_kubernetes_stores(found, "fleetscrub", clock=clock, patience=Patience(5.0))
    stores.leases.init()
    asked = AcquireRequest(frozenset({UnitId("u/0")}), Holder(HolderKind.CLAIM, "c"))
    stores.leases.acquire([asked])
    large = test_kubernetes_runs.large("Run of a night", START)
    stores.runs.create(large)
    stores.runs.append(RunId(large.id), [result("gpu-0")])
    stores.runs.finish(RunId(large.id), RunState.FINISHED, "done")
    kept = list(found.recorded.reviews)
    for number in range(RUNS_KEPT):
        small = record(f"r{number}", START + 1 + number)
        stores.runs.create(small)
        stores.runs.finish(RunId(small.id), RunState.FINISHED, "done")
    stores.runs.create(record("last", START + 2 + RUNS_KEPT))
    kept += found.recorded.reviews[-4:]
    return Recorded([*kept, *found.recorded.of(MAPS, "DELETE")])


def test_what_a_store_writes_is_let_in(store: Recorded) -> None:
    """B8: the accounts of the role fleet-store keep leases and runs under the policy."""
    assert all(store.of(MAPS, one) for one in ("CREATE", "UPDATE", "DELETE"))
    assert {one.user for one in store.reviews} == {WORKER}
    for user in (WORKER, PLUGIN, COORDINATOR):
        allowed(Recorded([review.by(user, NODE) for review in store.reviews]))


@pytest.mark.parametrize("user", [WORKER, PLUGIN, COORDINATOR])
@pytest.mark.parametrize(
    "name",
    [
        "fleetscrub-settings",
        "tag-keys",
        "kube-root-ca.crt",
        "fleetscrub-leases-2",
        "fleetscrub-run-settings",
        "x-fleetscrub-run-a-0123456789abcdef",
    ],
)
def test_no_other_config_map_is_written(store: Recorded, user: str, name: str) -> None:
    """B8: a node's token rewrites no settings and no tag keys, and deletes none."""
    body = {"metadata": {"name": name, "labels": {"fleetscrub.dev/store": "leases"}}}
    for operation, new, old in (
        ("CREATE", body, None),
        ("UPDATE", body, body),
        ("DELETE", None, body),
    ):
        forged = Review(operation, MAPS, user, NODE, new, old)
        assert any(f"of the store only, not {name}" in one for one in refused(forged, POLICIES))
        assert refused(forged.by(ADMIN), POLICIES) == []
    nameless: Object = {"metadata": {"generateName": "fleetscrub-run-"}}
    assert refused(Review("CREATE", MAPS, user, NODE, nameless), POLICIES) != []


def test_the_object_of_leases_is_not_deleted_nor_labelled_for_others(store: Recorded) -> None:
    """B8: no account of ours ends the store, or makes of it what others select by label; labels
    that somebody else put there do not stop the store."""
    (review, *_) = store.of(MAPS)
    assert review.new is not None
    assert review.new["metadata"]["name"] == "fleetscrub-leases"
    (told,) = refused(Review("DELETE", MAPS, PLUGIN, NODE, None, review.new), POLICIES)
    assert "deletes the store of leases" in told

    def labelled(found: Object) -> None:
        found["metadata"]["labels"]["grafana_dashboard"] = "1"

    for operation in ("CREATE", "UPDATE"):
        for forged in store.of(MAPS, operation):
            (told,) = refused(forged.changed(labelled), POLICIES)
            assert "no labels" in told
    now = review.changed(labelled).new
    assert refused(Review("UPDATE", MAPS, PLUGIN, NODE, now, now), POLICIES) == []


def _immutable(found: Object) -> None:
    found["immutable"] = True


def _annotation(found: Object) -> None:
    found["metadata"]["annotations"]["sync.example.com/to"] = "all"


def _owner(found: Object) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "gone", "uid": "u"}
    found["metadata"]["ownerReferences"] = [owner]


def _finalizer(found: Object) -> None:
    found["metadata"]["finalizers"] = ["example.com/never"]


@pytest.mark.parametrize("user", [WORKER, PLUGIN, COORDINATOR])
@pytest.mark.parametrize(
    ("forge", "told"),
    [
        (_immutable, "immutable"),
        (_annotation, "no annotations"),
        (_owner, "no owners and no finalizers"),
        (_finalizer, "no owners and no finalizers"),
    ],
)
def test_f65_no_account_of_ours_locks_the_store(
    store: Recorded, user: str, forge: Callable[[Object], None], told: str
) -> None:
    """F65: no account of ours makes a ConfigMap of the store immutable, nor gives it an annotation,
    an owner or a finalizer; what an administrator put there neither stops the store nor goes."""
    for operation in ("CREATE", "UPDATE"):
        reviews = store.of(MAPS, operation)
        assert reviews
        for review in reviews:
            forged = review.changed(forge).by(user, NODE)
            (said,) = refused(forged, POLICIES)
            assert told in said
            assert refused(forged.by(ADMIN), POLICIES) == []
    now = store.of(MAPS)[0].changed(forge).new
    if forge is _immutable:  # the server changes such a one for nobody
        return
    assert refused(Review("UPDATE", MAPS, user, NODE, now, now), POLICIES) == []
    if forge is not _annotation:
        bare = Review("UPDATE", MAPS, user, NODE, store.of(MAPS)[0].new, now)
        assert any(told in one for one in refused(bare, POLICIES))
