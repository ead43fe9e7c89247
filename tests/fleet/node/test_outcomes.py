"""How results are worded, and how a broken wipe leaves each state."""

from __future__ import annotations

import pytest

from fleet.core import errors, unit_states
from fleet.core.messages import Outcome
from fleet.core.model import WORKING, OperationId, Process, ProcessKind, Source, State, Unit, UnitId
from fleet.core.unit_states import Event
from fleet.devices.health import reasons
from fleet.node import outcomes
from fleet.node.registry import Work
from tests.fleet.node.conftest import Lab

REASON = reasons.make("backend-failed", Source.WIPE, since=1.0)


@pytest.mark.parametrize("state", list(State))
def test_a_broken_wipe_leaves_every_working_state_and_no_other(state: State) -> None:
    """Promise 7: no state is a trap; a unit in work is never left there by an error of ours."""
    event = outcomes.breaking_event(Unit(UnitId("u"), state))
    assert (event is not None) == (state in WORKING)
    if event is not None:
        assert unit_states.TABLE.accepts(state, event)


def test_a_cut_wipe_is_no_fault_until_the_third_in_a_row() -> None:
    """DIRTY carries no reason, or its next wipe could never become CLEAN."""
    once = Unit(UnitId("u"), State.WIPING, interruptions=0)
    third = Unit(UnitId("u"), State.WIPING, interruptions=outcomes.INTERRUPTIONS_MAX - 1)
    assert outcomes.blamed(once, REASON) == frozenset()
    assert outcomes.blamed(third, REASON) == {REASON}
    assert outcomes.blamed(Unit(UnitId("u"), State.CHECKING), REASON) == {REASON}


def test_fault_seen_is_chosen_only_where_the_table_has_it() -> None:
    """A fault of a unit being retested has a row; choosing the event never raises."""
    for state in State:
        event = outcomes.fault_event(Unit(UnitId("u"), state))
        assert event in (Event.FAULT_SEEN, None)
        assert (event is None) != unit_states.TABLE.accepts(state, Event.FAULT_SEEN)


def test_errors_are_told_with_their_remedy_and_code() -> None:
    """A result names the error's class, its facts and what to do."""
    found = outcomes.of_error(errors.DeviceLost("fell off the bus"))
    assert (found.check, found.detail) == ("DeviceLost", "fell off the bus")
    assert found.remedy
    assert outcomes.code_of(errors.DeviceLost("x")) == "device-lost"
    assert outcomes.code_of(errors.LedgerUnavailable("x")) == "backend-failed"


def test_a_quarantined_device_says_so_with_every_reason(lab: Lab) -> None:
    """Whatever the caller thought the outcome was, QUARANTINED units make it that."""
    lab.node.quarantine_add("gpu-0", detail="noise", operator="ada")
    registry = lab.node._registry
    work = Work(OperationId("op"), registry.device("gpu-0"), idle=False)
    told = outcomes.Teller(registry).after(work, Outcome.INTERRUPTED, [])
    assert (told.outcome, told.state) == (Outcome.QUARANTINED, State.QUARANTINED)
    assert [(f.check, f.detail) for f in told.findings] == [("operator", "noise")]
    assert told.bytes.residual == told.bytes.total


def test_8_33_an_instance_nobody_recorded_is_told_with_how_to_remove_it() -> None:
    """gpus-8.33: it has no pid to end; a lost journal may have made it one of ours."""
    named = "MIG instance gi 5 ci 0 of GPU-1 (not ours)"
    stranger = Process(0, named, ProcessKind.FOREIGN)
    tenant = Process(7, "train", ProcessKind.FOREIGN)
    assert outcomes.names([stranger, tenant]) == [named, "train (pid 7)"]
    told = outcomes.holder(", ".join(outcomes.names([stranger]))).remedy
    assert "`nvidia-smi mig -i GPU-1 -gi 5 -ci 0 -dci`" in told
    assert "`nvidia-smi mig -i GPU-1 -gi 5 -dgi`" in told
    assert "lost journal" in told
    assert "nvidia-smi" not in outcomes.holder("train (pid 7)").remedy


def test_b71_memory_nobody_seen_holds_is_told_with_how_to_free_it() -> None:
    """B71: there is no pid to end: who exported the memory is, or the GPU is reset."""
    stranger = Process(0, "508 MiB in use by nobody who can be seen", ProcessKind.FOREIGN)
    told = outcomes.holder(", ".join(outcomes.names([stranger])))
    assert "508 MiB" in told.detail
    assert "exported" in told.remedy
    assert "reset the GPU" in told.remedy
