"""The coordinator's loop: it goes on whatever a step does, and says what keeps it from acting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleet.control.binding.loop import (
    PAUSE_MAX_S,
    PERIOD_S,
    RIGHTS_S,
    SETTLED_S,
    SURVEY_S,
    Loop,
    Reconciling,
    SideBySide,
    Views,
)
from fleet.control.binding.object_cache import Cached
from fleet.control.coordinator import Coordinator
from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.messages import DeviceView, NodeView
from fleet.core.model import NodeName, Token, UnitId
from fleet.evidence.ledger import LedgerHead
from fleet.kube.base import CLAIMS, NODES
from fleet.kube.rights import Rights
from fleet.stores.sqlite import open_stores
from tests.fleet.kube.test_rights import Reviewed
from tests.lab.apiserver.access import Access, Caller, Rule
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine
from tests.lab.stores import MemoryLeaseStore


def view(node: str, **floors: str) -> NodeView:
    """A node with a device for each floor."""
    devices = tuple(
        DeviceView(
            uuid=f"{node}/{name}",
            name=name,
            accelerator=name,
            units=(f"{node}/{name}/all",),
            memory_bytes=1,
            state="CLEAN",
            floor=floor,
        )
        for name, floor in floors.items()
    )
    return NodeView(
        node=node,
        incarnation="i",
        boot_id="b",
        at=1.0,
        simulated=True,
        backend="x",
        devices=devices,
    )


@dataclass
class Some:
    """Nodes that answer what a test says."""

    answers: dict[str, NodeView | errors.FleetError] = field(default_factory=dict)
    surveys: int = 0

    def names(self) -> Collection[str]:
        """All there are."""
        return tuple(self.answers)

    def views(self, asked: Mapping[str, Sequence[str]]) -> Views:
        """As said."""
        self.surveys += 1
        return {name: self.answers[name] for name in asked}


@dataclass
class Notes:
    """A binder that notes what it is given, or raises what a test says."""

    open_claims: int = 3
    steps: list[float] = field(default_factory=list)
    seen: list[Views] = field(default_factory=list)
    grants: list[float] = field(default_factory=list)
    error: BaseException | None = None
    troubles: dict[str, str] = field(default_factory=dict)

    def step(self, now: float) -> int:
        """One step."""
        if self.error is not None:
            raise self.error
        self.steps.append(now)
        return 0

    def saw(self, views: Views, now: float) -> None:  # noqa: ARG002 - of the protocol
        """A survey."""
        self.seen.append(views)

    def granted(self, now: float) -> None:
        """A right that was missing."""
        self.grants.append(now)


@dataclass
class Floors:
    """A store that follows what it learns, like `fleet.control.coordinator.Coordinator`."""

    store: MemoryLeaseStore
    told: list[Mapping[UnitId, Token]] = field(default_factory=list)

    def learn(self, floors: Mapping[UnitId, Token]) -> None:
        """As the coordinator does."""
        self.told.append(floors)
        if floors:
            self.store.learn(max(floors.values()))


class Stage:
    """A loop over notes, with a clock that stands still."""

    def __init__(self) -> None:
        self.clock = ManualClock(1000.0)
        self.nodes = Some()
        self.notes = Notes()
        self.store = MemoryLeaseStore(clock=self.clock)
        self.store.init()
        self.openings = 0
        self.refusal: Exception | None = None
        self.caches: tuple[Cached, ...] = ()
        self.closed = threading.Event()
        self.loop = Loop(self.opened, clock=self.clock)

    def opened(self) -> Reconciling:
        """What the loop steps."""
        self.openings += 1
        if self.refusal is not None:
            raise self.refusal
        return Reconciling(
            self.notes,
            self.nodes,
            Floors(self.store),
            caches=self.caches,
            closing=(self.closed.set,),
        )


@pytest.fixture
def stage() -> Stage:
    """A fresh one."""
    return Stage()


def test_a_good_step_is_told_with_its_figures(stage: Stage) -> None:
    """E4: the view says when a step last ended and how many claims are open."""
    assert stage.loop.view().stepped_at == 0.0
    assert stage.loop.turn() == PERIOD_S
    found = stage.loop.view()
    assert (found.stepped_at, found.open_claims, found.trouble) == (1000.0, 3, "")
    assert stage.notes.steps == [1000.0]


def test_nodes_are_surveyed_on_a_period_of_their_own(stage: Stage) -> None:
    """A device that fails is noticed though no claim asks; a clock set back stops nothing."""
    stage.nodes.answers = {"a": view("a"), "b": errors.NotOwner("away")}
    stage.loop.turn()
    stage.clock.advance(SURVEY_S / 2)
    stage.loop.turn()
    assert stage.nodes.surveys == 1
    stage.clock.advance(SURVEY_S)
    stage.loop.turn()
    assert stage.nodes.surveys == 2
    assert [set(seen) for seen in stage.notes.seen] == [{"a", "b"}] * 2
    assert stage.loop.view().silent_nodes == ("b",)
    stepped = stage.opened()
    for now in (1000.0, 10.0):
        stepped.step(now)
    assert stage.nodes.surveys == 4


def test_a_store_behind_a_node_stops_everything_and_says_why(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """E5: leases missing in a restored store may be in force, so nothing is decided on it."""
    newest = stage.store.newest()
    ahead = str(Token(newest.epoch, newest.counter + 7))
    stage.nodes.answers = {"a": view("a", gpu=ahead)}
    stage.loop.turn()
    assert stage.notes.steps == []
    found = stage.loop.view()
    assert ahead in found.trouble
    assert "fleet store adopt" in found.trouble
    assert found.trouble in caplog.text
    stage.nodes.answers = {"a": view("a", gpu=str(newest))}
    stage.loop.turn()
    assert stage.notes.steps == [], "suspended stays suspended, whoever answers"
    stage.store.adopt(Token.parse(ahead), "me")
    stage.loop.turn()
    assert len(stage.notes.steps) == 1


def test_a_node_of_another_store_stops_nobody_else(stage: Stage) -> None:
    """E5: its devices get no lease, since its floor is of another epoch; the others go on."""
    newest = stage.store.newest()
    foreign = str(Token(newest.epoch - 1, 1))
    stage.nodes.answers = {"a": view("a", gpu=foreign), "b": view("b", gpu=str(newest))}
    stage.loop.turn()
    assert len(stage.notes.steps) == 1
    assert stage.loop.view().trouble.startswith("a: ")
    stage.nodes.answers = {"b": view("b")}
    stage.clock.advance(SURVEY_S)
    stage.loop.turn()
    assert stage.loop.view().trouble == ""


def test_a_survey_asks_the_store_once_however_many_nodes(stage: Stage) -> None:
    """What a step costs does not grow with the fleet: all floors of an epoch are told together."""
    newest = stage.store.newest()
    stage.nodes.answers = {f"n{i}": view(f"n{i}", a=str(newest), b="0.0") for i in range(50)}
    stage.nodes.answers |= {
        "old": view("old", a=str(Token(newest.epoch - 1, 1))),
        "new": view("new"),
    }
    stage.nodes.answers["silent"] = errors.NotOwner("away")
    floors = Floors(stage.store)
    stepped = Reconciling(stage.notes, stage.nodes, floors)
    stepped.step(1000.0)
    together, *rest = floors.told
    assert together == {UnitId(f"n{i}/a/all"): newest for i in range(50)}
    assert [set(one) for one in rest] == [{"old/a/all"}] * 2
    assert set(stepped.foreign) == {"old"}


def test_what_the_binder_lacks_is_said(stage: Stage) -> None:
    """E7: a right that is missing shows in the view as long as it does, though steps end well."""
    stage.notes.troubles["holds"] = "claims cannot be held after use"
    stage.loop.turn()
    assert stage.loop.view().trouble == "claims cannot be held after use"
    stage.notes.troubles.clear()
    stage.loop.turn()
    assert stage.loop.view().trouble == ""


@pytest.mark.parametrize("error", [errors.StoreUnavailable("away"), KeyError("a bug")])
def test_a_step_that_fails_is_tried_again_ever_more_slowly(stage: Stage, error: Exception) -> None:
    """The loop never ends: pauses grow to their limit, and the first good step ends the trouble."""
    stage.loop.turn()
    stage.notes.error = error
    pauses = [stage.loop.turn() for _ in range(12)]
    assert pauses == sorted(pauses)
    assert pauses[0] > PERIOD_S
    assert pauses[-1] == PAUSE_MAX_S
    stage.clock.advance(5.0)
    stage.loop.turn()
    found = stage.loop.view()
    assert type(error).__name__ in found.trouble or "away" in found.trouble
    assert (found.trouble_since, found.stepped_at) == (1000.0, 1000.0)
    stage.notes.error = None
    assert stage.loop.turn() == PERIOD_S
    found = stage.loop.view()
    assert (found.trouble, found.trouble_since, found.stepped_at) == ("", 0.0, 1005.0)


def test_followers_get_every_survey_and_fail_for_themselves(stage: Stage) -> None:
    """B50: quarantine leases follow the nodes' views; a follower in trouble stops no claim."""

    class Taking:
        """Notes what it gets; the second time it fails, the third with a bug."""

        got = 0

        def step(self, views: Views, now: float) -> None:
            """One survey."""
            assert (set(views), now >= 1000.0) == ({"a"}, True)
            self.got += 1
            if self.got == 2:
                raise errors.ApiForbidden("nodes/status")
            if self.got == 3:
                raise KeyError("a bug")

    stage.nodes.answers = {"a": view("a")}
    followers = {"x": Taking()}
    stepped = Reconciling(stage.notes, stage.nodes, Floors(stage.store), followers=followers)
    troubles = []
    for number in range(4):
        stepped.step(1000.0 + number * SURVEY_S)
        troubles.append(stepped.trouble.partition(" — ")[0])
    assert troubles == ["", "x: nodes/status", "x: KeyError: 'a bug'", ""]
    assert len(stage.notes.steps) == 4


