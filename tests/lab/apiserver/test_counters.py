"""Rules of counters that differ between releases (the rest are rows in tests/contracts)."""

from __future__ import annotations

from typing import Any

from fleet.kube.base import Object
from tests.lab.apiserver.counters import causes

ONE = {"value": "1"}


def spec(*consumed: Object, **more: Any) -> Object:
    """A slice's spec with one device that consumes this."""
    return {"devices": [{"name": "d0", "consumesCounters": list(consumed)}], **more}


def fields(found: Object, *, apart: bool) -> list[str]:
    """The fields of the causes."""
    return [cause.field for cause in causes(found, apart=apart)]


def test_since_1_35_a_slice_has_devices_or_sets() -> None:
    """Reference 2.1: and nobody but the scheduler looks whether a set consumed exists."""
    sets = [{"name": "a", "counters": {"m0": ONE}}]
    own = {"counterSet": "a", "counters": {"m0": ONE}}
    assert fields(spec(own), apart=True) == []
    assert fields({"sharedCounters": sets}, apart=True) == []
    assert fields(spec(own, sharedCounters=sets), apart=True) == ["spec"]


def test_in_1_34_a_device_consumes_what_its_own_slice_has() -> None:
    """Reference 2.1: sets beside the devices, and no others."""
    sets = [{"name": "a", "counters": {"m0": ONE}}]
    own = {"counterSet": "a", "counters": {"m0": ONE}}
    assert fields(spec(own, sharedCounters=sets), apart=False) == []
    assert fields(spec(own), apart=False) == ["spec.devices[0].consumesCounters[0].counterSet"]
    other = {"counterSet": "a", "counters": {"m1": ONE}}
    found = fields(spec(other, sharedCounters=sets), apart=False)
    assert found == ["spec.devices[0].consumesCounters[0].counters"]
