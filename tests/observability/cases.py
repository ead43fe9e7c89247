"""For each alert, series that make it fire and then end; and the series of a fleet that is well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fleet.control.binding.loop import BindingView
from fleet.core.messages import Tally, UnitsView
from fleet.core.model import State
from fleet.metrics import of_coordinator, of_node
from fleet.metrics.metric import Sample
from fleet.metrics.of_plugin import PLUGIN_METRICS, STARTED
from node_plugin.metrics import ClaimFigures
from tests.alerts import alerts
from tests.fleet.metrics import views
from tests.promql import SELECTOR

NODE = "n1"
FIRES, OVER = 30, 75
"""Minutes: trouble lasts from 6 to 36, and windows of half an hour have gone by at 75."""
TIMES = "0+60x180"
"""A time stamp that is always now, by the minute."""
STUCK = "0+60x5 300x30 2220+60x140"
"""One that stands still while there is trouble."""
GIB = views.GIB


def bad(value: float, well: float = 0) -> str:
    """Values by the minute: `value` while there is trouble."""
    return f"{well:g}x5 {value:g}x30 {well:g}x140"


ONCE = "0x5 1x170"
"""A counter that rises once."""


@dataclass(frozen=True, slots=True)
class Case:
    """How an alert comes and goes."""

    alert: str
    changes: dict[str, str]
    """Values by the beginning of the series, as far as it is told here."""
    fires: int = FIRES
    over: int = OVER
    count: int = 1
    added: dict[str, str] = field(default_factory=dict)
    """Series that a fleet that is well does not have."""


def _node(name: str, **labels: str) -> str:
    shown = ",".join(f'{key}="{value}"' for key, value in {"node": NODE, **labels}.items())
    return f"{name}{{{shown}"


def _plugin(name: str, **labels: str) -> str:
    shown = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{shown}"


def _claims(result: str) -> str:
    return _plugin("fleet_plugin_claims_total", verb="prepare", result=result)


def _buckets(bound: str) -> str:
    name = "fleet_plugin_claim_seconds_bucket"
    return _plugin(name, verb="prepare", result="done", le=bound)


RISING = "0x5 0+1x30 30x140"
CASES = (
    Case("FleetDeviceQuarantined", {_node("fleet_units", state="QUARANTINED"): bad(1)}),
    Case("FleetCapacityLost", {_node("fleet_capacity_bytes", service="out"): bad(GIB)}),
    Case("FleetUnitsLate", {_node("fleet_units_late", state="DIRTY"): bad(2)}),
    Case("FleetWipesFailing", {_node("fleet_wipes_total", outcome="failed"): ONCE}, fires=15),
    Case("FleetNodeStale", {_node(of_node.TIMESTAMP): STUCK}),
    Case("FleetFiguresMissing", {_node(of_node.TIMESTAMP): "_x35 2160+60x140"}),
    Case(
        "FleetNodeSilent",
        {},
        added={'fleet_coordinator_node_silent{node="n1",job="ray"}': "_x5 1x30 _x140"},
    ),
    Case(
        "FleetNodeBlocked",
        {_node("fleet_node_blocked"): bad(1), _node("fleet_node_degraded"): bad(1)},
    ),
    Case("FleetNodeDegraded", {_node("fleet_node_degraded"): bad(1)}),
    Case("FleetReleasesStuck", {_node("fleet_node_outbox"): bad(1)}),
    Case("FleetReleasesStuck", {_node("fleet_node_owed"): bad(2)}),
    Case(
        "FleetFencingRefused",
        {_node("fleet_fencing_refusals_total", error="TokenStale"): ONCE},
        fires=15,
    ),
    Case("FleetEvidenceBacklogOld", {_node("fleet_evidence_oldest_seconds"): bad(7200)}),
    Case("FleetEvidenceBacklogOld", {"fleet_coordinator_evidence_oldest_seconds": bad(7200)}),
    Case("FleetEvidenceRefused", {_node("fleet_evidence_refused"): bad(1)}),
    Case("FleetEvidenceRefused", {"fleet_coordinator_evidence_refused": bad(1)}),
    Case("FleetCoordinatorStale", {"fleet_coordinator_view_timestamp_seconds": STUCK}),
    Case(
        "FleetCoordinatorMissing",
        {"fleet_coordinator_view_timestamp_seconds": "_x35 2160+60x140"},
    ),
    Case("FleetCoordinatorNotReconciling", {"fleet_coordinator_stepped_timestamp_seconds": STUCK}),
    Case(
        "FleetCoordinatorNotReconciling",
        {},
        added={f'{of_coordinator.OF_SOME}{{nodes="pool=a",job="ray"}}': STUCK},
    ),
    Case("FleetCoordinatorTrouble", {"fleet_coordinator_trouble": bad(1)}),
    Case("FleetStoreUnreachable", {"fleet_coordinator_store_reachable": bad(0, well=1)}),
    Case("FleetStoreSuspended", {"fleet_coordinator_store_suspended": bad(1)}),
    Case("FleetCampaignFailed", {'fleet_campaign_ended{reason="breaker"': bad(1)}),
    Case(
        "FleetCampaignStuck",
        {
            'fleet_campaigns{state="running"': "1x180",
            'fleet_campaign_devices{outcome="pending"': "5x75 4x100",
            "fleet_campaign_started_timestamp_seconds": "1x180",
        },
        fires=70,
        over=90,
    ),
    Case("FleetClaimsFailing", {_claims("unforeseen"): ONCE}, fires=15),
    Case("FleetClaimsRetrying", {_claims("retryable"): RISING}),
    Case("FleetClaimsSlow", {_buckets("40"): RISING, _buckets("+Inf"): RISING}),
    Case("FleetPluginMissing", {_node(STARTED): "1x5 _x30 2000x140"}),
    Case("FleetOwnerUnreachable", {"fleet_plugin_owner_reachable": bad(0, well=1)}),
    Case("FleetSlicesUnconfirmed", {"fleet_plugin_slices_age_seconds": bad(90, well=1)}),
    Case("FleetPluginUnregistered", {"fleet_plugin_registered": bad(0, well=1)}),
)
HOURS = "0+3600x300"
"""A time stamp that is always now, by the hour."""
SLOW_WELL = {
    f'{of_node.TIMESTAMP}{{node="n2",job="ray"}}': HOURS,
    f'{STARTED}{{node="n2",job="plugin"}}': "0x300",
    'fleet_coordinator_view_timestamp_seconds{job="ray"}': HOURS,
}
"""The rest of the fleet in slow cases: another node and the coordinator, both well."""
SLOW_CASES = (
    # By the hour, over twelve days.
    Case(
        "FleetNodeStale",
        {_node(of_node.TIMESTAMP): "0+3600x3 _x290"},
        fires=24,
        over=30,
        added=SLOW_WELL,
    ),
    Case(
        "FleetCampaignOverdue",
        {"fleet_campaign_complete_timestamp_seconds": "3600x240 864000x48"},
        fires=8 * 24 + 6,
        over=245,
        added=SLOW_WELL,
    ),
)
WELL = {
    of_node.TIMESTAMP: TIMES,
    "fleet_coordinator_view_timestamp_seconds": TIMES,
    "fleet_coordinator_stepped_timestamp_seconds": TIMES,
    "fleet_plugin_owner_reachable": "1x180",
    "fleet_plugin_registered": "1x180",
}


def well() -> Iterator[tuple[str, str]]:
    """Every series of the catalogue in a fleet that is well, with its values by the minute.

    The node's are there twice, told by its plugin and by its actor.
    """
    units = {str(State.CLEAN): UnitsView(units=8, bytes=8 * GIB, since=views.NOW - 9)}
    view = views.node(NODE, devices=(views.device("gpu-0"),), units=units, tally=Tally())
    binding = BindingView(stepped_at=views.NOW)
    for sample in of_node.samples(view):
        yield _told(sample, job="plugin", instance="a")
        yield _told(sample, job="ray", instance="b")
    for sample in of_coordinator.samples(views.coordinator(binding=binding), []):
        yield _told(sample, job="ray", instance="b")
    claims = ClaimFigures().samples()
    told = {sample.name for sample in claims}
    others = [metric for metric in PLUGIN_METRICS if metric.name not in told]
    for sample in (
        *claims,
        *(Sample(metric.name, 0.0, key) for metric in others for key in metric.series(NODE)),
    ):
        yield _told(sample, job="plugin", instance="a")


def series(case: Case | None) -> dict[str, str]:
    """The series of a fleet that is well but for `case`, as far as a rule asks for them."""
    asked = {name for alert in alerts() for name, _ in SELECTOR.findall(alert.expr)}
    found = {name: values for name, values in well() if name.partition("{")[0] in asked}
    for beginning, values in case.changes.items() if case else ():
        hit = [name for name in found if name.startswith(beginning)]
        assert hit, beginning
        found |= dict.fromkeys(hit, values)
    return found | (case.added if case else {})


def _told(sample: Sample, **scraped: str) -> tuple[str, str]:
    labels = {**dict(sample.labels), **scraped}
    shown = ",".join(f'{name}="{value}"' for name, value in labels.items())
    values = WELL.get(sample.name, f"{sample.value:g}x180")
    return f"{sample.name}{sample.suffix}{{{shown}}}", values
