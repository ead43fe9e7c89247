"""The campaign of the CronJob, run once by hand as docs/install.md says."""

from __future__ import annotations

import json

import pytest

from fleet.kube.base import PODS
from tests.e2e.polling import eventually
from tests.e2e.workloads import STAY, program
from tests.e2e_chart.installation import DEVICES, RELEASE, Installation

pytestmark = pytest.mark.timeout(600)
JOB = "scrub-now"


def test_the_campaign_wipes_what_is_free(installation: Installation) -> None:
    """`kubectl create job --from=cronjob/...` ends well: every free device is wiped and has a
    certificate of that run, and the one a tenant has is left alone and named as busy."""
    taken = installation.uuid("gpu-1")
    pod = installation.run(program(STAY), installation.claim_template(uuid=taken))
    installation.in_phase(pod, "Running")
    before = {name: len(installation.plugin.certificates(name)) for name in names()}
    try:
        installation.kubectl("create", "job", f"--from=cronjob/{RELEASE}-campaign", JOB)
        eventually(
            "the campaign has ended",
            lambda: installation.kubectl(
                "get", "job", JOB, "--output", "jsonpath={.status.conditions[*].type}"
            ),
            timeout_s=180,
            period_s=0.5,
        )
        said = installation.kubectl("logs", f"job/{JOB}")
        report, _ = json.JSONDecoder().raw_decode(said[said.index("{\n") :])
        ended = installation.kubectl("get", "job", JOB, "--output", "jsonpath={.status.succeeded}")
        assert ended == "1", report
        assert (report["exit_reason"], report["exit_code"]) == ("complete", 0), report
        outcomes = {one["device"]: one["outcome"] for one in report["devices"]}
        assert sorted(outcomes) == names(), report
        assert outcomes.pop("gpu-1") == "in-use"
        assert set(outcomes.values()) == {"certified"}
        for name in names():
            new = installation.plugin.certificates(name)[before[name] :]
            assert [one.predicate.get("run") for one in new] == (
                [] if name == "gpu-1" else [report["run"]]
            )
        assert installation.pod(pod)["status"]["phase"] == "Running"
    finally:
        installation.kubectl("delete", "job", JOB, "--ignore-not-found")
        installation.cluster.delete(PODS, pod)


def names() -> list[str]:
    """The devices of the node."""
    return [f"gpu-{number}" for number in range(DEVICES)]
