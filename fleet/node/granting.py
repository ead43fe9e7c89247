"""What a container gets for the devices of a claim, as the back end says it."""

from __future__ import annotations

from fleet.backends.base import Grant
from fleet.claims import Claim
from fleet.model import Uuid
from fleet.node.registry import Registry


def grants(registry: Registry, claim: Claim) -> dict[Uuid, Grant]:
    """A grant for each device of the claim, attached ones included.

    Raises `DeviceUnknown` for a device that is not in the inventory any more (B10), and what the
    back end raises: an answer never names something a container could not get.
    """
    return {
        uuid: registry.backend.grant(registry.device(uuid))
        for uuid in (*claim.devices, *claim.attached)
    }
