"""What people decide is recorded, carried out whatever is going on, and never makes CLEAN."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from fleet.core import errors
from fleet.core.messages import Outcome
from fleet.core.model import State
from tests.fleet.node.conftest import Lab, wait_for


def codes(lab: Lab, name: str = "gpu-0") -> set[tuple[str, str]]:
    return {(reason.code, reason.source) for reason in lab.device(name).reasons}


def test_an_operators_quarantine_ends_only_by_an_operator(lab: Lab) -> None:
    """B15: neither scrub, nor restart, nor reboot lifts what a person decided."""
    lab.node.quarantine_add("gpu-0", detail="smells", operator="ada")
    assert lab.scrub().outcome is Outcome.QUARANTINED
    lab.restart()
    lab.node.close()
    lab.backend.reboot()
    lab.open()
    lab.node.tick(1e10)
    assert lab.device().state == State.QUARANTINED
    assert codes(lab) == {("operator", "operator")}
    assert lab.node.quarantine_clear("gpu-0", operator="bob").state == State.DIRTY
    assert [(a["act"], a["operator"]) for a in lab.node._registry.journal.acts()] == [
        ("quarantine add", "ada"),
        ("quarantine clear", "bob"),
    ]
    assert lab.scrub().outcome is Outcome.CERTIFIED


def test_clearing_names_reasons_and_leaves_the_others(lab: Lab) -> None:
    """B31: clearing one of two reasons leaves the device quarantined for the other."""
    lab.fault("ecc-uncorrectable")
    lab.scrub()
    lab.node.quarantine_add("gpu-0", detail="noise", operator="ada")
    with pytest.raises(errors.InputInvalid, match="no reason dust"):
        lab.node.quarantine_clear("gpu-0", codes=["dust"], operator="ada")
    view = lab.node.quarantine_clear("gpu-0", codes=["operator"], operator="ada")
    assert view.state == State.QUARANTINED
    assert codes(lab) == {("ecc-uncorrectable", "health")}
    assert lab.node.quarantine_clear("gpu-0", operator="ada").state == State.DIRTY


def test_a_quarantine_stops_a_running_wipe_first(lab: Lab) -> None:
    """DESIGN 4: a running worker is killed and joined before its unit is quarantined."""
    lab.fault("hang")
    order = lab.order()
    lab.node.scrub([order])
    wait_for(lambda: lab.device().state == State.WIPING)
    view = lab.node.quarantine_add("gpu-0", detail="stop", operator="ada")
    assert view.state == State.QUARANTINED
    assert lab.node._registry.journal.workers() == []
    result = lab.result(order.operation)
    assert result.outcome in (Outcome.INTERRUPTED, Outcome.QUARANTINED)
    assert lab.device().certificate == ""


def test_no_quarantine_is_lost_whenever_it_falls_into_a_wipe(lab: Lab) -> None:
    """B31: at every moment of wipe, check and certificate the operator's reason stays."""
    for moment in (0.0, 0.1, 0.2, 0.3, 0.4):
        order = lab.order()
        lab.node.scrub([order])
        threading.Event().wait(moment)
        lab.node.quarantine_add("gpu-0", detail="now", operator="ada")
        lab.result(order.operation)
        assert lab.device().state == State.QUARANTINED
        assert ("operator", "operator") in codes(lab)
        lab.node.quarantine_clear("gpu-0", operator="ada")


