"""Our marks on a claim: put on once, taken off in the right order, decided anew when raced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.kube import claim_bodies
from fleet.kube.base import CLAIMS, PODS, Name, Object, PatchKind, uid_of
from fleet.kube.claim import ClaimReading, read
from fleet.kube.claim_bodies import Told, Word
from fleet.kube.claim_holds import TORN_DOWN, Holds
from fleet.kube.marks import MANAGER, Marks
from tests.lab.apiserver.access import Access, Caller, Rule
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine

MARKS = Marks("gpu.fleetscrub.dev")
NAME = Name("c", "tenant")
BUILTIN = "resource.kubernetes.io/delete-protection"
POD: Object = {"resource": "pods", "name": "p", "uid": "pod-uid"}
FOREIGN: Object = {"apiGroup": "x.example.com", "resource": "locks", "name": "l", "uid": "lock"}


@dataclass
class Site:
    """One claim of two devices in an API server in memory."""

    cluster: MemoryCluster = field(default_factory=MemoryCluster)
    clock: ManualClock = field(default_factory=lambda: ManualClock(1_700_000_000.0))
    pauses: list[float] = field(default_factory=list)

    @property
    def holds(self) -> Holds:
        return Holds(self.cluster, MARKS, self.clock, self._pause)

    def _pause(self, pause_s: float) -> None:
        self.clock.advance(pause_s)
        self.pauses.append(pause_s)

    def create(self, *reserved: Object, **result: object) -> ClaimReading:
        """A claim that the scheduler has allocated, reserved for these."""
        body: Object = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": NAME.name, "namespace": NAME.namespace, "finalizers": [BUILTIN]},
            "spec": {"devices": {"requests": [
                {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 2}}
            ]}},
        }  # fmt: skip
        self.cluster.create(CLAIMS, body)
        self.allocate("gpu-0", "gpu-1", **result)
        return self.reserve(*(reserved or (POD,)))

    def allocate(self, *devices: str, **result: object) -> ClaimReading:
        entry = {"request": "gpu", "driver": MARKS.driver, "pool": "n1", **result}
        results = [{**entry, "device": device} for device in devices]
        stamp = claim_bodies.stamp(self.clock.now())
        allocation = {"devices": {"results": results}, "allocationTimestamp": stamp}
        return self.status(allocation=allocation)

    def reserve(self, *entries: Object) -> ClaimReading:
        return self.status(reservedFor=list(entries))

    def status(self, **fields: object) -> ClaimReading:
        """A write of the scheduler or of the claim controller."""
        found = self.cluster.get(CLAIMS, NAME)
        merged = {**found.get("status", {}), **fields}
        found["status"] = {key: value for key, value in merged.items() if value is not None}
        self.cluster.replace(CLAIMS, found, subresource="status")
        return self.now

    def prove(self) -> ClaimReading:
        """What the coordinator says with the last condition: proofs, receipts, hold, finalizer."""
        reading = self.now
        words = (Word(MARKS.sanitized, "Certified", true=True),
                 Word(MARKS.healthy, "Checked", true=True))  # fmt: skip
        told = [Told(one, words, {"token": "1.7"}) for one in reading.devices]
        now = self.clock.now()
        body = claim_bodies.status(reading, MARKS, told=told, hold="n1", now=now)
        self.cluster.apply(CLAIMS, body, manager=MANAGER, subresource="status")
        body = claim_bodies.finalizer(self.now, MARKS, present=True)
        self.cluster.apply(CLAIMS, body, manager=MANAGER)
        return self.now

    def delete(self) -> ClaimReading:
        self.cluster.delete(CLAIMS, NAME)
        return self.now

    @property
    def now(self) -> ClaimReading:
        return read(self.cluster.get(CLAIMS, NAME), MARKS)

    @property
    def entries(self) -> Sequence[Object]:
        """All reservations."""
        found: Sequence[Object] = self.now.raw["status"].get("reservedFor", [])
        return found

    def writes(self, act: Callable[[], object]) -> int:
        """Calls that an act sends to change something."""
        before = len(self.cluster.writes())
        act()
        return len(self.cluster.writes()) - before


@pytest.fixture
def site() -> Site:
    return Site()


# --- ensure ---------------------------------------------------------------------


def test_two_writes_put_the_marks_on_and_none_repeat_them(site: Site) -> None:
    """D3: hold and finalizer, one write each; the pods' own entries stay."""
    reading = site.create()
    assert site.writes(lambda: site.holds.ensure(reading)) == 2
    after = site.holds.ensure(site.now)
    assert (after.held, after.finalizer, after.writes) == (True, True, 0)
    assert site.entries == [POD, MARKS.hold(node="n1", uid=reading.uid)]
    assert BUILTIN in site.now.raw["metadata"]["finalizers"]


