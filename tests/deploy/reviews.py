"""Admission of writes as an API server would do it: recorded from our code, judged by policies.

A policy is judged with the CEL library of the product. What that lacks (optional fields, and types
of the API) our policies do without; tests/e2e puts the same ones to a real server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import cel
import yaml  # type: ignore[import-untyped] # ships no types

from fleet.kube.base import Name, Object, PatchKind, Resource, name_of
from tests.lab.apiserver.access import Caller
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine, Target

NODE_NAME = "authentication.kubernetes.io/node-name"
"""Extra of a token that is bound to a pod: the node it runs on."""
FAILURES = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Review:
    """One write as admission sees it: whole objects, before and after."""

    operation: str
    resource: str
    """``plural`` or ``plural/subresource``."""
    user: str
    node: str = ""
    """The node the caller's token is bound to."""
    new: Object | None = None
    old: Object | None = None

    def by(self, user: str, node: str = "") -> Review:
        """The same write of somebody else."""
        return replace(self, user=user, node=node)

    def changed(self, change: Callable[[Object], object]) -> Review:
        """The same write with something else in the object afterwards."""
        found = deepcopy(self.new)
        assert found is not None
        change(found)
        return replace(self, new=found)


def policies(*files: Path) -> list[Object]:
    """All ValidatingAdmissionPolicies in these files."""
    found = [one for path in files for one in yaml.safe_load_all(path.read_text())]
    return [one for one in found if one["kind"] == "ValidatingAdmissionPolicy"]


def refused(review: Review, among: Sequence[Object]) -> list[str]:
    """What the policies say against a write; empty: it is let in."""
    return [told for policy in among for told in _judged(policy, review)]


def _judged(policy: Object, review: Review) -> Iterator[str]:
    spec = policy["spec"]
    rules = spec["matchConstraints"]["resourceRules"]
    if not any(_matches(rule, review) for rule in rules):
        return
    seen = {"request": _request(review), "object": review.new, "oldObject": review.old}
    try:
        for condition in spec.get("matchConditions", ()):
            if _evaluated(condition["expression"], seen) is not True:
                return
    except FAILURES as error:
        yield f"{policy['metadata']['name']}: {condition['name']}: {error}"
        return
    variables: dict[str, Any] = {}
    for one in spec.get("variables", ()):
        try:
            variables[one["name"]] = _evaluated(one["expression"], seen | {"variables": variables})
        except FAILURES:
            continue
    seen["variables"] = variables
    for rule in spec["validations"]:
        try:
            if _evaluated(rule["expression"], seen) is True:
                continue
            said = rule.get("message") or _evaluated(rule["messageExpression"], seen)
        except FAILURES as error:
            said = f"error: {error}"
        yield f"{policy['metadata']['name']}: {said}"


def _matches(rule: Object, review: Review) -> bool:
    return review.operation in rule["operations"] and review.resource in rule["resources"]


def _request(review: Review) -> Object:
    extra = {NODE_NAME: [review.node]} if review.node else {}
    who = {"username": review.user, **({"extra": extra} if extra else {})}
    return {"operation": review.operation, "userInfo": who}


def _evaluated(expression: str, seen: Mapping[str, Any]) -> Any:
    return _compiled(expression).execute(cel.Context(dict(seen), {}))


@cache
def _compiled(expression: str) -> cel.Program:
    return cel.compile(expression)


@dataclass
class Recorded:
    """The writes of a recorder, in order."""

    reviews: list[Review] = field(default_factory=list)

    def of(self, resource: str, operation: str = "UPDATE") -> list[Review]:
        """Those of one resource and operation."""
        return [r for r in self.reviews if (r.resource, r.operation) == (resource, operation)]


class Recorder(MemoryCluster):
    """The API server's stand-in, with everything that was written as admission would see it."""

    def __init__(self, engine: Engine, caller: Caller) -> None:
        super().__init__(engine, caller=caller)
        self.recorded = Recorded()

    def create(self, resource: Resource, body: Object) -> Object:
        """As the port says."""
        found = super().create(resource, body)
        self._keep("CREATE", resource.plural, new=found)
        return found

    def replace(self, resource: Resource, body: Object, *, subresource: str = "") -> Object:
        """As the port says."""
        old = self._now(resource, name_of(body))
        found = super().replace(resource, body, subresource=subresource)
        self._keep("UPDATE", _path(resource, subresource), new=found, old=old)
        return found

    def apply(
        self, resource: Resource, body: Object, *, manager: str, subresource: str = ""
    ) -> Object:
        """As the port says."""
        old = self._now(resource, name_of(body))
        found = super().apply(resource, body, manager=manager, subresource=subresource)
        self._keep("UPDATE", _path(resource, subresource), new=found, old=old)
        return found

    def patch(
        self, resource: Resource, name: Name, body: Any, *, kind: PatchKind, subresource: str = ""
    ) -> Object:
        """As the port says."""
        old = self._now(resource, name)
        found = super().patch(resource, name, body, kind=kind, subresource=subresource)
        self._keep("UPDATE", _path(resource, subresource), new=found, old=old)
        return found

    def delete(
        self, resource: Resource, name: Name, *, uid: str = "", resource_version: str = ""
    ) -> None:
        """As the port says."""
        old = self._now(resource, name)
        super().delete(resource, name, uid=uid, resource_version=resource_version)
        self._keep("DELETE", resource.plural, old=old)

    def _now(self, resource: Resource, name: Name) -> Object:
        return self.engine.get(Target(resource, name))

    def _keep(
        self, operation: str, resource: str, *, new: Object | None = None, old: Object | None = None
    ) -> None:
        who = self._caller
        review = Review(operation, resource, who.user, who.node, deepcopy(new), deepcopy(old))
        self.recorded.reviews.append(review)


def _path(resource: Resource, subresource: str) -> str:
    return "/".join(filter(None, (resource.plural, subresource)))
