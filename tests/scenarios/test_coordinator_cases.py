"""Cases from the field as the coordinator meets them: the inputs of each, and the right outcome.

Names are those of the cases; driver and nodes are the bench's own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import pytest

from fleet.control.binding.claim_judge import UNUSED_S
from fleet.control.binding.device_choice import Choice, NoChoice, choose
from fleet.control.binding.loop import SURVEY_S, Reconciling
from fleet.control.binding.orphans import OrphanLeases
from fleet.control.binding.quarantines import QuarantineLeases
from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.messages import Outcome
from fleet.core.model import Holder, HolderKind, UnitId
from fleet.kube.base import CLAIMS, SLICES, Object
from tests.fleet.control.binding import scenes
from tests.fleet.control.binding.benches import BUILTIN, CONDITIONS, DRIVER, MARKS, SPACE, Bench
from tests.lab.apiserver.access import Caller
from tests.lab.apiserver.cluster import Call, MemoryCluster

QUARANTINED = f"{DRIVER}/quarantined"
OTHER = "nic.other.example.com"


def coordinator(bench: Bench) -> Reconciling:
    """A coordinator as a process runs it: survey, claims, and what follows the nodes' state."""
    bench.claims, bench.binder = bench.begin()
    bench.claims.refresh()
    leases = bench.binder._around.leases
    return Reconciling(
        bench.binder,
        bench.nodes,
        bench.coordinator,
        caches=(bench.claims,),
        followers={
            "quarantine leases": QuarantineLeases(bench.coordinator),
            "leases of claims that are gone": OrphanLeases(bench.claims, leases, bench.binder.look),
        },
    )


def loops(bench: Bench, who: Reconciling, count: int = 50, *, work: bool = True) -> None:
    """So many steps of a coordinator, each a survey later than the last."""
    for _ in range(count):
        bench.claims.refresh()
        who.step(bench.clock.now())
        bench.clock.advance(SURVEY_S)
        if work:
            bench.nodes.work()


def about(calls: Iterable[Call], name: str) -> list[str]:
    """What was sent about one claim."""
    return [
        f"{call.verb} {call.subresource}".strip()
        for call in calls
        if call.resource == CLAIMS and call.name.name == name
    ]


def ready(name: str) -> Bench:
    """A claim of device a whose wipe has just ended: the next step is to say so."""
    bench = Bench()
    bench.given(name, "a")
    bench.step()
    bench.nodes.work()
    return bench


# --- B16: a status write without a precondition ---------------------------------------------------


def test_b16_of_two_writers_at_one_version_one_is_heard() -> None:
    """B16: both read claim X at one version and write their binding: one succeeds, the other gets
    a conflict, reads again and finds it done; every write carries UID and version.
    """
    bench = ready("claim-x")
    first, first_api = bench.binder, bench.cluster
    bench.cluster = MemoryCluster(bench.engine, caller=Caller(manager="fleetscrub"))
    bench.claims, second = bench.begin()
    bench.claims.refresh()
    second.saw(bench.nodes.views({"n1": (), "n2": ()}), bench.clock.now())
    first.step(bench.clock.now())
    after_first = bench.raw("claim-x")
    second.step(bench.clock.now())
    assert about(first_api.writes(), "claim-x") == ["apply status"]
    assert about(bench.cluster.writes(), "claim-x") == ["apply status"]
    assert bench.raw("claim-x") == after_first
    assert [call.verb for call in bench.cluster.calls][-1] == "get"
    second.step(bench.clock.now())
    assert about(bench.cluster.writes(), "claim-x") == ["apply status", "patch"]
    assert len({order.operation for order in bench.nodes.orders}) == 1
    sent = [*first_api.writes(), *bench.cluster.writes()]
    assert all({"uid", "resourceVersion"} <= call.body["metadata"].keys() for call in sent)


