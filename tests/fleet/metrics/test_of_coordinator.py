"""Rules of the coordinator's figures."""

from __future__ import annotations

import pytest

from fleet.control.binding.loop import BindingView
from fleet.control.campaign.report import ExitReason
from fleet.core.messages import DeviceResult, Outcome
from fleet.metrics.metric import Sample
from fleet.metrics.of_coordinator import COORDINATOR_METRICS, OF_SOME, samples, unreachable
from fleet.stores.base import RunRecord, RunState, Target
from tests.fleet.metrics.views import NOW, coordinator


def value(found: list[Sample], name: str, **labels: str) -> float:
    """The one value of a series."""
    (one,) = [s.value for s in found if s.name == name and s.labels == tuple(labels.items())]
    return one


def run(name: str, **more: object) -> RunRecord:
    """A campaign over two devices, one of them certified."""
    result = DeviceResult(node="n", device="d", uuid="u1", outcome=Outcome.CERTIFIED, state="CLEAN")
    fields: dict[str, object] = {
        "id": name,
        "started_at": NOW - 50,
        "targets": tuple(Target(node="n", uuid=u, name=u) for u in ("u1", "u2")),
        "results": {"u1": result},
    }
    return RunRecord.model_validate({**fields, **more})


def test_every_series_is_there_from_the_start() -> None:
    """B83: a coordinator that has done nothing tells every series, none twice."""
    told = [sample.key for sample in samples(coordinator(), [])]
    assert len(told) == len(set(told))
    for metric in COORDINATOR_METRICS:
        if not metric.zero:
            assert {(metric.name, labels) for labels in metric.series()} <= set(told), metric.name


def test_a_campaign_shows_how_far_it_is() -> None:
    """E2, E4: devices by outcome and those that wait, of the newest run only."""
    done = run("old", state=RunState.FINISHED, finished_at=NOW - 90, exit_reason="complete")
    found = list(samples(coordinator(), [run("new"), done]))
    assert value(found, "fleet_campaign_devices", outcome="certified") == 1
    assert value(found, "fleet_campaign_devices", outcome="pending") == 1
    assert value(found, "fleet_campaigns", state="running") == 1
    assert value(found, "fleet_campaign_complete_timestamp_seconds") == NOW - 90
    assert value(found, "fleet_campaign_ended", reason="complete") == 0


def test_a_campaign_says_why_it_ended() -> None:
    """A breaker stays to be seen until the next run begins."""
    stopped = run("r", state=RunState.STOPPED, finished_at=NOW, exit_reason="breaker")
    found = list(samples(coordinator(), [stopped]))
    assert value(found, "fleet_campaign_ended", reason="breaker") == 1
    assert value(found, "fleet_campaigns", state="stopped") == 1


@pytest.mark.parametrize("reason", [reason for reason in ExitReason if reason != "complete"])
def test_a_campaign_that_ended_early_was_not_completed(reason: ExitReason) -> None:
    """E4: FleetCampaignOverdue counts from the last run that was completed: one that ended by the
    breaker, by hand or for want of devices since then does not put it off."""
    done = run("old", state=RunState.FINISHED, finished_at=NOW - 90, exit_reason="complete")
    early = run("new", state=RunState.FINISHED, finished_at=NOW - 5, exit_reason=str(reason))
    complete = "fleet_campaign_complete_timestamp_seconds"
    assert value(list(samples(coordinator(), [early, done])), complete) == NOW - 90
    assert value(list(samples(coordinator(), [early])), complete) == 0


def test_a_silent_node_is_named_while_it_is_silent() -> None:
    """B83: a node that answers again, or was removed, has no series."""
    binding = BindingView(silent_nodes=("n7",), trouble="the API is away", stepped_at=NOW)
    found = list(samples(coordinator(binding=binding), []))
    assert value(found, "fleet_coordinator_node_silent", node="n7") == 1
    assert value(found, "fleet_coordinator_silent_nodes") == 1
    assert value(found, "fleet_coordinator_trouble") == 1
    later = samples(coordinator(binding=BindingView(stepped_at=NOW)), [])
    assert "fleet_coordinator_node_silent" not in {sample.name for sample in later}


def test_one_of_several_coordinators_can_be_missed() -> None:
    """E4: the newest step of all would hide that one of them is dead."""
    binding = BindingView(nodes="pool=a", stepped_at=NOW)
    found = list(unreachable(binding))
    assert value(found, OF_SOME, nodes="pool=a") == NOW
    assert OF_SOME not in {sample.name for sample in unreachable(BindingView(stepped_at=NOW))}


def test_without_its_store_it_tells_that_and_no_old_figures() -> None:
    """What cannot be read is left out, not repeated."""
    found = list(unreachable(BindingView(trouble="the store is away")))
    assert value(found, "fleet_coordinator_store_reachable") == 0
    assert value(found, "fleet_coordinator_trouble") == 1
    assert "fleet_coordinator_leases" not in {sample.name for sample in found}


def test_lease_operations_count_by_result() -> None:
    """E4: as the coordinator's view has them."""
    found = list(samples(coordinator(operations={"acquire/held": 3}), []))
    name = "fleet_coordinator_lease_operations_total"
    assert value(found, name, operation="acquire", result="held") == 3
    assert value(found, name, operation="release", result="done") == 0