def test_claims_never_wait_for_the_followers(stage: Stage) -> None:
    """A first lease is granted before leases, notices and conditions of nodes are looked at; and
    claims in trouble keep nobody from looking at the nodes.
    """

    class Late:
        """Notes how many steps of the claims came before it."""

        after: list[int] = []  # noqa: RUF012 - of this test alone

        def step(self, views: Views, now: float) -> None:  # noqa: ARG002 - of the protocol
            """One survey."""
            self.after.append(len(stage.notes.steps))

    stage.nodes.answers = {"a": view("a")}
    followers = {"x": Late()}
    stepped = Reconciling(stage.notes, stage.nodes, Floors(stage.store), followers=followers)
    stepped.step(1000.0)
    stepped.step(1000.1)
    stage.notes.error = errors.StoreUnavailable("away")
    with pytest.raises(errors.StoreUnavailable):
        stepped.step(1000.0 + SURVEY_S)
    assert Late.after == [1, 2]


def test_what_cannot_be_opened_is_opened_later(stage: Stage) -> None:
    """Without kubeconfig or API server the host stays up, and goes on once it is there."""
    stage.refusal = errors.SettingsInvalid("there is no kubeconfig")
    for _ in range(3):
        assert stage.loop.turn() > PERIOD_S
    assert "no kubeconfig" in stage.loop.view().trouble
    stage.refusal = None
    stage.loop.turn()
    stage.loop.turn()
    assert (stage.openings, len(stage.notes.steps)) == (4, 2)