@pytest.mark.parametrize("wanted", [True, False])
def test_b16_a_binding_half_written_is_completed_or_undone(wanted: bool) -> None:
    """B16: the second of two writes conflicts, and the coordinator dies right after the first: its
    successor completes it for the pod, or undoes it; the device is never in use by nobody.
    """
    bench = ready("claim-x")
    uid = bench.reading("claim-x").uid
    bench.step()
    assert bench.reading("claim-x").held
    bench.cluster.faults.fail_next("patch", errors.ApiConflict("changed"))
    bench.step()
    assert not bench.reading("claim-x").finalizer
    if not wanted:
        bench.reserve("claim-x")
    bench.restart()
    bench.run(UNUSED_S + 3.0)
    reading = bench.reading("claim-x")
    assert (reading.bound and reading.finalizer, reading.marked) == (wanted, wanted)
    assert (bench.lease(uid) is not None) is wanted
    assert bench.device("a").closed is not wanted


# --- B17: the tenant tolerates the quarantine taint -----------------------------------------------

TOLERATIONS: Sequence[Object] = (
    {"operator": "Exists"},
    {"key": QUARANTINED, "operator": "Exists", "effect": "NoSchedule"},
    {
        "key": QUARANTINED,
        "operator": "Equal",
        "value": "ecc",
        "effect": "NoExecute",
        "tolerationSeconds": 315360000,
    },
)


@pytest.mark.parametrize("toleration", TOLERATIONS, ids=["any", "ours", "for-ten-years"])
def test_b17_an_allocated_claim_that_tolerates_gets_nothing(toleration: Object) -> None:
    """B17: whoever put the allocation there: no lease, no wipe, no condition True, and a failure
    said, so that the scheduler looks for another device.
    """
    bench = Bench()
    bench.change("a", state="QUARANTINED", reasons=(scenes.reason(),))
    bench.publish("n1")
    uid = bench.given("t1", "a", tolerations=[toleration])
    bench.run(5.0)
    assert (bench.reading("t1").failed, bench.reading("t1").marked) == (True, False)
    assert bench.words("t1") == [("a", "False")]
    assert bench.lease(uid) is None
    assert bench.nodes.orders == []
    assert bench.device("a").state == "QUARANTINED"


@pytest.mark.parametrize("known", [True, False], ids=["by-its-node", "by-the-slice-alone"])
@pytest.mark.parametrize("second", [False, True], ids=["exactly", "first-available"])
def test_b17_we_allocate_nothing_quarantined_to_who_tolerates(known: bool, second: bool) -> None:
    """B17, B20: `fleet claim bind` with every toleration there is, in a request or in its second
    alternative, also where the node has yet to hear of a quarantine that its slice shows.
    """
    asked = {"deviceClassName": "gpu", "tolerations": [*TOLERATIONS]}
    nowhere = {"name": "a", "deviceClassName": "gpu", "count": 9}
    request: Object = {"name": "gpu", "exactly": asked}
    if second:
        request = {"name": "gpu", "firstAvailable": [nowhere, {"name": "b", **asked}]}
    out = scenes.device("gpu-2", state="QUARANTINED", reasons=(scenes.reason(),))
    found = out if known else scenes.device("gpu-2")
    shown = [
        {"key": f"{DRIVER}/not-clean", "effect": "NoSchedule"},
        {"key": QUARANTINED, "value": "ecc", "effect": "NoSchedule"},
    ]
    slices = [scenes.slice_of(scenes.entry(found, taints=shown))]
    around = scenes.scene(scenes.view(found), slices=slices)
    assert isinstance(choose(scenes.claim(request), around), NoChoice)


