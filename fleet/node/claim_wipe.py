"""Wiping all devices of one claim at once, for its prepare or its teardown."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from fleet.core import errors
from fleet.core.claim_states import Claim, ClaimEvent
from fleet.core.messages import UNMET, DeviceResult, Outcome
from fleet.core.model import Device, OperationId, Unit, Uuid
from fleet.core.settings import WipePolicy
from fleet.node.admission import demand_of
from fleet.node.flights import Flight
from fleet.node.registry import Registry, Work
from fleet.node.tasks import WipeTask
from fleet.node.wipe import Wiper

Accept = Callable[[Claim, Unit], bool]
"""Whether a unit may stay as it is, without another wipe."""


@dataclass(frozen=True, slots=True)
class Cleaner:
    """Wipes for claims."""

    registry: Registry
    wiper: Wiper
    policy: WipePolicy

    def clean(self, claim: Claim, flight: Flight, *, accept: Accept) -> list[DeviceResult]:
        """Wipe the devices with a unit not acceptable, in parallel; returns how each came out.

        Raises `DeviceBusy` (retryable) for a device that could not be wiped to an end now and, in a
        prepare, `DeviceUnfit` for one that is quarantined. All are waited for before that.
        """
        known = self.registry.devices
        todo = [
            known[uuid]
            for uuid in claim.devices
            if uuid in known and not all(accept(claim, u) for u in self.registry.units(known[uuid]))
        ]
        results: dict[Uuid, DeviceResult | errors.FleetError] = {}
        threads = [
            threading.Thread(
                target=self._wipe,
                args=(claim, flight, device, results),
                name=f"{flight.kind} {device.name}",
                daemon=True,
            )
            for device in todo
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [self._judged(device, results.get(device.uuid), flight) for device in todo]

    def _judged(
        self, device: Device, result: DeviceResult | errors.FleetError | None, flight: Flight
    ) -> DeviceResult:
        if result is None:
            raise errors.BackendFailed(f"the wipe of {device.name} has no result")
        if isinstance(result, errors.FleetError):
            raise result
        if result.outcome is Outcome.QUARANTINED:
            if flight.kind is ClaimEvent.PREPARE:
                raise errors.DeviceUnfit(
                    f"{result.device} is quarantined: {_said(result)}",
                    told=f"{result.device} is quarantined: {_checks(result)}",
                )
        elif any(found.check == UNMET for found in result.findings):
            raise errors.ClaimConfigInvalid(f"{result.device}: {_said(result)}")
        elif result.outcome is not Outcome.CERTIFIED:
            raise errors.DeviceBusy(
                f"{result.device} is {result.outcome}: {_said(result)}",
                remedy=_remedy(result),
                told=f"{result.device} is {result.outcome}: {_checks(result)}",
            )
        return result

    def _wipe(
        self,
        claim: Claim,
        flight: Flight,
        device: Device,
        results: dict[Uuid, DeviceResult | errors.FleetError],
    ) -> None:
        operation = OperationId(f"{flight.kind}/{claim.uid}/{device.uuid}")
        work = Work(operation, device, idle=False)
        flight.take(work)
        try:
            other = self.registry.reserve_over_idle(work, wait_s=self.policy.kill_wait_s * 2)
            if other is not None:
                results[device.uuid] = errors.DeviceBusy(
                    f"{device.name} is worked on by {other.operation}",
                    holder=other.operation,
                    told=f"{device.name} is worked on by its node",
                )
                return
            task = WipeTask(
                work,
                self.policy,
                token=claim.token,
                claim=claim.uid,
                demand=demand_of(claim),
                binding=flight.kind is ClaimEvent.PREPARE,
            )
            results[device.uuid] = self.wiper.perform(task)
        except errors.FleetError as error:
            results[device.uuid] = error
        except Exception as error:  # noqa: BLE001 - whoever waits must get an answer
            results[device.uuid] = errors.BackendFailed(f"wiping {device.name} failed: {error!r}")
        finally:
            self.registry.unreserve(work)


def _remedy(result: DeviceResult) -> str:
    """What to do about the first thing found; "" leaves it to the error's own words."""
    return next((found.remedy for found in result.findings if found.remedy), "")


def _checks(result: DeviceResult) -> str:
    """What was found, without the details: they may name processes and claims of others."""
    words = {"foreign-holder": "in use by a process outside this claim"}
    told = dict.fromkeys(words.get(found.check, found.check) for found in result.findings)
    return ", ".join(told) or "no reason given"


def _said(result: DeviceResult) -> str:
    return "; ".join(f"{f.check}: {f.detail}" for f in result.findings) or "no reason given"
