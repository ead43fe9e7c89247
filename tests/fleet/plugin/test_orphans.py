"""Claims the API gave up are found by UID and torn down as ever; silence proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import pytest

from fleet.core import errors
from fleet.core.messages import ClaimAnswer, Owed, TeardownOrder
from fleet.core.model import State
from fleet.kube import answers
from fleet.kube.base import Listing, Name, Object, Resource
from fleet.plugin.orphans import Orphans
from fleet.plugin.requests import AskedClaim
from fleet.rpc.node_api import NodeApi
from tests.fleet.node.conftest import wait_for
from tests.fleet.plugin.benches import MARKS, NODE, SPACE, Bench, bench, result


def prepared(site: Bench, name: str, device: str) -> AskedClaim:
    asked = site.bound(name, device)
    site.serving.prepare(asked)
    return asked


def until_absent(site: Bench, asked: AskedClaim) -> None:
    wait_for(lambda: site.record(asked) == "ABSENT")


def gone(site: Bench, asked: AskedClaim) -> None:
    """Force-deleted with its pod."""
    site.deallocate(asked)
    site.delete(asked)


def replaced(site: Bench, asked: AskedClaim) -> None:
    """Made again under the same name: it is another claim."""
    gone(site, asked)
    site.bound(asked.name, "gpu-1")


def unallocated(site: Bench, asked: AskedClaim) -> None:
    """What the claim controller does once the last consumer has gone."""
    site.deallocate(asked)


def moved(site: Bench, asked: AskedClaim) -> None:
    """Allocated again, on another node."""
    site.deallocate(asked)
    site.allocate(asked, result("gpu-0", pool="n2"))


def only_held(site: Bench, asked: AskedClaim) -> None:
    """Reserved for nobody but ourselves."""
    site.reserve(asked, MARKS.hold(node=NODE, uid=asked.uid))


@pytest.mark.parametrize("happens", [gone, replaced, unallocated, moved, only_held])
def test_what_the_api_gave_up_is_torn_down(
    site: Bench, happens: Callable[[Bench, AskedClaim], None]
) -> None:
    """B23: by UID, never by name; seen twice in a row, then the normal teardown to CLEAN."""
    asked = prepared(site, "a", "gpu-0")
    kept = prepared(site, "b", "gpu-1-1g-0")
    happens(site, asked)
    orphans = site.parts.orphans
    assert orphans.step() == ()
    assert site.record(asked) == "PREPARED"
    assert orphans.step() == (asked.uid,)
    until_absent(site, asked)
    assert site.device().state == State.CLEAN
    assert site.ledger.count == 3
    assert (site.record(kept), site.specs) == ("PREPARED", [site.spec(kept).name])


def test_a_hold_that_was_taken_off_under_a_tenant_is_put_back(site: Bench) -> None:
    """DESIGN 5, Hold after use: the record says held, the claim does not, and its pod is there."""
    asked, unheld = prepared(site, "a", "gpu-0"), site.bound("b", "gpu-1")
    site.cluster.faults.fail_next("apply", errors.ApiFailed("etcd is sick"))
    site.serving.prepare(unheld)
    pods = [e for e in site.claim_of(asked)["status"]["reservedFor"] if not MARKS.is_hold(e)]
    site.reserve(asked, *pods)
    assert site.parts.orphans.step() == ()
    found = site.claim_of(asked)["status"]["reservedFor"]
    assert [e for e in found if MARKS.is_hold(e)] == [MARKS.hold(node=NODE, uid=asked.uid)]
    before = len(site.cluster.writes())
    site.parts.orphans.step()
    assert len(site.cluster.writes()) == before, "what is served without one is left so"
    site.serving.unprepare(asked)
    site.reserve(asked, *pods)
    site.parts.orphans.step()
    assert not any(MARKS.is_hold(e) for e in site.claim_of(asked)["status"]["reservedFor"])


def test_a_claim_that_never_was_prepared_to_an_end_is_torn_down(site: Bench) -> None:
    """B23: half-prepared records are found like prepared ones."""
    site.cdi.write_text("")
    asked = site.bound("a", "gpu-0")
    with pytest.raises(errors.SpecUnavailable):
        site.node.prepare(site.claim(asked.uid, "gpu-0"))
    assert site.record(asked) == "PREPARING"
    site.cdi.unlink()
    gone(site, asked)
    site.parts.orphans.step()
    assert site.parts.orphans.step() == (asked.uid,)
    until_absent(site, asked)


@pytest.mark.parametrize(
    "error",
    [
        errors.ApiFailed("HTTP 500"),
        errors.ApiUnavailable("no route"),
        errors.ApiForbidden("HTTP 403"),
        errors.ApiConflict("HTTP 409"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_answer_is_no_proof(site: Bench, error: errors.FleetError) -> None:
    """B23: an error between two looks, however often, never makes an orphan."""
    asked = prepared(site, "a", "gpu-0")
    gone(site, asked)
    orphans = site.parts.orphans
    for _ in range(5):
        site.cluster.faults.fail_next("get", error)
        assert orphans.step() == ()
        assert orphans.step() == ()
    site.cluster.faults.offline = True
    for _ in range(20):
        assert orphans.step() == ()
    assert site.record(asked) == "PREPARED"


@pytest.mark.parametrize(
    "answer",
    [
        answers.failure(404, b"404 page not found\n", what="GET x"),
        {},
        {"kind": "Status", "status": "Success", "metadata": {}},
        {"metadata": {"name": "another", "namespace": SPACE, "uid": "another"}},
        {"metadata": "of a newer API"},
        KeyError("of a client"),
    ],
)
def test_what_is_not_about_the_claim_is_no_proof(site: Bench, answer: Object | Exception) -> None:
    """B23, promise 5: a proxy's 404, or an answer about something else, makes no orphan."""
    asked = prepared(site, "a", "gpu-0")

    class Odd:
        def get(self, *_: object) -> Object:
            if isinstance(answer, Exception):
                raise answer
            return answer

    site.parts.orphans.cluster = Odd()  # type: ignore[assignment] # answers only what is asked
    for _ in range(3):
        assert site.parts.orphans.step() == ()
    assert (site.record(asked), len(site.specs)) == ("PREPARED", 1)


