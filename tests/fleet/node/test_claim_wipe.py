"""Wiping a claim's devices: in parallel, all waited for, no result taken for granted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.core import errors
from fleet.core.claim_states import Claim, ClaimEvent, ClaimState
from fleet.core.messages import Outcome
from fleet.core.model import BootId, ClaimUid, Digest, OperationId, State, Token, Unit, Uuid
from fleet.node.admission import WIPE
from fleet.node.claim_wipe import Cleaner
from fleet.node.flights import Flight
from fleet.node.registry import Work
from tests.fleet.node.conftest import Lab, quick_settings


def cleaner(lab: Lab) -> Cleaner:
    return lab.node._parts.holding.cleaner


def claim(lab: Lab, *names: str) -> Claim:
    devices = [lab.node._registry.device(name) for name in names]
    token = Token.parse(str(lab.lease(*names).token))
    return Claim(
        ClaimUid("claim-a"),
        ClaimState.PREPARING,
        tuple(device.uuid for device in devices),
        tuple(unit for device in devices for unit in device.units),
        token,
        BootId("b"),
    )


def never(_: Claim, __: Unit) -> bool:
    return False


def test_only_what_is_not_acceptable_is_wiped(lab: Lab) -> None:
    """A4: a device that may stay as it is is not wiped again."""
    found = claim(lab, "gpu-0", "gpu-1-1g-0")

    def accept(_: Claim, unit: Unit) -> bool:
        return unit.id in lab.device("gpu-0").units

    (result,) = cleaner(lab).clean(found, Flight(ClaimEvent.PREPARE), accept=accept)
    assert (result.device, result.outcome) == ("gpu-1-1g-0", Outcome.CERTIFIED)
    assert lab.device("gpu-0").state == State.DIRTY


@pytest.mark.parametrize(
    ("kind", "raised"),
    [(ClaimEvent.PREPARE, errors.DeviceUnfit), (ClaimEvent.UNPREPARE, None)],
)
def test_a_quarantined_device_fails_a_prepare_and_ends_a_teardown(
    lab: Lab, kind: ClaimEvent, raised: type[errors.FleetError] | None
) -> None:
    """D3, D4: the teardown is over when the device is out of service; a prepare has failed."""
    lab.fault("dirty-word")
    found = claim(lab, "gpu-0", "gpu-1-1g-0")
    if raised is not None:
        with pytest.raises(raised, match="memory-mismatch"):
            cleaner(lab).clean(found, Flight(kind), accept=never)
    else:
        results = cleaner(lab).clean(found, Flight(kind), accept=never)
        assert [r.outcome for r in results] == [Outcome.QUARANTINED, Outcome.CERTIFIED]
    assert lab.device("gpu-1-1g-0").state == State.CLEAN


def test_a_demand_that_cannot_be_met_costs_the_claim_only(lab: Lab) -> None:
    """T2: a tenant's coverageFloor refuses his claim; the device stays in service, in a prepare as
    in the teardown after it, whose certificate is by the node's own policy."""
    lab.fault("allocation-shortfall", fraction="0.01")
    settings = quick_settings(coverage_floor=0.95)
    lab.restart(settings=settings)
    own = settings.wipe
    asked = own.model_copy(update={"coverage_floor": 1.0}).model_dump_json()
    found = replace(claim(lab, "gpu-0"), attributes={WIPE: asked})
    with pytest.raises(errors.ClaimConfigInvalid, match="cannot meet what the claim demands"):
        cleaner(lab).clean(found, Flight(ClaimEvent.PREPARE), accept=never)
    assert (lab.device().state, lab.device().reasons) == (State.DIRTY, ())
    (result,) = cleaner(lab).clean(found, Flight(ClaimEvent.UNPREPARE), accept=never)
    assert (result.outcome, lab.device().state) == (Outcome.CERTIFIED, State.CLEAN)
    stated = lab.ledger.certificate(Digest(result.certificate)).envelope.predicate
    assert stated["bytes"]["floor"] == str(own.coverage_floor)


def test_a_demand_that_is_met_stands_in_the_certificate(lab: Lab) -> None:
    """T2: whoever demanded more and got it can show so."""
    asked = lab.settings.wipe.model_copy(update={"coverage_floor": 1.0}).model_dump_json()
    found = replace(claim(lab, "gpu-0"), attributes={WIPE: asked})
    (result,) = cleaner(lab).clean(found, Flight(ClaimEvent.PREPARE), accept=never)
    stated = lab.ledger.certificate(Digest(result.certificate)).envelope.predicate
    assert stated["bytes"]["floor"] == "1.0"


def test_a_device_somebody_works_on_is_busy_and_named(lab: Lab) -> None:
    """One operation at a time per unit, whoever started it."""
    registry = lab.node._registry
    other = Work(OperationId("op/other"), registry.device("gpu-0"), idle=False)
    registry.reserve(other)
    with pytest.raises(errors.DeviceBusy, match="op/other"):
        cleaner(lab).clean(claim(lab, "gpu-0"), Flight(ClaimEvent.UNPREPARE), accept=never)
    assert not other.cancel.is_set()


def test_a_flight_stopped_before_its_wipes_began_wipes_nothing(lab: Lab) -> None:
    """V1: cancelled is cancelled, also in the moment between decision and reservation."""
    flight = Flight(ClaimEvent.PREPARE)
    flight.stop()
    with pytest.raises(errors.DeviceBusy, match="interrupted"):
        cleaner(lab).clean(claim(lab, "gpu-0"), flight, accept=never)
    assert lab.ledger.count == 0
    assert lab.node._registry.works() == []


def test_a_device_that_is_not_there_is_left_out(lab: Lab) -> None:
    """A3: what vanished cannot be wiped; the caller writes it off."""
    found = claim(lab, "gpu-0")
    gone = replace(found, devices=(Uuid("SIM-gone"),))
    assert cleaner(lab).clean(gone, Flight(ClaimEvent.UNPREPARE), accept=never) == []


def test_a_defect_in_one_wipe_is_an_error_of_the_claim(lab: Lab) -> None:
    """Promise 8: no result is never taken for a good one."""

    class Broken:
        def perform(self, _: object) -> None:
            raise ZeroDivisionError("surprise")

    found = Cleaner(lab.node._registry, Broken(), lab.settings.wipe)  # type: ignore[arg-type] # broken on purpose
    with pytest.raises(errors.BackendFailed, match="surprise"):
        found.clean(claim(lab, "gpu-0"), Flight(ClaimEvent.UNPREPARE), accept=never)
    assert lab.node._registry.works() == []
