"""What our accounts may write is what our code writes; what anybody would forge is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace

import pytest
import yaml  # type: ignore[import-untyped] # ships no types

from fleet.core.profiles import Profile
from fleet.kube.base import CLAIMS, Object
from fleet.kube.claim import read
from fleet.kube.claim_holds import Holds
from tests.deploy import test_coordinator, test_rbac, test_rbac_accounts
from tests.deploy.manifests import ROOT
from tests.deploy.reviews import Recorded, Recorder, Review, policies, refused
from tests.fleet.control.binding.grounds import Ground
from tests.fleet.control.repair.conftest import Site
from tests.fleet.control.repair.test_uninstall import install
from tests.fleet.plugin.benches import DRIVER, MARKS, NODE, Bench, bench
from tests.lab.apiserver.access import Caller

DIRECTORY = ROOT / "helm" / "fleetscrub" / "accounts"
FILES = sorted(DIRECTORY.glob("*.yaml"))
POLICIES = policies(*FILES)
PLUGIN, COORDINATOR = test_rbac.USER, test_coordinator.USER
UNINSTALL = "system:serviceaccount:fleetscrub:fleet-uninstall"
SCHEDULER = "system:kube-scheduler"
CONTROLLER = "system:serviceaccount:kube-system:resource-claim-controller"
ADMIN = "kubernetes-admin"
ELSEWHERE = "another-node"
SLICES_, CLAIMS_, STATUS = "resourceslices", "resourceclaims", "resourceclaims/status"
NODE_STATUS = "nodes/status"
WORKER = "system:serviceaccount:fleetscrub:fleet-worker"


@contextmanager
def recording(site: Bench, user: str, node: str = "") -> Iterator[Recorder]:
    """The API with what is written there in the name of an account."""
    yield Recorder(site.cluster.engine, Caller(user, node, "fleetscrub"))


@pytest.fixture(scope="module")
def plugin() -> Recorded:
    """Everything the plugin of a node writes in the lives of some claims."""
    found = Recorded()
    with bench() as site, recording(site, PLUGIN, NODE) as cluster:
        with test_rbac.plugged(site, cluster) as running:
            test_rbac._publish(site, running)
            asked = site.bound("a", "gpu-0")
            assert running.serving.prepare(asked).devices
            running.serving.unprepare(asked)
            found.reviews += cluster.recorded.reviews
        site.delete(asked)
        proven = test_rbac._proven(site)
        second = Recorder(site.cluster.engine, Caller(PLUGIN, NODE, "fleetscrub"))
        holds = Holds(second, MARKS, site.clock)
        holds.ensure(read(site.claim_of(proven), MARKS))
        holds.release(test_rbac._name(proven), proven.uid)
        site.reserve(proven, MARKS.hold(node=NODE, uid=proven.uid))
        holds.release(test_rbac._name(proven), proven.uid)
        found.reviews += second.recorded.reviews
    return found


def allowed(found: Recorded) -> None:
    """Asserts that all of it is let in."""
    assert found.reviews
    for review in found.reviews:
        assert refused(review, POLICIES) == [], review


def test_what_the_plugin_writes_is_let_in(plugin: Recorded) -> None:
    """A5: slices made, changed and deleted, claims held, told about and let go."""
    assert {(one.resource, one.operation) for one in plugin.reviews} >= {
        (SLICES_, "CREATE"),
        (SLICES_, "UPDATE"),
        (SLICES_, "DELETE"),
        (CLAIMS_, "UPDATE"),
        (STATUS, "UPDATE"),
    }
    allowed(plugin)


@pytest.mark.parametrize(
    ("resource", "operation"),
    [(SLICES_, "CREATE"), (SLICES_, "UPDATE"), (SLICES_, "DELETE")],
)
def test_a_node_writes_no_slice_of_another(plugin: Recorded, resource: str, operation: str) -> None:
    """B8: with the token of another node, or one that names none, no slice is written."""
    for review in plugin.of(resource, operation):
        (where, *_) = refused(review.by(PLUGIN, ELSEWHERE), POLICIES)
        assert f"the node plugin of {ELSEWHERE}" in where
        (nameless,) = refused(review.by(PLUGIN), POLICIES)
        assert "accountPolicies.publishers" in nameless


def _driver(found: Object) -> None:
    found["spec"]["driver"] = "other.example.com"


def _pool(found: Object) -> None:
    found["spec"]["pool"]["name"] = ELSEWHERE


def _every_node(found: Object) -> None:
    del found["spec"]["nodeName"]
    found["spec"]["allNodes"] = True


@pytest.mark.parametrize(
    ("forge", "told"),
    [
        (_driver, "only, not of other.example.com"),
        (_pool, f"publishes the pool {NODE} only, not {ELSEWHERE}"),
        (_every_node, "of its own node only"),
    ],
)
def test_a_node_publishes_its_own_pool_of_our_driver_only(
    plugin: Recorded, forge: Callable[[Object], None], told: str
) -> None:
    """B8: not for another driver, not for all nodes, nor under the name of another's pool."""
    (review, *_) = plugin.of(SLICES_, "CREATE")
    assert any(told in one for one in refused(review.changed(forge), POLICIES))


