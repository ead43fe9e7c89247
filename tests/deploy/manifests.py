"""The manifests under deploy/, read."""

from __future__ import annotations

import re
from pathlib import Path

import yaml  # type: ignore[import-untyped] # ships no types

from fleet.kube.base import Object, Resource
from tests.lab.apiserver.access import Rule
from tests.lab.apiserver.cluster import MemoryCluster

Right = tuple[str, str, str]
"""Group, resource (with subresource) and verb."""
VERBS = {"replace": "update", "apply": "patch"}
"""Calls of the port whose verb in RBAC has another name."""
ROOT = Path(__file__).parent.parent.parent / "deploy"
FILES = sorted((ROOT / "kubernetes").glob("*.yaml"))


def objects(*names: str) -> list[Object]:
    """All objects of these files, or of every file."""
    chosen = [path for path in FILES if not names or path.name in names]
    return [found for path in chosen for found in yaml.safe_load_all(path.read_text())]


def of_kind(kind: str, *names: str) -> list[Object]:
    """All objects of one kind, in these files or in all."""
    return [found for found in objects(*names) if found["kind"] == kind]


def role(name: str, kind: str = "ClusterRole") -> Object:
    """The role of this name."""
    (found,) = [one for one in of_kind(kind) if one["metadata"]["name"] == name]
    return found


def rights(*roles: Object) -> set[Right]:
    """Every single right of these roles."""
    return {
        (group, resource, verb)
        for one in roles
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def rules(user: str, *roles: Object, without: Right | None = None) -> list[Rule]:
    """The same as the API server's stand-in takes them, for one user."""
    return [
        Rule(
            user,
            (verb,),
            (resource,),
            names=tuple(rule.get("resourceNames", ())),
            namespace=one["metadata"].get("namespace", ""),
        )
        for one in roles
        for rule in one["rules"]
        for group, resource, verb in rights({"rules": [rule]})
        if (group, resource, verb) != without
    ]


def called(cluster: MemoryCluster) -> set[Right]:
    """The right behind every call made."""
    return {
        (
            call.resource.group,
            "/".join(filter(None, (call.resource.plural, call.subresource))),
            VERBS.get(call.verb, call.verb),
        )
        for call in cluster.calls
    }


def resource_of(one: Object) -> Resource:
    """What the API server calls the kind of an object as it is shipped."""
    group, _, version = str(one["apiVersion"]).rpartition("/")
    kind = str(one["kind"])
    plural = re.sub("y$", "ie", kind.lower()) + "s"
    return Resource(group, version, plural, kind, namespaced="namespace" in one["metadata"])
