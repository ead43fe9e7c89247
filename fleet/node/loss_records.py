"""Recording that a claim ended with a device out of service, before the claim is let go (D3), and
that one is let into devices of others, before its containers can start (F60).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.core import errors
from fleet.core.claim_states import Claim
from fleet.core.model import State, Uuid
from fleet.evidence.losses import Look, Loss, LossLog, LostDevice
from fleet.node.certification import Certifier, software_version

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
        registry = self.certifier.registry
        said = Loss(
            node=registry.place.node,
            claim=claim.uid,
            namespace=claim.namespace,
            name=claim.name,
            token=claim.token,
            devices=tuple(self._lost(claim, uuid) for uuid in devices),
            began_at=float(claim.attributes.get(TEARDOWN_AT, 0.0)),
            simulated=registry.backend.simulated,
        )
        self._append(said)

    def look(self, claim: Claim, *, read_only: bool) -> None:
        """Record that a claim is let into devices with adminAccess; durable on return (F60).

        Raises as `record`.
        """
        registry = self.certifier.registry
        said = Look(
            node=registry.place.node,
            claim=claim.uid,
            namespace=claim.namespace,
            name=claim.name,
            pods=claim.consumers,
            devices={uuid: registry.device(uuid).units for uuid in claim.attached},
            read_only=read_only,
            simulated=registry.backend.simulated,
        )
        self._append(said)

    def _append(self, said: Loss | Look) -> None:
        if self.certifier.closed.is_set():
            raise errors.NotOwner("this service has handed its evidence over")
        self.log.append(
            said,
            key=self.certifier.key,
            now=self.certifier.registry.clock.now(),
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
