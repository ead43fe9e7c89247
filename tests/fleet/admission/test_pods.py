"""The rules for pods; what they find in whole manifests is the corpus' affair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet.admission.ground import CAPABILITIES, Ground
from fleet.admission.pods import RULES
from fleet.kube.shapes import PodSpec, Workload

GROUND = Ground()
BY_ID = {rule.id: rule for rule in RULES}
CLAIM = {"name": "device", "resourceClaimTemplateName": "t"}


def found(rule: str, spec: dict[str, Any], ground: Ground = GROUND) -> list[str]:
    """The places of what a rule finds in a plain pod of this spec."""
    pod = Workload({"kind": "Pod"}, (PodSpec({"spec": spec}, ("spec",)),))
    return [finding.place for finding in BY_ID[rule].findings(pod, ground)]


@pytest.mark.parametrize("path", ["/", "/dev", "/srv/data", "dev", "/var/lib/fleetscrub", ""])
def test_every_path_of_the_host_is_refused(path: str) -> None:
    """A5: whatever it is called, since a pod that writes to it can put a link there."""
    volume = {"name": "v", "hostPath": {"path": path}}
    assert found("A5-host-path", {"volumes": [{"name": "u"}, volume]}) == [
        "spec.volumes[1].hostPath"
    ]


def test_a_pod_of_wrong_types_is_told_and_hides_nothing() -> None:
    """B20: what cannot be judged is a finding, and what stands beside it is judged."""
    wrong = {
        "name": "a",
        "securityContext": {"privileged": True},
        "env": [{"name": 3, "value": "x"}],
    }
    assert found("A5-runtime-devices", {"containers": [wrong]}) == ["spec.containers[0].env[0]"]
    assert found("A5-privileged", {"containers": [wrong]}) == [
        "spec.containers[0].securityContext.privileged"
    ]


def test_each_namespace_of_the_host_is_told() -> None:
    """A5: /proc/<pid>/root of a process of the host is the host; false shares nothing."""
    shared = {"hostPID": True, "hostIPC": True, "hostNetwork": True, "hostUsers": True}
    assert found("A5-host-namespace", shared) == [
        "spec.hostPID",
        "spec.hostIPC",
        "spec.hostNetwork",
    ]
    assert found("A5-host-namespace", dict.fromkeys(shared, False)) == []


def test_only_capabilities_that_open_nothing_may_be_added() -> None:
    """A5, F16: those of the ground, with or without prefix, in whatever case."""
    good = ["CHOWN", "cap_chown", "Kill", *CAPABILITIES]
    bad = ["sys_admin", "CAP_SYS_MODULE", "All", "MKNOD", "BPF", "CHOWN2", "CHOWN\n", ""]
    context = {"capabilities": {"add": [*good, *bad]}}
    places = found("A5-capability", {"containers": [{"name": "c", "securityContext": context}]})
    before = "spec.containers[0].securityContext.capabilities.add"
    assert places == [f"{before}[{len(good) + index}]" for index in range(len(bad))]


def test_the_default_of_the_grace_period_counts_as_the_server_writes_it() -> None:
    """D1: without one it is 30 s; where that is enough lint still asks to say it, for the day the
    budget grows."""
    silent = {"resourceClaims": [CLAIM]}
    long = replace(GROUND, wipe_budget_s=31)
    assert found("D1-grace-period", silent, long) == ["spec"]
    assert found("D1-explicit", silent, long) == []
    assert found("D1-grace-period", silent) == []
    assert found("D1-explicit", silent) == ["spec"]
    assert found("D1-explicit", {}) == []


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
    assert found("C4-container-claims", spec) == ["spec.resourceClaims[1]"]
    assert found("C4-container-request", spec) == ["spec.containers[0].resources.claims[0]"]


def test_a_claim_says_once_which_it_is() -> None:
    """C4: a claim or a template, by a name that is one; neither and both are told."""
    sources: list[dict[str, Any]] = [
        {"resourceClaimName": "c"},
        {"resourceClaimTemplateName": "t"},
        {},
        {"resourceClaimName": "", "resourceClaimTemplateName": ""},
        {"resourceClaimName": "c", "resourceClaimTemplateName": "t"},
    ]
    claims = [{"name": f"device-{index}", **one} for index, one in enumerate(sources)]
    assert found("C4-claim-source", {"resourceClaims": claims}) == [
        f"spec.resourceClaims[{index}]" for index in (2, 3, 4)
    ]
