"""Who may do what: a small model of RBAC with the granular rights on a claim's status. Pure.

Kubernetes 1.36 asks for more than `resourceclaims/status`: a right per driver for status.devices
and a cluster-wide one for the allocation. A missing one is answered 422, not 403 (measured).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.kube.base import Object
from tests.lab.apiserver.refusal import FORBIDDEN, Cause

ADMIN = "kubernetes-admin"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request. `manager` is the field manager of writes that name none."""

    user: str = ADMIN
    node: str = ""
    """The node a service account's token is bound to, "" for an unbound one."""
    manager: str = "unknown"
    exact: bool = False
    """Speaks protobuf, as the scheduler does: what it does not change stays byte by byte."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One grant, as a role and its binding together give it."""

    user: str
    verbs: tuple[str, ...]
    resources: tuple[str, ...]
    """``plural`` or ``plural/subresource``; the API group is not distinguished."""
    names: tuple[str, ...] = ()
    """Empty: all objects."""
    namespace: str = ""
    """Empty: a cluster role binding."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One thing somebody wants to do."""

    verb: str
    resource: str
    name: str = ""
    namespace: str = ""


class Access:
    """Rules per user; users of `admins` may do everything."""

    def __init__(self, rules: Iterable[Rule] = (), *, admins: Iterable[str] = (ADMIN,)) -> None:
        """`rules` may be added to and replaced later through `rules`."""
        self.rules: list[Rule] = list(rules)
        self._admins = frozenset(admins)

    def allows(self, caller: Caller, wish: Wish) -> bool:
        """Whether any rule grants it."""
        if caller.user in self._admins:
            return True
        return any(_grants(rule, caller, wish) for rule in tuple(self.rules))


def _grants(rule: Rule, caller: Caller, wish: Wish) -> bool:
    return (
        rule.user == caller.user
        and (wish.verb in rule.verbs or "*" in rule.verbs)
        and (wish.resource in rule.resources or "*" in rule.resources)
        and (not rule.names or wish.name in rule.names)
        and rule.namespace in ("", wish.namespace)
    )


def status_causes(
    access: Access, caller: Caller, verb: str, *, new: Object, old: Object
) -> list[Cause]:
    """The rights missing for a write of a claim's status; `verb` is update or patch."""
    after, before = new.get("status", {}), old.get("status", {})
    found = []
    keys = ("allocation", "reservedFor")
    if any(after.get(key) != before.get(key) for key in keys):
        wish = Wish(verb, "resourceclaims/binding")
        if not access.allows(caller, wish):
            found.append(_missing("allocation", caller, wish, "at the cluster scope"))
    if before.get("allocation") is not None and after.get("allocation") is None:
        return found
    namespace = str(new["metadata"].get("namespace", ""))
    verbs = [f"arbitrary-node:{verb}"]
    if caller.node and caller.node == _node_of(after.get("allocation")):
        verbs.insert(0, f"associated-node:{verb}")
    for driver in _changed_drivers(after.get("devices", []), before.get("devices", [])):
        wishes = [Wish(name, "resourceclaims/driver", driver, namespace) for name in verbs]
        if not any(access.allows(caller, wish) for wish in wishes):
            place = f'in the namespace "{namespace}"'
            found.append(_missing("devices", caller, wishes[-1], place))
    return found


def _missing(field: str, caller: Caller, wish: Wish, place: str) -> Cause:
    name = f' "{wish.name}"' if wish.name else ""
    verb = f"[{wish.verb}]" if wish.name else wish.verb
    told = (
        f'Forbidden: changing status.{field} requires resource="{wish.resource}", verb="{verb}"'
        f' permission: resourceclaims.resource.k8s.io{name} is forbidden: User "{caller.user}"'
        f' cannot {wish.verb} resource "{wish.resource}" in API group "resource.k8s.io" {place}'
    )
    return Cause(FORBIDDEN, f"status.{field}", told)


def _changed_drivers(
    after: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]
) -> list[str]:
    def of(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
        found: dict[str, list[Mapping[str, Any]]] = {}
        for entry in entries:
            found.setdefault(str(entry.get("driver", "")), []).append(entry)
        return found

    new, old = of(after), of(before)
    return sorted(
        driver for driver in new.keys() | old.keys() if new.get(driver) != old.get(driver)
    )


def _node_of(allocation: Any) -> str:
    """The node of an allocation: one term, one matchFields metadata.name In [node]."""
    if not isinstance(allocation, Mapping):
        return ""
    terms = allocation.get("nodeSelector", {}).get("nodeSelectorTerms", [])
    if len(terms) != 1 or terms[0].get("matchExpressions"):
        return ""
    fields = terms[0].get("matchFields", [])
    if len(fields) != 1 or fields[0].get("key") != "metadata.name":
        return ""
    values = fields[0].get("values", [])
    return str(values[0]) if fields[0].get("operator") == "In" and len(values) == 1 else ""
