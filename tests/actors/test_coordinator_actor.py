"""E1: the coordinator's actor as a plain class, without Ray."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from actors import methods
from actors.coordinator_actor import CoordinatorActor, placement
from actors.translate import StartRefused
from fleet.control.binding.loop import BindingView, Reconciling
from fleet.control.coordinator import Coordinator
from fleet.control.coordinator_api import CoordinatorApi
from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind, Lease, RunId, Token, UnitId
from fleet.core.settings import Settings, StoreKind, StoreSettings
from fleet.rpc.calls import Verb
from fleet.stores.base import Release, Renewal, RunRecord
from fleet.stores.sqlite import store_path
from fleet.wiring import adapters
from fleet.wiring.plans import CoordinatorPlan


@pytest.fixture
def actor(tmp_path: Path) -> CoordinatorActor:
    """A coordinator over fresh stores."""
    plan = adapters.plan_fleet(tmp_path, simulate="1x1", memory_bytes=8 << 20).coordinator
    return CoordinatorActor(plan.model_dump_json())


@dataclass
class Remote(CoordinatorApi):
    """An actor as `RemoteCoordinator` asks it, without Ray."""

    actor: CoordinatorActor

    def ask(self, verb: Verb, given: Mapping[str, Any], timeout_s: float | None) -> Any:  # noqa: ARG002
        """Through what crosses."""

        def call(name: str, *arguments: object) -> Any:
            return getattr(self.actor, name)(*arguments)

        return methods.coordinator_answer(call, verb, given)


def asked(*names: str, unit: str = "u/0") -> Sequence[AcquireRequest]:
    """Requests of these runs for one unit each."""
    return tuple(
        AcquireRequest(frozenset({UnitId(unit)}), Holder(HolderKind.CAMPAIGN, name), 60.0)
        for name in names
    )


def test_a_batch_has_an_answer_for_each_request(actor: CoordinatorActor) -> None:
    """B08: in one batch for one unit the first is granted and the others say who has it."""
    remote = Remote(actor)
    for name in ("r1", "r2"):
        remote.open(RunRecord(id=name, started_at=1.0))
    lease, refused, unknown = remote.acquire(asked("r1", "r2", "r3"))
    assert isinstance(lease, Lease)
    assert lease.holder.name == "r1"
    assert isinstance(refused, errors.LeaseHeld)
    assert isinstance(unknown, errors.RunUnknown)
    (listed,) = remote.leases()
    assert (listed.token, listed.holder) == (lease.token, lease.holder)
    assert remote.newest() == lease.token

    (late,) = remote.renew_all([Renewal(lease.holder, Token(1, 99), 60.0)])
    assert isinstance(late, errors.LeaseLost)
    assert remote.release_all([Release(lease.holder, lease.token)]) == (True,)
    assert remote.leases() == ()


def test_it_is_recognised_in_the_dashboard(actor: CoordinatorActor) -> None:
    """E4: its repr has the leases and the open runs."""
    Remote(actor).open(RunRecord(id="r1", started_at=1.0))
    assert repr(actor) == "CoordinatorActor(at its start: leases=0, open_runs=1)"


def test_errors_of_ours_leave_as_they_are_and_others_as_ours(actor: CoordinatorActor) -> None:
    """B60: an unknown run is RunUnknown; what cannot be read is Unforeseen, not a library's."""
    with pytest.raises(errors.RunUnknown):
        Remote(actor).run(RunId("nope"))
    with pytest.raises(errors.InputInvalid, match="no JSON"):
        actor.acquire("not json")  # type: ignore[attr-defined]
    with pytest.raises(errors.InputInvalid, match="requests"):
        actor.acquire("7")  # type: ignore[attr-defined]


def test_a_plan_that_cannot_be_opened_refuses_the_start() -> None:
    """B60: a constructor's error keeps its kind through Ray's text."""
    with pytest.raises(StartRefused, match="fleet-start-refused"):
        CoordinatorActor("not json")


def test_a_new_actor_over_the_same_stores_never_repeats_a_token(
    actor: CoordinatorActor, tmp_path: Path
) -> None:
    """B42: another life of the actor knows the runs and grants above every earlier token."""
    Remote(actor).open(RunRecord(id="r1", started_at=1.0))
    (first,) = Remote(actor).acquire(asked("r1"))
    plan = adapters.plan_fleet(tmp_path).coordinator
    again = CoordinatorActor(plan.model_dump_json())
    (second,) = Remote(again).acquire(asked("r1", unit="u/1"))
    assert isinstance(first, Lease)
    assert isinstance(second, Lease)
    assert first.token < second.token


class Claims:
    """A binder with two claims, over no nodes."""

    open_claims = 2
    troubles: Mapping[str, str] = {}

    def step(self, now: float) -> int:
        """Nothing to do."""
        return int(now * 0)

    def saw(self, views: Mapping[str, object], now: float) -> None:
        """Nothing to see."""

    def granted(self, now: float) -> None:
        """Nothing was missing."""

    def names(self) -> Collection[str]:
        """No nodes."""
        return ()

    def views(self, _: Mapping[str, object]) -> Mapping[str, errors.FleetError]:
        """No views."""
        return {}


