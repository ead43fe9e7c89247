"""Allocation by ourselves: proven first, one guarded update, no trace of what came to nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fleet.control.binding import pledge
from fleet.control.binding.allocation import BUILTIN_FINALIZER
from fleet.control.binding.allocator import Allocator, AllocatorTerms
from fleet.control.binding.claim_leases import ClaimLeases
from fleet.control.binding.pledge import Pledge
from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.messages import Outcome
from fleet.core.model import Holder, HolderKind, UnitId
from fleet.core.profiles import Profile
from fleet.core.settings import WipePolicy
from fleet.kube.base import CLAIMS, CLASSES, Name, Object, uid_of
from fleet.kube.claim import read
from tests.fleet.control.binding.benches import Bench
from tests.fleet.control.binding.grounds import MARKS, POD, Ground
from tests.fleet.control.binding.scenes import SPACE, claim, device_class, request

FIRST, SECOND = "GPU-n1-gpu-0", "GPU-n1-gpu-1"
LATE = errors.ApiConflict("the object has been modified", reason="Conflict")


def test_a_claim_gets_a_device_that_was_proven_for_it() -> None:
    """B1, B2, B7: wiped under the claim's token before anything is allocated; then it is bound,
    held and finalized, and its node exposes it to nobody else."""
    ground = Ground(2)
    name = ground.create()
    found = ground.allocator().allocate(name)
    reading = ground.reading(name)
    assert [(one.node, one.device) for one in reading.devices] == [("n1", "gpu-0")]
    assert reading.bound
    assert reading.held
    assert reading.finalizer
    assert reading.builtin_finalizer
    assert reading.allocated_at == ground.clock.now()
    assert pledge.read(reading.raw, MARKS) is None
    assert reading.receipt(reading.devices[0], "token") == found.token
    assert reading.receipt(reading.devices[0], "certificate") == found.certificates[0]
    lease = ground.lease(name)
    assert lease is not None
    assert str(lease.token) == found.token
    assert list(ground.exposable(name)) == ["n1/gpu-0"]


def test_the_allocation_is_what_the_scheduler_would_write() -> None:
    """Copies of both condition lists, the node, the time: without it no pod is ever bound."""
    ground = Ground(1)
    name = ground.create()
    ground.allocator().allocate(name)
    given = ground.cluster.get(CLAIMS, name)["status"]["allocation"]
    term = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert given["nodeSelector"] == {"nodeSelectorTerms": [{"matchFields": [term]}]}
    assert given["allocationTimestamp"] == "2023-11-14T22:13:20Z"
    (one,) = given["devices"]["results"]
    assert one["bindingConditions"] == [MARKS.sanitized, MARKS.healthy]
    assert one["bindingFailureConditions"] == [MARKS.failed]


def test_nothing_is_true_before_the_allocation_stood_alone() -> None:
    """The claim is allocated in one update; conditions and hold come after the look at others."""
    ground = Ground(1)
    allocator = ground.allocator()
    allocator.allocate(ground.create())
    writes = [(call.verb, call.subresource) for call in ground.connection.writes()]
    assert writes == [
        ("patch", ""),
        ("replace", ""),
        ("replace", "status"),
        ("apply", "status"),
        ("patch", ""),
        ("patch", ""),
    ]
    calls = [call.verb for call in ground.connection.calls]
    put = max(index for index, verb in enumerate(calls) if verb == "replace")
    assert "list" in calls[put : calls.index("apply")]


def test_the_operation_is_none_of_a_scheduled_claim() -> None:
    """While it is wiped nobody was given the device at the API: the pool gate has to taint it,
    which it does not for the coordinator's own operations."""
    ground = Ground(1)
    ground.allocator().allocate(ground.create())
    assert all(operation.startswith("bind/") for operation in ground.nodes.orders)


@pytest.mark.parametrize(
    ("profile", "held"), [(Profile.STRICT, True), (Profile.FAST, True), (Profile.LAB, False)]
)
def test_the_profile_says_whether_it_is_held(profile: Profile, held: bool) -> None:
    """D3: hold and finalizer as the pool's profile has them; receipts always."""
    ground = Ground(1, profile=profile)
    name = ground.create()
    ground.allocator().allocate(name)
    reading = ground.reading(name)
    assert (reading.held, reading.finalizer) == (held, held)
    assert reading.gated is (profile is Profile.STRICT)
    assert reading.receipt(reading.devices[0], "verdict") == "certified"


