"""E1: the coordinator's actor as a plain class, without Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.coordinator_actor import LEASE, LEASES, RELEASES, REQUESTS, CoordinatorActor
from actors.translate import StartRefused
from fleet import bootstrap, errors
from fleet.leases import AcquireRequest
from fleet.model import Holder, HolderKind, Token, UnitId
from fleet.stores.base import Release, RunRecord


@pytest.fixture
def actor(tmp_path: Path) -> CoordinatorActor:
    """A coordinator over fresh stores."""
    plan = bootstrap.plan_fleet(tmp_path, simulate="1x1", memory_bytes=8 << 20).coordinator
    return CoordinatorActor(plan.model_dump_json())


def asked(*names: str, unit: str = "u/0") -> str:
    """Requests of these runs for one unit each, as they cross."""
    requests = tuple(
        AcquireRequest(frozenset({UnitId(unit)}), Holder(HolderKind.CAMPAIGN, name), 60.0)
        for name in names
    )
    return REQUESTS.dump_json(requests).decode()


def test_a_batch_has_an_answer_for_each_request(actor: CoordinatorActor) -> None:
    """B08: in one batch for one unit the first is granted and the others say who has it."""
    for name in ("r1", "r2"):
        actor.open(RunRecord(id=name, started_at=1.0).model_dump_json())
    granted, refused, unknown = actor.acquire(asked("r1", "r2", "r3"))
    assert isinstance(granted, str)
    lease = LEASE.validate_json(granted)
    assert lease.holder.name == "r1"
    assert isinstance(refused, errors.LeaseHeld)
    assert isinstance(unknown, errors.RunUnknown)
    assert LEASES.validate_json(actor.leases()) == (lease,)

    assert actor.release(RELEASES.dump_json((Release(lease.holder, lease.token),)).decode()) == [
        True
    ]
    assert LEASES.validate_json(actor.leases()) == ()


def test_it_is_recognised_in_the_dashboard(actor: CoordinatorActor) -> None:
    """E4: its repr has the leases and the open runs."""
    actor.open(RunRecord(id="r1", started_at=1.0).model_dump_json())
    assert repr(actor) == "CoordinatorActor(leases=0, open_runs=1)"


def test_errors_of_ours_leave_as_they_are_and_others_as_ours(actor: CoordinatorActor) -> None:
    """B60: an unknown run is RunUnknown; what cannot be read is Unforeseen, not a library's."""
    with pytest.raises(errors.RunUnknown):
        actor.run("nope")
    with pytest.raises(errors.Unforeseen):
        actor.acquire("not json")


def test_a_plan_that_cannot_be_opened_refuses_the_start() -> None:
    """B60: a constructor's error keeps its kind through Ray's text."""
    with pytest.raises(StartRefused, match="fleet-start-refused"):
        CoordinatorActor("not json")


def test_a_new_actor_over_the_same_stores_never_repeats_a_token(
    actor: CoordinatorActor, tmp_path: Path
) -> None:
    """B42: another life of the actor knows the runs and grants above every earlier token."""
    actor.open(RunRecord(id="r1", started_at=1.0).model_dump_json())
    (first,) = actor.acquire(asked("r1"))
    plan = bootstrap.plan_fleet(tmp_path).coordinator
    again = CoordinatorActor(plan.model_dump_json())
    (second,) = again.acquire(asked("r1", unit="u/1"))
    tokens: list[Token] = [LEASE.validate_json(str(one)).token for one in (first, second)]
    assert tokens[0] < tokens[1]
