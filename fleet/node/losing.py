"""Recording that a claim ended with a device out of service, before the claim is let go (D3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet import errors
from fleet.claims import Claim
from fleet.evidence.losses import Loss, LossLog, LostDevice
from fleet.model import State, Uuid
from fleet.node.certifying import Certifier, software_version

TEARDOWN_AT = "teardown_at"
"""Attribute of a claim record: when its teardown began, seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class LossRecorder:
    """Signs a node's data-loss records, with the key that signs its certificates."""

    certifier: Certifier
    log: LossLog

    def record(self, claim: Claim, devices: Sequence[Uuid]) -> None:
        """Record `devices`, out of service after the claim; durable on return, once per claim.

        Raises `LedgerUnavailable` (retryable), and `NotOwner` once the node was handed over.
        """
        if not devices or not claim.units:
            return
        if self.certifier.closed.is_set():
            raise errors.NotOwner("this service has handed its evidence over")
        registry = self.certifier.registry
        loss = Loss(
            node=registry.place.node,
            claim=claim.uid,
            namespace=claim.namespace,
            name=claim.name,
            token=claim.token,
            devices=tuple(self._lost(claim, uuid) for uuid in devices),
            began_at=float(claim.attributes.get(TEARDOWN_AT, 0.0)),
            simulated=registry.backend.simulated,
        )
        self.log.append(
            loss,
            key=self.certifier.key,
            now=registry.clock.now(),
            version=software_version(),
        )

    def _lost(self, claim: Claim, uuid: Uuid) -> LostDevice:
        registry = self.certifier.registry
        device, units = registry.devices.get(uuid), registry.journal.units
        if device is not None:
            mine = tuple(unit for unit in claim.units if unit in device.units)
        else:  # the hardware is gone: the units of the claim that no device has any more
            there = {unit for one in registry.devices.values() for unit in one.units}
            mine = tuple(unit for unit in claim.units if unit not in there)
        reasons = {
            reason
            for unit in mine
            if unit in units and units[unit].state is State.QUARANTINED
            for reason in units[unit].reasons
        }
        heads = self.certifier.ledger.heads()
        return LostDevice(uuid, mine, tuple(reasons), {unit: heads.get(unit) for unit in mine})