# --- B19: what others wrote -----------------------------------------------------------------------


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "kept"])
def test_b19_fields_of_others_survive_a_claims_whole_life(deleted: bool) -> None:
    """B19: a field unknown to us and another driver's entry are there after every write of ours,
    from binding to release; only the end of the allocation takes entries along, as it must.
    """
    bench = Bench(newer=("status.futureField",))
    nic = scenes.request("nic", deviceClassName="other-nic")
    made = scenes.claim(scenes.request(), nic, name="claim-a")
    made["metadata"]["finalizers"] = [BUILTIN]
    bench.admin.create(CLAIMS, made)
    gated = {"bindingConditions": CONDITIONS, "bindingFailureConditions": [MARKS.failed]}
    theirs = {"request": "nic", "driver": OTHER, "pool": "node-a", "device": "nic-0"}
    said: Object = {"type": "Ready", "status": "True", "reason": "Up", "message": ""}
    said["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    entry = {"driver": OTHER, "pool": "node-a", "device": "nic-0", "conditions": [said]}
    results = [scenes.result("a") | gated, theirs]
    allocation = {"devices": {"results": results}, "allocationTimestamp": "2023-11-14T22:13:20Z"}
    bench.write("claim-a", allocation=allocation, devices=[entry], futureField={"x": 1})
    bench.reserve("claim-a", bench.pod("claim-a-pod"))

    def until(writes: int) -> None:
        while len(about(bench.cluster.writes(), "claim-a")) < writes:
            bench.step()
            bench.nodes.work()
            status = bench.raw("claim-a")["status"]
            assert status["futureField"] == {"x": 1}
            assert ("allocation" in status) is (entry in status.get("devices", []))

    until(2)
    assert bench.reading("claim-a").bound
    bench.prepare("claim-a")
    if deleted:
        bench.delete("claim-a")
    bench.unprepare("claim-a")
    bench.reserve("claim-a")
    bench.bury("claim-a", owes=False)
    until(4)
    assert bench.reading("claim-a").allocated is deleted
    assert not bench.reading("claim-a").marked


# --- B20: one policy, many shapes -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ({"name": "gpu", "deviceClassName": "gpu"}, "neither `exactly` nor `firstAvailable`"),
        ({"name": "gpu", "exactly": {"deviceClassName": "gpu-x"}}, "no DeviceClass"),
        (
            {"name": "gpu", "firstAvailable": [{"name": "b", "deviceClassName": "gpu-x"}]},
            "no DeviceClass",
        ),
        ({"name": "gpu", "exactly": {"deviceClassName": "gpu", "adminAccess": True}}, "adminAcc"),
    ],
    ids=["v1beta1-flat", "class", "class-of-an-alternative", "admin-access"],
)
def test_b20_a_request_of_any_other_shape_is_refused(request_: Object, told: str) -> None:
    """B20: what `fleet claim bind` cannot judge, it refuses by name; nothing is let through."""
    with pytest.raises(errors.InputInvalid, match=told):
        choose(scenes.claim(request_), scenes.scene(scenes.view(scenes.device("gpu-0"))))


def test_b20_a_claim_of_an_unknown_version_asks_for_nothing_we_know() -> None:
    """B20: a spec of a version to come is refused, not served with whatever is at hand."""
    claim: Object = {**scenes.claim(), "apiVersion": "resource.k8s.io/v9"}
    claim["spec"] = {"devices": {"wants": [{"x": 1}]}}
    with pytest.raises(errors.InputInvalid):
        choose(claim, scenes.scene(scenes.view(scenes.device("gpu-0"))))


@pytest.mark.parametrize(
    ("driver", "parameters", "served"),
    [
        (OTHER, {"apiVersion": "nic/v1", "kind": "C", "anything": 1}, True),
        (
            DRIVER,
            {"apiVersion": "fleetscrub.dev/v1", "kind": "SanitizationConfig", "skipScrubb": True},
            False,
        ),
    ],
    ids=["foreign-opaque", "own-opaque-unknown-field"],
)
def test_b20_parameters_of_ours_are_strict_and_foreign_ones_are_not_ours(
    driver: str, parameters: Object, served: bool
) -> None:
    """B20: another driver's parameters are passed over; an unknown field in ours is a failure that
    names it, before anything is wiped, though it slipped through admission.
    """
    bench = Bench()
    uid = bench.given("x", "a")
    allocation = copy.deepcopy(bench.raw("x")["status"]["allocation"])
    opaque = {"opaque": {"driver": driver, "parameters": parameters}}
    allocation["devices"]["config"] = [{"source": "FromClaim", "requests": ["gpu"], **opaque}]
    entries = bench.reserved("x")
    bench.deallocate("x")
    bench.write("x", allocation=allocation, reservedFor=entries)
    bench.run(4.0)
    reading = bench.reading("x")
    assert (reading.bound, reading.failed) == (served, not served)
    assert bool(bench.nodes.orders) is served
    assert (bench.lease(uid) is not None) is served
    assert ("skipScrubb" in str(bench.raw("x")["status"]["devices"])) is not served
    assert not bench.device("a").reasons