def test_a_hold_takes_nothing_of_ours_away(site: Site) -> None:
    """Invariant of apply: what was said before, with its times and receipts, is said again."""
    site.create()
    proven = site.prove()
    site.reserve(POD)  # somebody took our hold away
    site.clock.advance(60)
    site.holds.ensure(site.now)
    assert site.now.raw["status"]["devices"] == proven.raw["status"]["devices"]
    assert site.now.held
    assert site.now.receipts == proven.receipts


def test_what_cannot_or_need_not_be_held_costs_no_write(site: Site) -> None:
    """B35: a claim that only looks in has nothing; a Terminating one can get neither (422)."""
    admin = site.create(adminAccess=True)
    assert site.writes(lambda: site.holds.ensure(admin)) == 0
    site.status(allocation=None, reservedFor=None)
    site.allocate("gpu-0")
    site.reserve(POD)
    ended = site.delete()
    assert site.writes(lambda: site.holds.ensure(ended)) == 0
    assert not site.holds.ensure(ended).held


def test_a_claim_deleted_under_the_write_goes_on_without(site: Site) -> None:
    """DESIGN 5: the 422 of a claim that became Terminating is no error and no missing right."""
    reading = site.create()
    site.cluster.faults.before_next("apply", site.delete)
    assert not site.holds.ensure(reading).held
    site.status(allocation=None, reservedFor=None)
    found = site.cluster.get(CLAIMS, NAME)
    found["metadata"]["finalizers"] = []
    site.cluster.replace(CLAIMS, found)
    fresh = site.create()

    def replaced() -> None:
        found = site.cluster.get(CLAIMS, NAME)
        found["metadata"]["finalizers"] = []
        site.cluster.replace(CLAIMS, found)
        site.cluster.delete(CLAIMS, NAME)
        site.create()

    site.cluster.faults.before_next("apply", replaced)
    assert site.holds.ensure(fresh).reading is None
    assert not site.now.marked


def test_a_finalizer_refused_for_a_claim_that_is_ending_leaves_the_hold(site: Site) -> None:
    """D3: between the two writes the claim is deleted: held, without a finalizer, no error."""
    reading = site.create()
    site.cluster.faults.before_next("patch", site.delete)
    marked = site.holds.ensure(reading)
    assert (marked.held, marked.finalizer) == (True, False)


def test_a_claim_whose_spec_nobody_can_write_again_is_held_and_let_go(site: Site) -> None:
    """D3, promise 7: parameters sent as JSON with spaces make every write of the claim's own fields
    a 422 (seen with 1.36.2): the hold alone keeps the allocation, and the outbox empties."""
    frozen = errors.ApiInvalid("spec: Invalid value: field is immutable", status=422)
    reading = site.create()
    site.cluster.faults.fail_next("patch", frozen)
    marked = site.holds.ensure(reading)
    assert (marked.held, marked.finalizer) == (True, False)
    assert site.holds.ensure(marked.reading or reading).finalizer
    site.cluster.faults.before_next("patch", lambda: site.cluster.faults.fail_next("patch", frozen))
    left = site.holds.release(NAME, uid=reading.uid)
    assert (left.held, left.finalizer) == (False, True)


