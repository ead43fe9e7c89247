"""What a container gets for the devices of a claim, as the back end says it."""

from __future__ import annotations

from fleet.backends.base import Grant
from fleet.claims import Claim, ClaimState
from fleet.model import Uuid
from fleet.node.partitions import Partitions
from fleet.node.registry import Registry


def grants(
    registry: Registry, claim: Claim, partitions: Partitions | None = None
) -> dict[Uuid, Grant]:
    """A grant for each device of the claim, attached ones included.

    With `partitions` the instances of the claim's devices are made first, but never again under a
    claim that is prepared: one that went away took the proof with it that its memory was clean. An
    accelerator that is only looked into as a whole needs none, and would collide with all others.
    Raises `DeviceUnknown` for a device that is not in the inventory any more (B10), and what the
    back end raises: an answer never names something a container could not get.
    """
    if partitions is not None and claim.state is not ClaimState.PREPARED:
        for device in map(registry.device, (*claim.devices, *claim.attached)):
            if device.uuid in claim.devices or not device.whole:
                partitions.ensure(device)
    return {
        uuid: registry.backend.grant(registry.device(uuid))
        for uuid in (*claim.devices, *claim.attached)
    }