# --- B27: a conditional write whose answer is open ------------------------------------------------


def test_b27_an_answer_that_was_lost_is_our_own_write() -> None:
    """B27 a: stored, then the connection drops: it is read back as ours, and said once."""
    bench = ready("c")
    bench.cluster.faults.lose_answer_next("apply")
    bench.step()
    said = bench.raw()["status"]
    bench.run(3.0)
    assert about(bench.cluster.writes(), "c") == ["apply status", "patch"]
    assert bench.raw()["status"] == said


def test_b27_conflicts_are_tried_again() -> None:
    """B27 b: 409 twice, then 200: bound, under the first wipe."""
    bench = ready("c")
    bench.cluster.faults.fail_next("apply", errors.ApiConflict("changed"), times=2)
    bench.run(3.0)
    assert bench.reading().bound
    assert len(bench.nodes.orders) == 1


def test_b27_a_server_that_is_busy_is_waited_for() -> None:
    """B27 d: 503 three times: tried again with pauses, and nobody is let in meanwhile."""
    bench = ready("c")
    bench.cluster.faults.fail_next("apply", errors.ApiUnavailable("slow down"), times=3)
    began = bench.clock.now()
    while not bench.reading().bound:
        assert bench.clock.now() < began + 20.0
        bench.step()
    assert bench.clock.now() - began >= 3.0
    assert about(bench.cluster.writes(), "c") == ["apply status"] * 4


def test_b27_a_certificate_that_is_not_the_one_in_force_binds_nobody() -> None:
    """B27 c, e: the certificate the node has now is another than the one the wipe was answered
    with: nothing is said of the device, and it is wiped again.
    """
    bench = ready("c")
    bench.change("a", certificate="sha256:other")
    bench.run(3.0, work=False)
    assert not bench.reading().bound
    assert len(bench.nodes.orders) == 2
    bench.run(3.0)
    reading = bench.reading()
    assert reading.receipt(reading.holding[0], "certificate") == bench.device("a").certificate


# --- B32: after a restart -------------------------------------------------------------------------


def closed_incident(bench: Bench) -> None:
    """Device a failed for a claim, and is back in service; what is left over of it all stays: the
    failed claim, the wipe's result, the quarantine's lease.
    """
    bench.nodes.outcomes[bench.uuid("a")] = Outcome.QUARANTINED
    bench.given("incident-1", "a")
    bench.run(1.0)
    bench.publish("n1")
    bench.run(2.0)
    assert bench.reading("incident-1").failed
    views = bench.nodes.views({"n1": (), "n2": ()})
    QuarantineLeases(bench.coordinator).step(views, bench.clock.now())
    assert [one.holder.kind for one in bench.store.leases()] == [HolderKind.QUARANTINE]
    bench.nodes.outcomes.clear()
    bench.change("a", state="CLEAN", reasons=(), certificate=bench.nodes.certificate())
    bench.publish("n1")


