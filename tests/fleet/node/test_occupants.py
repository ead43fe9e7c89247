"""Who keeps a device that should be free: told to the people of the node, after a while."""

from __future__ import annotations

from fleet.core.model import State
from tests.fleet.node.conftest import Lab


def kept(lab: Lab, name: str = "gpu-0") -> str:
    return next(one for one in lab.node.view().devices if one.name == name).kept_by


def test_b36_who_uses_a_device_out_of_service_is_named_after_a_while(lab: Lab) -> None:
    """B36: a quarantine ends nobody: the claim and who still runs are named once it has lasted, and
    no longer than the device is in use.
    """
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    with lab.tenant() as pid:
        lab.fault("remap-failed")
        lab.node.sweep()
        assert (lab.device().state, kept(lab)) == (State.IN_USE, "")
        lab.node._occupants.after_s = 0.0
        lab.node.sweep()
        assert "claim-a" in kept(lab)
        assert f"(pid {pid})" in kept(lab)
        assert kept(lab, "gpu-1") == ""
    lab.node.sweep()
    assert kept(lab).endswith("none of whose pods is seen to run")
    lab.node.unprepare("claim-a")
    assert lab.device().state == State.QUARANTINED
    lab.node.sweep()
    assert kept(lab) == ""


def test_b33_who_keeps_a_dirty_device_from_its_wipe_is_named(lab: Lab) -> None:
    """B33: a device that is dirty and cannot be wiped names the process that has it, after a while;
    one that merely waits for its turn names nobody.
    """
    assert lab.device().state == State.DIRTY
    lab.node._occupants.after_s = 0.0
    lab.node.sweep()
    assert kept(lab) == ""
    with lab.tenant() as pid:
        lab.node.sweep()
        assert f"(pid {pid})" in kept(lab)
        lab.node._occupants.after_s = 3600.0
        lab.node.sweep()
        assert kept(lab) == ""
    lab.node._occupants.after_s = 0.0
    lab.node.sweep()
    assert kept(lab) == ""


def test_b33_a_clock_set_back_hides_nobody(lab: Lab) -> None:
    """B33: what began in the future by a clock that was set back is told at once, not never."""
    later = lab.node._registry.clock.now() + 3600.0
    occupants = lab.node._occupants
    assert occupants._is_late(lambda _: later, ())
    assert not occupants._is_late(lambda _: later - 3600.0, ())
    assert not occupants._is_late(lambda _: float("inf"), ())
