"""The metrics of one node: what they are, and how its view becomes them. Pure.

All of them come from one view of the journal's owner, so that they agree with each other, and the
view's own time stands beside them: who reads old figures can see it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fleet.core.claim_states import ClaimState
from fleet.core.messages import NodeView, Replication, UnitsView
from fleet.core.model import OUT_OF_SERVICE, State
from fleet.core.state_targets import TARGETS_S
from fleet.devices.health.reasons import CATALOGUE as REASONS
from fleet.metrics.metric import NODES, Exporter, Kind, Labels, Metric, Sample, Source
from fleet.node import tallies

STATES = tuple(str(state) for state in State)
OTHER_REASON = "other"
"""Stands for a reason that this version does not know: a newer node may tell one."""
CODES = (*sorted(REASONS), OTHER_REASON)
REFUSALS = ("TokenStale", "EpochForeign")
CLAIM_STATES = tuple(str(state) for state in ClaimState if state is not ClaimState.ABSENT)
SERVICE = ("in", "out")
PHASES = ("waiting", "running")
TIMESTAMP = "fleet_node_view_timestamp_seconds"
_NODE = {"node": NODES}


def _gauge(name: str, text: str, *, unit: str = "", **labels: tuple[str, ...]) -> Metric:
    return Metric(name, Kind.GAUGE, text, Exporter.NODE, {**_NODE, **labels}, unit=unit)


def _counter(name: str, text: str, *, unit: str = "", **labels: tuple[str, ...]) -> Metric:
    return Metric(name, Kind.COUNTER, text, Exporter.NODE, {**_NODE, **labels}, unit=unit)


NODE_METRICS: tuple[Metric, ...] = (
    _gauge("fleet_units", "Units of memory by state.", state=STATES),
    _gauge("fleet_unit_bytes", "Memory of the units by state.", unit="bytes", state=STATES),
    _gauge(
        "fleet_units_oldest_seconds",
        "How long the unit that is longest in a state has been in it; 0: none is.",
        unit="seconds",
        state=STATES,
    ),
    _gauge(
        "fleet_units_late",
        "Units longer in a state than its target.",
        state=tuple(str(state) for state in TARGETS_S),
    ),
    _gauge(
        "fleet_devices",
        "Devices by the least clean state of their units; partitions that overlap count each.",
        state=STATES,
    ),
    _gauge(
        "fleet_capacity_devices",
        "Whole accelerators in service, and out of it (a unit is quarantined, retested or held).",
        service=SERVICE,
    ),
    _gauge(
        "fleet_capacity_bytes",
        "Memory in service, and out of it, by unit.",
        unit="bytes",
        service=SERVICE,
    ),
    _gauge(
        "fleet_quarantine_reasons",
        "Whole accelerators with an open reason of this code on one of their units.",
        code=CODES,
    ),
    _counter(
        "fleet_wipes_total",
        "Wipes that began to write, by how they ended.",
        outcome=tuple(str(outcome) for outcome in tallies.OUTCOMES),
    ),
    _counter(
        "fleet_wiped_bytes_total", "Memory written and verified in certified wipes.", unit="bytes"
    ),
    _counter(
        "fleet_wipe_wanted_bytes_total",
        "Memory that certified wipes were to cover: all but what the driver reserves.",
        unit="bytes",
    ),
    _counter("fleet_wipe_seconds_total", "Duration of certified wipes.", unit="seconds"),
    Metric(
        "fleet_clean_seconds",
        Kind.HISTOGRAM,
        "Time of a device from dirty to clean, certificate and health check included.",
        Exporter.NODE,
        _NODE,
        unit="seconds",
        bounds=tallies.BOUNDS_S,
    ),
    _gauge("fleet_wipes_in_work", "Wipes waiting for a slot, and running.", phase=PHASES),
    _gauge(
        "fleet_wipe_bytes_in_work",
        "Bytes done in the wipes now in work, over all passes.",
        unit="bytes",
    ),
    Metric(
        "fleet_fencing_refusals_total",
        Kind.COUNTER,
        "Acts refused because their token is older than what the node has acted on, or foreign.",
        Exporter.NODE,
        {**_NODE, "error": REFUSALS},
        source=Source.PROCESS,
    ),
    Metric(
        "fleet_kernel_log_losses_total",
        Kind.COUNTER,
        "Times the kernel log lost records before they were read: faults may have been missed.",
        Exporter.NODE,
        _NODE,
        source=Source.PROCESS,
    ),
    _gauge("fleet_node_claims", "Claim records by state.", state=CLAIM_STATES),
    _gauge("fleet_node_outbox", "Lease releases waiting to be delivered."),
    _gauge("fleet_node_owed", "Claims whose hold or finalizer is still to be taken off."),
    _gauge("fleet_node_blocked", "1 while nothing can be prepared on the node."),
    _gauge("fleet_node_degraded", "1 while the node serves in a degraded way, or is blocked."),
    _gauge("fleet_node_simulated", "1 where the devices are simulated: no accelerator is touched."),
    _gauge("fleet_evidence_archive", "1 where an archive for evidence is named."),
    _gauge("fleet_evidence_backlog", "Certificates that are not in the archive yet."),
    _gauge(
        "fleet_evidence_oldest_seconds",
        "Age of the oldest certificate that is not in the archive yet; 0: there is none.",
        unit="seconds",
    ),
    _gauge("fleet_evidence_failing", "1 while the last try to copy evidence failed."),
    _gauge(
        "fleet_evidence_refused",
        "1 while the archive refuses evidence for a reason that no later try changes.",
    ),
    _gauge(TIMESTAMP, "When the view behind all figures of the node was taken.", unit="seconds"),
)


def samples(view: NodeView) -> Iterator[Sample]:
    """All figures of a node as its view has them."""
    tell = _Teller(view.node)
    yield from _of_units(view, tell)
    yield from _of_devices(view, tell)
    yield from _of_wipes(view, tell)
    claims = Counter(claim.state for claim in view.claims)
    yield from tell.each("fleet_node_claims", "state", CLAIM_STATES, claims)
    yield from tell.each("fleet_fencing_refusals_total", "error", REFUSALS, Counter(view.refused))
    yield tell.one("fleet_kernel_log_losses_total", view.log_losses)
    yield tell.one("fleet_node_outbox", view.outbox)
    yield tell.one("fleet_node_owed", len(view.owed))
    yield tell.one("fleet_node_blocked", bool(view.blocked))
    yield tell.one("fleet_node_degraded", bool(view.degraded or view.blocked))
    yield tell.one("fleet_node_simulated", view.simulated)
    for name, value in evidence("fleet_evidence", view.replication, view.at):
        yield tell.one(name, value)
    yield tell.one(TIMESTAMP, view.at)


def timestamp(view: NodeView) -> Sample:
    """The one figure that stays true of a view that has grown old."""
    return _Teller(view.node).one(TIMESTAMP, view.at)


def evidence(prefix: str, found: Replication | None, now: float) -> Iterator[tuple[str, float]]:
    """How copies of evidence stand at `now`; without an archive nothing is owed to it.

    A backlog that cannot be told has no sample and is as old as can be: that is worth an alert.
    """
    copied = found or Replication()
    yield f"{prefix}_archive", found is not None
    age_s = max(0.0, now - copied.oldest_at) if copied.oldest_at else 0.0
    if copied.backlog is not None:
        yield f"{prefix}_backlog", copied.backlog
    yield f"{prefix}_oldest_seconds", float("inf") if copied.backlog is None else age_s
    yield f"{prefix}_failing", bool(copied.error)
    yield f"{prefix}_refused", copied.refused


def _of_units(view: NodeView, tell: _Teller) -> Iterator[Sample]:
    nothing = UnitsView()
    service = dict.fromkeys(SERVICE, 0)
    for state in STATES:
        found = view.units.get(state, nothing)
        age_s = max(0.0, view.at - found.since) if found.units else 0.0
        yield tell.one("fleet_units", found.units, state=state)
        yield tell.one("fleet_unit_bytes", found.bytes, state=state)
        yield tell.one("fleet_units_oldest_seconds", age_s, state=state)
        if State(state) in TARGETS_S:
            yield tell.one("fleet_units_late", found.late, state=state)
        service["out" if State(state) in OUT_OF_SERVICE else "in"] += found.bytes
    yield from tell.each("fleet_capacity_bytes", "service", SERVICE, service)


def _of_devices(view: NodeView, tell: _Teller) -> Iterator[Sample]:
    whole = [device for device in view.devices if device.uuid == device.accelerator]
    states = Counter(device.state for device in view.devices)
    yield from tell.each("fleet_devices", "state", STATES, states)
    out = sum(device.state in OUT_OF_SERVICE for device in whole)
    service = {"in": len(whole) - out, "out": out}
    yield from tell.each("fleet_capacity_devices", "service", SERVICE, service)
    found = Counter(
        code
        for device in whole
        for code in {r.code if r.code in REASONS else OTHER_REASON for r in device.reasons}
    )
    yield from tell.each("fleet_quarantine_reasons", "code", CODES, found)


def _of_wipes(view: NodeView, tell: _Teller) -> Iterator[Sample]:
    tally = view.tally
    outcomes = {str(outcome): tally.wipes.get(outcome, 0) for outcome in tallies.OUTCOMES}
    yield from tell.each("fleet_wipes_total", "outcome", tuple(outcomes), outcomes)
    yield tell.one("fleet_wiped_bytes_total", tally.covered_bytes)
    yield tell.one("fleet_wipe_wanted_bytes_total", tally.wanted_bytes)
    yield tell.one("fleet_wipe_seconds_total", tally.seconds)
    below = 0
    counts = tally.cleaned or (0,) * (len(tallies.BOUNDS_S) + 1)
    bounds = (*(f"{bound:g}" for bound in tallies.BOUNDS_S), "+Inf")
    for bound, count in zip(bounds, counts, strict=False):
        below += count
        yield tell.one("fleet_clean_seconds", below, suffix="_bucket", le=bound)
    yield tell.one("fleet_clean_seconds", tally.cleaned_seconds, suffix="_sum")
    yield tell.one("fleet_clean_seconds", below, suffix="_count")
    # Work on one unit shows on every device that has it: each operation counts once.
    work = {device.operation: device.progress for device in view.devices if device.operation}
    running = [progress for progress in work.values() if progress and progress.started_at]
    phases = {"waiting": len(work) - len(running), "running": len(running)}
    yield from tell.each("fleet_wipes_in_work", "phase", PHASES, phases)
    yield tell.one("fleet_wipe_bytes_in_work", sum(progress.done for progress in running))


class _Teller:
    """Makes samples of one node."""

    def __init__(self, node: str) -> None:
        self._node: Labels = (("node", node),)

    def one(self, name: str, value: float, *, suffix: str = "", **labels: str) -> Sample:
        return Sample(name, float(value), (*self._node, *labels.items()), suffix)

    def each(
        self, name: str, label: str, values: tuple[str, ...], found: dict[str, int]
    ) -> Iterator[Sample]:
        """One sample for each value of the label; what is not found is 0."""
        for value in values:
            yield self.one(name, found.get(value, 0), **{label: value})
