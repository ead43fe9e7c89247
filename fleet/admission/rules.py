"""The table of all rules, and an object judged by it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from fleet.admission import claims, classes, invented, pods
from fleet.admission.ground import Ground
from fleet.admission.rule import Finding, Rule
from fleet.kube import shapes

RAW = frozenset({"parameters"})
"""Fields that the API server keeps as they were written."""


class Subject(StrEnum):
    """What a rule looks at."""

    PODS = "pods"
    CLAIMS = "claims"
    CLASSES = "classes"
    NAMES = "names"


TABLE: Mapping[Subject, tuple[Rule[Any], ...]] = {
    Subject.PODS: pods.RULES,
    Subject.CLAIMS: claims.RULES,
    Subject.CLASSES: classes.RULES,
    Subject.NAMES: invented.RULES,
}
LINT_ONLY = frozenset(rule.id for rules in TABLE.values() for rule in rules if rule.cel is None)
"""Ids of the rules in which admission has no part."""


def judge(
    document: shapes.Object, ground: Ground, *, requester: str | None = None
) -> list[Finding]:
    """Every rule that an object breaks, with where; `requester`: who asks, None: any tenant.

    An object of a kind or group that no rule is for breaks none.
    """
    found = settled(document)
    return list(_findings(found, ground, requester)) if is_judged(found, ground) else []


def is_judged(document: shapes.Object, ground: Ground) -> bool:
    """Whether the rules hold where the object lives: not in our own namespace, nor kube-system."""
    return namespace(document) not in ground.own_namespaces


def namespace(document: shapes.Object) -> str:
    """The namespace an object says it is for."""
    return shapes.text(shapes.mapping(document, "metadata"), "namespace")


def settled(value: Any) -> Any:
    """As the API server stores it: a field that is null is a field that is not there."""
    if isinstance(value, Mapping):
        return {
            key: one if key in RAW else settled(one)
            for key, one in value.items()
            if one is not None
        }
    return [settled(one) for one in value] if isinstance(value, list) else value


def _findings(document: shapes.Object, ground: Ground, requester: str | None) -> Iterator[Finding]:
    subjects: Mapping[Subject, list[Any]] = {
        Subject.NAMES: [document],
        Subject.PODS: [made] if (made := shapes.workload(document)) else [],
        Subject.CLAIMS: list(shapes.claims(document)),
        Subject.CLASSES: list(shapes.classes(document)),
    }
    for subject, views in subjects.items():
        for view in views:
            for rule in TABLE[subject]:
                yield from rule.findings(view, ground, requester)