def test_our_marks_can_be_taken_off_again() -> None:
    """Hold and conditions belong to one manager alone: an apply without them removes them."""
    ground = Ground(1)
    name = ground.create()
    ground.allocator().allocate(name)
    ground.change(name, reservedFor=[*ground.reading(name).raw["status"]["reservedFor"], POD])
    reading = ground.reading(name)
    identity = {"name": name.name, "namespace": name.namespace, "uid": reading.uid}
    body: Object = {"apiVersion": CLAIMS.api_version, "kind": CLAIMS.kind, "metadata": identity}
    ground.cluster.apply(CLAIMS, {**body, "status": {}}, manager="fleetscrub", subresource="status")
    after = ground.reading(name)
    assert not after.held
    assert not after.conditions
    assert after.allocated


def test_what_is_done_is_not_done_again() -> None:
    """Repeating it says so; a claim that the scheduler allocated is the coordinator's."""
    ground = Ground(2)
    name = ground.create()
    first = ground.allocator().allocate(name)
    again = ground.allocator().allocate(name)
    assert again.already
    assert again.token == first.token
    assert not ground.connection.writes()
    other = ground.create("other")
    ground.schedule(other, "gpu-1")
    with pytest.raises(errors.ClaimUnready, match="allocated already"):
        ground.allocator().allocate(other)


def test_a_device_that_fails_leads_to_another() -> None:
    """B3: the failed one is its node's to quarantine; its lease goes, the next is tried."""
    ground = Ground(2)
    ground.nodes.outcomes = {FIRST: [Outcome.QUARANTINED]}
    name = ground.create()
    found = ground.allocator().allocate(name)
    assert list(ground.exposable(name)) == ["n1/gpu-1"]
    assert len(found.tried) == 1
    assert "n1/gpu-0" in found.tried[0]
    assert ground.store.holder(UnitId(f"{FIRST}/all")) is None
    assert ground.nodes.machines["n1"][FIRST].closed


def test_what_ends_without_a_verdict_is_wiped_again() -> None:
    """An interrupted wipe says nothing about the device: it is ordered anew, under another id."""
    ground = Ground(1)
    ground.nodes.outcomes = {FIRST: [Outcome.INTERRUPTED, Outcome.BUSY]}
    name = ground.create()
    assert not ground.allocator().allocate(name).tried
    assert len(ground.nodes.orders) == 3


def test_all_devices_of_a_claim_or_none() -> None:
    """All or nothing: one failing device gives the others back, on whatever node is next."""
    ground = Ground(2, 2)
    ground.nodes.outcomes = {SECOND: [Outcome.FAILED]}
    name = ground.create("c", request(count=2))
    ground.allocator().allocate(name)
    assert list(ground.exposable(name)) == ["n2/gpu-0", "n2/gpu-1"]
    assert ground.store.holder(UnitId(f"{FIRST}/all")) is None


def test_a_device_leased_by_somebody_else_is_left_alone() -> None:
    """B6: a campaign has the first device: the second is taken, the campaign keeps its own."""
    ground = Ground(2)
    campaign = Holder(HolderKind.CAMPAIGN, "run")
    ground.store.acquire([AcquireRequest(frozenset({UnitId(f"{FIRST}/all")}), campaign, 60.0)])
    name = ground.create()
    ground.allocator().allocate(name)
    assert list(ground.exposable(name)) == ["n1/gpu-1"]
    lease = ground.store.holder(UnitId(f"{FIRST}/all"))
    assert lease is not None
    assert lease.holder == campaign


# --- what comes to nothing leaves nothing ------------------------------------------------------


def conflicts(ground: Ground, _: int) -> None:
    ground.connection.faults.fail_next("replace", LATE, times=9)


def status_conflicts(ground: Ground, ahead: int) -> None:
    failing(ground, LATE, ahead, times=9)


def failing(ground: Ground, error: errors.FleetError, ahead: int, *, times: int = 1) -> None:
    """Let the update with the allocation fail, `ahead` updates from now."""
    faults = ground.connection.faults
    for _ in range(ahead):
        faults.before_next("replace", lambda: None)
    faults.before_next("replace", lambda: faults.fail_next("replace", error, times=times))


def told_conflicts(ground: Ground, _: int) -> None:
    ground.connection.faults.fail_next("apply", LATE, times=5)


def all_fail(ground: Ground, _: int) -> None:
    outcomes = {one: [Outcome.QUARANTINED] for one in (FIRST, SECOND)}
    ground.nodes.outcomes = outcomes


