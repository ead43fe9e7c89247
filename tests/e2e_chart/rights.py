"""The rights of our accounts, as roles and bindings at the API have them, and one taken away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fleet.core.messages import Right
from fleet.kube.base import Name, Object, Resource, Selection, name_of
from tests.e2e_chart.installation import NAMESPACE, RELEASE, Installation

RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class Grant:
    """One verb on one resource, as a role at the API has it."""

    kind: Resource
    role: Name
    group: str
    resource: str
    verb: str

    @property
    def words(self) -> str:
        """As `WORK` and `UNASKED` have it."""
        return f"{self.verb} {self.resource}"

    def told(self, account: str) -> tuple[str, str]:
        """How it is named where `account` lacks it: by us, and by the server."""
        user = f"system:serviceaccount:{NAMESPACE}:{account}"
        ours = Right(verb=self.verb, resource=self.resource, group=self.group, account=user)
        server = f'User "{user}" cannot {self.verb} resource "{self.resource}"'
        return str(ours), server


def kinds(name: str) -> tuple[Resource, Resource]:
    """Kinds of roles, or of their bindings: of the cluster, of a namespace."""
    plural = f"{name.lower()}s"
    return (
        Resource(RBAC, "v1", f"cluster{plural}", f"Cluster{name}", namespaced=False),
        Resource(RBAC, "v1", plural, name, namespaced=True),
    )


def ours(installation: Installation, name: str) -> Iterator[tuple[Resource, Object]]:
    """Roles, or bindings, of the release."""
    labels = f"app.kubernetes.io/instance={RELEASE}"
    for kind in kinds(name):
        space = NAMESPACE if kind.namespaced else ""
        for one in installation.cluster.list(kind, Selection(namespace=space, labels=labels)).items:
            yield kind, one


def accounts(installation: Installation, role: str) -> list[str]:
    """Accounts that have the role by the bindings at the API."""
    return sorted(
        {
            subject["name"]
            for _, one in ours(installation, "RoleBinding")
            if one["roleRef"]["name"] == role
            for subject in one["subjects"]
        }
    )


def grants(installation: Installation, role: str) -> list[Grant]:
    """What the roles of this name grant, right by right. Each rule of ours is of one resource."""
    return [
        Grant(kind, name_of(one), group, resource, verb)
        for kind, one in ours(installation, "Role")
        if name_of(one).name == role
        for rule in one["rules"]
        for (group,), (resource,) in [(rule["apiGroups"], rule["resources"])]
        for verb in rule["verbs"]
    ]


@contextmanager
def without(installation: Installation, taken: Iterable[Grant]) -> Iterator[None]:
    """These rights are taken away; they are back at the end."""
    cluster = installation.cluster
    before: dict[tuple[Resource, Name], list[Object]] = {}
    for one in taken:
        found = cluster.get(one.kind, one.role)
        before.setdefault((one.kind, one.role), found["rules"])
        rules = [_less(rule, one) for rule in found["rules"]]
        cluster.replace(one.kind, {**found, "rules": [each for each in rules if each["verbs"]]})
    try:
        yield
    finally:
        for (kind, role), rules in before.items():
            cluster.replace(kind, {**cluster.get(kind, role), "rules": rules})


def _less(rule: Object, one: Grant) -> Object:
    if (rule["apiGroups"], rule["resources"]) != ([one.group], [one.resource]):
        return rule
    return {**rule, "verbs": [verb for verb in rule["verbs"] if verb != one.verb]}
