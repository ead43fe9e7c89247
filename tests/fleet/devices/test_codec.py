"""What crosses between the node and a back end's process comes back as it was."""

from __future__ import annotations

import json

import pytest

from fleet.core.model import Accelerator, Device, Process, ProcessKind, UnitId, UnitSpec, Uuid
from fleet.devices import codec
from fleet.devices.base import DeviceNode, Grant, Instance, Mount, ResetOutcome

GPU = Uuid("GPU-1")
UNITS = (UnitId("GPU-1/m0"), UnitId("GPU-1/m1"))
DEVICE = Device(GPU, "gpu", GPU, UNITS, 20, "1g", {"product": "x"})
TENANT = Process(7, "tenant", ProcessKind.FOREIGN)


def crossed(document: object) -> object:
    """As the other side reads it."""
    return json.loads(json.dumps(document))


def test_everything_a_back_end_says_survives_the_crossing() -> None:
    """B60: types and values are the same on both sides, nested ones too."""
    found = Accelerator(GPU, (UnitSpec(UNITS[0], 10), UnitSpec(UNITS[1], 10, 10)), (DEVICE,))
    assert codec.accelerators_from(crossed(codec.accelerators([found]))) == (found,)  # type: ignore[arg-type]
    assert codec.device_from(crossed(codec.device(DEVICE))) == DEVICE  # type: ignore[arg-type]
    assert codec.processes_from(crossed(codec.processes([TENANT]))) == (TENANT,)  # type: ignore[arg-type]
    grant = Grant(
        (DeviceNode("/dev/x", "c", 195, 0),), (Mount("/lib/a", "/lib/b"),), {"NAME": "value"}
    )
    assert codec.grant_from(crossed(codec.grant(grant))) == grant  # type: ignore[arg-type]
    reset = ResetOutcome(done=False, method="flr", detail="held", holders=(TENANT,))
    assert codec.reset_from(crossed(codec.reset(reset))) == reset  # type: ignore[arg-type]
    instance = Instance(GPU, "MIG-1", Uuid("PART-1"), UNITS, {"gi": 1, "ci": 0})
    assert codec.instance_from(crossed(codec.instance(instance))) == instance  # type: ignore[arg-type]


def test_a_field_that_is_missing_is_an_error_at_the_border() -> None:
    """A newer or older peer is found out at once, not where the field is first needed."""
    with pytest.raises((KeyError, TypeError)):
        codec.accelerators_from([{"uuid": "GPU-1", "units": []}])
    with pytest.raises(TypeError):
        codec.device_from({"units": [], "name": "x"})
