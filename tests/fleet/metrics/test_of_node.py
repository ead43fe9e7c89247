"""Rules of a node's figures."""

from __future__ import annotations

from fleet.core.messages import ClaimBrief, NodeView, Replication
from fleet.core.model import State
from fleet.metrics.metric import Kind
from fleet.metrics.of_node import NODE_METRICS, TIMESTAMP, evidence, samples, timestamp
from tests.fleet.metrics.views import GIB, NOW, device, node


def figures(found: NodeView | None = None, **labels: str) -> dict[str, float]:
    """Values of the series with these labels, by name."""
    view = found or node()
    wanted = {("node", "n1"), *labels.items()}
    return {s.name + s.suffix: s.value for s in samples(view) if set(s.labels) == wanted}


def test_every_series_is_there_from_the_start() -> None:
    """B83: a node without devices tells every series of the catalogue, as zero; none twice."""
    told = [sample.key for sample in samples(node(devices=(), units={}, tally={}))]
    assert len(told) == len(set(told))
    for metric in NODE_METRICS:
        suffix = "_count" if metric.kind is Kind.HISTOGRAM else ""
        wanted = {(metric.name + suffix, labels) for labels in metric.series("n1")}
        assert wanted <= set(told), metric.name


def test_ten_thousand_claims_make_no_series() -> None:
    """B83: claims are counted by state and named nowhere."""
    many = tuple(ClaimBrief(uid=f"c{n}", state="PREPARED") for n in range(10_000))
    busy = {sample.key for sample in samples(node(claims=many))}
    assert busy == {sample.key for sample in samples(node())}
    assert figures(node(claims=many), state="PREPARED")["fleet_node_claims"] == 10_000


def test_capacity_lost_is_told_in_devices_and_in_memory() -> None:
    """E4: the quarantined accelerator and its memory are out, the rest is in."""
    assert figures(service="out") == {"fleet_capacity_devices": 1, "fleet_capacity_bytes": GIB}
    assert figures(service="in") == {"fleet_capacity_devices": 2, "fleet_capacity_bytes": 2 * GIB}


def test_one_bad_partition_takes_only_its_own_memory() -> None:
    """A unit counts once, however many devices share it."""
    whole = device("gpu-0", State.QUARANTINED, units=("u/0", "u/1"))
    part = device("gpu-0-0", State.CLEAN, accelerator=whole.uuid)
    units = {"CLEAN": {"units": 1, "bytes": 3}, "QUARANTINED": {"units": 1, "bytes": 1}}
    found = figures(node(devices=(whole, part), units=units), service="out")
    assert found == {"fleet_capacity_devices": 1, "fleet_capacity_bytes": 1}


def test_time_in_state_is_that_of_the_oldest() -> None:
    """E4: age at the view's time, and how many are above target."""
    found = figures(state="QUARANTINED")
    assert found["fleet_units_oldest_seconds"] == 90_000
    assert found["fleet_units_late"] == 1
    assert figures(state="HELD")["fleet_units_oldest_seconds"] == 0


def test_reasons_count_by_code_and_a_new_one_as_other() -> None:
    """A view of a newer node may name a reason that this version does not know."""
    assert figures(code="xid")["fleet_quarantine_reasons"] == 1
    assert figures(code="wedged")["fleet_quarantine_reasons"] == 0
    strange = device(
        "gpu-9", reasons=({"code": "of-tomorrow", "source": "health", "liftable": False},)
    )
    assert figures(node(devices=(strange,)), code="other")["fleet_quarantine_reasons"] == 1


def test_the_histogram_is_cumulative_and_ends_with_all() -> None:
    """Each bucket counts what was as fast or faster."""
    assert figures(le="5")["fleet_clean_seconds_bucket"] == 2
    assert figures(le="15")["fleet_clean_seconds_bucket"] == 3
    assert figures(le="+Inf")["fleet_clean_seconds_bucket"] == 3
    assert figures()["fleet_clean_seconds_count"] == 3


def test_work_in_line_and_running_is_told_apart() -> None:
    """An operation that shows on two devices is one wipe."""
    waits = [device(f"gpu-{n}", operation="o2", progress={}) for n in (3, 4)]
    view = node(devices=(*node().devices, *waits))
    assert figures(view, phase="waiting")["fleet_wipes_in_work"] == 1
    assert figures(view, phase="running")["fleet_wipes_in_work"] == 1
    assert figures(view)["fleet_wipe_bytes_in_work"] == 7


def test_evidence_that_is_not_in_the_archive_has_an_age() -> None:
    """E3: how much, and how old the oldest is; without an archive nothing is owed."""
    copied = Replication(backlog=4, oldest_at=NOW - 60, error="denied")
    assert dict(evidence("e", copied, NOW)) == {
        "e_archive": True,
        "e_backlog": 4,
        "e_oldest_seconds": 60.0,
        "e_failing": True,
        "e_refused": False,
    }
    assert set(dict(evidence("e", None, NOW)).values()) == {0}
    unknown = dict(evidence("e", Replication(backlog=None, error="unreadable"), NOW))
    assert unknown == {
        "e_archive": True,
        "e_oldest_seconds": float("inf"),
        "e_failing": True,
        "e_refused": False,
    }


def test_figures_say_how_old_they_are() -> None:
    """B83: the time of the view itself, also when that is all that can still be told."""
    assert figures()[TIMESTAMP] == NOW
    assert timestamp(node()).value == NOW
