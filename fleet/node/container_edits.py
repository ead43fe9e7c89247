"""What a container gets for the devices of a claim, as the back end says it."""

from __future__ import annotations

from fleet.core.claim_states import Claim, ClaimState
from fleet.core.model import Uuid
from fleet.devices.base import Grant, ShowsOnly
from fleet.node.partitions import Partitions
from fleet.node.registry import Registry


def grants(
    registry: Registry, claim: Claim, partitions: Partitions | None = None
) -> dict[Uuid, Grant]:
    """A grant for each device of the claim, attached ones included.

    With `partitions` the instances of the claim's devices are made first, but never again under a
    claim that is prepared: one that went away took the proof with it that its memory was clean. An
    accelerator that is only looked into as a whole needs none, and would collide with all others.
    Raises `DeviceUnfit` where one went away under a claim that is prepared, `DeviceUnknown` for a
    device that is not in the inventory any more (B10), and what the back end raises: an answer
    never names something a container could not get.
    """
    if partitions is not None:
        for device in map(registry.device, (*claim.devices, *claim.attached)):
            if device.whole and device.uuid not in claim.devices:
                continue
            if claim.state is ClaimState.PREPARED:
                partitions.present(device)
            else:
                partitions.ensure(device)
    backend, found = registry.backend, {}
    for uuid in claim.devices:
        found[uuid] = backend.grant(registry.device(uuid))
    for uuid in claim.attached:
        device = registry.device(uuid)
        looked = backend.grant_to_look if isinstance(backend, ShowsOnly) else backend.grant
        found[uuid] = looked(device)
    return found
