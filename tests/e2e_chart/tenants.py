"""A tenant that leaves a secret in a device's memory, and the one that comes after it."""

from __future__ import annotations

from pathlib import Path

from fleet.kube.base import CLAIMS, Name, uid_of
from tests.e2e.ground import Footing
from tests.e2e.polling import eventually
from tests.e2e.workloads import COUNT, FILL, NOT_ZERO, STAY, program

WHICH = "say $FLEETSCRUB_DEVICE"
AWAY_S = 200.0
"""Time, s, until everything is done that waits for a part that comes back."""


def tenant(ground: Footing, secret: str, device: str | dict[str, str]) -> tuple[Name, Path]:
    """A pod that has written its secret all over a device, and stays; the device's memory.

    `device` is a UUID, or the pod's claim as a pod names it.
    """
    source = ground.claim_template(uuid=device) if isinstance(device, str) else device
    pod = ground.run(program(FILL, STAY, secret=secret), source)
    ground.in_phase(pod, "Running", timeout_s=AWAY_S)
    named = source.get("resourceClaimName")
    claim = ground.cluster.get(CLAIMS, Name(named, ground.namespace)) if named else None
    memory = ground.memory(uid_of(claim or ground.claim_of(pod)))
    eventually(
        "the secret is in memory", lambda: secret.encode() in memory.read_bytes(), timeout_s=20
    )
    return pod, memory


def heir(ground: Footing, secret: str, uuid: str) -> None:
    """The next pod on a device runs, and finds neither the secret nor any byte that is not zero."""
    source = ground.claim_template(uuid=uuid)
    pod = ground.run(program(WHICH, COUNT, NOT_ZERO, secret=secret), source)
    assert ground.ended(pod, timeout_s=AWAY_S) == [uuid, "0", "0"]
