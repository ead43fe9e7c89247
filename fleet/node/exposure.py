"""Handing devices to a claim: CLEAN to IN_USE, for all of them or none (promise 1).

What a certificate says was true when it was issued. Holders and health are read again just before
the exposure, and what has been disturbed since is dirty, not merely refused: a process that is gone
a moment later has had the memory all the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet.core import errors, profiles, unit_states
from fleet.core.claim_states import Claim
from fleet.core.model import OUT_OF_SERVICE, Device, State, Unit
from fleet.core.processes import ticks_now
from fleet.core.profiles import Profile
from fleet.core.unit_states import Change, Event, Fact
from fleet.evidence.ledger import Ledger
from fleet.evidence.parsed import Certificate
from fleet.evidence.scope import RESET_TECHNIQUE
from fleet.node import outcomes
from fleet.node.admission import FRESH
from fleet.node.registry import Registry
from fleet.node.sweep import GONE, Sweep
from fleet.node.tenancy import EXPOSED_TICKS
from fleet.node.validation import Validator


@dataclass(frozen=True, slots=True)
class Exposer:
    """Decides and commits exposures."""

    registry: Registry
    validator: Validator
    sweep: Sweep
    profile: Profile
    ledger: Ledger
    accept_unread: bool = False
    """Whether a device that was only reset, its memory unread, may go to a claim when strict."""

    def accepted(self, claim: Claim, unit: Unit) -> bool:
        """Whether the unit may be exposed as it is, without another wipe.

        A unit is CLEAN only while nothing has happened to it since its wipe: exposure, a foreign
        holder, a reboot and a new driver each make it DIRTY.
        """
        if unit.state is State.IN_USE:
            return unit.claim == claim.uid
        if unit.certificate is None or unit.certificate not in self.ledger:
            return False  # without evidence there is no exposure, whatever the journal says
        if FRESH in claim.attributes and unit.token != claim.token:
            return False
        return unit.state is State.CLEAN and profiles.accepts_certificate(
            self.profile,
            certificate_token=unit.token,
            exposure_token=claim.token,
            exposures_since=0,
            foreign_holder_since=False,
            same_boot=unit.boot_id == self.registry.boot_id,
            same_driver=True,
            multi_tenant=self.profile is Profile.STRICT,
        )

    def expose(self, claim: Claim) -> Claim:
        """Commit IN_USE for all units that are not yet; the claim with the moment noted.

        The caller has confirmed the claim's lease. Raises `DeviceBusy` or `DeviceUnfit`.
        """
        for uuid in claim.devices:
            device = self.registry.device(uuid)
            if self.registry.state(device) is not State.IN_USE:
                self._read_again(device)
        workers = {unit for row in self.registry.journal.workers() for unit in row.units}
        now = self.registry.clock.now()
        with self.registry.commit() as commit:
            current = commit.claim(claim.uid) or claim
            moment = {EXPOSED_TICKS: str(ticks_now())}
            noted = replace(current, attributes={**current.attributes, **moment})
            commit.put_claim(noted)
            for unit_id in claim.units:
                unit = commit.unit(unit_id)
                if unit.state is State.IN_USE and unit.claim == claim.uid:
                    _refuse_faulty(unit)
                    continue
                if not self.accepted(claim, unit) or self.registry.reserved(unit_id):
                    raise _unready(unit)
                self._refuse_unread(unit)
                facts = {Fact.LEASE_OF_CLAIM, Fact.HOLDERS_REREAD, Fact.CERTIFICATE_ACCEPTED}
                if unit_id not in workers:
                    facts.add(Fact.NO_SURVIVOR)
                if unit.boot_id == self.registry.boot_id:
                    facts.add(Fact.SAME_BOOT)
                change = Change(frozenset(facts), claim=claim.uid, token=claim.token)
                commit.put_unit(unit_states.step(unit, Event.EXPOSED, now=now, change=change))
        return noted

    def _refuse_unread(self, unit: Unit) -> None:
        """Raises `DeviceUnfit` for memory that was not read back, where that is not enough.

        Not a matter of `accepted`: another wipe would come to the same.
        """
        if self.accept_unread or self.profile is not Profile.STRICT or unit.certificate is None:
            return
        if unread(self.ledger.certificate(unit.certificate)):
            raise errors.DeviceUnfit(
                f"{unit.id} was only reset and its memory not read back; profile strict does not"
                " accept that",
                remedy="choose another class of devices, or set hardware.accept_unread on the node"
                " if the vendor's word is enough",
            )

    def _read_again(self, device: Device) -> None:
        self.sweep.look(self.registry.accelerators[device.accelerator].device)
        foreign = self.validator.foreign(device)
        if foreign:
            self.registry.move(
                device, lambda u: Event.TRUST_LOST if u.state is State.CLEAN else None, GONE
            )
            who = ", ".join(outcomes.names(foreign))
            raise errors.DeviceBusy(
                f"{device.name} is in use by {who}",
                holder=who,
                remedy=outcomes.holder(who).remedy,
                told=f"{device.name} is in use by a process outside this claim",
            )
        attached = self.registry.attached((device.uuid,))
        if attached:
            raise errors.DeviceBusy(
                f"claim {', '.join(attached)} is attached to {device.name}",
                holder=f"claim:{attached[0]}",
                told=f"{device.name} is looked into with adminAccess",
            )


def _refuse_faulty(unit: Unit) -> None:
    """A fault was seen after the exposure and before there was a spec: nobody has started on it.

    Raises `DeviceUnfit`; the teardown that follows takes the device out of service.
    """
    if unit.reasons:
        why = "; ".join(f"{reason.code}: {reason.detail}" for reason in sorted(unit.reasons))
        codes = ", ".join(sorted({reason.code for reason in unit.reasons}))
        told = f"{unit.id} is out of service ({codes})"
        raise errors.DeviceUnfit(f"{unit.id} is out of service: {why}", told=told)


def unread(certificate: Certificate) -> bool:
    """Whether a certificate is of a device that was only reset."""
    return bool(certificate.predicate["sanitization"]["technique"] == RESET_TECHNIQUE)


def _unready(unit: Unit) -> errors.FleetError:
    if unit.state in OUT_OF_SERVICE:
        why = "; ".join(f"{reason.code}: {reason.detail}" for reason in sorted(unit.reasons))
        codes = ", ".join(sorted({reason.code for reason in unit.reasons}))
        told = f"{unit.id} is {unit.state} ({codes})"
        return errors.DeviceUnfit(f"{unit.id} is {unit.state}: {why}", told=told)
    return errors.DeviceBusy(f"{unit.id} is {unit.state} and not clean for this claim any more")
