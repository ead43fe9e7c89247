"""B58 on a node: a fault of the kernel log is an event, not a state."""

from __future__ import annotations

from typing import Any

from fleet.core.messages import Outcome
from fleet.core.model import BootId, State, Uuid
from fleet.core.settings import ResetPolicy
from fleet.devices.simulated import faults
from tests.fleet.node.conftest import Lab, wait_for

FIRST = {"place": {"sequence": 905, "at_s": 905.0, "heard_s": 910.0}, "first": 900, "lost": 0}
FALLEN = {"xids": [79], "xid_sequences": [901], "xid_times": [901.0], "log": FIRST}


def logs(lab: Lab, readings: dict[str, Any], device: str = "gpu-0") -> None:
    """The log of the machine is as these readings have it, and no reset takes anything out."""
    made = faults.make("counter-unread", units=[], parameters={}, times=0, seed=1)
    made.readings = readings
    lab.backend.set_fault(Uuid(lab.device(device).uuid), made)


def codes(lab: Lab, name: str = "gpu-0") -> set[str]:
    return {reason.code for reason in lab.device(name).reasons}


def test_b58_a_decision_closes_what_was_logged_before_it(lab: Lab) -> None:
    """B58: after the cause is repaired and the reason cleared, the old line takes nobody out again:
    not at the next sweep, not after a restart; a new line does, and so does a new boot's.
    """
    logs(lab, FALLEN)
    lab.node.sweep()
    assert (lab.device().state, codes(lab)) == (State.QUARANTINED, {"device-lost"})
    lab.node.quarantine_clear("gpu-0", operator="ann", detail="reset on the host")
    lab.node.sweep()
    assert (lab.device().state, codes(lab)) == (State.DIRTY, set())
    assert lab.scrub().outcome is Outcome.CERTIFIED
    lab.restart()
    lab.node.sweep()
    assert codes(lab) == set()
    newer = {**FIRST, "place": {"sequence": 907, "at_s": 907.0, "heard_s": 912.0}}
    again = {"xids": [79, 48], "xid_sequences": [901, 906], "xid_times": [901.0, 906.0]}
    logs(lab, {**again, "log": newer})
    lab.node.sweep()
    assert codes(lab) == {"xid"}


def test_b58_a_device_that_answered_nothing_is_cleared_once(lab: Lab) -> None:
    """B58: a GPU that was lost when last read comes back with its old line closed by one decision,
    since the log was looked at without it.
    """
    uuid = Uuid(lab.device().uuid)
    with lab.backend.registers(uuid).change() as register:
        register.lost = True
    logs(lab, FALLEN)
    lab.node.sweep()
    assert codes(lab) == {"device-lost"}
    with lab.backend.registers(uuid).change() as register:
        register.lost = False
    lab.restart()
    lab.node.quarantine_clear("gpu-0", operator="ann", detail="power-cycled the tray")
    lab.node.sweep()
    assert (lab.device().state, codes(lab)) == (State.DIRTY, set())


def test_b58_another_reason_cleared_by_name_closes_no_fault(lab: Lab) -> None:
    """B58: a decision about one reason is none about the others, and none about other devices."""
    logs(lab, FALLEN)
    logs(lab, FALLEN, "gpu-1")
    lab.node.quarantine_add("gpu-0", detail="to be looked at", operator="ann")
    lab.node.sweep()
    lab.node.quarantine_clear("gpu-0", codes=("operator",), operator="ann")
    assert codes(lab) == {"device-lost"}
    lab.node.quarantine_clear("gpu-0", codes=("device-lost",), operator="ann")
    lab.node.sweep()
    assert (codes(lab), codes(lab, "gpu-1")) == (set(), {"device-lost"})