def test_a_hold_is_decided_anew_after_a_conflict(site: Site) -> None:
    """B5: somebody was faster: read again; for another allocation nothing is written."""
    reading = site.create()
    site.cluster.faults.before_next("apply", lambda: site.reserve(POD, FOREIGN))
    assert site.holds.ensure(reading).held
    assert site.now.others == 1

    other = Site()
    stale = other.create()

    def again() -> None:
        other.status(allocation=None, reservedFor=None)
        other.allocate("gpu-0")

    other.cluster.faults.before_next("apply", again)
    with pytest.raises(errors.ClaimUnready, match="anew"):
        other.holds.ensure(stale)
    assert not other.now.marked


def test_a_lost_answer_is_settled_by_looking(site: Site) -> None:
    """DESIGN 5: an ambiguous write is never repeated before a live GET."""
    reading = site.create()
    site.cluster.faults.lose_answer_next("apply")
    marked = site.holds.ensure(reading)
    assert (marked.held, marked.finalizer, marked.writes) == (True, True, 2)


def test_a_silent_server_is_given_up_within_the_budget(site: Site) -> None:
    """A prepare has 40 s in all: a hold does not eat them."""
    reading = site.create()
    site.cluster.faults.offline = True
    with pytest.raises(errors.ApiUnavailable):
        site.holds.ensure(reading, budget_s=0.5)
    assert sum(site.pauses) <= 0.5


@pytest.mark.parametrize("verbs", [("get",), ("get", "patch")])
def test_a_missing_right_is_told_as_such(verbs: tuple[str, ...]) -> None:
    """DESIGN 5: without resourceclaims/binding (422) or any right (403): HoldsNotGranted."""
    rule = Rule("plugin", verbs, ("resourceclaims", "resourceclaims/status"))
    engine = Engine(access=Access([rule]))
    owner = Site(MemoryCluster(engine))
    reading = owner.create()
    plugin = Site(MemoryCluster(engine, caller=Caller("plugin", manager=MANAGER)))
    with pytest.raises(errors.HoldsNotGranted, match=r"binding|cannot"):
        plugin.holds.ensure(reading)
    assert not owner.now.marked


# --- release --------------------------------------------------------------------


def test_the_last_reservation_goes_with_the_allocation(site: Site) -> None:
    """Measured: dropping the entry alone would leave a named claim allocated for ever."""
    uid = site.create().uid
    site.prove()
    site.reserve(MARKS.hold(node="n1", uid=uid))
    done = site.holds.release(NAME, uid)
    assert done.writes == 2
    assert (site.now.allocated, site.now.marked, site.now.conditions) == (False, False, {})
    assert site.holds.release(NAME, uid).writes == 0


def test_other_reservations_keep_the_allocation_and_the_proof_goes(site: Site) -> None:
    """B5: a named claim reused: what was True for the ended use is False, receipts stay."""
    uid = site.create().uid
    site.prove()
    site.clock.advance(60)
    assert site.writes(lambda: site.holds.release(NAME, uid)) == 2
    after = site.now
    assert (after.allocated, after.marked, site.entries) == (True, False, [POD])
    for one in after.devices:
        assert after.conditions[one.key] == {MARKS.sanitized: "False", MARKS.healthy: "False"}
        assert after.receipt(one, "token") == "1.7"
    told = after.raw["status"]["devices"][0]["conditions"][0]
    assert (told["reason"], told["lastTransitionTime"]) == (
        TORN_DOWN,
        claim_bodies.stamp(site.clock.now()),
    )


def test_a_foreign_entry_is_not_ours_to_drop(site: Site) -> None:
    """Rights of a node: our own entry, our finalizer; another's lock keeps the allocation."""
    uid = site.create().uid
    site.prove()
    site.reserve(FOREIGN, MARKS.hold(node="n1", uid=uid))
    site.holds.release(NAME, uid)
    assert site.now.allocated
    assert site.entries == [FOREIGN]


def test_a_terminating_claim_is_left_to_its_controller(site: Site) -> None:
    """Measured: without our entry a Terminating claim is deallocated and gone by itself."""
    uid = site.create().uid
    site.prove()
    site.reserve(MARKS.hold(node="n1", uid=uid))
    site.delete()
    assert site.writes(lambda: site.holds.release(NAME, uid)) == 2
    assert (site.now.allocated, site.now.marked, site.entries) == (True, False, [])