def refused(ground: Ground, ahead: int) -> None:
    causes = [("FieldValueForbidden", "status.allocation", "no right")]
    error = errors.ApiForbidden("no right to resourceclaims/binding", status=422, causes=causes)
    failing(ground, error, ahead)


def never_ready(ground: Ground, _: int) -> None:
    ground.nodes.outcomes = {
        FIRST: [Outcome.INTERRUPTED] * 9,
        SECOND: [Outcome.UNREACHABLE] * 9,
    }


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        (conflicts, errors.ApiConflict),
        (status_conflicts, errors.ApiConflict),
        (told_conflicts, errors.ApiConflict),
        (all_fail, errors.ClaimUnready),
        (refused, errors.ApiForbidden),
        (never_ready, errors.ClaimUnready),
    ],
)
@pytest.mark.parametrize("finalizers", [(), (BUILTIN_FINALIZER,)])
def test_a_failure_leaves_no_trace(
    trouble: Callable[[Ground, int], None],
    kind: type[errors.FleetError],
    finalizers: tuple[str, ...],
) -> None:
    """B5: storms of conflicts, missing rights, devices that fail: spec, status and finalizers are
    as they were, no lease, every token closed."""
    ground = Ground(2)
    name = ground.create(finalizers=finalizers)
    before = ground.cluster.get(CLAIMS, name)
    allocator = ground.allocator()
    trouble(ground, 0 if finalizers else 1)
    with pytest.raises(kind):
        allocator.allocate(name)
    assert ground.is_untouched(name, before)
    used = [one for one in ground.nodes.machines["n1"].values() if one.floor.counter]
    assert used
    assert all(machine.closed for machine in used)


def test_a_claim_that_asks_for_what_we_cannot_do_is_left_as_it_is() -> None:
    """Refused by name before a device is touched."""
    ground = Ground(1)
    name = ground.create("c", request(adminAccess=True))
    before = ground.cluster.get(CLAIMS, name)
    with pytest.raises(errors.InputInvalid, match="adminAccess"):
        ground.allocator().allocate(name)
    assert ground.is_untouched(name, before)
    assert not ground.nodes.orders


def test_what_the_claim_demands_of_a_wipe_is_ordered() -> None:
    """The claim's own configuration may demand more than the policy; one that cannot be accepted
    is refused before a device is touched."""
    ground = Ground(1)
    head = {"apiVersion": "fleetscrub.dev/v1", "kind": "SanitizationConfig"}
    ground.allocator().allocate(ground.create(config=[{**head, "coverageFloor": 0.995}]))
    (order,) = ground.nodes.orders.values()
    assert order.wipe is not None
    assert order.wipe.coverage_floor == 0.995
    ground = Ground(1)
    name = ground.create(config=[{**head, "coverageFlor": 0.995}])
    before = ground.cluster.get(CLAIMS, name)
    with pytest.raises(errors.ClaimConfigInvalid, match="coverageFlor"):
        ground.allocator().allocate(name)
    assert ground.is_untouched(name, before)
    assert not ground.nodes.orders


def test_an_interrupt_is_a_failure_too() -> None:
    """Control-C in mid-wipe: everything is taken back before the process ends."""
    ground = Ground(1)
    name = ground.create()
    before = ground.cluster.get(CLAIMS, name)

    def meanwhile() -> None:
        if ground.nodes.orders:
            ground.nodes.meanwhile = lambda: None
            raise KeyboardInterrupt

    ground.nodes.meanwhile = meanwhile
    with pytest.raises(KeyboardInterrupt):
        ground.allocator().allocate(name)
    assert ground.is_untouched(name, before)


def test_a_node_that_does_not_answer_stops_no_allocation_elsewhere() -> None:
    """Promise 9: one silent node of several is passed over; where all are silent, that is said."""
    ground = Ground(1, 1)
    name = ground.create()
    ground.nodes.silent = {"n1"}
    ground.allocator().allocate(name)
    assert [one.node for one in ground.reading(name).devices] == ["n2"]
    ground.nodes.silent = {"n1", "n2"}
    other = ground.create("d")
    with pytest.raises(errors.NotOwner, match="nobody answers"):
        ground.allocator().allocate(other)
    assert not ground.reading(other).allocated


