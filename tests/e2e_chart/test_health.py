"""The coordinator does not step: whoever waits for it, or looks, is told so (F71)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fleet.control.binding import liveness
from fleet.control.coordinator_absence import REASON
from fleet.kube.base import EVENTS, Name, Object, Selection, name_of, uid_of
from tests.e2e import workloads
from tests.e2e.polling import eventually
from tests.e2e.workloads import NOT_ZERO, program
from tests.e2e_chart.changes import FIT, held, rolling, status
from tests.e2e_chart.installation import (
    COORDINATOR,
    HEAD,
    MEMORY_BYTES,
    RELEASE,
    Installation,
)
from tests.e2e_chart.rights import grants, without
from tests.e2e_chart.tenants import AWAY_S, tenant

pytestmark = pytest.mark.timeout(600)
ACCOUNT = "fleet-coordinator"
TOLD_S = 120.0
"""Time, s, until it is told: 30 s of silence, and two looks of a plugin."""


@contextmanager
def no_head(installation: Installation) -> Iterator[None]:
    """There is no pod of Ray's head, and no coordinator in it; another one at the end."""
    scale = ("scale", f"deployment/{RELEASE}-ray-head")
    with rolling(installation, HEAD):
        installation.kubectl(*scale, "--replicas=0")
        try:
            eventually("the head is gone", lambda: not installation.pods(HEAD), timeout_s=AWAY_S)
            yield
        finally:
            installation.kubectl(*scale, "--replicas=1")


def told(installation: Installation, about: Object, reason: str) -> list[str]:
    """What events of this reason say about an object, once there is one."""
    fields = f"involvedObject.uid={uid_of(about)}"
    selection = Selection(namespace=name_of(about).namespace, fields=fields)

    def look() -> list[str]:
        listed = installation.cluster.list(EVENTS, selection).items
        return [str(one["message"]) for one in listed if one["reason"] == reason]

    return eventually(
        f"{reason} is said of {name_of(about)}",
        look,
        timeout_s=TOLD_S,
        period_s=1.0,
        tell=lambda: status(installation),
    )


def waits(installation: Installation, device: str) -> tuple[Name, Object]:
    """A pod that asks for this device, and its claim once it is allocated."""
    source = installation.claim_template(uuid=installation.uuid(device))
    pod = installation.run(program("say $FLEETSCRUB_DEVICE $N", NOT_ZERO), source)
    claim = eventually(
        "it has its device",
        lambda: (one := installation.claim_of(pod)).get("status", {}).get("allocation") and one,
        timeout_s=30,
    )
    return pod, claim


def runs_on(installation: Installation, pod: Name, device: str) -> None:
    """A pod that has waited runs on its device, and finds zeros."""
    ended = installation.ended(pod, timeout_s=AWAY_S)
    assert ended == [installation.uuid(device), str(MEMORY_BYTES), "0"]


def whole(installation: Installation) -> None:
    """Everybody is Ready and the fleet fit."""
    eventually(
        "all is well again",
        lambda: not installation.unready() and FIT in status(installation),
        timeout_s=AWAY_S,
        period_s=1.0,
        tell=lambda: status(installation),
    )
    assert "coordinator: steps, last step" in status(installation)


def test_f71_a_coordinator_that_hangs_is_told(installation: Installation) -> None:
    """F71: held, it is told since when: by `fleet status` in the standby, by the head's pod, which
    is not Ready, and to the pod that waits and its claim; once it goes on, so does the pod."""
    with held(installation, HEAD, COORDINATOR):
        pod, claim = waits(installation, "gpu-0")
        for about in (claim, installation.pod(pod)):
            (said,) = told(installation, about, REASON)
            assert "has said nothing since 20" in said
        head = installation.part(HEAD)
        silent = "the coordinator has not reported for"
        assert [one for one in told(installation, head, "Unhealthy") if silent in one]
        assert [one for one in installation.unready() if name_of(head).name in one]
        said = " ".join(installation.fleet("status", good=(1,)).split())
        assert "UNFIT" in said
        assert "the coordinator is gone: it last reported at 20" in said
        assert f"strict pods wait: {liveness.START}" in said
        assert workloads.phase(installation.pod(pod)) == "Pending"
    runs_on(installation, pod, "gpu-0")
    whole(installation)


def test_f71_a_right_it_needs_is_told(installation: Installation) -> None:
    """F71: without the right to say that a device is ready, it is told which right of which
    account, wherever a coordinator that hangs is; granted again, the pod runs."""
    (grant,) = [
        one for one in grants(installation, ACCOUNT) if one.words == "patch resourceclaims/status"
    ]
    text = f"lacks a right: {grant.told(ACCOUNT)[0]}"
    with without(installation, [grant]):
        pod, claim = waits(installation, "gpu-0")
        for about in (claim, installation.pod(pod)):
            (said,) = told(installation, about, REASON)
            assert text in said
        head = installation.part(HEAD)
        assert [one for one in told(installation, head, "Unhealthy") if text in one]
        said = " ".join(installation.fleet("status", good=(1,)).split())
        assert f"{text}: {liveness.GRANT}" in said
    runs_on(installation, pod, "gpu-0")
    whole(installation)


def test_f71_a_tenant_ends_without_a_head(installation: Installation) -> None:
    """F71: with no pod of Ray's head at all a tenant ends and its device is wiped, and `fleet
    status` says that pods wait; one that has waited runs once there is a head again."""
    pod, memory = tenant(installation, secrets.token_hex(16), installation.uuid("gpu-1"))
    with no_head(installation):
        installation.delete(pod)
        assert not memory.read_bytes().strip(b"\0")
        said = eventually(
            "status says who is missed",
            lambda: " ".join(installation.fleet("status", good=(1,)).split()),
            timeout_s=TOLD_S,
        )
        assert f"strict pods wait: {liveness.START}" in said
        pod, _ = waits(installation, "gpu-1")
    runs_on(installation, pod, "gpu-1")
    whole(installation)