def test_nobody_else_publishes_our_devices(plugin: Recorded) -> None:
    """B8: a driver of another, an administrator, the scheduler; cleaning up is left to kubelet."""
    for user in ("system:serviceaccount:default:gpu", ADMIN, SCHEDULER, COORDINATOR, UNINSTALL):
        (review, *_) = plugin.of(SLICES_, "CREATE")
        (told,) = refused(review.by(user, NODE), POLICIES)
        assert "does not publish devices" in told
        assert refused(review.by(user, NODE).changed(_driver), POLICIES) == [] or user in (
            COORDINATOR,
            UNINSTALL,
        )
    (review, *_) = plugin.of(SLICES_, "DELETE")
    assert refused(review.by("system:node:n1"), POLICIES) == []
    assert refused(review.by(UNINSTALL), POLICIES) == []
    assert refused(review.by(COORDINATOR), POLICIES) == []
    old = deepcopy(review.old)
    assert old is not None
    _driver(old)
    assert refused(replace(review.by(COORDINATOR), old=old), POLICIES) != []


def _label(found: Object) -> None:
    found["metadata"]["labels"] = {"a": "b"}


def _annotation(found: Object) -> None:
    found["metadata"]["annotations"] = {f"{DRIVER}/allocating": "me 99"}


def _finalizer(found: Object) -> None:
    found["metadata"].setdefault("finalizers", []).append("kubernetes.io/hold")