@pytest.mark.parametrize("in_use", [False, True], ids=["idle", "in-use"])
def test_b32_a_closed_incident_is_not_acted_on_again(in_use: bool) -> None:
    """B32: nothing happens to the device of the closed one, which claim B may have by now; its
    lease is closed as superseded. The open one goes on, with the one wipe that was ordered.
    """
    bench = Bench()
    closed_incident(bench)
    if in_use:
        views = bench.nodes.views({"n1": (), "n2": ()})
        QuarantineLeases(bench.coordinator).step(views, bench.clock.now())
        bench.deallocate("incident-1")
        bench.given("claim-b", "a")
        bench.run(3.0)
        bench.bind("claim-b-pod")
        bench.prepare("claim-b")
        bench.allocate("incident-1", "a")
        bench.write("incident-1", reservedFor=[bench.pod("late")])
        bench.run(2.0)
    bench.given("incident-2", "b")
    bench.run(1.0, work=False)
    before, slices = bench.device("a"), bench.admin.list(SLICES).items
    ordered = {order.operation for order in bench.nodes.orders}
    loops(bench, coordinator(bench), 5, work=False)
    loops(bench, coordinator(bench), 20)
    assert bench.device("a") == before
    assert bench.admin.list(SLICES).items == slices
    assert {order.operation for order in bench.nodes.orders} == ordered
    assert bench.reading("incident-2").bound
    left = {(one.holder.kind, one.holder.name) for one in bench.store.leases()}
    users = ["incident-2", *(["claim-b"] if in_use else [])]
    assert left == {(HolderKind.CLAIM, bench.reading(name).uid) for name in users}


# --- B45: the old world goes on -------------------------------------------------------------------


def test_b45_an_old_coordinator_beside_the_new_one() -> None:
    """B45: nodes out of reach for a minute, then two coordinators, of which one is of the world
    before: the running claim is not touched, and the teardown under way is finished once.
    """
    bench = Bench()
    a = bench.given("claim-a", "a")
    bench.given("claim-c", "b")
    bench.run(3.0)
    for name in ("claim-a", "claim-c"):
        bench.bind(f"{name}-pod")
        bench.prepare(name)
    bench.unprepare("claim-c")
    bench.reserve("claim-c")
    old = coordinator(bench)
    loops(bench, old, 2)
    running = (bench.raw("claim-a"), bench.device("a"), bench.lease(a))
    orders, writes = len(bench.nodes.orders), len(bench.cluster.writes())
    bench.nodes.silent |= {"n1", "n2"}
    loops(bench, old, 30)
    assert len(bench.cluster.writes()) == writes
    assert bench.reading("claim-c").marked
    bench.nodes.silent.clear()
    bench.bury("claim-c", owes=False)
    worlds = [(old, bench.claims, bench.binder)]
    worlds.append((coordinator(bench), bench.claims, bench.binder))
    for number in range(20):
        who, bench.claims, bench.binder = worlds[number % 2]
        loops(bench, who, 1)
    assert (bench.raw("claim-a"), bench.device("a"), bench.lease(a)) == running
    assert not bench.reading("claim-c").marked
    assert len(bench.nodes.orders) == orders
    assert about(bench.cluster.writes()[writes:], "claim-c") == ["patch status", "patch"]
    assert [one.holder.name for one in bench.store.leases()] == [a]


# --- B51: devices of a fleet scrub ----------------------------------------------------------------


def test_b51_a_busy_device_is_not_waited_for_by_holding_others_idle() -> None:
    """B51: a claim of two devices, one of which a campaign has, holds neither while it waits."""
    bench = Bench()
    campaign = Holder(HolderKind.CAMPAIGN, "run-1")
    unit = UnitId(bench.device("b").units[0])
    bench.store.acquire([AcquireRequest(frozenset({unit}), campaign, ttl_s=3600.0)])
    uid = bench.given("scrub-two", "a", "b")
    bench.run(30.0)
    assert [one.holder for one in bench.store.leases()] == [campaign]
    assert "campaign:run-1" in bench.binder.why(uid)
    assert bench.nodes.orders == []
    bench.given("one", "a")
    bench.run(3.0)
    assert bench.reading("one").bound


