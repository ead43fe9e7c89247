"""CLEAN to IN_USE: on a certificate promise 1 accepts, read again just before, all or none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.claim_states import Claim, ClaimState
from fleet.core.model import BootId, ClaimUid, OperationId, State, Token, Uuid
from fleet.core.profiles import Profile
from fleet.evidence.certificate import issue
from fleet.node.exposure import Exposer
from fleet.node.journal.journal import WorkerRow
from fleet.node.registry import Work
from tests.fleet.evidence.samples import Site, reset_of
from tests.fleet.node.conftest import Lab


def exposer(lab: Lab) -> Exposer:
    return lab.node._parts.holding.exposer


def cleaned(lab: Lab, *names: str) -> Claim:
    """A claim whose devices were just wiped under its token."""
    devices = [lab.node._registry.device(name) for name in names]
    lease = lab.lease(*names)
    for name in names:
        lab.scrub(name, lease=lease)
    return Claim(
        ClaimUid("claim-a"),
        ClaimState.PREPARING,
        tuple(device.uuid for device in devices),
        tuple(unit for device in devices for unit in device.units),
        lease.token,
        BootId(lab.node.view().boot_id),
    )


def states(lab: Lab, *names: str) -> list[str]:
    return [lab.device(name).state for name in names]


def test_a_clean_device_is_exposed_once(lab: Lab) -> None:
    """A repeated exposure of the same claim changes nothing."""
    claim = cleaned(lab, "gpu-0")
    exposer(lab).expose(claim)
    (unit,) = lab.units()
    assert (unit.state, unit.claim, unit.token) == (State.IN_USE, "claim-a", claim.token)
    sequence = unit
    exposer(lab).expose(claim)
    assert lab.units() == [sequence]


@pytest.mark.parametrize(
    ("profile", "age", "accepted"),
    [
        (Profile.STRICT, 0, True),
        (Profile.STRICT, 1, False),
        (Profile.FAST, 0, True),
        (Profile.FAST, 1, True),
        (Profile.LAB, 1, True),
        (Profile.FAST, -1, False),
    ],
)
def test_which_certificate_is_accepted(
    lab: Lab, profile: Profile, age: int, accepted: bool
) -> None:
    """Promise 1: strict wants its own token's wipe; the others take a teardown certificate."""
    claim = cleaned(lab, "gpu-0")
    token = Token(claim.token.epoch, claim.token.counter + age)
    chosen = replace(exposer(lab), profile=profile)
    assert chosen.accepted(replace(claim, token=token), lab.units()[0]) is accepted


def test_one_unfit_device_exposes_none(lab: Lab) -> None:
    """B4: all units in one commit or none."""
    claim = cleaned(lab, "gpu-0", "gpu-1-1g-0")
    lab.node.quarantine_add("gpu-1-1g-0", detail="x", operator="ada")
    with pytest.raises(errors.DeviceUnfit, match="operator"):
        exposer(lab).expose(claim)
    assert states(lab, "gpu-0", "gpu-1-1g-0") == [State.CLEAN, State.QUARANTINED]


def test_a_fault_since_the_wipe_is_found(lab: Lab) -> None:
    """B1, promise 1: counters are read again; a device that broke meanwhile is not handed out."""
    claim = cleaned(lab, "gpu-0")
    lab.fault("remap-failed")
    with pytest.raises(errors.DeviceUnfit, match="remap-failed"):
        exposer(lab).expose(claim)
    assert states(lab, "gpu-0") == [State.QUARANTINED]


def test_a_device_that_does_not_answer_is_not_handed_out(lab: Lab) -> None:
    """B6: a reading that times out falls through to quarantine, never to the start of a pod."""
    claim = cleaned(lab, "gpu-0")
    lab.fault("reading-hang", seconds="20")
    with pytest.raises(errors.FleetError):
        exposer(lab).expose(claim)
    assert states(lab, "gpu-0") == [State.QUARANTINED]
    lab.backend.clear_fault(Uuid(lab.device().uuid), "reading-hang")


