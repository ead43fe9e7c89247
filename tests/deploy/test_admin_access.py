"""The label that lets a namespace look into devices: who may set it."""

from __future__ import annotations

import pytest

from fleet.kube.base import Object
from tests.deploy.manifests import ROOT
from tests.deploy.reviews import Review, policies, refused

FILE = ROOT / "helm" / "fleetscrub" / "namespaces" / "admin-access.yaml"
CLUSTER_WIDE = "authorizer.group('').resource('namespaces').check('update').allowed()"
"""What the real server asks its authorizer; here whoever is called so may."""
ADMIN, TENANT = "cluster-admin", "owner-of-the-namespace"
LABEL = "resource.kubernetes.io/admin-access"


def namespace(**labels: str) -> Object:
    """A namespace with these labels."""
    return {"metadata": {"name": "lab", **({"labels": labels} if labels else {})}}


def judged(user: str, new: Object, old: Object | None, path: str = "namespaces") -> list[str]:
    """What the policy has against it."""
    found = policies(FILE)
    for policy in found:
        (rule,) = policy["spec"]["validations"]
        assert rule["expression"] == CLUSTER_WIDE
        rule["expression"] = f"request.userInfo.username == '{ADMIN}'"
    return refused(Review("UPDATE" if old else "CREATE", path, user, new=new, old=old), found)


@pytest.mark.parametrize("path", ["namespaces", "namespaces/status", "namespaces/finalize"])
@pytest.mark.parametrize("label", [LABEL, "resource.k8s.io/admin-access"])
def test_f60_only_cluster_wide_rights_label_a_namespace_for_admin_access(
    label: str, path: str
) -> None:
    """F60: a role in a namespace cannot label it for admin access; an administrator can, and
    whoever changes anything else of it, or takes the label off, is not hindered."""
    plain, labelled = namespace(team="a"), {"metadata": {"name": "lab", "labels": {label: "true"}}}
    off = {"metadata": {"name": "lab", "labels": {label: "false"}}}
    for old in (plain, namespace(), off):
        (told,) = judged(TENANT, labelled, old, path)
        assert "cluster-wide" in told
        assert judged(ADMIN, labelled, old, path) == []
    more = {"metadata": {"name": "lab", "labels": {label: "true", "team": "a"}}}
    assert judged(TENANT, more, labelled, path) == []
    assert judged(TENANT, plain, labelled, path) == []
    assert judged(TENANT, plain, namespace(), path) == []
    if path == "namespaces":
        assert judged(TENANT, labelled, None)
        assert judged(TENANT, plain, None) == []