def test_b58_all_codes_told_with_a_reason_are_closed_with_it(lab: Lab) -> None:
    """B58: 79 gives the reason and 119 is told with it: the reason cleared by its name, as the
    command does, closes both, also where another reason stays.
    """
    both = {"xids": [79, 119], "xid_sequences": [901, 902], "xid_times": [901.0, 902.0]}
    logs(lab, {**both, "log": FIRST})
    lab.node.quarantine_add("gpu-0", detail="to be looked at", operator="ann")
    lab.node.sweep()
    assert codes(lab) == {"operator", "device-lost"}
    lab.node.quarantine_clear("gpu-0", codes=("device-lost",), operator="ann")
    lab.node.sweep()
    assert codes(lab) == {"operator"}
    asked = {**both, "xid_actions": ["", "GPU_RESET"], "recovery_action": "GPU_RESET"}
    logs(lab, {**asked, "recovery_logged": True, "log": FIRST}, "gpu-1")
    lab.node.sweep()
    assert codes(lab, "gpu-1") == {"device-lost", "reset-required"}
    lab.node.quarantine_clear("gpu-1", codes=("device-lost", "reset-required"), operator="ann")
    lab.node.sweep()
    assert codes(lab, "gpu-1") == set()


def test_b58_a_new_boot_begins_a_log_of_its_own(lab: Lab) -> None:
    """B58: numbers begin anew with a boot; what was closed in the one before closes nothing."""
    logs(lab, FALLEN)
    lab.node.sweep()
    lab.node.quarantine_clear("gpu-0", operator="ann")
    lab.node._registry.boot_id = BootId("22222222-2222-4222-8222-222222222222")
    lab.node.sweep()
    assert codes(lab) == {"device-lost"}


def test_b58_a_reset_of_ours_closes_without_a_mark_in_the_log(lab: Lab) -> None:
    """B58: where the log takes no mark of ours the journal has the repair: a fault that asks for a
    reset is over with it, and the device is certified.
    """
    settings = lab.settings.model_copy(
        update={"wipe": lab.settings.wipe.model_copy(update={"reset": ResetPolicy.ON_FAULT})}
    )
    lab.restart(settings=settings)
    logs(lab, {"xids": [48], "xid_sequences": [901], "xid_times": [901.0], "log": FIRST})
    lab.node.sweep()
    assert codes(lab) == {"xid"}
    assert lab.scrub().outcome is Outcome.CERTIFIED
    lab.node.sweep()
    assert (lab.device().state, codes(lab)) == (State.CLEAN, set())


def test_b58_lost_records_are_told_counted_and_answered_by_a_sweep(lab: Lab) -> None:
    """B58: records overwritten before they were read degrade the node until one full sweep that
    began after it has ended; they stay counted, and a note says so.
    """
    logs(lab, {"log": FIRST})
    lab.node.sweep()
    assert (lab.node.view().log_losses, lab.node.view().degraded) == (0, ())
    logs(lab, {"log": {**FIRST, "lost": 1}})
    health = lab.node._parts.sweep
    health.look(lab.node._registry.device("gpu-0"))
    (told,) = lab.node.view().degraded
    assert "faults may have been missed" in told
    wait_for(lambda: _ticked(lab) and not lab.node.view().degraded)
    view = lab.node.view()
    assert view.log_losses == 1
    assert any("lost 1 times" in note for note in view.notes)


def _ticked(lab: Lab) -> bool:
    lab.node.tick(lab.node._registry.clock.now())
    return True


def test_b58_a_gap_behind_what_was_read_is_a_loss(lab: Lab) -> None:
    """B58: a log that begins later than where it was read to has lost records in between, also
    while nobody was reading: once for the node, and not when it only begins late.
    """
    logs(lab, {"log": FIRST})
    lab.node.sweep()
    assert lab.node.view().log_losses == 0
    lab.restart()
    later = {"place": {"sequence": 2105, "at_s": 2105.0, "heard_s": 2110.0}, "first": 2000}
    logs(lab, {"log": later})
    logs(lab, {"log": later}, "gpu-1")
    lab.node.sweep()
    lab.node.sweep()
    assert lab.node.view().log_losses == 1