def binding_of(actor: CoordinatorActor, true: Callable[[BindingView], bool]) -> BindingView:
    """How its claims stand, once that is so."""
    deadline = time.monotonic() + 10.0
    while True:
        found = Remote(actor).view().binding
        if found is not None and true(found):
            return found
        assert time.monotonic() < deadline, found


def test_it_reconciles_the_claims_of_a_cluster_beside_its_calls(tmp_path: Path) -> None:
    """E4: the view says when a step last ended, and why none does until there is an API server."""
    plan = adapters.plan_fleet(tmp_path, simulate="1x1", memory_bytes=8 << 20).coordinator
    openings = iter([errors.ApiUnavailable("the API server is away"), None])

    def binder(_: str, coordinator: Coordinator) -> Reconciling:
        if (refusal := next(openings)) is not None:
            raise refusal
        return Reconciling(Claims(), Claims(), coordinator)

    of_a_cluster = plan.model_copy(update={"kubernetes": True, "kubeconfig": "k"})
    actor = CoordinatorActor(of_a_cluster.model_dump_json(), binder=binder)
    assert "is away" in binding_of(actor, lambda found: bool(found.trouble)).trouble
    assert binding_of(actor, lambda found: found.stepped_at > 0.0).open_claims == 2
    assert Remote(actor).view().open_runs == ()


def test_a_store_that_is_away_at_the_start_is_waited_for(tmp_path: Path) -> None:
    """E5: Ray starts no actor again whose constructor failed, so this is no reason to fail."""
    plan = adapters.plan_fleet(tmp_path, simulate="1x1", memory_bytes=8 << 20).coordinator
    away = [errors.StoreUnavailable("the store is away")]

    def opener(_: str) -> Coordinator:
        if away:
            raise away[0]
        return adapters.open_coordinator(plan)

    actor = CoordinatorActor(plan.model_dump_json(), opener)
    with pytest.raises(errors.StoreUnavailable):
        Remote(actor).leases()
    assert repr(actor) == "CoordinatorActor(at its start: not serving)"
    away.clear()
    actor._refused_at = float("-inf")  # as if a second had passed
    assert Remote(actor).leases() == ()


def test_a_loop_that_begins_anew_gets_the_store_that_is_there_now(tmp_path: Path) -> None:
    """Promise 7: a store file put back under a running actor is opened when its loop asks."""
    plan = adapters.plan_fleet(tmp_path, simulate="1x1", memory_bytes=8 << 20).coordinator
    actor = CoordinatorActor(plan.model_dump_json())
    before, path = actor._open(), store_path(tmp_path)
    assert actor._current() is before
    path.rename(path.with_suffix(".old"))
    with pytest.raises(errors.StoreUnavailable, match="is not there"):
        actor._current()
    shutil.copy(path.with_suffix(".old"), path)
    actor._refused_at = float("-inf")  # as if a second had passed
    assert actor._current() is not before
    assert Remote(actor).leases() == ()


def test_a_store_that_is_another_hosts_refuses_the_start() -> None:
    """A settings error is for people: waiting mends nothing, so the start says it."""

    def opener(_: str) -> Coordinator:
        raise errors.SettingsInvalid("the store is another host's")

    with pytest.raises(StartRefused, match="another host"):
        CoordinatorActor("{}", opener)


@pytest.mark.parametrize(
    ("kind", "placed"),
    [
        (StoreKind.SQLITE, {"label_selector": {"fleet/host": "h1"}}),
        (StoreKind.KUBERNETES, {}),
        (StoreKind.DYNAMODB, {}),
    ],
)
def test_only_a_store_of_one_host_pins_the_coordinator(
    kind: StoreKind, placed: Mapping[str, object]
) -> None:
    """E5: with the store at the API server a lost host is not the end of the coordinator."""
    settings = Settings(store=StoreSettings(kind=kind))
    plan = CoordinatorPlan(state="/s", settings=settings).model_dump_json()
    assert placement(plan, host="h1") == placed


def test_a_coordinator_goes_where_its_rights_are() -> None:
    """A5: what it may do at the API is its pod's; live raylets made for it are taken, if any is."""
    settings = Settings(store=StoreSettings(kind=StoreKind.KUBERNETES))
    plan = CoordinatorPlan(state="/s", settings=settings).model_dump_json()
    meant = {"Alive": True, "Labels": {"fleet/coordinator": "true"}}
    dead, other = {**meant, "Alive": False}, {"Alive": True, "Labels": {"fleet/host": "h1"}}
    pinned = {"label_selector": {"fleet/coordinator": "true"}}
    assert placement(plan, host="h1", raylets=[other, meant]) == pinned
    assert placement(plan, host="h1", raylets=[other, dead]) == {}


def test_its_figures_are_all_there_and_the_store_s_loss_is_one(
    actor: CoordinatorActor, tmp_path: Path
) -> None:
    """E4, B83: what the store has, or that it does not answer; old figures are not told again."""
    Remote(actor).open(RunRecord(id="r1", started_at=1.0))
    told = {sample.key: sample.value for sample in actor.samples()}
    assert told["fleet_coordinator_store_reachable", ()] == 1
    assert told["fleet_campaigns", (("state", "running"),)] == 1
    shutil.rmtree(store_path(tmp_path).parent)
    left = {sample.key: sample.value for sample in actor.samples()}
    assert left["fleet_coordinator_store_reachable", ()] == 0
    assert ("fleet_campaigns", (("state", "running"),)) not in left