def test_the_finalizer_is_the_last_to_go(site: Site) -> None:
    """D3, D6: while the hold cannot be taken off the finalizer stays too."""
    uid = site.create().uid
    site.prove()
    site.cluster.faults.fail_next("apply", errors.ApiFailed("etcd is sick"))
    with pytest.raises(errors.ApiFailed):
        site.holds.release(NAME, uid)
    assert (site.now.held, site.now.finalizer) == (True, True)
    kinds = [(c.verb, c.subresource) for c in site.cluster.writes()]
    site.holds.release(NAME, uid)
    sent = [(c.verb, c.subresource) for c in site.cluster.writes()][len(kinds) :]
    assert sent == [("apply", "status"), ("patch", "")]


def test_a_tenant_keeps_no_device_by_making_our_entry_somebody_elses(site: Site) -> None:
    """D3, promise 7: an apply takes away only what managedFields says is ours, which whoever may
    write the claim can change; what is left of the hold is taken off, the finalizer after it."""
    uid = site.create().uid
    site.cluster.apply(
        CLAIMS, claim_bodies.finalizer(site.now, MARKS, present=True), manager=MANAGER
    )
    site.reserve(POD, MARKS.hold(node="n1", uid=uid))  # not written by our manager
    site.delete()
    left = site.holds.release(NAME, uid)
    assert (left.held, left.finalizer) == (False, False)
    assert site.entries == [POD]


def test_a_hold_that_cannot_be_taken_off_keeps_the_finalizer(site: Site) -> None:
    """D3: the finalizer goes last, whatever became of the write before it."""
    uid = site.create().uid
    site.cluster.apply(
        CLAIMS, claim_bodies.finalizer(site.now, MARKS, present=True), manager=MANAGER
    )
    site.reserve(POD, MARKS.hold(node="n1", uid=uid))
    site.delete()
    site.cluster.faults.fail_next("patch", errors.ApiFailed("etcd is sick"))
    with pytest.raises(errors.ApiFailed):
        site.holds.release(NAME, uid)
    assert (site.now.held, site.now.finalizer) == (True, True)


def test_until_verified_the_finalizer_stays(site: Site) -> None:
    """D3 read literally: the hold goes, the finalizer waits for a clean device."""
    uid = site.create().uid
    site.prove()
    kept = site.holds.release(NAME, uid, keep_finalizer=True)
    assert (kept.held, kept.finalizer, kept.writes) == (False, True, 1)
    assert not site.holds.release(NAME, uid).finalizer


def test_a_claim_that_is_gone_or_another_needs_nothing(site: Site) -> None:
    """D6: by UID, never by name."""
    assert site.holds.release(NAME, "u-1").reading is None
    site.create()
    site.prove()
    assert site.holds.release(NAME, "u-1").reading is None
    assert site.now.held


def test_a_pod_that_comes_under_the_release_keeps_everything(site: Site) -> None:
    """B5: reserved between look and write: it is the next use, and the marks are that one's."""
    uid = site.create().uid
    hold = MARKS.hold(node="n1", uid=uid)
    site.prove()
    ended = site.reserve(hold)
    site.cluster.faults.before_next("patch", lambda: site.reserve(hold, POD))
    done = site.holds.release(NAME, uid)
    assert (done.left, done.writes) == (True, 1)
    assert site.writes(lambda: site.holds.release(NAME, uid, of=ended)) == 0
    assert (site.now.held, site.now.finalizer, site.entries) == (True, True, [hold, POD])


@pytest.mark.parametrize("devices", [("gpu-0", "gpu-1"), ("gpu-1",)])
@pytest.mark.parametrize("told", [True, False])
def test_a_use_begun_after_a_lost_answer_keeps_its_marks(
    site: Site, devices: tuple[str, ...], *, told: bool
) -> None:
    """B5, D3: the release was carried out, its answer lost; the claim is used anew, and is exposed
    under marks of its own by the time the releaser looks again."""
    uid = site.create().uid
    site.prove()
    ended = site.reserve(MARKS.hold(node="n1", uid=uid))
    site.cluster.faults.lose_answer_next("patch")

    def again(pause_s: float) -> None:
        site.clock.advance(pause_s)
        site.allocate(*devices)
        site.reserve(POD)
        site.holds.ensure(site.now)

    releasing = replace(site.holds, pause=again)
    done = releasing.release(NAME, uid, of=ended if told else None)
    assert (done.left, done.writes) == (True, 1)
    assert (site.now.held, site.now.finalizer, len(site.now.pods)) == (True, True, 1)


