"""One device's way through a campaign."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.control.campaign.report import Phase
from fleet.control.campaign.targets import target_of
from fleet.control.campaign.track import Track, error_of, late, unfit
from fleet.core import errors
from fleet.core.messages import (
    Acceptance,
    DeviceResult,
    DeviceView,
    NodeView,
    Outcome,
    ReasonView,
    WipeProgress,
)


def view(**changed: Any) -> NodeView:
    base: dict[str, Any] = {
        "uuid": "g", "name": "gpu-0", "accelerator": "g", "units": ("g/0",), "memory_bytes": 10,
        "state": "DIRTY",
    }  # fmt: skip
    return NodeView(
        node="n", incarnation="1", boot_id="b", at=0, simulated=True, backend="scripted",
        devices=(DeviceView(**(base | changed)),),
    )  # fmt: skip


def track(**changed: Any) -> Track:
    found = view()
    return Track(target_of(found, found.devices[0]), "r1", **changed)


def reason(*, liftable: bool) -> ReasonView:
    return ReasonView(code="remap-failed", source="health", liftable=liftable, remedy="replace")


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        ({}, None),
        ({"state": "CLEAN"}, None),
        ({"state": "WIPING"}, None),
        ({"state": "IN_USE"}, Outcome.IN_USE),
        ({"claim": "u"}, Outcome.IN_USE),
        ({"state": "HELD"}, Outcome.HELD),
        ({"state": "QUARANTINED", "reasons": (reason(liftable=True),)}, None),
        ({"state": "QUARANTINED", "reasons": (reason(liftable=False),)}, Outcome.QUARANTINED),
        ({"uuid": "another"}, Outcome.UNREACHABLE),
    ],
)
def test_what_must_not_be_started(changed: dict[str, Any], outcome: Outcome | None) -> None:
    """Each state leads to a start or to the outcome that says why not, with a remedy."""
    found = unfit(track(), view(**changed))
    assert (found.outcome if found else None) is outcome
    assert found is None or outcome is Outcome.IN_USE or all(f.remedy for f in found.findings)


def test_operation_ids_name_run_device_and_attempt() -> None:
    """Stable for an order, new for a new attempt: the same order is never carried out twice."""
    assert track().operation == "r1/g/1"
    assert track(attempt=2).operation == "r1/g/2"


def test_status_of_each_phase() -> None:
    """Waiting shows nothing done, running the node's figures, an end what it covered."""
    waiting = track()
    assert (waiting.status(0).done, waiting.status(0).total) == (0, 40)
    waiting.phase = Phase.RUNNING
    waiting.progress = WipeProgress(phase="verify", done=30, total=60, started_at=5.0)
    running = waiting.status(8.0)
    assert (running.step, running.done, running.total, running.rate) == ("verify", 30, 60, 10.0)
    waiting.result = waiting.tell(Outcome.HELD)
    assert (waiting.status(9.0).done, waiting.status(9.0).step) == (0, "held")


def test_going_back_to_the_queue_forgets_the_order() -> None:
    """A device that waits has no order out, no progress and no clock running."""
    found = track(phase=Phase.RUNNING, resend=True, ordered_at=1.0, cancelled_at=2.0)
    found.wait(retry_at=9.0)
    assert (found.phase, found.resend, found.ordered_at, found.cancelled_at, found.retry_at) == (
        Phase.WAITING, False, None, None, 9.0
    )  # fmt: skip
    assert not found.in_flight


def test_a_lost_lease_is_told_with_the_result() -> None:
    """DESIGN 5: a wipe whose lease ran out counts for hygiene, and the report says so."""
    result = DeviceResult(node="n", device="d", uuid="g", outcome=Outcome.CERTIFIED, state="CLEAN")
    assert track().told(result) == result
    assert track(lease_lost=True).told(result).findings[0].check == "lease"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("DeviceBusy", errors.DeviceBusy),
        ("TokenStale", errors.TokenStale),
        ("Nonsense", errors.Permanent),
        ("FleetError", errors.FleetError),
        ("annotations", errors.Permanent),
        ("", errors.Permanent),
    ],
)
def test_a_refusal_keeps_its_class(kind: str, expected: type[errors.FleetError]) -> None:
    """B60: what the node raised is what the campaign decides on; unknown names are permanent."""
    refused = Acceptance(operation="o", accepted=False, error="no", kind=kind, fields={"floor": 1})
    found = error_of(refused)
    assert type(found) is expected
    assert (found.detail, found.fields["floor"]) == ("no", 1)


def test_being_late_names_the_limit() -> None:
    """The finding says how long was waited."""
    assert "within 50 s" in late(50).detail
