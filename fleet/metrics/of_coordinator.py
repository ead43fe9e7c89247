"""The metrics of the coordinator: leases, reconciliation, campaigns. Pure.

Where it does not reconcile the claims of a cluster, or no campaign ever ran, the figures are zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fleet.control.binding.loop import BindingView
from fleet.control.campaign.report import ExitReason
from fleet.control.coordinator_api import CoordinatorView
from fleet.core.messages import Outcome
from fleet.core.model import HolderKind
from fleet.metrics.metric import NODES, SELECTORS, Exporter, Kind, Metric, Sample, Source
from fleet.metrics.of_node import evidence
from fleet.stores import lease_operations
from fleet.stores.base import RunRecord, RunState
from fleet.stores.lease_operations import OPERATIONS, RESULTS

HOLDERS = tuple(str(kind) for kind in HolderKind)
OPEN_STATES = (str(RunState.RUNNING), str(RunState.STOPPED))
PENDING = "pending"
"""Devices of a campaign that have no result yet."""
DEVICE_OUTCOMES = (*(str(outcome) for outcome in Outcome), PENDING)
ENDS = tuple(str(reason) for reason in ExitReason)
REACHABLE = "fleet_coordinator_store_reachable"
EVIDENCE = "fleet_coordinator_evidence"
OF_SOME = "fleet_coordinator_share_stepped_timestamp_seconds"


def _gauge(name: str, text: str, *, unit: str = "", **labels: tuple[str, ...]) -> Metric:
    return Metric(name, Kind.GAUGE, text, Exporter.COORDINATOR, labels, unit=unit)


COORDINATOR_METRICS: tuple[Metric, ...] = (
    _gauge(REACHABLE, "1 while the store of leases and runs answers."),
    _gauge(
        "fleet_coordinator_store_suspended",
        "1 while the store grants nothing because a node has seen tokens it never issued.",
    ),
    _gauge("fleet_coordinator_leases", "Leases in force by kind of holder.", holder=HOLDERS),
    _gauge(
        "fleet_coordinator_out_of_service",
        "Devices kept from tenants by campaign and quarantine leases.",
    ),
    Metric(
        "fleet_coordinator_lease_operations_total",
        Kind.COUNTER,
        "Operations on leases by result; nodes that ask the store themselves are not among them.",
        Exporter.COORDINATOR,
        {"operation": OPERATIONS, "result": RESULTS},
        source=Source.PROCESS,
    ),
    _gauge("fleet_coordinator_reconciles", "1 where it reconciles the claims of a cluster."),
    _gauge(
        "fleet_coordinator_stepped_timestamp_seconds",
        "When a step of the reconciliation last ended well; 0: not since the start.",
        unit="seconds",
    ),
    Metric(
        OF_SOME,
        Kind.GAUGE,
        "When a step of one of several coordinators last ended well, by the selector of its Nodes.",
        Exporter.COORDINATOR,
        {"nodes": SELECTORS},
        unit="seconds",
        zero="one coordinator for all nodes has no series",
    ),
    _gauge("fleet_coordinator_step_seconds", "Duration of the last step that did.", unit="seconds"),
    _gauge("fleet_coordinator_open_claims", "Claims that are kept an eye on."),
    _gauge("fleet_coordinator_trouble", "1 while something keeps it from reconciling all of them."),
    _gauge("fleet_coordinator_silent_nodes", "Nodes that did not answer at the last survey."),
    Metric(
        "fleet_coordinator_node_silent",
        Kind.GAUGE,
        "1 for a node that did not answer at the last survey.",
        Exporter.COORDINATOR,
        {"node": NODES},
        zero="a node that answers, or is gone, has no series",
    ),
    _gauge("fleet_coordinator_evidence_archive", "1 where an archive for evidence is named."),
    _gauge(
        "fleet_coordinator_evidence_backlog",
        "Countersignatures and runs that are not in the archive yet.",
    ),
    _gauge(
        "fleet_coordinator_evidence_oldest_seconds",
        "Age of the oldest of them; 0: there is none.",
        unit="seconds",
    ),
    _gauge("fleet_coordinator_evidence_failing", "1 while the last try to copy evidence failed."),
    _gauge(
        "fleet_coordinator_evidence_refused",
        "1 while the archive refuses evidence for a reason that no later try changes.",
    ),
    _gauge("fleet_campaigns", "Campaign runs that are not finished, by state.", state=OPEN_STATES),
    _gauge(
        "fleet_campaign_devices",
        "Devices of the newest campaign run by outcome.",
        outcome=DEVICE_OUTCOMES,
    ),
    _gauge("fleet_campaign_ended", "1 for the reason the newest run ended with.", reason=ENDS),
    _gauge(
        "fleet_campaign_started_timestamp_seconds",
        "When the newest run began; 0: none ever did.",
        unit="seconds",
    ),
    _gauge(
        "fleet_campaign_complete_timestamp_seconds",
        "When a run last ended complete; 0: none did among those kept.",
        unit="seconds",
    ),
    _gauge(
        "fleet_coordinator_view_timestamp_seconds",
        "When the view behind all figures of the coordinator was taken.",
        unit="seconds",
    ),
)


def unreachable(binding: BindingView | None) -> Iterator[Sample]:
    """What is known while the store does not answer: that, and how reconciliation stands."""
    yield _one(REACHABLE, 0)
    yield from _of_binding(binding)


def samples(view: CoordinatorView, runs: Sequence[RunRecord]) -> Iterator[Sample]:
    """All figures of a coordinator; `runs` are the newest, newest first."""
    yield _one(REACHABLE, 1)
    yield _one("fleet_coordinator_store_suspended", view.suspended is not None)
    for kind in HolderKind:
        yield _one("fleet_coordinator_leases", view.holders.get(kind, 0), holder=kind)
    yield _one("fleet_coordinator_out_of_service", view.out_of_service)
    for operation in OPERATIONS:
        for result in RESULTS:
            count = view.operations.get(lease_operations.key(operation, result), 0)
            yield _one(
                "fleet_coordinator_lease_operations_total",
                count,
                operation=operation,
                result=result,
            )
    yield from _of_binding(view.binding)
    for name, value in evidence(EVIDENCE, view.replication, view.at):
        yield _one(name, value)
    yield from _of_campaigns(runs)
    yield _one("fleet_coordinator_view_timestamp_seconds", view.at)


def _of_binding(found: BindingView | None) -> Iterator[Sample]:
    binding = found or BindingView()
    yield _one("fleet_coordinator_reconciles", found is not None)
    yield _one("fleet_coordinator_stepped_timestamp_seconds", binding.stepped_at)
    if binding.nodes:
        yield _one(OF_SOME, binding.stepped_at, nodes=binding.nodes)
    yield _one("fleet_coordinator_step_seconds", binding.step_s)
    yield _one("fleet_coordinator_open_claims", binding.open_claims)
    yield _one("fleet_coordinator_trouble", bool(binding.trouble or binding.missing))
    yield _one("fleet_coordinator_silent_nodes", len(binding.silent_nodes))
    for node in binding.silent_nodes:
        yield _one("fleet_coordinator_node_silent", 1, node=node)


def _of_campaigns(runs: Sequence[RunRecord]) -> Iterator[Sample]:
    for state in OPEN_STATES:
        yield _one("fleet_campaigns", sum(run.state == state for run in runs), state=state)
    newest = runs[0] if runs else None
    outcomes = Counter(str(r.outcome) for r in newest.results.values()) if newest else Counter()
    if newest is not None:
        outcomes[PENDING] = max(0, len(newest.targets) - len(newest.results))
    for outcome in DEVICE_OUTCOMES:
        yield _one("fleet_campaign_devices", outcomes[outcome], outcome=outcome)
    ended = newest.exit_reason if newest and newest.state is not RunState.RUNNING else ""
    for reason in ENDS:
        yield _one("fleet_campaign_ended", reason == ended, reason=reason)
    began = newest.started_at if newest else 0.0
    yield _one("fleet_campaign_started_timestamp_seconds", began)
    complete = [r.finished_at for r in runs if r.finished_at and r.exit_reason == "complete"]
    yield _one("fleet_campaign_complete_timestamp_seconds", max(complete, default=0.0))


def _one(name: str, value: float, **labels: str) -> Sample:
    return Sample(name, float(value), tuple((key, str(word)) for key, word in labels.items()))
