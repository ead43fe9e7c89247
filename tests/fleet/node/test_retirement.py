"""A retired device is out of the slices for good; only a person undoes it."""

from __future__ import annotations

import pytest

from fleet.core import errors
from tests.fleet.node.conftest import Lab
from tests.fleet.node.test_teardown import lose_hardware


def test_it_is_durable_and_said_in_the_view(lab: Lab) -> None:
    """E7: retired survives a restart, and is an operator's quarantine as well."""
    lab.free()
    uuid = lab.node.retire("gpu-0", detail="fan", operator="me")
    lab.restart()
    assert lab.node.view().retired == (uuid,)
    device = lab.device()
    assert device.state == "QUARANTINED"
    assert "fan" in device.reasons[0].detail


def test_twice_is_once(lab: Lab) -> None:
    """E7: the second time nothing is recorded."""
    lab.free()
    lab.node.retire("gpu-0", detail="fan", operator="me")
    acts = len(lab.node._registry.journal.acts())
    lab.node.retire("gpu-0", detail="fan", operator="me")
    assert len(lab.node._registry.journal.acts()) == acts


def test_a_device_in_use_is_refused(lab: Lab) -> None:
    """E7: retiring never takes anything from a tenant; the error says whom to end."""
    lab.free()
    lab.node.prepare(lab.claim("u", "gpu-0"))
    with pytest.raises(errors.DeviceBusy, match="u"):
        lab.node.retire("gpu-0", detail="fan", operator="me")
    assert lab.node.view().retired == ()


def test_hardware_that_is_gone_is_retired_by_its_uuid(lab: Lab) -> None:
    """A3: a card that was taken out stays in the slice as lost until somebody retires it."""
    lab.free()
    uuid = lab.device().uuid
    lose_hardware(lab)
    assert uuid not in {device.uuid for device in lab.node.view().devices}
    assert lab.node.retire(uuid, detail="taken out", operator="me") == uuid
    assert lab.node.view().retired == (uuid,)


def test_what_never_was_there_is_unknown(lab: Lab) -> None:
    """E7: a name nobody ever reported is an error, not a decision."""
    with pytest.raises(errors.DeviceUnknown):
        lab.node.retire("gpu-9", detail="x", operator="me")


def test_adoption_by_name_undoes_it_and_adoption_of_all_does_not(lab: Lab) -> None:
    """E7: `fleet node adopt --device` takes it back; it still has to be cleared and wiped."""
    lab.free()
    uuid = lab.node.retire("gpu-0", detail="fan", operator="me")
    lab.node.adopt(operator="me")
    assert lab.node.view().retired == (uuid,)
    lab.node.adopt(devices=("gpu-0",), operator="me")
    assert lab.node.view().retired == ()
    assert lab.device().state == "QUARANTINED"