def test_trouble_with_one_claim_stops_no_other(
    site: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """B23: a claim that cannot be judged, or whose teardown fails, is logged; the rest goes on."""
    odd, stuck = prepared(site, "a", "gpu-0"), prepared(site, "b", "gpu-1-1g-0")
    last = prepared(site, "c", "gpu-1-1g-1")
    for asked in (odd, stuck, last):
        gone(site, asked)
    orphans = site.parts.orphans

    class Odd:
        def get(self, resource: Resource, name: Name) -> Object:
            if name.name == odd.name:
                raise KeyError("of a client")
            return site.cluster.get(resource, name)

    class Stuck:
        def claims(self) -> Sequence[ClaimAnswer]:
            return site.door.claims()

        def unprepare(self, order: TeardownOrder, *, budget_s: float) -> ClaimAnswer:
            if order.uid == stuck.uid:
                raise errors.IllegalTransition("no row")
            return site.door.unprepare(order, budget_s=budget_s)

        def owe(self, owed: Owed) -> None:
            site.door.owe(owed)

    orphans.cluster = Odd()  # type: ignore[assignment] # answers only what is asked
    orphans.node = Stuck()  # type: ignore[assignment] # answers only what is asked
    assert orphans.step() == ()
    assert orphans.step() == (last.uid,)
    until_absent(site, last)
    assert (site.record(odd), site.record(stuck)) == ("PREPARED", "PREPARED")
    assert all(asked.uid in caplog.text for asked in (odd, stuck))
    orphans.cluster, orphans.node = site.cluster, site.door
    assert orphans.step() == (stuck.uid,)
    assert orphans.step() == (odd.uid,)


def test_a_list_without_a_version_is_no_list(site: Bench) -> None:
    """B15: what something other than the API server answers shows nothing to be gone."""
    unlisted = "00000000-0000-4000-8000-000000000009"
    site.node.prepare(site.claim(unlisted, "gpu-0"))

    class Odd:
        def list(self, *_: object) -> Listing:
            return Listing((), "")

    site.parts.orphans.cluster = Odd()  # type: ignore[assignment] # answers only what is asked
    for _ in range(3):
        assert site.parts.orphans.step() == ()


def test_kubelets_silence_is_no_proof(site: Bench) -> None:
    """B23: a claim that stands in the API stays, whatever kubelet says or does not say."""
    asked = prepared(site, "a", "gpu-0")
    site.checkpoint.unlink()
    for _ in range(4):
        assert site.parts.orphans.step() == ()
    site.reserve(asked)
    for _ in range(4):
        assert site.parts.orphans.step() == ()
    assert site.spec(asked).exists()


def test_an_allocation_that_cannot_be_understood_is_no_proof(site: Bench) -> None:
    """B19, promise 5: a newer API's shape is doubt, and doubt changes nothing."""
    asked = prepared(site, "a", "gpu-0")
    odd = site.claim_of(asked)
    odd["status"]["allocation"]["devices"] = ["of a newer API"]

    class Newer:
        def get(self, *_: object) -> Object:
            return odd

    site.parts.orphans.cluster = Newer()  # type: ignore[assignment] # answers only what is asked
    for _ in range(3):
        assert site.parts.orphans.step() == ()


def test_a_tenant_that_lives_keeps_its_device(site: Bench) -> None:
    """B23, promise 4: the teardown begins, the spec goes, and nothing is wiped under the tenant."""
    pod = site.pod()
    asked = site.bound("a", "gpu-0", pods=[pod])
    site.serving.prepare(asked)
    pod.run()
    pod.delete()
    gone(site, asked)
    site.parts.orphans.step()
    assert site.parts.orphans.step() == (asked.uid,)
    wait_for(lambda: not site.specs)
    assert site.record(asked) == "UNPREPARING"
    assert (site.device().state, site.ledger.count) == (State.IN_USE, 1)
    assert site.parts.orphans.step() == ()
    pod.leave()
    site.serving.unprepare(asked)
    assert site.device().state == State.CLEAN


@pytest.mark.parametrize(
    ("happens", "told"), [(gone, True), (unallocated, True), (only_held, False)]
)
def test_a_node_learns_whether_an_allocation_keeps_others_off(
    site: Bench,
    happens: Callable[[Bench, AskedClaim], None],
    *,
    told: bool,
) -> None:
    """B23, promise 6: an allocation that is gone keeps nobody off; our own hold does."""
    asked = prepared(site, "a", "gpu-0")
    happens(site, asked)
    heard: list[TeardownOrder] = []

    class Ear:
        """The node; it notes teardowns."""

        def __getattr__(self, name: str) -> object:
            return getattr(site.parts.orphans.node, name)

        def unprepare(self, order: TeardownOrder, *, budget_s: float) -> ClaimAnswer:
            heard.append(order)
            return site.parts.orphans.node.unprepare(order, budget_s=budget_s)

    ours = site.parts.orphans
    orphans = Orphans(ours.seat, cast("NodeApi", Ear()), ours.cluster)
    orphans.step()
    orphans.step()
    assert [order.unheld for order in heard] == [told]


def test_a_device_that_stays_open_is_quarantined_not_freed() -> None:
    """B23: after the deadline the device is out of service, and the claim is let go."""
    with bench() as site:
        node = site.settings.node.model_copy(update={"holder_deadline_s": 0.1})
        site.restart(settings=site.settings.model_copy(update={"node": node}))
        asked = prepared(site, "a", "gpu-0")
        gone(site, asked)
        with site.tenant(), site.kept():
            site.parts.orphans.step()
            site.parts.orphans.step()
            wait_for(lambda: ticked(site) and site.record(asked) == "ABSENT")
        assert site.device().state == State.QUARANTINED
        assert {reason.code for reason in site.device().reasons} == {"tenant-not-gone"}


def ticked(site: Bench) -> bool:
    """Let the node go on with what it has to repeat."""
    site.node.tick(site.node._registry.clock.now())
    return True


def test_a_claim_without_a_name_is_looked_for_in_the_whole_list(site: Bench) -> None:
    """B15: a record made from the store after the journal was lost knows only the UID."""
    listed = site.bound("a", "gpu-0")
    site.node.prepare(site.claim(listed.uid, "gpu-0"))
    unlisted = "00000000-0000-4000-8000-000000000009"
    site.node.prepare(site.claim(unlisted, "gpu-1-1g-0"))
    orphans = site.parts.orphans
    site.cluster.faults.fail_next("list", errors.ApiFailed("HTTP 500"), times=2)
    assert orphans.step() == ()
    assert orphans.step() == ()
    assert orphans.step() == (unlisted,)
    assert site.record(listed) == "PREPARED"


def test_agent_claims_are_looked_after_too() -> None:
    """Promise 3: a spec of the agent device goes with its claim."""
    with bench(agent_namespace=SPACE) as site:
        asked = site.create("a")
        site.allocate(asked, result("agent"))
        site.reserve(asked, site.pod())
        site.serving.prepare(asked)
        assert site.parts.orphans.step() == ()
        gone(site, asked)
        assert site.parts.orphans.step() == ()
        assert site.parts.orphans.step() == (asked.uid,)
        assert site.specs == []


def test_neither_a_bad_agent_record_nor_a_silent_owner_stops_the_others() -> None:
    """B23, promise 7: an empty record is skipped; agent claims are judged without an owner too."""
    with bench(agent_namespace=SPACE) as site:
        asked = site.create("agent")
        site.allocate(asked, result("agent"))
        site.serving.prepare(site.reserve(asked, site.pod()))
        device = prepared(site, "a", "gpu-0")
        agents = site.parts.orphans.agents
        assert agents is not None
        (agents.directory / "0b0b.json").write_text("")
        gone(site, device)
        site.parts.orphans.step()
        assert site.parts.orphans.step() == (device.uid,)
        until_absent(site, device)
        gone(site, asked)
        site.node.close()
        for _ in range(2):
            with pytest.raises(errors.NotOwner):
                site.parts.orphans.step()
        assert site.specs == []
        site.open()


def test_a_claim_in_deletion_is_served_until_it_is_let_go(site: Bench) -> None:
    """B75: a deletionTimestamp skips nothing: the claim is prepared for its pod and torn down."""
    asked = site.create("a", finalizers=["example.com/keep"])
    site.allocate(asked, result("gpu-0"))
    site.reserve(asked, site.pod())
    site.delete(asked)
    assert site.claim_of(asked)["metadata"]["deletionTimestamp"]
    assert site.serving.prepare(asked).devices
    for _ in range(3):
        assert site.parts.orphans.step() == ()
    site.deallocate(asked)
    site.parts.orphans.step()
    assert site.parts.orphans.step() == (asked.uid,)
    until_absent(site, asked)


def test_a_shared_claim_does_not_flap(site: Bench) -> None:
    """B75: one pod has ended, one runs: fifty looks write nothing and tear nothing down."""
    first, second = site.pod("first"), site.pod("second")
    asked = site.bound("a", "gpu-0", pods=[first, second])
    site.serving.prepare(asked)
    second.run()
    first.end()
    before = len(site.cluster.writes())
    for _ in range(50):
        assert site.parts.orphans.step() == ()
    assert len(site.cluster.writes()) == before
    with pytest.raises(errors.DeviceBusy, match=second.uid):
        site.serving.unprepare(asked)
    assert site.spec(asked).exists()


def test_an_entry_of_an_unknown_kind_keeps_a_claim(site: Bench) -> None:
    """DESIGN 4: orphaned is what is reserved for nobody but ourselves; others may count."""
    asked = prepared(site, "a", "gpu-0")
    hold = MARKS.hold(node=NODE, uid=asked.uid)
    for entry in (
        {"apiGroup": "x.example.com", "resource": "holds", "name": "h", "uid": "h"},
        {"apiGroup": MARKS.driver, "resource": "snapshots", "name": "h", "uid": "h"},
    ):
        for entries in ((entry,), (entry, hold)):
            site.reserve(asked, *entries)
            site.parts.orphans.step()
            assert site.parts.orphans.step() == ()
    assert site.record(asked) == "PREPARED"
