"""Feature gates and limits of the API server modelled: what it drops, what it refuses. Pure.

A field behind a gate that is off is dropped without an error, unless the stored object uses the
feature already: a writer must compare the answer with what it sent.
"""

from __future__ import annotations

from dataclasses import dataclass

TAINTS = "DRADeviceTaints"
BINDING_CONDITIONS = "DRADeviceBindingConditions"
DEVICE_STATUS = "DRAResourceClaimDeviceStatus"
CONSUMABLE = "DRAConsumableCapacity"
PARTITIONABLE = "DRAPartitionableDevices"
GRANULAR_STATUS = "DRAResourceClaimGranularStatusAuthorization"

GATES_1_36 = frozenset(
    {TAINTS, BINDING_CONDITIONS, DEVICE_STATUS, CONSUMABLE, PARTITIONABLE, GRANULAR_STATUS}
)
"""On by default in Kubernetes 1.36."""

GATES_1_34 = frozenset({DEVICE_STATUS})
"""On by default in Kubernetes 1.34 and 1.35."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much fits: numbers of 1.36; 1.34 had no rule of 64 and took 4 taints."""

    devices: int = 128
    devices_tainted: int | None = 64
    """Devices of a slice any of which has taints or counters; None: no such rule."""
    taints: int = 16
    counters_apart: bool = True
    """Whether a slice has either devices or counter sets; 1.34 had both in one, and a device could
    consume what its own slice has only."""


LIMITS_1_34 = Limits(devices_tainted=None, taints=4, counters_apart=False)


@dataclass(frozen=True, slots=True)
class Features:
    """What the server modelled can do."""

    gates: frozenset[str] = GATES_1_36
    limits: Limits = Limits()
