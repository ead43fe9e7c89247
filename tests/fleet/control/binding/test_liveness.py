"""A coordinator's sign of life: a Lease that all may read, and what it says of the work."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleet.control.binding import liveness
from fleet.control.binding.liveness import LATE_S, LEASE, Alive, Heartbeat, Observer, Signs
from fleet.control.binding.loop import BindingView
from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.messages import Right
from fleet.kube.base import LEASES, Cluster, Name, PatchKind
from tests.fleet.kube.test_rights import Reviewed
from tests.lab.apiserver.access import Access, Caller, Rule
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine

NOW = 1_700_000_000.0
SPACE = "fleetscrub"
USER = "system:serviceaccount:fleetscrub:fleet-coordinator"
RIGHT = Right(verb="list", resource="resourceclaims", group="resource.k8s.io", account=USER)


@dataclass
class Stage:
    """A coordinator whose view a test writes, and the cluster that it tells."""

    state: Path
    cluster: MemoryCluster = field(default_factory=MemoryCluster)
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW))
    views: dict[str, BindingView] = field(default_factory=dict)

    def heart(self, selecting: str = "", *, asked: tuple[str, ...] = ()) -> Heartbeat:
        """The heartbeat of one coordinator."""
        (self.state / "coordinator").mkdir(exist_ok=True)
        self.views[selecting] = BindingView(nodes=selecting, stepped_at=self.clock.now())
        return Heartbeat(
            lambda: self.views[selecting],
            state=self.state,
            cluster=self.cluster,
            namespace=SPACE,
            asked=asked,
            clock=self.clock,
        )

    def steps(self, selecting: str = "", **told: object) -> None:
        """Its last step ended now."""
        changed = {"stepped_at": self.clock.now(), **told}
        self.views[selecting] = self.views[selecting].model_copy(update=changed)

    def signs(self) -> Signs:
        """What somebody reads whose clock says the same."""
        return liveness.read(self.cluster, SPACE, pause=self.clock.advance, now=self.clock.now)

    def said(self, *, awaited: bool = True) -> str:
        """What is wrong."""
        return "; ".join(liveness.told(self.signs(), self.clock.now(), awaited=awaited))

    def ready(self) -> str:
        """What is wrong by the file of the pod; "" for nothing."""
        text = (self.state / "coordinator" / liveness.FILE).read_text()
        at, _, why = text.strip().partition(" ")
        assert int(at) == int(self.clock.now())
        return why


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """Nobody has said anything yet."""
    return Stage(tmp_path)


def test_f71_whoever_can_read_the_lease_knows_whether_the_coordinator_steps(stage: Stage) -> None:
    """F71: since when, how long ago and by which process; the pod it runs in is Ready then."""
    heart = stage.heart()
    heart.beat()
    stage.clock.advance(2.0)
    stage.steps(open_claims=3)
    heart.beat()
    assert stage.said() == ""
    assert stage.ready() == ""
    found = stage.signs().found
    assert found is not None
    told = liveness.summary(stage.signs(), stage.clock.now() + 1.0)
    assert told.startswith("coordinator: steps, last step 2023-11-14T22:13:22Z (1 s ago); 3 open")
    assert f"pid {os.getpid()} on {found.host}" in told
    spec = stage.cluster.get(LEASES, Name(LEASE, SPACE))["spec"]
    assert spec["holderIdentity"] == f"{found.host}_{os.getpid()}"
    assert spec["renewTime"].startswith("2023-11-14T22:13:22")


def test_f71_a_coordinator_whose_steps_hang_is_told_from_one_that_is_gone(stage: Stage) -> None:
    """F71: what it says itself, by its own clock alone; that of its reader does not matter."""
    heart = stage.heart()
    stage.clock.advance(LATE_S + 53)
    stage.views[""] = stage.views[""].model_copy(update={"trouble": "HTTP 503: away"})
    heart.beat()
    told = stage.said()
    assert "the coordinator has not stepped since 2023-11-14T22:13:20Z (83 s ago)" in told
    assert "HTTP 503: away: strict pods wait: see the log of Ray's head" in told
    assert "has not stepped since" in stage.ready()
    assert "strict" not in stage.said(awaited=False)
    assert "stands, last step 2023" in liveness.summary(stage.signs(), stage.clock.now())
    assert "is gone" not in told


def test_f71_a_coordinator_that_is_gone_is_missed(stage: Stage) -> None:
    """F71: since when it says nothing, what waits for it and where to look; also one that never
    ended a step, and one that never reported where pods wait for one."""
    assert "no coordinator has ever reported in this cluster: strict pods wait" in stage.said()
    assert stage.said(awaited=False) == ""
    stage.heart().beat()
    stage.clock.advance(LATE_S + 1)
    told = stage.said()
    assert "the coordinator is gone: it last reported at 2023-11-14T22:13:20Z" in told
    assert "strict pods wait: see the log" in told
    found = stage.signs().found
    assert found is not None
    assert found.gone


def test_b49_clocks_that_differ_make_no_coordinator_late(stage: Stage) -> None:
    """B49: one that says something new while it is looked at lives, whatever the clocks say."""
    heart = stage.heart()
    heart.beat()

    def meanwhile(pause_s: float) -> None:
        stage.clock.advance(pause_s)
        stage.steps()
        heart.beat()

    for skew_s in (7_200.0, -7_200.0):
        other = ManualClock(stage.clock.now() + skew_s)
        signs = liveness.read(stage.cluster, SPACE, pause=meanwhile, now=other.now)
        assert signs.found is not None
        assert not signs.found.gone
        assert "; ".join(liveness.told(signs, other.now(), awaited=True)) == ""


def test_f71_a_right_it_lacks_is_named(stage: Stage) -> None:
    """F71: verb, resource and account, with what to do; one it can do without keeps no pod from
    being Ready."""
    heart = stage.heart()
    stage.steps(missing=(RIGHT,))
    heart.beat()
    named = f"list resourceclaims.resource.k8s.io (account {USER})"
    assert f"the coordinator lacks a right: {named}: grant the right" in stage.said()
    assert named in stage.ready()
    told = Right(verb="create", resource="events", account=USER)
    stage.steps(missing=(told,))
    heart.beat()
    assert "lacks a right: create events (account" in stage.said()
    assert stage.ready() == ""


def test_trouble_of_one_that_steps_is_told(stage: Stage) -> None:
    """E5: claims or nodes that are left out, with why."""
    heart = stage.heart()
    stage.steps(trouble="n1: follows another store", silent_nodes=("n2",))
    heart.beat()
    assert "is kept from working: n1: follows another store" in stage.said()
    assert "gets no answer from n2" in stage.said()


def test_f71_what_cannot_be_read_is_unknown_and_never_good(stage: Stage) -> None:
    """F71: neither a missing right of the reader nor a server that is away says that it steps."""
    stage.heart().beat()
    engine: Engine = stage.cluster.engine
    engine.access = Access(())
    stranger: Cluster = MemoryCluster(engine, caller=Caller("nobody"))
    signs = liveness.read(stranger, SPACE)
    told = "; ".join(liveness.told(signs, NOW, awaited=False))
    assert told.startswith("whether the coordinator steps is unknown: ")
    assert "cannot get resource" in told
    assert liveness.summary(signs, NOW) == ""


def test_f71_one_that_may_not_say_it_says_that_in_its_log(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """F71: the right to the Lease itself: once in the log, in what the actor answers, and over as
    soon as it is granted."""
    stage.heart().beat()
    engine = stage.cluster.engine
    engine.access = Access(())
    stage.cluster = Reviewed(engine, caller=Caller(USER))
    heart = stage.heart()
    for _ in range(3):
        heart.beat()
    assert caplog.text.count("nobody else can see whether this coordinator steps") == 1
    assert caplog.text.count("a right is missing: patch leases.coordination.k8s.io") == 1
    assert heart.now().wrong(NOW).startswith("lacks a right: patch leases")
    assert stage.ready() == ""
    engine.access.rules.append(Rule(USER, ("patch",), ("leases",)))
    heart.beat()
    assert stage.signs().unknown  # it may write, and not read
    assert heart.now().wrong(NOW) == ""


def test_one_that_ends_in_good_order_is_not_missed(stage: Stage) -> None:
    """Nobody is alarmed by what an operator stopped; without one, awaiting pods are told of."""
    heart = stage.heart()
    heart.start()
    heart.end()
    heart.end()
    assert stage.said(awaited=False) == ""
    assert "no coordinator has ever reported" in stage.said()
    assert not (stage.state / "coordinator" / liveness.FILE).exists()


def test_where_nothing_can_be_written_it_says_nothing(tmp_path: Path) -> None:
    """A coordinator's actor may run where the state directory is not, or without an API server."""
    heart = Heartbeat(BindingView, state=tmp_path / "away", cluster=None, namespace=SPACE)
    heart.beat()
    heart.end()
    assert not (tmp_path / "away").exists()
    (tmp_path / "coordinator" / liveness.FILE).mkdir(parents=True)
    Heartbeat(BindingView, state=tmp_path, cluster=None, namespace=SPACE).beat()