def test_a_silent_node_keeps_its_lease_until_it_answers() -> None:
    """D6: without the node's word no lease is released; the claim's part is taken back, and the
    next attempt begins with what is left over."""
    ground = Ground(1)
    name = ground.create()

    def meanwhile() -> None:
        if ground.nodes.orders:
            ground.nodes.silent = {"n1"}

    ground.nodes.meanwhile = meanwhile
    with pytest.raises(errors.DeviceBusy, match="not given back yet"):
        ground.allocator(wait_s=5.0).allocate(name)
    assert ground.lease(name) is not None
    assert not ground.reading(name).allocated
    assert pledge.read(ground.reading(name).raw, MARKS) is None
    ground.nodes.meanwhile, ground.nodes.silent = lambda: None, set()
    for machine in ground.nodes.machines["n1"].values():
        machine.seen = machine.seen.model_copy(update={"state": "CLEAN"})
    ground.allocator().allocate(name)
    assert list(ground.exposable(name)) == ["n1/gpu-0"]


@pytest.mark.parametrize("verb", ["patch", "replace", "apply", "get", "list"])
@pytest.mark.parametrize("skipped", [0, 1])
def test_a_lost_answer_is_settled_by_looking(verb: str, skipped: int) -> None:
    """B5: what was carried out though nobody heard is found by a live GET; nothing is done twice
    and nothing is taken back."""
    ground = Ground(1)
    name = ground.create()
    allocator = ground.allocator()
    faults = ground.connection.faults
    for _ in range(skipped):
        faults.before_next(verb, lambda: None)
    faults.before_next(verb, lambda: faults.lose_answer_next(verb))
    try:
        allocator.allocate(name)
    except errors.ApiUnavailable:
        assert verb in ("get", "list")  # a read that is not repeated ends it: nothing is written
        allocator.allocate(name)
    assert list(ground.exposable(name)) == ["n1/gpu-0"]
    assert ground.reading(name).bound


def test_a_lost_order_is_sent_again() -> None:
    """Orders are idempotent by their id: the node takes the second for the first."""
    ground = Ground(1)
    ground.nodes.lost = 2
    ground.allocator().allocate(ground.create())
    assert len(ground.nodes.orders) == 1


# --- races -------------------------------------------------------------------------------------


def test_a_change_that_does_not_matter_costs_a_look() -> None:
    """409 leads to a new decision over the same devices, which still stand: no second wipe."""
    ground = Ground(2)
    name = ground.create()
    allocator = ground.allocator()
    faults = ground.connection.faults
    faults.before_next("replace", lambda: ground.annotate(name, "a"))
    faults.before_next("replace", lambda: None)
    faults.before_next("replace", lambda: ground.annotate(name, "b"))
    found = allocator.allocate(name)
    assert not found.tried
    assert len(ground.nodes.orders) == 1


def test_two_of_us_never_work_on_one_claim() -> None:
    """The pledge of the first stands in the way of the second, until it is over."""
    ground = Ground(2)
    name = ground.create()
    first = ground.allocator()
    faults = ground.connection.faults
    told: list[str] = []

    def second() -> None:
        with pytest.raises(errors.ClaimUnready) as caught:
            ground.allocator().allocate(name)
        told.append(caught.value.detail)

    faults.before_next("replace", second)
    first.allocate(name)
    assert told == ["claim tenant/c is being allocated by somebody else"]
    assert not [x for x in ground.store.leases() if x.holder.kind is HolderKind.OPERATOR]
    assert list(ground.exposable(name)) == ["n1/gpu-0"]


def test_a_pledge_of_the_dead_is_waited_out() -> None:
    """Whoever died in mid-work is in nobody's way for longer than the pledge's lifetime."""
    ground = Ground(1)
    name = ground.create()
    until = ground.clock.now() + pledge.LIFETIME_S
    body = pledge.body(ground.cluster.get(CLAIMS, name), MARKS, Pledge("dead", until))
    found = ground.cluster.get(CLAIMS, name)
    found["metadata"]["annotations"] = body["metadata"]["annotations"]
    ground.cluster.replace(CLAIMS, found)
    with pytest.raises(errors.ClaimUnready):
        ground.allocator().allocate(name)
    ground.clock.advance(pledge.LIFETIME_S)
    assert ground.allocator().allocate(name).token