def test_b51_all_devices_for_looking_in_lease_none_and_wipe_none() -> None:
    """B51: allocationMode All with adminAccess is no way to scrub: the claim gets to look in, with
    no lease and no wipe; we ourselves do not allocate it at all.
    """
    bench = Bench()
    uid = bench.create("scrub-all")
    bench.allocate("scrub-all", "a", "b", request="look", adminAccess=True)
    bench.reserve("scrub-all", bench.pod("scrub-all-pod"))
    bench.run(3.0)
    reading = bench.reading("scrub-all")
    assert (reading.bound, reading.marked, bench.lease(uid)) == (True, False, None)
    assert bench.nodes.orders == []
    bad = scenes.request("all", allocationMode="All", adminAccess=True)
    with pytest.raises(errors.InputInvalid, match="adminAccess"):
        choose(scenes.claim(bad), scenes.scene(scenes.view(scenes.device("gpu-0"))))


def test_b51_one_claim_for_one_device_by_its_uuid() -> None:
    """B51: the device chosen is the one whose UUID the claim names, on whatever node it is; in an
    incomplete pool, or with nobody answering for it, it is not to be had.
    """
    first, second = scenes.device("gpu-0"), scenes.device("gpu-0", node="n2")
    wanted = f'device.attributes["{DRIVER}"].uuid == "{second.uuid}"'
    tolerated = {"key": QUARANTINED, "operator": "Equal", "value": "dirty", "effect": "NoSchedule"}
    claim = scenes.claim(scenes.request("gpu", wanted, count=1, tolerations=[tolerated]))
    views = scenes.view(first), scenes.view(second, node="n2")
    found = choose(claim, scenes.scene(*views))
    assert isinstance(found, Choice)
    assert found.devices == (second.uuid,)
    half = scenes.slice_of(scenes.entry(second), node="n2", count=2)
    assert isinstance(choose(claim, scenes.scene(*views, slices=[half])), NoChoice)
    assert isinstance(choose(claim, scenes.scene(views[0])), NoChoice)


# --- B53: a selector left empty -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "devices"),
    [("", {"a": ("ecc",)}), ("n1", {"": ("ecc",)}), ("n1", {"a": ("ecc",), "": ()}), ("n1", {})],
    ids=["no-pool", "no-device", "one-without-a-name", "nothing"],
)
def test_b53_a_name_left_empty_marks_nothing(node: str, devices: dict[str, Sequence[str]]) -> None:
    """B53: "this device" never becomes "all devices": an error, and no write leaves the process."""
    bench = Bench()
    with pytest.raises(errors.InputInvalid, match="no device is named"):
        bench.binder._around.visible.take_over(node, devices, bench.clock.now())
    assert bench.cluster.writes() == []


def test_b53_a_device_that_is_not_in_the_inventory_marks_nothing() -> None:
    """B53: a device that no slice of the node lists leads to no write, and takes no other along."""
    bench = Bench()
    visible = bench.binder._around.visible
    visible.take_over("n1", {"gpu-9": ("ecc",)}, bench.clock.now())
    visible.take_over("n9", {"a": ("ecc",)}, bench.clock.now())
    assert bench.cluster.writes() == []


def test_b53_a_quarantine_marks_one_device_of_one_pool() -> None:
    """B53: with a device of the same name on every node one entry of one slice is written, and
    never a DeviceTaintRule.
    """
    bench = Bench()
    bench.binder._around.visible.take_over("n1", {"a": ("ecc",)}, bench.clock.now())
    (write,) = bench.cluster.writes()
    assert (write.verb, write.resource) == ("replace", SLICES)
    marked = [
        (part["spec"]["nodeName"], entry["name"])
        for part in bench.admin.list(SLICES).items
        for entry in part["spec"]["devices"]
        if any(taint["key"] == QUARANTINED for taint in entry.get("taints") or ())
    ]
    assert marked == [("n1", "a")]


