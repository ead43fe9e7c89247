"""GPU check: what one tenant leaves, the next one does not find."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from fleet.core.model import Accelerator
from tests.gpu import working
from tests.gpu.place import LEAVING_S, Machine, until
from tests.gpu.report import REPORT
from tests.gpu.working import Tenant

SECRET_BYTES = 64
"""One block of the search: each further block would be one more search of all memory."""
TENANT_S = 120.0


def alone(machine: Machine, gpu: Accelerator) -> None:
    """Wait until whoever was killed has let go."""
    assert until(lambda: not machine.strangers(gpu), within_s=LEAVING_S)


def test_a_tenants_secret_is_gone_after_a_wipe(
    machine: Machine, gpu: Accelerator, left_s: Callable[[float], float]
) -> None:
    """Promise 1, issue 5: planted all over memory and found there, the tenant killed, the GPU
    wiped, and a new tenant finds nothing. What the driver's own scrubbing left before our wipe is
    for the record."""
    secret = secrets.token_bytes(SECRET_BYTES)
    with Tenant(gpu.uuid) as owner:
        planted = owner.ask("plant", secret, limit_s=left_s(TENANT_S))
        found = owner.ask("search", secret, limit_s=left_s(TENANT_S))
    alone(machine, gpu)
    with Tenant(gpu.uuid) as next_one:
        unwiped = next_one.ask("search", secret, limit_s=left_s(TENANT_S))
    alone(machine, gpu)
    REPORT.add(
        gpu.uuid,
        "secret",
        {
            "memory_bytes": planted["memory_bytes"],
            "planted": planted["blocks"],
            "found": found["blocks"],
            "before_wipe": unwiped["blocks"],
            "scrubbed_by_driver": unwiped["blocks"] == 0,
        },
    )
    assert found["blocks"] >= 0.9 * planted["blocks"] > 0
    wiped = working.wipe(
        working.order(machine.settings, gpu, gpu.device),
        contained=bool(machine.contained),
        limit_s=left_s(90),
    )
    with Tenant(gpu.uuid) as last:
        after = last.ask("search", secret, limit_s=left_s(TENANT_S))
    REPORT.add(gpu.uuid, "secret", {"found_after": after["blocks"]})
    assert wiped.result.verified, wiped.result.detail
    assert after["blocks"] == 0
    assert after["memory_bytes"] >= 0.98 * planted["memory_bytes"]
