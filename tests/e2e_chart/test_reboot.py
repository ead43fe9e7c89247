"""The machine goes down with everything on it and comes up again."""

from __future__ import annotations

import secrets
import stat

import pytest

from fleet.kube.base import uid_of
from tests.e2e.polling import eventually
from tests.e2e.workloads import FILL, STAY, program
from tests.e2e_chart.installation import HEAD, Installation
from tests.e2e_chart.tenants import heir

pytestmark = pytest.mark.timeout(900)
BACK_S = 300.0


def keys(installation: Installation) -> dict[str, str]:
    """Modes of the coordinator's private keys on its volume."""
    found = (installation.scratch / "volumes" / "coordinator").rglob("*.key")
    return {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in found}


def test_f70_every_mount_leaves_the_key_closed(installation: Installation) -> None:
    """F70: a volume that honours fsGroup is mounted again: the coordinator's key is its owner's,
    and strict pods are bound as before."""
    heir(installation, "nobody", installation.uuid("gpu-0"))
    for _ in range(2):
        old = uid_of(installation.part(HEAD))
        installation.delete_part(HEAD)
        eventually(
            "another head is there",
            lambda old=old: (p := installation.pods(HEAD)) and uid_of(p[0]) != old,  # type: ignore[misc]
            timeout_s=150,
        )
        heir(installation, "nobody", installation.uuid("gpu-0"))
    assert keys(installation)
    assert set(keys(installation).values()) == {"0o600"}


def test_claims_prepared_before_a_reboot_are_wiped_and_exposed_anew(
    installation: Installation,
) -> None:
    """B10, F70: the machine is rebooted under a tenant whose pod starts again: it finds zeros, its
    secret of before is nowhere, and the fleet is as whole as before."""
    secret, uuid = secrets.token_hex(16), installation.uuid("gpu-2")
    begin = f'if [ "$(tr -d "\\0" < "$M" | wc -c)" = 0 ]; then {FILL}; else echo LEAK 1<>"$M"; fi'
    source = installation.claim_template(uuid=uuid)
    pod = installation.run(program(begin, STAY, secret=secret), source, restart="Always")
    installation.in_phase(pod, "Running")
    memory = installation.memory(uid_of(installation.claim_of(pod)))
    eventually("the secret is there", lambda: secret.encode() in memory.read_bytes(), timeout_s=20)
    before = len(installation.plugin.certificates("gpu-2"))
    installation.reboot()
    eventually(
        "every pod is ready",
        lambda: not installation.unready(),
        timeout_s=BACK_S,
        period_s=0.5,
        tell=lambda: "\n".join((*installation.unready(), installation.told_parts())),
    )
    eventually(
        "the tenant's claim is prepared again",
        lambda: [one.state for one in installation.plugin.claims() or ()] == ["PREPARED"],
        timeout_s=BACK_S,
        tell=lambda: installation.told(pod),
    )
    installation.in_phase(pod, "Running", timeout_s=BACK_S)
    assert len(installation.plugin.certificates("gpu-2")) > before
    eventually("it begins anew", lambda: secret.encode() in memory.read_bytes(), timeout_s=60)
    assert b"LEAK" not in memory.read_bytes()
    assert set(keys(installation).values()) == {"0o600"}
    installation.delete(pod, timeout_s=120)
    heir(installation, secret, uuid)