def test_a_store_that_was_replaced_is_opened_anew(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise 7: a store file deleted or put back under a running loop is noticed though nobody
    asks for a lease, is never told to be well, and what is there in the end is opened.
    """
    path = tmp_path / "store.db"

    def opened() -> Reconciling:
        if not path.exists():
            raise errors.StoreUnavailable("the store is not there")
        stores = open_stores(path, clock=stage.clock)
        stores.leases.init()
        coordinator = Coordinator(stores.leases, stores.runs, clock=stage.clock, signer=Unsigned())
        return Reconciling(stage.notes, stage.nodes, coordinator, closing=(stores.close,))

    open_stores(path, clock=stage.clock).close()
    loop = Loop(opened, clock=stage.clock)
    loop.turn()
    assert loop.view().trouble == ""
    kept = path.rename(tmp_path / "away.db")
    for trouble in ("was removed or replaced", "is not there", "is not there"):
        stage.clock.advance(SURVEY_S)
        loop.turn()
        assert trouble in loop.view().trouble
    assert caplog.text.count("claims are reconciled") == 1
    kept.rename(path)
    loop.turn()
    assert loop.view().trouble == ""
    loop.stop()
    loop.run()


class Unsigned:
    """Signs nothing."""

    def sign(self, heads: Mapping[NodeName, LedgerHead]) -> None:
        """Nothing."""


def test_nothing_is_done_before_all_claims_are_known(stage: Stage) -> None:
    """Half a list of claims is no list; what else is missing stops only what needs it."""
    cluster = MemoryCluster()
    cached = Cached(cluster, CLAIMS, watch_s=0.05)
    caches = (cached, Cached(cluster, NODES, watch_s=0.05))
    stepped = Reconciling(stage.notes, stage.nodes, Floors(stage.store), caches=caches)
    with pytest.raises(errors.ApiUnavailable, match="resourceclaims are not known yet"):
        stepped.step(1.0)
    assert (stage.nodes.surveys, stage.notes.steps) == (0, [])
    cached.refresh()
    stepped.step(1.0)
    assert stage.notes.steps == [1.0]


def test_it_runs_and_ends_as_a_thread(stage: Stage) -> None:
    """Stopped, it ends after the step under way and closes what it opened."""
    stepped = threading.Event()
    stage.notes.saw = lambda *_: stepped.set()  # type: ignore[method-assign]
    stage.nodes.answers = {"a": view("a")}
    stage.loop.start()
    assert stepped.wait(10.0)
    stage.loop.stop()
    assert stage.closed.is_set()


def test_jobs_go_side_by_side_and_all_are_waited_for() -> None:
    """Two jobs that wait for each other both end; one that raises does so after the others."""
    meeting, done = threading.Barrier(2, timeout=10.0), list[str]()

    def meet() -> None:
        meeting.wait()
        done.append("met")

    def fail() -> None:
        raise KeyError("a bug")

    each = SideBySide(3)
    jobs: list[Callable[[], None]] = [fail, meet, meet]
    with pytest.raises(KeyError):
        each(jobs)
    each.close()
    assert done == ["met", "met"]


def test_f77_a_refusal_is_not_over_because_nothing_was_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """F77: a step that leaves out what was refused, because it is not due yet, ends no trouble: it
    is said once, and once when steps have ended well for a while."""
    stage = Stage()
    forbidden = errors.ApiForbidden("User x cannot update configmaps", status=403, causes=[])
    refused = errors.SettingsInvalid("the store may not update configmaps")
    refused.__cause__ = forbidden
    for _ in range(5):
        stage.notes.error = refused
        stage.clock.advance(stage.loop.turn())
        stage.notes.error = None
        for _ in range(3):
            stage.clock.advance(stage.loop.turn())
            assert "may not update" in stage.loop.view().trouble
    assert caplog.text.count("may not update") == 1
    assert "claims are reconciled" not in caplog.text
    for _ in range(int(SETTLED_S / PERIOD_S) + 1):
        stage.clock.advance(stage.loop.turn())
    assert stage.loop.view().trouble == ""
    assert caplog.text.count("claims are reconciled") == 1


def test_f71_rights_that_are_missing_are_in_the_view(caplog: pytest.LogCaptureFixture) -> None:
    """F71: as the refusals named them, until the server says that they are granted."""
    stage = Stage()
    cluster = MemoryCluster(caller=Caller("coordinator"))
    cluster.engine.access = access = Access(())
    rights = Rights(cluster)
    with pytest.raises(errors.ApiForbidden):
        rights.list(NODES)
    cluster.faults.fail_next("create", errors.ApiUnavailable("away", status=503))
    loop = Loop(
        lambda: Reconciling(stage.notes, stage.nodes, Floors(stage.store), rights=rights),
        clock=stage.clock,
    )
    loop.turn()
    assert [*map(str, loop.view().missing)] == ["list nodes (account coordinator)"]
    assert loop.view().stepped_at == stage.clock.now()
    assert access.rules == []
    assert caplog.text.count("a right is missing") == 1


def test_f71_a_right_that_is_granted_is_told_at_the_next_question(stage: Stage) -> None:
    """F71: the loop asks for a missing right now and then; once it is there the claims are told."""
    engine = Engine()
    engine.access = access = Access()
    rights = Rights(Reviewed(engine, caller=Caller("u")))
    with pytest.raises(errors.ApiForbidden):
        rights.list(CLAIMS)
    stepped = Reconciling(stage.notes, stage.nodes, Floors(stage.store), rights=rights)
    stepped.step(1.0)
    access.rules.append(Rule("u", ("list",), ("resourceclaims",)))
    stepped.step(1.0 + RIGHTS_S / 2)
    assert stage.notes.grants == []
    stepped.step(1.0 + RIGHTS_S)
    assert stage.notes.grants == [1.0 + RIGHTS_S]
    assert stepped.missing == ()
