"""A tenant that is deaf to SIGTERM, and the claim that comes after it on the same device."""

from __future__ import annotations

import time

import pytest

from fleet.kube.base import Name, uid_of
from tests.e2e.ground import Footing
from tests.e2e.polling import eventually
from tests.e2e.workloads import FILL, program

DEAF = f'trap "" TERM; while true; do {FILL}; done'
"""Write the secret again and again, and ignore being asked to stop."""


def deaf_pod(ground: Footing, device: str, secret: str) -> tuple[Name, str, str]:
    """A pod that writes for ever: its name, its UID and that of its claim, with its secret seen."""
    name = ground.run(program(DEAF, secret=secret), ground.claim_template(uuid=device))
    pod_uid = uid_of(ground.in_phase(name, "Running"))
    claim_uid = uid_of(ground.claim_of(name))
    memory = ground.memory(claim_uid)
    eventually(
        "the secret is in memory", lambda: secret.encode() in memory.read_bytes(), timeout_s=10
    )
    return name, pod_uid, claim_uid


def succession(ground: Footing, pod_uid: str, next_spec: str) -> tuple[float, float]:
    """When the old process was last seen alive, and when the next claim's spec became visible.

    Both seconds since the epoch. Asserts that they never were there together.
    """
    spec = ground.plugin.spec(next_spec)
    alive_at = 0.0

    def look() -> float | None:
        nonlocal alive_at
        visible = spec.exists()
        if ground.alive(pod_uid):
            assert_never(together=visible)
            alive_at = time.time()
        return spec.stat().st_mtime if visible else None

    return_at = eventually("the next claim has its spec", look, timeout_s=60, period_s=0.01)
    return alive_at, return_at


def assert_never(*, together: bool) -> None:
    """Fails the test at once, where an AssertionError would only mean: not yet."""
    if together:
        pytest.fail("the next claim was exposed while the old process was alive")