def _owner(found: Object) -> None:
    found["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "p", "uid": "u"}]


@pytest.mark.parametrize("forge", [_label, _annotation, _finalizer, _owner])
def test_a_node_changes_our_finalizer_and_nothing_else_of_a_claim(
    plugin: Recorded, forge: Callable[[Object], None]
) -> None:
    """D3: no label, no annotation such as a pledge, no owner, nobody else's finalizer."""
    for review in plugin.of(CLAIMS_):
        (told,) = refused(review.changed(forge), POLICIES)
        assert f"but our finalizer {MARKS.finalizer}" in told


def _pod(found: Object) -> None:
    entry = {"resource": "pods", "name": "mine", "uid": "u"}
    found["status"]["reservedFor"] = [*found["status"].get("reservedFor", []), entry]


def _no_pods(found: Object) -> None:
    found["status"]["reservedFor"] = [
        one for one in found["status"].get("reservedFor", []) if MARKS.is_hold(one)
    ]


def _hold_of_another(found: Object) -> None:
    hold = MARKS.hold(node=ELSEWHERE, uid=found["metadata"]["uid"])
    found["status"]["reservedFor"] = [*found["status"].get("reservedFor", []), hold]


def _hold_of_a_pod(found: Object) -> None:
    hold = {**MARKS.hold(node=NODE, uid="uid-of-a-pod"), "resource": "pods"}
    found["status"]["reservedFor"] = [*found["status"].get("reservedFor", []), hold]


def _other_device(found: Object) -> None:
    found["status"]["allocation"]["devices"]["results"][0]["device"] = "gpu-7"


def _said_of_others(found: Object) -> None:
    entry = {"driver": "other.example.com", "pool": "p", "device": "d", "data": {}}
    found["status"]["devices"] = [*found["status"].get("devices", []), entry]


@pytest.mark.parametrize(
    ("forge", "told"),
    [
        (_pod, "no reservation of a pod"),
        (_no_pods, "no reservation of a pod"),
        (_hold_of_another, "under its own name only"),
        (_hold_of_a_pod, "under its own name only"),
        (_other_device, "gives no allocation and changes none"),
        (_said_of_others, "nothing about devices of other drivers"),
    ],
)
def test_a_node_says_of_a_claim_what_is_its_own_and_nothing_else(
    plugin: Recorded, forge: Callable[[Object], None], told: str
) -> None:
    """DESIGN 5: our own entry, our devices, and the end of an allocation; nobody else's part."""
    held = [one for one in plugin.of(STATUS) if _holds(one.new)]
    assert held
    for review in held:
        assert any(told in one for one in refused(review.changed(forge), POLICIES))


def _holds(found: Object | None) -> bool:
    entries = (found or {}).get("status", {}).get("reservedFor", [])
    return any(map(MARKS.is_hold, entries)) and not all(map(MARKS.is_hold, entries))


def test_a_node_marks_claims_of_its_own_only(plugin: Recorded) -> None:
    """DESIGN 5: the same writes with the token of another node, or with none, are refused."""
    for review in (*plugin.of(STATUS), *plugin.of(CLAIMS_)):
        assert any("names no node" in one for one in refused(review.by(PLUGIN), POLICIES))
        if (review.old or {}).get("status", {}).get("allocation"):
            assert refused(review.by(PLUGIN, ELSEWHERE), POLICIES) != []


def test_a_node_ends_no_allocation_under_a_pod(plugin: Recorded) -> None:
    """Promise 4: neither alone nor together with the pod's reservation."""
    (review, *_) = [one for one in plugin.of(STATUS) if _holds(one.new)]

    def end(found: Object) -> None:
        for key in ("allocation", "reservedFor", "devices"):
            found["status"].pop(key, None)

    assert any("no reservation of a pod" in one for one in refused(review.changed(end), POLICIES))


def test_a_node_neither_makes_nor_deletes_claims(plugin: Recorded) -> None:
    """A5: its role has no right for it, and the policy says so too."""
    (review, *_) = plugin.of(CLAIMS_)
    for operation, old, new in (("CREATE", None, review.new), ("DELETE", review.old, None)):
        forged = Review(operation, CLAIMS_, PLUGIN, NODE, new, old)
        assert any("neither creates nor deletes" in one for one in refused(forged, POLICIES))


def test_what_the_coordinator_writes_is_let_in() -> None:
    """B8: pre-bind, letting go, the pool of a node that does not publish, a node's condition."""
    with bench(Profile.STRICT) as site, recording(site, COORDINATOR) as cluster:
        test_coordinator.bound(site, cluster)
        test_coordinator.taken_over(site, cluster)
        test_coordinator.told(cluster)
    for resource in (SLICES_, CLAIMS_, STATUS, NODE_STATUS):
        assert cluster.recorded.of(resource)
    allowed(cluster.recorded)


def test_what_an_uninstall_writes_is_let_in() -> None:
    """E7: holds, finalizers and slices go; an account of nobody would be refused all of it."""
    site = Site()
    install(site)
    site.cluster = cluster = Recorder(site.cluster.engine, Caller(UNINSTALL))
    test_rbac_accounts.removed(site)
    assert cluster.recorded.of(SLICES_, "DELETE")
    for resource in (CLAIMS_, STATUS, NODE_STATUS):
        assert cluster.recorded.of(resource)
    allowed(cluster.recorded)


def given() -> Review:
    """An allocation by `fleet claim bind`."""
    ground = Ground(1)
    found = Recorder(ground.engine, Caller("hybrid", manager="fleetscrub"))
    allocator = ground.allocator()
    allocator._cluster = found
    allocator.allocate(ground.create())
    (review, *_) = found.recorded.of(STATUS)
    return review


def test_only_those_named_give_our_devices() -> None:
    """B8: scheduler, claim controller; `fleet claim bind` where its account is named, no account of
    ours beside it, and no administrator by accident."""
    review = given()
    for user in (SCHEDULER, CONTROLLER, "system:kube-controller-manager"):
        assert refused(review.by(user), POLICIES) == []
    for user in ("hybrid", ADMIN, COORDINATOR, UNINSTALL, WORKER):
        (told, *_) = refused(review.by(user, NODE), POLICIES)
        assert "allocat" in told
    named = deepcopy(POLICIES)
    for variable in (one for policy in named for one in policy["spec"].get("variables", ())):
        if variable["name"] == "allocators":
            variable["expression"] = '["hybrid"]'
    assert refused(review, named) == []
    taken = Review("UPDATE", STATUS, "hybrid", "", review.old, review.new)
    assert "take them away" in refused(taken, POLICIES)[0]
    assert refused(taken.by(UNINSTALL), POLICIES) == []
    assert refused(taken.by(COORDINATOR), POLICIES) == []
    assert refused(taken.by(SCHEDULER), POLICIES) == []


def test_allocations_of_other_drivers_are_not_our_business() -> None:
    """B8: a claim without a device of ours is anybody's, and what leaves an allocation alone is."""
    review = given()

    def other(found: Object) -> None:
        for one in found["status"]["allocation"]["devices"]["results"]:
            one["driver"] = "other.example.com"

    assert refused(review.changed(other).by(ADMIN), POLICIES) == []
    alone = Review("UPDATE", STATUS, ADMIN, "", review.new, review.new)
    assert refused(alone, POLICIES) == []


def test_every_policy_is_bound_and_fails_closed() -> None:
    """B8: each has one binding that denies; other versions of the API are converted first."""
    found = [one for path in FILES for one in yaml.safe_load_all(path.read_text())]
    bindings = [one for one in found if one["kind"] == "ValidatingAdmissionPolicyBinding"]
    names = sorted(one["metadata"]["name"] for one in POLICIES)
    assert sorted(one["spec"]["policyName"] for one in bindings) == names
    assert all(one["spec"]["validationActions"] == ["Deny"] for one in bindings)
    for policy in POLICIES:
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert "matchPolicy" not in policy["spec"]["matchConstraints"]  # default: Equivalent
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]:
            assert rule["apiVersions"] == [CLAIMS.version]


def test_the_chart_can_name_more_accounts() -> None:
    """B8: the lists that the chart fills are there: who publishes may end allocations as well,
    and both take marks off."""
    text = "".join(path.read_text() for path in FILES)
    template = (DIRECTORY.parent / "templates" / "account-policies.yaml").read_text()
    for name, times in (("publishers", 3), ("allocators", 2)):
        place = f"[] // accountPolicies.{name}"
        assert text.count(place) == times
        assert template.count(place) == 1
