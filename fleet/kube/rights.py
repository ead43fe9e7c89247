"""Which rights an account of ours lacks: learnt from the server's refusals, and from nothing else.

A refusal names who may not do what. It stays known until the server says that the right is granted
by now, so that a list which is allowed beside a watch which is not says nothing once a second. It
is said once when it is found missing and once when it is there again. An admission policy that
denies one write is no missing right, and is told where that write was wanted.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fleet.core import errors
from fleet.core.messages import Right
from fleet.kube.base import (
    Cluster,
    Event,
    Listing,
    Name,
    Object,
    PatchKind,
    Resource,
    Selection,
)

LOG = logging.getLogger(__name__)

REVIEWS = Resource(
    "authorization.k8s.io",
    "v1",
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    namespaced=False,
)
EVERYTHING = Selection()
_REFUSED = re.compile(
    r'User "(?P<account>[^"]+)" cannot (?P<verb>[a-z:-]+) resource "(?P<resource>[a-z/]+)"'
    r' in API group "(?P<group>[a-z0-9.]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)
_NAMED = re.compile(r'"(?P<name>[^"]+)" is forbidden: User ')
_ANY_NODE, _OWN_NODE = "arbitrary-node:", "associated-node:"


class Rights:
    """A `fleet.kube.base.Cluster` that notes what is refused to us. Safe for threads."""

    def __init__(self, cluster: Cluster, *, of_node: bool = False) -> None:
        """`of_node`: the account is one node's: what it lacks is never a right over all nodes."""
        self._cluster = cluster
        self._of_node = of_node
        self._lock = threading.Lock()
        self._missing: dict[Right, tuple[str, str]] = {}

    @property
    def missing(self) -> tuple[Right, ...]:
        """Rights found missing and not known to be granted since."""
        with self._lock:
            return tuple(sorted(self._missing, key=str))

    def ask_again(self) -> bool:
        """Ask the server for each right that is missing whether it is granted by now; was one?

        For a thread that may wait; one request for each. Raises nothing.
        """
        news = False
        for right in self.missing:
            try:
                granted = self._granted(right)
            except errors.FleetError as error:
                LOG.debug("whether we may %s is not known: %s", right, error)
                break
            if granted:
                with self._lock:
                    known = self._missing.pop(right, None)
                if known is not None:
                    LOG.warning("the right is granted again: %s", right)
                    news = True
        return news

    def note(self, error: errors.ApiForbidden) -> None:
        """Remember what this refusal says is missing; nothing where it says so of no right."""
        causes = error.fields.get("causes") or ()
        for text in (error.detail, *(str(cause[2]) for cause in causes)):
            if (found := _REFUSED.search(text)) is None:
                continue
            verb, named = _of_account(found["verb"], of_node=self._of_node), _NAMED.search(text)
            right = Right(
                verb=verb,
                resource=found["resource"],
                group=found["group"],
                account=found["account"],
            )
            where = (found["namespace"] or "", named["name"] if named else "")
            with self._lock:
                news = right not in self._missing
                self._missing[right] = where
            if news:
                LOG.warning("a right is missing: %s", right)

    def _granted(self, right: Right) -> bool:
        plural, _, part = right.resource.partition("/")
        with self._lock:
            namespace, name = self._missing.get(right, ("", ""))
        asked = {
            "group": right.group,
            "resource": plural,
            "subresource": part,
            "verb": right.verb,
            "namespace": namespace,
            "name": name,
        }
        body: Object = {"apiVersion": REVIEWS.api_version, "kind": REVIEWS.kind, "metadata": {}}
        body["spec"] = {"resourceAttributes": {key: told for key, told in asked.items() if told}}
        status = self._cluster.create(REVIEWS, body).get("status")
        return isinstance(status, dict) and status.get("allowed") is True

    # --- the cluster -----------------------------------------------------------------------------

    def get(self, resource: Resource, name: Name) -> Object:
        """As `Cluster.get`."""
        with self._noting():
            return self._cluster.get(resource, name)

    def list(self, resource: Resource, selection: Selection = EVERYTHING) -> Listing:
        """As `Cluster.list`."""
        with self._noting():
            return self._cluster.list(resource, selection)

    def watch(
        self,
        resource: Resource,
        selection: Selection = EVERYTHING,
        *,
        timeout_s: float,
        alive: bool = False,
    ) -> Iterator[Event]:
        """As `Cluster.watch`."""
        with self._noting():
            yield from self._cluster.watch(resource, selection, timeout_s=timeout_s, alive=alive)

    def create(self, resource: Resource, body: Object) -> Object:
        """As `Cluster.create`."""
        with self._noting():
            return self._cluster.create(resource, body)

    def replace(self, resource: Resource, body: Object, *, subresource: str = "") -> Object:
        """As `Cluster.replace`."""
        with self._noting():
            return self._cluster.replace(resource, body, subresource=subresource)

    def apply(
        self, resource: Resource, body: Object, *, manager: str, subresource: str = ""
    ) -> Object:
        """As `Cluster.apply`."""
        with self._noting():
            return self._cluster.apply(resource, body, manager=manager, subresource=subresource)

    def patch(
        self,
        resource: Resource,
        name: Name,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        kind: PatchKind,
        subresource: str = "",
    ) -> Object:
        """As `Cluster.patch`."""
        with self._noting():
            return self._cluster.patch(resource, name, body, kind=kind, subresource=subresource)

    def delete(
        self, resource: Resource, name: Name, *, uid: str = "", resource_version: str = ""
    ) -> None:
        """As `Cluster.delete`."""
        with self._noting():
            self._cluster.delete(resource, name, uid=uid, resource_version=resource_version)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except errors.ApiForbidden as error:
            self.note(error)
            raise


def _of_account(verb: str, *, of_node: bool) -> str:
    """The verb as the account's role has it: the server names the one it asked about last, which
    for pods of either account may be that over the pod's own node."""
    wanted, other = (_OWN_NODE, _ANY_NODE) if of_node else (_ANY_NODE, _OWN_NODE)
    return wanted + verb.removeprefix(other) if verb.startswith(other) else verb
