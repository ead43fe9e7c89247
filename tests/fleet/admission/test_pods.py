"""The rules for pods; what they find in whole manifests is the corpus' affair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet.admission.ground import Ground
from fleet.admission.pods import RULES
from fleet.admission.shapes import PodSpec

GROUND = Ground()
BY_ID = {rule.id: rule for rule in RULES}
CLAIM = {"name": "device", "resourceClaimTemplateName": "t"}


def found(rule: str, spec: dict[str, Any], ground: Ground = GROUND) -> list[str]:
    """The places of what a rule finds in the spec of a plain pod."""
    pod = PodSpec(spec, ("spec",), replicated=False)
    return [finding.place for finding in BY_ID[rule].findings(pod, ground)]


@pytest.mark.parametrize(
    "path",
    ["/", "//", "/dev", "/dev/", "//dev", "/./dev/shm", "/dev/nvidia0", "/proc/1/root", "/sys",
     "/run/x", "/var", "/var/run", "/var/./run/docker.sock", "/etc", "/etc/cdi/x", "/var/lib",
     "/var/lib/kubelet/plugins"],
)  # fmt: skip
def test_a_path_to_devices_is_seen_however_it_is_written(path: str) -> None:
    """A5: the directory itself, what is below it, each parent, and spellings that lead there."""
    volume = {"name": "v", "hostPath": {"path": path}}
    assert found("A5-host-path", {"volumes": [volume]}) == ["spec.volumes[0].hostPath.path"]


@pytest.mark.parametrize(
    "path", ["/devices", "/data/dev", "/etc/ssl", "/var/log", "/var/lib/mine", "/running", "/srv"]
)
def test_a_path_that_leads_elsewhere_is_left_alone(path: str) -> None:
    """A5: a name that only begins or ends like one of ours opens nothing."""
    assert found("A5-host-path", {"volumes": [{"name": "v", "hostPath": {"path": path}}]}) == []


def test_a_capability_is_seen_however_it_is_written() -> None:
    """A5: with or without its prefix, in whatever case; one that opens nothing is left alone."""
    names = ["CHOWN", "sys_admin", "CAP_SYS_ADMIN", "All", "SYS_ADMINISTRATOR"]
    context = {"capabilities": {"add": names}}
    places = found("A5-capability", {"containers": [{"name": "c", "securityContext": context}]})
    assert [place[-3:] for place in places] == ["[1]", "[2]", "[3]"]


def test_the_default_of_the_grace_period_counts_as_the_server_writes_it() -> None:
    """D1: without one it is 30 s; where that is enough lint still asks to say it, for the day the
    budget grows."""
    silent = {"resourceClaims": [CLAIM]}
    assert found("D1-grace-period", silent) == ["spec"]
    assert found("D1-explicit", silent) == []
    short = replace(GROUND, wipe_budget_s=30)
    assert found("D1-grace-period", silent, short) == []
    assert found("D1-explicit", silent, short) == ["spec"]
    assert found("D1-explicit", {}, short) == []


@pytest.mark.parametrize("budget", [0, 1, 30])
def test_a_grace_period_of_nothing_is_never_enough(budget: int) -> None:
    """D1: 0 is refused whatever the budget is."""
    spec = {"resourceClaims": [CLAIM], "terminationGracePeriodSeconds": 0}
    ground = replace(GROUND, wipe_budget_s=budget)
    assert found("D1-grace-period", spec, ground) == ["spec.terminationGracePeriodSeconds"]


def test_each_container_and_claim_is_told_by_itself() -> None:
    """C4: a claim nobody uses, and each use that names no request."""
    spec = {
        "resourceClaims": [CLAIM, {**CLAIM, "name": "spare"}],
        "containers": [{"name": "a", "resources": {"claims": [{"name": "device"}]}}],
    }
    assert found("C4-container-claims", spec) == [
        "spec.containers[0].resources.claims[0]",
        "spec.resourceClaims[1]",
    ]
