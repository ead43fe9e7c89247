"""The metrics of the node plugin about itself; `node_plugin.metrics` tells them. Pure."""

from __future__ import annotations

from fleet.metrics.metric import NODES, Exporter, Kind, Metric, Source

VERBS = ("prepare", "unprepare")
RESULTS = ("done", "retryable", "refused", "unforeseen")
OWNERS = ("node actor", "standby")
STARTED = "fleet_plugin_started_timestamp_seconds"
BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    40.0,
)
"""Upper bounds, s: from an answer out of the journal to all of kubelet's budget."""


def _gauge(name: str, text: str, *, unit: str = "", zero: str = "") -> Metric:
    return Metric(
        name, Kind.GAUGE, text, Exporter.PLUGIN, source=Source.PROCESS, unit=unit, zero=zero
    )


PLUGIN_METRICS: tuple[Metric, ...] = (
    Metric(
        STARTED,
        Kind.GAUGE,
        "When the plugin of this node started; there for as long as it is scraped.",
        Exporter.PLUGIN,
        {"node": NODES},
        source=Source.PROCESS,
        unit="seconds",
    ),
    Metric(
        "fleet_plugin_claims_total",
        Kind.COUNTER,
        "Claims by verb and result.",
        Exporter.PLUGIN,
        {"verb": VERBS, "result": RESULTS},
        source=Source.PROCESS,
    ),
    Metric(
        "fleet_plugin_claim_seconds",
        Kind.HISTOGRAM,
        "Time from kubelet's call to the end of the work on one claim, failures included.",
        Exporter.PLUGIN,
        {"verb": VERBS, "result": RESULTS},
        source=Source.PROCESS,
        unit="seconds",
        bounds=BUCKETS_S,
    ),
    _gauge("fleet_plugin_claims_in_work", "Claims in work, also those whose call was given up."),
    _gauge("fleet_plugin_registered", "Whether kubelet has the plugin registered, as last told."),
    Metric(
        "fleet_plugin_registrations_total",
        Kind.COUNTER,
        "Registrations by what kubelet said.",
        Exporter.PLUGIN,
        {"result": ("accepted", "refused")},
        source=Source.PROCESS,
    ),
    _gauge("fleet_plugin_owner_reachable", "Whether an owner of the node's journal answers."),
    Metric(
        "fleet_plugin_journal_owner",
        Kind.GAUGE,
        "1 for the kind of process that owns the node's journal.",
        Exporter.PLUGIN,
        {"owner": OWNERS},
        source=Source.PROCESS,
        zero="no series while the owner is not known",
    ),
    _gauge(
        "fleet_plugin_slices_confirmed_timestamp_seconds",
        "When the node's slices were last confirmed at the API.",
        unit="seconds",
        zero="no series before the first time",
    ),
    _gauge(
        "fleet_plugin_slices_age_seconds",
        "Time since the node's slices were last confirmed at the API, or since the start.",
        unit="seconds",
        zero="no series while another instance keeps the slices (an update)",
    ),
    _gauge("fleet_plugin_node_blocked", "Whether nothing can be prepared on the node now."),
    _gauge("fleet_plugin_health_streams", "Health streams open to kubelet."),
)