def test_two_faults_at_the_same_moment_are_both_remembered(lab: Lab) -> None:
    """B31: concurrent quarantines of one device and its neighbour lose nothing."""
    registry = lab.node._registry
    lab.fault("remap-failed")
    lab.fault("remap-failed", device="gpu-1")

    def decide(name: str) -> None:
        lab.node.quarantine_add(name, detail="at once", operator="ada")

    threads = [threading.Thread(target=decide, args=(f"gpu-{n}",)) for n in (0, 1)]
    threads += [threading.Thread(target=lab.node.sweep) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("gpu-0", "gpu-1"):
        assert {code for code, _ in codes(lab, name)} == {"operator", "remap-failed"}
    assert registry.works() == []


def test_adopt_frees_held_devices_and_touches_no_other(lab: Lab) -> None:
    """ProvenFree (c): recorded with the operator; DIRTY, or QUARANTINED with open reasons."""
    lab.leave(State.HELD)
    lab.node.adopt(devices=["gpu-0"], operator="ada")
    assert lab.device().state == State.DIRTY
    lab.node.quarantine_add("gpu-0", detail="x", operator="ada")
    lab.leave(State.HELD)
    (view,) = lab.node.adopt(devices=["gpu-0"], operator="ada")
    assert view.state == State.QUARANTINED
    lab.node.adopt(operator="ada")
    assert lab.node._registry.journal.acts()[-1]["act"] == "adopt"


def test_an_epoch_is_followed_forwards_only(lab: Lab) -> None:
    """A store that was adopted has a newer epoch; an older one is never believed again."""
    known = lab.node._registry.journal.epoch
    lab.node.follow_epoch(known + 1, operator="ada")
    with pytest.raises(errors.EpochForeign):
        lab.node.follow_epoch(known, operator="ada")
    (refused,) = lab.node.scrub([lab.order()])
    assert refused.kind == "EpochForeign"


def test_an_unknown_device_changes_nothing(lab: Lab) -> None:
    """A decision about a device that is not here is refused before anything is recorded."""
    for act in (
        lambda: lab.node.quarantine_add("gpu-9", detail="x", operator="ada"),
        lambda: lab.node.quarantine_clear("gpu-9", operator="ada"),
        lambda: lab.node.adopt(devices=["gpu-0", "gpu-9"], operator="ada"),
    ):
        with pytest.raises(errors.DeviceUnknown):
            act()
    assert lab.node._registry.journal.acts() == []


def test_work_that_does_not_end_in_time_is_overruled_and_ends_by_itself(lab: Lab) -> None:
    """Promise 6: an operator is not kept waiting; the late worker changes nothing and is ended."""
    lab.fault("hang")
    order = lab.order()
    lab.node.scrub([order])
    wait_for(lambda: lab.device().state == State.WIPING)
    impatient = replace(lab.node._decisions, stop_wait_s=0.0)
    view = impatient.quarantine("gpu-0", detail="now", operator="ada")
    assert view.state == State.QUARANTINED
    result = lab.result(order.operation)
    assert (result.outcome, result.state) == (Outcome.QUARANTINED, State.QUARANTINED)
    assert "IllegalTransition" not in {found.check for found in result.findings}
    assert codes(lab) == {("operator", "operator")}
    assert lab.node._registry.journal.workers() == []


WORD = {"detail": "taken over", "operator": "coordinator"}


def test_the_coordinators_word_is_a_reason_for_each_code_and_lifted_by_its_rule(lab: Lab) -> None:
    """Promise 6: what was known of a silent node is merged, kept over restarts, and a full pass
    lifts what a rule may lift."""
    lab.scrub()
    view = lab.node.quarantine_add("gpu-0", codes=("node-silent", "xid"), **WORD)
    assert view.state == State.QUARANTINED
    assert {(r.code, r.source, r.liftable) for r in view.reasons} == {
        ("node-silent", "coordinator", True),
        ("xid", "coordinator", True),
    }
    lab.restart()
    assert codes(lab) == {("node-silent", "coordinator"), ("xid", "coordinator")}
    assert lab.node._registry.journal.acts()[-1]["operator"] == "coordinator"
    assert lab.scrub().outcome is Outcome.CERTIFIED
    assert (lab.device().state, codes(lab)) == (State.CLEAN, set())


def test_what_no_rule_lifts_stays_until_an_operator_decides(lab: Lab) -> None:
    """A code unknown here, or one that only an operator lifts, is not lifted by a passed wipe."""
    lab.node.quarantine_add("gpu-0", codes=("memory-mismatch", "of-a-newer-version"), **WORD)
    assert codes(lab) == {("memory-mismatch", "coordinator"), ("taken-over", "coordinator")}
    assert lab.scrub().outcome is Outcome.QUARANTINED
    shown = {reason.code: reason.detail for reason in lab.device().reasons}
    assert "of-a-newer-version" in shown["taken-over"]


def test_saying_it_again_disturbs_nobody(lab: Lab) -> None:
    """B43: repeated after every restart of a plugin, it neither stops a wipe nor is recorded."""
    lab.node.quarantine_add("gpu-0", codes=("node-silent",), **WORD)
    acts = len(lab.node._registry.journal.acts())
    lab.fault("hang")
    order = lab.order()
    lab.node.scrub([order])
    wait_for(lambda: lab.device().state == State.RETESTING)
    again = lab.node.quarantine_add("gpu-0", codes=("node-silent",), **WORD)
    assert again.state == State.RETESTING
    assert len(lab.node._registry.journal.acts()) == acts
    lab.node.cancel([order.operation])
    lab.result(order.operation)


def test_a_tenant_keeps_what_is_taken_over_under_it(lab: Lab) -> None:
    """DESIGN 4: IN_USE stays IN_USE with the reason, and is quarantined by its teardown."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    view = lab.node.quarantine_add("gpu-0", codes=("node-silent",), **WORD)
    assert (view.state, len(view.reasons)) == (State.IN_USE, 1)
    with pytest.raises(errors.InputInvalid, match="IN_USE") as refused:
        lab.node.quarantine_clear("gpu-0", operator="ada")
    assert "end the claim" in refused.value.remedy
    assert len(lab.device().reasons) == 1


def test_a_held_device_is_not_cleared_in_silence(lab: Lab) -> None:
    """E7: clearing says what to do first instead of coming to nothing; afterwards it works."""
    lab.node.quarantine_add("gpu-0", detail="x", operator="ada")
    lab.leave(State.HELD)
    acts = len(lab.node._registry.journal.acts())
    with pytest.raises(errors.InputInvalid, match="HELD") as refused:
        lab.node.quarantine_clear("gpu-0", operator="ada")
    assert "fleet node adopt" in refused.value.remedy
    assert len(lab.node._registry.journal.acts()) == acts
    lab.node.adopt(devices=["gpu-0"], operator="ada")
    assert lab.node.quarantine_clear("gpu-0", operator="ada").state == State.DIRTY


def test_why_it_was_cleared_is_kept_with_who_did_it(lab: Lab) -> None:
    """D4: the operator's identity, the codes and the words outlive the service."""
    lab.node.quarantine_add("gpu-0", detail="x", operator="ada")
    lab.node.quarantine_clear("gpu-0", codes=["operator"], operator="bob", detail="card replaced")
    lab.restart()
    act = lab.node._registry.journal.acts()[-1]
    assert (act["act"], act["operator"]) == ("quarantine clear", "bob")
    assert act["detail"] == "operator: card replaced"
    assert lab.device().state == State.DIRTY
    assert lab.node.quarantine_clear("gpu-0", operator="bob").state == State.DIRTY