@pytest.mark.parametrize("device_name", ["gpu-0", "gpu-1"])
def test_the_scheduler_may_be_faster_with_the_same_claim(device_name: str) -> None:
    """Somebody else allocated the claim while its device was wiped: theirs stays, ours goes."""
    ground = Ground(2)
    name = ground.create()
    allocator = ground.allocator()
    ground.connection.faults.before_next("replace", lambda: ground.schedule(name, device_name))
    with pytest.raises(errors.ClaimUnready, match="allocated by somebody else"):
        allocator.allocate(name)
    reading = ground.reading(name)
    assert [one.device for one in reading.devices] == [device_name]
    assert not reading.bound or not reading.gated
    assert not reading.builtin_finalizer
    assert ground.lease(name) is None
    assert pledge.read(reading.raw, MARKS) is None


@pytest.mark.parametrize("writes", [1, 2])
def test_a_device_given_to_a_waiting_pod_is_left_to_it(writes: int) -> None:
    """At most one is exposed: a scheduler gave the device to a claim of a waiting pod meanwhile;
    ours is taken back whole and gets another."""
    ground = Ground(2)
    name, other = ground.create(), ground.create("other")
    allocator = ground.allocator()
    faults = ground.connection.faults
    for _ in range(writes - 1):
        faults.before_next("replace", lambda: None)
    faults.before_next("replace", lambda: ground.schedule(other, "gpu-0"))
    found = allocator.allocate(name)
    assert "somebody else" in found.tried[0]
    assert list(ground.exposable(name)) == ["n1/gpu-1"]
    assert not list(ground.exposable(other))  # it has to be proven for it first
    assert ground.store.holder(UnitId(f"{FIRST}/all")) is None


def test_a_device_given_without_a_user_stays_with_its_lease() -> None:
    """The lease wins where nobody waits for the other: only ours can be exposed."""
    ground = Ground(1)
    name, other = ground.create(), ground.create("other")
    allocator = ground.allocator()
    faults = ground.connection.faults
    faults.before_next("replace", lambda: None)
    faults.before_next("replace", lambda: ground.schedule(other, "gpu-0", pod=False))
    allocator.allocate(name)
    assert list(ground.exposable(name)) == ["n1/gpu-0"]
    assert not list(ground.exposable(other))


def test_an_allocation_in_use_is_left_to_its_use() -> None:
    """A pod was reserved right after the update: with the lease ours it stays, whoever else was
    given the device; nothing is taken from under a pod."""
    ground = Ground(1)
    name, other = ground.create(), ground.create("other")
    allocator = ground.allocator()
    faults = ground.connection.faults
    faults.before_next("list", lambda: None)
    faults.before_next("list", lambda: None)
    faults.before_next("list", lambda: None)

    def meanwhile() -> None:
        ground.schedule(other, "gpu-0")
        ground.change(name, reservedFor=[POD])

    faults.before_next("list", meanwhile)
    allocator.allocate(name)
    reading = ground.reading(name)
    assert reading.pods
    assert reading.bound
    assert list(ground.exposable(name)) == ["n1/gpu-0"]
    assert not list(ground.exposable(other))


def test_a_claim_that_goes_away_takes_everything_with_it() -> None:
    """Deleted while its device is wiped: the lease goes, and there is nothing else to undo."""
    ground = Ground(1)
    name = ground.create()
    uid = uid_of(ground.cluster.get(CLAIMS, name))
    allocator = ground.allocator()
    ground.connection.faults.before_next("replace", lambda: ground.cluster.delete(CLAIMS, name))
    with pytest.raises((errors.ApiNotFound, errors.ApiConflict)):
        allocator.allocate(name)
    assert not ground.store.leases(Holder(HolderKind.CLAIM, uid))
    assert ground.nodes.machines["n1"][FIRST].closed


def beside_a_coordinator(bench: Bench) -> Allocator:
    """An allocator whose every wait is a step of a coordinator that sees all of it."""

    def sleep(seconds: float) -> None:
        bench.step(wait_s=seconds)
        bench.step(wait_s=seconds)
        bench.nodes.work()

    leases = ClaimLeases(bench.coordinator, bench.nodes)
    return Allocator(
        bench.cluster,
        leases,
        bench.nodes,
        terms=AllocatorTerms(MARKS, 60.0, WipePolicy()),
        clock=bench.clock,
        sleep=sleep,
    )