# --- B70: a fault of the parent -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reached", "failed"),
    [(("a", "b"), {"mig-a", "mig-b"}), (("b",), {"mig-b"})],
    ids=["xid-79-of-the-parent", "xid-94-of-one-partition"],
)
def test_b70_every_claim_whose_partition_is_reached_fails(
    reached: Sequence[str], failed: set[str]
) -> None:
    """B70: two partitions of one accelerator are two claims' own: both fail where the node says
    that the fault is the parent's, and one alone where it is not.
    """
    bench = Bench()
    for name in ("a", "b"):
        bench.change(name, accelerator="GPU-n1-0", units=(f"GPU-n1-0/{name}",))
    for name in ("a", "b"):
        bench.given(f"mig-{name}", name)
    bench.run(1.0, work=False)
    bench.nodes.outcomes |= {bench.uuid(name): Outcome.QUARANTINED for name in reached}
    bench.nodes.work()
    bench.publish("n1")
    bench.run(4.0, work=False)
    assert {name for name in ("mig-a", "mig-b") if bench.reading(name).failed} == failed
    assert {name for name in ("mig-a", "mig-b") if bench.reading(name).bound} == (
        {"mig-a", "mig-b"} - failed
    )
    assert len(bench.store.leases()) == 2 - len(failed)


# --- B75: claims in deletion ----------------------------------------------------------------------


def test_b75_claims_in_deletion_are_served_at_the_start() -> None:
    """B75: a coordinator that starts late takes its finalizer, and only that, off the claim whose
    teardown is done; keeps it on the one whose device is dirty, and tells its owner; and writes
    nothing at all about the one that an ended and a running pod share.
    """
    bench = Bench(hold_event_after_s=30.0)
    for name, device, node in (("done", "a", "n1"), ("dirty", "b", "n1"), ("shared", "a", "n2")):
        bench.given(name, device, node=node)
        bench.run(3.0)
        bench.bind(f"{name}-pod", node)
        bench.prepare(name, node)
    for name in ("done", "dirty"):
        bench.delete(name)
        bench.unprepare(name)
        bench.reserve(name)
    bench.bury("done", owes=False)
    bench.change_pod("shared-pod", {"status": {"phase": "Succeeded"}}, part="status")
    first = [one for one in bench.reserved("shared") if not MARKS.is_hold(one)]
    bench.reserve("shared", *first, bench.pod("shared-too"))
    bench.bind("shared-too", "n2")
    shared = bench.raw("shared")
    before = len(bench.cluster.writes())
    who = coordinator(bench)
    loops(bench, who)
    sent = bench.cluster.writes()[before:]
    assert bench.raw("done")["metadata"]["finalizers"] == [BUILTIN]
    assert about(sent, "done") == ["apply status", "patch"]
    assert all({"uid", "resourceVersion"} <= call.body["metadata"].keys() for call in sent)
    assert (about(sent, "dirty"), about(sent, "shared")) == ([], [])
    assert bench.raw("shared") == shared
    assert bench.reading("dirty").finalizer
    assert {name for name, _ in bench.told.claims} == {f"{SPACE}/dirty"}
    bench.bury("dirty", owes=False)
    loops(bench, who, 10)
    assert bench.raw("dirty")["metadata"]["finalizers"] == [BUILTIN]


def test_b75_marks_taken_off_by_hand_leave_the_device_dirty() -> None:
    """B75: an administrator who takes our marks off a stuck claim frees the claim, not the device:
    the next one waits until it is torn down and wiped for it.
    """
    bench = Bench()
    bench.given("dirty", "a")
    bench.run(3.0)
    bench.prepare("dirty")
    bench.delete("dirty")
    bench.unprepare("dirty")
    old = bench.lease(bench.reading("dirty").uid)
    name = bench.reading("dirty").name
    body = bench.admin.get(CLAIMS, name)
    body["metadata"]["finalizers"] = []
    record = bench.nodes.by_name["n1"].claims[bench.reading("dirty").uid]
    bench.admin.replace(CLAIMS, body)
    assert not bench.exists("dirty")
    who = coordinator(bench)
    uid = bench.given("next", "a")
    loops(bench, who, 10)
    assert bench.store.leases() == [old]
    assert not bench.reading("next").bound
    del bench.nodes.by_name["n1"].claims[record.uid]
    bench.change("a", state="DIRTY", claim="", held=False, certificate="")
    loops(bench, who, 10)
    lease = bench.lease(uid)
    assert bench.reading("next").bound
    assert lease is not None
    assert bench.nodes.orders[-1].token == str(lease.token)