def test_a_stranger_voids_the_wipe_of_its_own_partition_only(lab: Lab) -> None:
    """Promises 1 and 9: what a process may have written is dirty; the neighbour's is not."""
    claim = cleaned(lab, "gpu-1-1g-0", "gpu-1-1g-1")
    with lab.tenant("gpu-1-1g-0"), pytest.raises(errors.DeviceBusy, match="tenant"):
        exposer(lab).expose(claim)
    assert states(lab, "gpu-1-1g-0", "gpu-1-1g-1") == [State.DIRTY, State.CLEAN]
    with pytest.raises(errors.DeviceBusy, match="DIRTY"):
        exposer(lab).expose(claim)


def test_a_surviving_worker_or_work_in_hand_keeps_it_back(lab: Lab) -> None:
    """DESIGN 6: an older worker proven gone is a precondition of every exposure."""
    claim = cleaned(lab, "gpu-0")
    registry = lab.node._registry
    device = registry.device("gpu-0")
    with registry.commit() as commit:
        commit.put_worker(WorkerRow("ghost", device.uuid, device.units, {}, 1.0))
    with pytest.raises(errors.IllegalTransition, match="surviving worker"):
        exposer(lab).expose(claim)
    with registry.commit() as commit:
        commit.drop_worker("ghost")
    work = Work(OperationId("op"), device, idle=False)
    registry.reserve(work)
    with pytest.raises(errors.DeviceBusy):
        exposer(lab).expose(claim)
    registry.unreserve(work)
    exposer(lab).expose(claim)
    assert states(lab, "gpu-0") == [State.IN_USE]


def test_a_certificate_of_another_boot_is_none(lab: Lab) -> None:
    """V2: after a reboot memory is anybody's."""
    claim = cleaned(lab, "gpu-0")
    registry = lab.node._registry
    with registry.commit() as commit:
        unit = commit.unit(claim.units[0])
        commit.put_unit(replace(unit, boot_id=BootId("another")))
    with pytest.raises(errors.DeviceBusy):
        exposer(lab).expose(claim)
    assert states(lab, "gpu-0") == [State.CLEAN]


def test_a_device_that_was_only_reset_is_not_for_strict(lab: Lab, tmp_path: Path) -> None:
    """Issue 5: certified and not exposed, with what to do about it, unless policy accepts it."""
    claim = cleaned(lab, "gpu-0")
    registry = lab.node._registry
    site = Site(tmp_path)
    with site.ledger() as ledger:
        facts = reset_of(registry.device("gpu-0"))
        done = issue(facts, key=site.key("node-1"), now=facts.wipe.ended_at, version="0.1")
        digest = ledger.append(done.envelope)
        with registry.commit() as commit:
            commit.put_unit(replace(commit.unit(claim.units[0]), certificate=digest))
        ours = replace(exposer(lab), ledger=ledger, profile=Profile.STRICT)
        assert ours.accepted(claim, lab.units()[0])  # another reset would come to the same
        with pytest.raises(errors.DeviceUnfit, match="memory not read back") as raised:
            ours.expose(claim)
        assert "hardware.accept_unread" in raised.value.remedy
        assert states(lab, "gpu-0") == [State.CLEAN]
        replace(ours, accept_unread=True).expose(claim)
    assert states(lab, "gpu-0") == [State.IN_USE]


def test_other_profiles_take_a_device_that_was_only_reset(lab: Lab, tmp_path: Path) -> None:
    """Issue 5: fast and lab take the vendor's word."""
    claim = cleaned(lab, "gpu-0")
    site = Site(tmp_path)
    with site.ledger() as ledger:
        facts = reset_of(lab.node._registry.device("gpu-0"))
        done = issue(facts, key=site.key("node-1"), now=facts.wipe.ended_at, version="0.1")
        digest = ledger.append(done.envelope)
        with lab.node._registry.commit() as commit:
            commit.put_unit(replace(commit.unit(claim.units[0]), certificate=digest))
        replace(exposer(lab), ledger=ledger, profile=Profile.FAST).expose(claim)
    assert states(lab, "gpu-0") == [State.IN_USE]


def test_a_fault_between_exposure_and_spec_stops_the_prepare(lab: Lab) -> None:
    """Promise 6: nobody has started on the device yet, so nobody does; its teardown ends it."""
    claim = cleaned(lab, "gpu-0")
    exposer(lab).expose(claim)
    lab.fault("remap-failed", device="gpu-0")
    lab.node.sweep()
    assert states(lab, "gpu-0") == [State.IN_USE]
    with pytest.raises(errors.DeviceUnfit, match="remap-failed"):
        exposer(lab).expose(claim)
