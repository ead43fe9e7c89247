"""One operation at a time per claim, joined by whoever asks again (B03)."""

from __future__ import annotations

import threading

import pytest

from fleet.core import errors
from fleet.core.claim_states import ClaimEvent
from fleet.core.messages import ClaimAnswer
from fleet.core.model import ClaimUid, Device, OperationId, UnitId, Uuid
from fleet.node.flights import Flight, Flights
from fleet.node.registry import Work

UID = ClaimUid("claim-a")


def answered(_: Flight) -> ClaimAnswer:
    return ClaimAnswer(uid=UID, state="PREPARED")


def work() -> Work:
    device = Device(Uuid("u"), "gpu-0", Uuid("u"), (UnitId("u/all"),), 1)
    return Work(OperationId("op"), device, idle=False)


def test_a_flight_outlives_the_call_and_is_joined_by_the_next() -> None:
    """B03: a call whose time is up leaves the work running; the repeated call gets its answer."""
    flights, go = Flights(), threading.Event()

    def body(flight: Flight) -> ClaimAnswer:
        go.wait(10.0)
        return answered(flight)

    flight = flights.launch(UID, ClaimEvent.PREPARE, body)
    with pytest.raises(errors.DeviceBusy, match="longer than"):
        flight.wait(UID, 0.01)
    assert flights.get(UID) is flight
    go.set()
    assert flight.wait(UID, 10.0).state == "PREPARED"
    assert flights.get(UID) is None


def test_whatever_a_flight_raises_becomes_an_answer() -> None:
    """B03: a waiting call never hangs because of an error of another kind."""

    def body(_: Flight) -> ClaimAnswer:
        raise ZeroDivisionError("surprise")

    flight = Flights().launch(UID, ClaimEvent.PREPARE, body)
    with pytest.raises(errors.BackendFailed, match="surprise"):
        flight.wait(UID, 10.0)


def test_stop_reaches_wipes_before_and_after_they_are_taken() -> None:
    """V1: a wipe that is registered just after the cancellation is cancelled too."""
    flight, early, late = Flight(ClaimEvent.PREPARE), work(), work()
    flight.take(early)
    flight.stop()
    flight.take(late)
    assert early.cancel.is_set()
    assert late.cancel.is_set()


def test_nothing_is_launched_once_closed() -> None:
    """B50: after the hand-over began no operation of a claim starts here."""
    flights = Flights()
    assert flights.close() == []
    with pytest.raises(errors.NotOwner):
        flights.launch(UID, ClaimEvent.PREPARE, answered)
    assert flights.get(UID) is None