def test_the_hold_of_a_claim_that_the_scheduler_binds_passes_to_its_next_pod(site: Site) -> None:
    """DESIGN 5: nobody but the coordinator puts it on again, and not before a pod is bound."""
    gates = {"bindingConditions": [MARKS.sanitized, MARKS.healthy]}
    uid = site.create(**gates).uid
    site.prove()
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    names = [Name(name, NAME.namespace) for name in ("next", "last")]
    pods = [
        uid_of(
            site.cluster.create(PODS, body | {"metadata": {"name": n.name, "namespace": "tenant"}})
        )
        for n in names
    ]
    hold = MARKS.hold(node="n1", uid=uid)
    entries = [
        {"resource": "pods", "name": name.name, "uid": pod}
        for name, pod in zip(names, pods, strict=True)
    ]
    site.reserve(*entries, POD, hold)
    done = site.holds.release(NAME, uid)
    assert (done.left, done.writes) == (True, 1)
    assert (site.now.held, site.now.finalizer, site.now.bound) == (True, True, False)
    assert site.writes(lambda: site.holds.release(NAME, uid)) == 0
    site.cluster.delete(PODS, names[0])
    ended = site.cluster.get(PODS, names[1]) | {"status": {"phase": "Succeeded"}}
    site.cluster.replace(PODS, ended, subresource="status")
    assert not site.holds.release(NAME, uid).left
    assert (site.now.marked, len(site.now.pods)) == (False, 3)


def test_devices_of_another_use_say_whose_marks_they_are(site: Site) -> None:
    """B5: a node that comes late to what it owes: the claim was allocated elsewhere since."""
    uid = site.create().uid
    site.prove()
    for other in ([("n1", "gpu-0")], [("n2", "gpu-0"), ("n2", "gpu-1")]):
        assert site.holds.release(NAME, uid, devices=other).left
    assert site.holds.release(NAME, uid, node="n2").left
    assert site.now.held
    site.holds.release(NAME, uid, devices=[("n1", "gpu-1"), ("n1", "gpu-0")])
    assert not site.now.marked


@pytest.mark.parametrize("verb", ["patch", "apply"])
def test_a_lost_answer_of_a_release_is_looked_at(site: Site, verb: str) -> None:
    """DESIGN 5: whichever write stays unanswered, the claim ends without our marks."""
    uid = site.create().uid
    site.prove()
    site.reserve(MARKS.hold(node="n1", uid=uid))
    site.cluster.faults.lose_answer_next(verb)
    assert site.holds.release(NAME, uid).writes == 2
    assert not site.now.marked
    assert not site.now.allocated


def test_a_claim_gone_in_the_middle_is_done(site: Site) -> None:
    """D3: the controller may be faster than our second write."""
    uid = site.create().uid
    site.prove()

    def gone() -> None:
        paths = [{"op": "remove", "path": "/metadata/finalizers"}]
        site.cluster.patch(CLAIMS, NAME, paths, kind=PatchKind.JSON)
        site.cluster.delete(CLAIMS, NAME)

    site.cluster.faults.before_next("patch", gone)
    assert site.holds.release(NAME, uid).reading is None


def test_conditions_without_a_hold_go_false_too(site: Site) -> None:
    """B5: where holds are not granted the proof of an ended use is taken back all the same."""
    uid = site.create().uid
    site.prove()
    site.reserve(POD)
    site.holds.release(NAME, uid)
    assert not site.now.bound or not site.now.gated
    (one, _) = site.now.devices
    assert not site.now.is_true(one, MARKS.sanitized)
    assert uid_of(site.now.raw) == uid
