"""Rules of gates and limits."""

from __future__ import annotations

from tests.lab.apiserver.gates import (
    BINDING_CONDITIONS,
    DEVICE_STATUS,
    GATES_1_34,
    GATES_1_36,
    LIMITS_1_34,
    TAINTS,
    Features,
)


def test_the_default_is_the_newest_release() -> None:
    """Kubernetes 1.36: everything on, 128 devices, 64 with taints, 16 taints."""
    features = Features()
    assert features.gates == GATES_1_36
    limits = features.limits
    assert (limits.devices, limits.devices_tainted, limits.taints) == (128, 64, 16)


def test_the_oldest_release_has_neither_taints_nor_conditions() -> None:
    """B09: Kubernetes 1.34 drops both, knows no rule of 64 and took 4 taints."""
    assert DEVICE_STATUS in GATES_1_34
    assert not {TAINTS, BINDING_CONDITIONS} & GATES_1_34
    assert (LIMITS_1_34.devices_tainted, LIMITS_1_34.taints) == (None, 4)
