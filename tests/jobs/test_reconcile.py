"""Looked at twice, taken away once; what was not looked at is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from fleet.core import errors
from fleet.core.leases import ClosedBy, Closure
from fleet.core.messages import ClaimAnswer, NodeView, TeardownOrder
from fleet.core.model import Holder, HolderKind, NodeName, Token
from fleet.kube.base import CLAIMS, Name
from fleet.rpc.node_api import BUDGET_S, NodeApi
from fleet.rpc.nodes import Abandonment
from jobs.reconcile import AtHand, Bench, run
from tests.fleet.control.repair.conftest import FakeNode, Site

GONE = "uid-of-a-claim-that-is-gone"


@dataclass
class Reached(NodeApi):
    """A node as verbs reach it."""

    fake: FakeNode = field(default_factory=lambda: FakeNode("n1"))

    def view(self, operations: Sequence[str] = ()) -> NodeView:
        assert not operations
        return self.fake.view()

    def abandon(self, uid: str, token: str, devices: Sequence[str]) -> Closure:
        self.fake.closed.append(Abandonment("n1", uid, token, tuple(devices)))
        holder = Holder(HolderKind.CLAIM, uid)
        return Closure(holder, Token.parse(token), NodeName("n1"), ClosedBy.ABANDON)

    def unprepare(self, order: TeardownOrder | str, *, budget_s: float = BUDGET_S) -> ClaimAnswer:
        raise errors.DeviceBusy(f"{order}: begun ({budget_s})")


@pytest.fixture
def site() -> Site:
    """Two nodes in order, nothing left behind."""
    return Site()


def bench(site: Site) -> Bench:
    """What a repair of the site needs."""
    return Bench(site.sources, site.hands)


def test_a_dry_run_changes_nothing(site: Site) -> None:
    """E7: it says what would be done; nothing is written anywhere."""
    site.lease(GONE, site.n1)
    site.make_claim("c")
    writes = len(site.cluster.writes())
    report = run(bench(site), now=site.clock.now(), dry_run=True)
    assert len(report.left) == len(report.outcomes) == 3
    assert len(site.cluster.writes()) == writes
    assert site.held == {f"claim:{GONE}"}


def test_a_run_takes_away_and_the_next_finds_nothing(site: Site) -> None:
    """E7: doing it twice changes nothing the second time."""
    site.lease(GONE, site.n1)
    site.make_claim("c")
    report = run(bench(site), now=site.clock.now(), dry_run=False)
    assert report.left == ()
    assert len(report.outcomes) == 3
    writes = len(site.cluster.writes())
    assert run(bench(site), now=site.clock.now(), dry_run=False).outcomes == ()
    assert len(site.cluster.writes()) == writes


def test_what_changes_between_two_looks_is_left(site: Site) -> None:
    """D6: a pod that came after the first look keeps its claim's marks; so does a record that
    showed only then."""
    site.make_claim("c", pods=["uid-of-a-dead-pod"])
    kept = site.make_claim("d", node="n2")

    def meanwhile() -> None:
        site.n2.claims[kept.uid] = ("PREPARING", site.n2.uuid(0))
        found = site.cluster.get(CLAIMS, Name("c", "tenant"))
        pod = {"resource": "pods", "name": "new", "uid": site.make_pod("new")}
        found["status"]["reservedFor"].append(pod)
        site.cluster.replace(CLAIMS, found, subresource="status")

    for _ in range(4):  # the four lists of the first look
        site.cluster.faults.before_next("list", lambda: None)
    site.cluster.faults.before_next("list", meanwhile)
    report = run(bench(site), now=site.clock.now(), dry_run=False)
    assert not any(one.done for one in report.outcomes)
    assert site.claim("c").held
    assert site.claim("d").held


def test_what_shows_only_the_second_time_is_not_proven(site: Site) -> None:
    """D6: an orphan has to be one at both looks."""
    site.lease(GONE, site.n1)
    for _ in range(4):
        site.cluster.faults.before_next("list", lambda: None)
    site.cluster.faults.before_next("list", lambda: site.make_claim("late"))
    report = run(bench(site), now=site.clock.now(), dry_run=False)
    assert all("seen once only" in one.detail for one in report.left)
    assert len(report.left) == 2
    assert site.claim("late").held


def test_silence_is_said(site: Site) -> None:
    """Promise 7: nodes that do not answer are named, and kinds that were not read."""
    site.n1.away = True
    site.cluster.faults.offline = True
    report = run(bench(site), now=site.clock.now(), dry_run=False)
    assert set(report.silent) == {"n1"}
    assert any(note.startswith("resourceclaims") for note in report.notes)
    bare = Bench(replace(site.sources, cluster=None), replace(site.hands, cluster=None))
    assert "no cluster" in run(bare, now=0.0, dry_run=False).notes[0]


def test_nodes_at_hand_answer_each_for_itself() -> None:
    """D6: a verb's nodes abandon and tear down; one that is not at hand is an error in place."""
    node = Reached()
    at_hand = AtHand({"n1": node})
    assert set(at_hand.names()) == {"n1"}
    found = at_hand.views({"n1": (), "n9": ()})
    assert isinstance(found["n1"], NodeView)
    assert isinstance(found["n9"], errors.NotOwner)
    asked = [Abandonment(name, "u", "1.1", (node.fake.uuid(0),)) for name in ("n1", "n9")]
    closure, error = at_hand.abandon(asked)
    assert isinstance(closure, Closure)
    assert isinstance(error, errors.NotOwner)
    with pytest.raises(errors.DeviceBusy):
        at_hand.tear_down("n1", "u")
    with pytest.raises(errors.NotOwner):
        at_hand.tear_down("n9", "u")


def test_what_was_not_looked_at_makes_the_exit_code(site: Site) -> None:
    """Promise 7: 0 only when everything was seen; 2 when nothing was."""

    def exit_code() -> int:
        return run(bench(site), now=site.clock.now(), dry_run=False).exit_code

    assert exit_code() == 0
    site.n1.away = True
    assert exit_code() == 1
    site.n1.away, site.cluster.faults.offline = False, True
    assert exit_code() == 1
    site.n1.away = site.n2.away = True
    assert exit_code() == 2
    bare = Bench(replace(site.sources, cluster=None), site.hands, unasked="no file")
    site.n1.away = site.n2.away = False
    report = run(bare, now=0.0, dry_run=True)
    assert (report.exit_code, report.unseen) == (1, True)
    assert "no file" in report.notes[0]