def test_each_of_several_coordinators_is_missed_by_itself(stage: Stage) -> None:
    """E5: the life of one says nothing of the other, and names whose claims wait."""
    asked = ("pool=a", "!pool")
    dead, living = (stage.heart(one, asked=asked) for one in asked)
    dead.beat()
    stage.clock.advance(LATE_S + 1)
    stage.steps("!pool", open_claims=2)
    living.beat()
    told = stage.said()
    assert told.startswith("the coordinator of the nodes pool=a is gone")
    assert "; " not in told
    found = stage.signs().found
    assert found is not None
    assert (found.binding.nodes, [one.binding.nodes for one in found.others]) == (
        "pool=a",
        ["!pool"],
    )
    assert "others" not in found.model_dump()
    stage.steps("pool=a", silent_nodes=("n1",))
    dead.beat()
    assert stage.said() == "the coordinator of the nodes pool=a gets no answer from n1"
    dead.end()
    living.end()
    assert stage.signs().found is None


def test_a_coordinator_that_is_not_asked_for_any_more_is_not_missed(stage: Stage) -> None:
    """E5: the actor of an earlier selection was killed; its sign goes, once it is late, when one
    that knows all selections says something. Who does not know them leaves the others' alone.
    """
    asked = ("pool=a", "!pool")
    former, heir = stage.heart(), stage.heart("pool=a", asked=asked)
    stray = stage.heart("pool=x")
    for one in (former, heir, stray):
        one.beat()
    stage.clock.advance(LATE_S + 1)
    stage.steps("pool=x")
    stray.beat()
    assert stage.said().count("is gone") == 2
    stage.steps("pool=a")
    heir.beat()
    assert stage.said() == ""
    names = {path.name for path in (stage.state / "coordinator").glob("standing*")}
    assert len(names) == 1


