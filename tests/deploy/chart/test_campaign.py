"""B51: a scheduled campaign asks nodes, by leases; it never takes devices to have them."""

from __future__ import annotations

import json

import pytest

from fleet.control.campaign import select
from jobs import submit
from tests.deploy.chart import commands, rendering
from tests.deploy.chart.rendering import EVERYTHING, VARIANTS, containers, pods

pytestmark = pytest.mark.chart


def test_b51_no_claim_of_ours_asks_for_all_devices_or_for_admin_access() -> None:
    """B51: the one claim of the chart is one agent device a node; a campaign has none at all."""
    for values in VARIANTS.values():
        found = rendering.objects(values)
        claims = [one for one in found if one["kind"] in ("ResourceClaim", "ResourceClaimTemplate")]
        assert len(claims) == 1
        text = json.dumps(claims)
        assert "ExactCount" in text
        assert '"All"' not in text
        assert "adminAccess" not in text
        for name, template in pods(found):
            asks = "resourceClaims" in template["spec"]
            assert asks == name.endswith("-worker"), name


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_b51_the_campaign_is_a_job_of_rays_over_node_actors(values: rendering.Values) -> None:
    """B51: `fleet scrub` at the dashboard's address submits `jobs.scrub`, which attaches to the
    actors that run and wipes under leases; it has no device, no API token and tolerates no taint
    of ours."""
    (template,) = [t for n, t in pods(rendering.objects(values)) if n.startswith("CronJob/")]
    spec = template["spec"]
    (container,) = containers(template)
    asked = commands.parsed(commands.line(container))
    assert asked["verb"] == "fleet scrub"
    assert asked["address"].startswith("http://")
    assert asked["yes"], "nobody sits at a terminal"
    assert asked["operator"]
    assert not asked["simulate"]
    assert not asked["resume"]
    select.parse(asked["selection"])
    assert "resourceClaims" not in spec
    assert "claims" not in container["resources"]
    assert spec["automountServiceAccountToken"] is False
    assert all("fleetscrub" not in one.get("key", "") for one in spec.get("tolerations", ()))
    assert submit.entrypoint(["--address", "auto"]).startswith("python -P -m jobs.scrub")


def test_an_operator_s_name_is_taken_as_it_is_written() -> None:
    """E2: who answers for a campaign may be called anything, also what YAML would take apart."""
    given: rendering.Values = {"campaign": {"operator": "night: team #2", "timeZone": "Etc/UTC"}}
    cron = rendering.one("CronJob", "fleetscrub-campaign", given)["spec"]
    (container,) = containers(cron["jobTemplate"]["spec"]["template"])
    assert "--operator=night: team #2" in container["args"]
    assert cron["timeZone"] == "Etc/UTC"


def test_b51_two_campaigns_do_not_meet() -> None:
    """E2: one at a time, none late by hours, none repeated by itself, each one bounded."""
    cron = rendering.one("CronJob", "fleetscrub-campaign")["spec"]
    job = cron["jobTemplate"]["spec"]
    assert cron["concurrencyPolicy"] == "Forbid"
    assert cron["startingDeadlineSeconds"] >= 10
    assert job["backoffLimit"] == 0
    assert job["activeDeadlineSeconds"] > 0
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert cron["successfulJobsHistoryLimit"] > 0
    assert cron["failedJobsHistoryLimit"] > 0


def test_without_ray_there_is_no_campaign() -> None:
    """It would have nobody to ask."""
    kinds = {one["kind"] for one in rendering.objects(VARIANTS["without-ray"])}
    assert not {"CronJob", "Deployment", "RayCluster", "Service"} & kinds
