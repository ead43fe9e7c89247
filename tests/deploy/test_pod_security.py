"""The Pod Security level of a governed namespace: who may loosen it."""

from __future__ import annotations

import pytest

from fleet.kube.base import Object
from tests.deploy.manifests import ROOT
from tests.deploy.reviews import Review, policies, refused
from tests.deploy.test_admin_access import ADMIN, CLUSTER_WIDE, TENANT

FILE = ROOT / "helm" / "fleetscrub" / "namespaces" / "pod-security.yaml"
LEVEL = "pod-security.kubernetes.io/enforce"
VERSION = "pod-security.kubernetes.io/enforce-version"


def namespace(level: str = "", version: str = "", **labels: str) -> Object:
    """A governed namespace with this level."""
    told = {LEVEL: level, VERSION: version, "fleetscrub.dev/governed": "true", **labels}
    return {"metadata": {"name": "lab", "labels": {k: v for k, v in told.items() if v}}}


def judged(user: str, new: Object, old: Object, path: str = "namespaces") -> list[str]:
    """What the policy has against it."""
    found = policies(FILE)
    for policy in found:
        (rule,) = policy["spec"]["validations"]
        assert rule["expression"].count(CLUSTER_WIDE) == 1
        may = f"request.userInfo.username == '{ADMIN}'"
        rule["expression"] = rule["expression"].replace(CLUSTER_WIDE, may)
    return refused(Review("UPDATE", path, user, new=new, old=old), found)


@pytest.mark.parametrize("path", ["namespaces", "namespaces/status", "namespaces/finalize"])
def test_f68_only_cluster_wide_rights_loosen_the_pod_security_level(path: str) -> None:
    """F68: a role in a governed namespace neither removes nor loosens its Pod Security level, nor
    pins an older version of it; it may make it stricter, and change every other label."""
    bare: Object = {"metadata": {"name": "lab"}}
    for new, old in (
        (namespace(), namespace("baseline")),
        (bare, namespace("baseline")),
        (namespace("privileged"), namespace("baseline")),
        (namespace("baseline"), namespace("restricted")),
        (namespace("privileged"), namespace()),
        (namespace("baseline"), namespace()),
        (namespace("baseline", "v1.0"), namespace("baseline")),
        (namespace("restricted", "v1.0"), namespace("baseline", "latest")),
        (namespace("baseline"), namespace("baseline", "v1.36")),
    ):
        (told,) = judged(TENANT, new, old, path)
        assert "keeps its Pod Security level" in told
        assert judged(ADMIN, new, old, path) == []
    for new, old in (
        (namespace("baseline", team="a"), namespace("baseline")),
        (namespace("baseline"), namespace("baseline", team="a")),
        (namespace("restricted"), namespace("baseline")),
        (namespace("restricted"), namespace()),
        (namespace("baseline"), namespace("privileged")),
        (namespace("baseline", "latest"), namespace("baseline", "v1.30")),
        (namespace(team="a"), namespace()),
        ({"metadata": {"name": "lab", "labels": {LEVEL: "privileged"}}}, bare),
    ):
        assert judged(TENANT, new, old, path) == [], (new, old)
