"""The stories around kubelet's calls, and whether their judge finds what it is there for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core.claim_states import Claim, ClaimState
from fleet.core.messages import ClaimOrder
from fleet.core.model import ClaimUid, State, Token
from fleet.evidence import layout
from fleet.wiring import adapters
from fleet.wiring.adapters import NodePlan
from tests.chaos import checks
from tests.chaos.checks import Sample
from tests.chaos.kubelet import records
from tests.chaos.kubelet.story import WORKER_DEATHS_MAX, Act, Who, draw
from tests.chaos.story import Point, Side, Victim

SEEDS = range(1, 61)
UID = ClaimUid("4f1d6c52-0000-4000-8000-000000000001")


def test_a_seed_tells_the_same_story_again() -> None:
    """A failing seed can be told again: nothing but the seed decides a story."""
    assert [draw(seed) for seed in SEEDS] == [draw(seed) for seed in SEEDS]
    assert draw(1) != draw(2)


def test_sixty_seeds_strike_everybody_in_both_calls() -> None:
    """What CI runs reaches both processes, the workers, both calls and every kind of moment."""
    calls = [call for seed in SEEDS for call in draw(seed).calls]
    struck = {(blow.who, call.act) for call in calls for blow in call.blows}
    assert struck == {(who, act) for who in Who for act in Act}
    strikes = [blow.strike for call in calls for blow in call.blows]
    assert {strike.point for strike in strikes} == set(Point) - {Point.PROGRESS}
    assert {strike.side for strike in strikes} == set(Side)
    assert {strike.victim for strike in strikes} == set(Victim)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_story_is_more_than_a_scheduler_allows(seed: int) -> None:
    """Every pod is prepared once and torn down later; no two have one device at a time."""
    story = draw(seed)
    running: dict[int, int] = {}
    for call in story.calls:
        device = story.devices[call.pod]
        if call.act is Act.PREPARE:
            assert device not in running
            running[device] = call.pod
        else:
            assert running.pop(device) == call.pod
    assert running == {}
    assert story.worker_deaths() <= WORKER_DEATHS_MAX


# --- the judge is judged --------------------------------------------------------------------------


@pytest.fixture
def held(tmp_path: Path) -> tuple[NodePlan, Sample]:
    """A node with one prepared claim, and what its disk tells once its owner has gone."""
    fleet = adapters.plan_fleet(tmp_path, simulate="1x1", memory_bytes=1 << 20)
    adapters.open_coordinator(fleet.coordinator)  # begins the log of heads
    (plan,) = fleet.nodes
    service = adapters.open_node(plan)
    service.tick(1.0)
    (device,) = service.view().devices
    answer = service.prepare(ClaimOrder(uid=UID, node=plan.node, devices=(device.uuid,)))
    assert answer.state == ClaimState.PREPARED
    service.close()
    return plan, checks.sample(tmp_path)


def changed(now: Sample, **what: object) -> Sample:
    """The same with its one node changed."""
    (node,) = now.nodes.values()
    return replace(now, nodes={node.name: replace(node, **what)})  # type: ignore[arg-type]


def test_a_prepared_claim_is_as_it_should_be(held: tuple[NodePlan, Sample]) -> None:
    """What follows changes one thing each; unchanged, nothing is found while it is held."""
    plan, now = held
    assert records.after_a_kill(plan, now) == []
    assert checks.after_a_kill(Path(plan.state), now, now) == []
    left = records.at_rest(plan, now)
    assert any("the record of" in line for line in left)
    assert any("still has" in line for line in left)
    assert any("is IN_USE of" in line for line in left)


def test_a_spec_without_a_record_is_found(held: tuple[NodePlan, Sample]) -> None:
    """Promise 3: a spec exists only while a durable record names its devices."""
    plan, now = held
    found = records.after_a_kill(plan, changed(now, claims={}))
    assert any("has no record" in line for line in found)


def test_a_prepared_claim_without_its_spec_is_found(held: tuple[NodePlan, Sample]) -> None:
    """Promise 3 from the other side: kubelet was told of ids that mean nothing."""
    plan, now = held
    for path in (layout.node_directory(Path(plan.state), plan.node) / "cdi").glob("*.json"):
        path.unlink()
    assert records.after_a_kill(plan, now) == [f"{UID} is PREPARED and has no spec"]


def test_two_holders_of_a_unit_are_found(held: tuple[NodePlan, Sample]) -> None:
    """Promise 2: at most one holder per unit."""
    plan, now = held
    (node,) = now.nodes.values()
    mine: Claim = node.claims[UID]
    other = replace(mine, uid=ClaimUid("other"), state=ClaimState.PREPARING)
    found = records.after_a_kill(plan, changed(now, claims={UID: mine, other.uid: other}))
    assert any("is held by" in line for line in found)


def test_a_lease_that_is_not_the_holders_is_found(held: tuple[NodePlan, Sample]) -> None:
    """Promise 2: the lease of an exposed unit is that claim's, with that token."""
    plan, now = held
    (lease,) = now.leases
    newer = replace(lease, token=Token(lease.token.epoch, lease.token.counter + 1))
    for leases in ((), (newer,)):
        found = records.after_a_kill(plan, replace(now, leases=leases))
        assert any("lease" in line for line in found), leases


def test_a_unit_that_is_not_clean_at_rest_is_found(held: tuple[NodePlan, Sample]) -> None:
    """Promise 7: nothing stays behind, and every device is of use again."""
    plan, now = held
    (node,) = now.nodes.values()
    units = {
        unit_id: replace(unit, state=State.DIRTY, claim=None)
        for unit_id, unit in node.units.items()
    }
    found = records.at_rest(plan, changed(now, units=units, claims={}))
    assert any("is DIRTY of None at rest" in line for line in found)
