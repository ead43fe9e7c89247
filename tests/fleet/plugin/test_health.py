"""What kubelet is told of a device's health."""

from __future__ import annotations

from fleet.core.messages import DeviceView, NodeView, ReasonView
from fleet.plugin.health import Health, HealthVerdict, verdict, verdicts


def device(uuid: str = "GPU-0", **changes: object) -> DeviceView:
    given: dict[str, object] = {
        "uuid": uuid, "name": uuid.lower(), "accelerator": uuid, "units": (f"{uuid}/all",),
        "memory_bytes": 1, "state": "CLEAN", "checked_at": 50.0, "since": 40.0, **changes,
    }  # fmt: skip
    return DeviceView.model_validate(given)


def reason(code: str, detail: str = "") -> ReasonView:
    return ReasonView(code=code, source="health", liftable=True, detail=detail)


def test_an_open_reason_makes_a_device_unhealthy() -> None:
    """B8: each reason with its detail; what was judged does not grow stale."""
    found = verdict(device(reasons=(reason("ecc", "2 errors"), reason("xid-79")), since=90.0))
    assert found == HealthVerdict(Health.UNHEALTHY, "ecc: 2 errors; xid-79", 90.0)
    assert verdict(device(reasons=(reason("ecc"),), checked_at=0.0)).checked_at == 40.0


def test_silence_is_unknown_not_healthy() -> None:
    """Promise 5: a device nobody has looked at yet is neither good nor bad."""
    assert verdict(device(checked_at=0.0)) == HealthVerdict(Health.UNKNOWN, "not checked yet", 0.0)


def test_a_good_check_is_healthy_whatever_the_state() -> None:
    """Health is not cleanliness: a device in use or being wiped is as healthy as its last check."""
    for state in ("IN_USE", "WIPING", "DIRTY", "HELD"):
        assert verdict(device(state=state)) == HealthVerdict(Health.HEALTHY, "", 50.0)


def test_verdicts_carry_the_names_of_the_slices() -> None:
    """Kubelet knows devices by the names published, which differ where the node's are no labels."""
    devices = (device(name="gpu-0"), device("GPU-1", name="GPU_1"), device("GPU-2", name="agent"))
    view = NodeView(
        node="n1", incarnation="i", boot_id="b", at=1.0, simulated=True, backend="simulated",
        devices=devices,
    )  # fmt: skip
    found = verdicts(view)
    assert len(found) == 3
    assert "gpu-0" in found
    assert "agent" not in found