def test_the_coordinator_leaves_it_alone() -> None:
    """B1, B5: with a coordinator that looks at everything all the time, the lease of the claim that
    is being allocated is no leftover, and the allocation waits for its first pod for as long as it
    takes; when the pod comes everything is ready."""
    bench = Bench()
    name, uid = Name("c", SPACE), uid_of(bench.admin.create(CLAIMS, claim()))
    bench.admin.create(CLASSES, device_class())
    bench.survey()
    found = beside_a_coordinator(bench).allocate(name)
    assert not found.tried
    assert not bench.nodes.abandoned
    bench.run(120.0, wait_s=5.0)
    after = read(bench.admin.get(CLAIMS, name), MARKS)
    assert after.bound
    assert after.held
    (lease,) = bench.store.leases(Holder(HolderKind.CLAIM, uid))
    assert str(lease.token) == found.token
    assert [order.operation.partition("/")[0] for order in bench.nodes.orders] == ["bind"]
    bench.write("c", reservedFor=[*after.raw["status"]["reservedFor"], bench.pod("late")])
    bench.run(10.0)
    ready = read(bench.admin.get(CLAIMS, name), MARKS)
    assert ready.bound
    assert ready.pods
    assert len(bench.nodes.orders) == 1


@pytest.mark.parametrize("backed", [True, False])
def test_what_the_dead_had_leased_is_given_back(*, backed: bool) -> None:
    """No state is a trap: an allocator killed in mid-wipe leaves a lease and a pledge; once the
    pledge is over the coordinator gives the lease back. T3: a pledge that the store does not
    confirm is a tenant's own writing, and keeps no lease at all."""
    bench = Bench()
    name = Name("c", SPACE)
    uid = uid_of(bench.admin.create(CLAIMS, claim()))
    made = bench.admin.get(CLAIMS, name)
    until = bench.clock.now() + pledge.LIFETIME_S
    annotations = pledge.body(made, MARKS, Pledge("dead", until))["metadata"]["annotations"]
    made["metadata"]["annotations"] = annotations
    bench.admin.replace(CLAIMS, made)
    holder = Holder(HolderKind.CLAIM, uid)
    unit = UnitId(bench.nodes.by_name["n1"].devices["GPU-n1-a"].units[0])
    right = AcquireRequest(
        frozenset({pledge.unit(uid)}), pledge.holder("dead"), ttl_s=pledge.LIFETIME_S
    )
    bench.coordinator.acquire([AcquireRequest(frozenset({unit}), holder), *[right] * backed])
    bench.survey()
    bench.run(pledge.LIFETIME_S / 2, wait_s=5.0)
    assert bool(bench.store.leases(holder)) == backed
    bench.run(2 * pledge.LIFETIME_S, wait_s=5.0)
    assert not bench.store.leases(holder)


@pytest.mark.parametrize("seed", range(40))
def test_two_allocators_and_a_scheduler(seed: int) -> None:
    """B4, B8: at most one of the racing claims is exposed per device, whoever loses leaves no
    trace, and nobody keeps a lease without an allocation."""
    draw = random.Random(seed)
    ground = Ground(draw.choice((1, 2)))
    names = [ground.create(f"c{number}") for number in range(2)]
    third = ground.create("x")
    before = {name: ground.cluster.get(CLAIMS, name) for name in names}
    done: dict[Name, bool] = {}

    def allocate(name: Name, actions: list[Callable[[], None]]) -> None:
        allocator = ground.allocator()
        faults = ground.connection.faults
        for action in actions:
            verb = draw.choice(("get", "list", "patch", "replace", "apply"))
            for _ in range(draw.randrange(4)):
                faults.before_next(verb, lambda: None)
            faults.before_next(verb, action)
        if draw.random() < 0.3:
            faults.lose_answer_next(draw.choice(("patch", "replace", "apply")))
        try:
            allocator.allocate(name)
            done[name] = True
        except errors.FleetError:
            done[name] = False

    def scheduled() -> None:
        given = ground.reading(third)
        if not given.allocated:
            wanted = draw.choice([one.seen.name for one in ground.nodes.machines["n1"].values()])
            ground.schedule(third, wanted, pod=draw.random() < 0.8)

    disturbing: list[Callable[[], None]] = [
        scheduled,
        lambda: allocate(names[1], []),
        lambda: ground.annotate(names[0], str(draw.random())),
    ]
    draw.shuffle(disturbing)
    allocate(names[0], disturbing)
    exposed = [one for name in (*names, third) for one in ground.exposable(name)]
    assert len(exposed) == len(set(exposed))
    for name in names:
        reading = ground.reading(name)
        if done.get(name):
            assert reading.bound
            assert reading.held
            assert list(ground.exposable(name))
        elif name in done:
            assert ground.is_untouched(name, before[name])
