"""Views that the tests of the metrics start from."""

from __future__ import annotations

from fleet.control.coordinator_api import CoordinatorView
from fleet.core.messages import (
    DeviceView,
    NodeView,
    Outcome,
    ReasonView,
    Tally,
    UnitsView,
    WipeProgress,
)
from fleet.core.model import State

NOW = 1_000_000.0
GIB = 1 << 30


def device(name: str, state: State = State.CLEAN, **more: object) -> DeviceView:
    """A whole accelerator of one unit."""
    fields: dict[str, object] = {
        "uuid": f"u-{name}",
        "name": name,
        "accelerator": f"u-{name}",
        "units": (f"u-{name}/0",),
        "memory_bytes": GIB,
        "state": state,
    }
    return DeviceView.model_validate({**fields, **more})


def node(name: str = "n1", **more: object) -> NodeView:
    """A node with a clean device, one in quarantine for two reasons, and one that is wiped."""
    reasons = tuple(
        ReasonView(code=code, source="health", liftable=True) for code in ("xid", "link-degraded")
    )
    fields: dict[str, object] = {
        "node": name,
        "incarnation": "i",
        "boot_id": "b",
        "at": NOW,
        "simulated": True,
        "backend": "simulated",
        "devices": (
            device("gpu-0"),
            device("gpu-1", State.QUARANTINED, reasons=reasons),
            device(
                "gpu-2",
                State.WIPING,
                operation="op",
                progress=WipeProgress(phase="fill", done=7, total=9, started_at=NOW - 5),
            ),
        ),
        "units": {
            "CLEAN": UnitsView(units=1, bytes=GIB, since=NOW - 100),
            "QUARANTINED": UnitsView(units=1, bytes=GIB, since=NOW - 90_000, late=1),
            "WIPING": UnitsView(units=1, bytes=GIB, since=NOW - 5),
        },
        "tally": Tally(wipes={Outcome.CERTIFIED: 3}, cleaned=(2, 1, 0, 0, 0, 0, 0, 0, 0, 0)),
    }
    return NodeView.model_validate({**fields, **more})


def coordinator(**more: object) -> CoordinatorView:
    """A coordinator without leases."""
    fields: dict[str, object] = {"incarnation": "i", "at": NOW, "newest": "1.1"}
    return CoordinatorView.model_validate({**fields, **more})