def test_f71_an_observer_goes_by_what_is_new(stage: Stage) -> None:
    """F71, B49: a process that stays needs no clock of others, and no second look."""
    heart, observer = stage.heart(), Observer(stage.cluster, SPACE, stage.clock)
    assert observer.look().found is None
    heart.beat()
    for _ in range(3):
        stage.clock.advance(LATE_S - 1)
        stage.steps()
        heart.beat()
        assert _gone(observer.look()) is False
    stage.clock.advance(LATE_S + 1)
    assert _gone(observer.look()) is True
    heart.beat()
    assert _gone(observer.look()) is False


def _gone(signs: Signs) -> bool | None:
    return signs.found.gone if signs.found else None


def test_what_is_no_report_is_none(stage: Stage) -> None:
    """B19: an annotation of somebody else, or of another version, is nobody's life."""
    stage.heart().beat()
    body = {"metadata": {"annotations": {liveness.KEY: "{]", f"{liveness.KEY}-x": "7"}}}
    stage.cluster.patch(LEASES, Name(LEASE, SPACE), body, kind=PatchKind.MERGE)
    assert stage.signs() == Signs()


def test_a_conflict_costs_nothing_but_one_beat(stage: Stage) -> None:
    """A server that does not answer is no reason to end; the next one is as good."""
    heart = stage.heart()
    stage.cluster.faults.fail_next("patch", errors.ApiUnavailable("away", status=503))
    heart.beat()
    heart.beat()
    assert stage.said() == ""


def test_the_message_crosses_processes(stage: Stage) -> None:
    """What the actor answers is what the Lease says."""
    told = stage.heart().now()
    assert Alive.model_validate_json(told.model_dump_json()) == told
