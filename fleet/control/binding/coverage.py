"""Nodes that no coordinator is responsible for, or several: said so, since their claims wait.

Each coordinator knows the selectors of all that its Ray runs, and looks at every node it can reach,
also those of others. So a label that was forgotten shows wherever any coordinator is looked at: in
its trouble (log, status, audit, the alert FleetCoordinatorTrouble) and as an event on the Node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fleet.control.binding.events import Recording
from fleet.control.binding.loop import Views
from fleet.control.binding.object_cache import Cached
from fleet.control.binding.shard import labels_of
from fleet.core import errors
from fleet.core.labels import Labels, LabelSelector
from fleet.kube.base import NODES, Name, name_of
from fleet.kube.events import Kind, Regarding

EVENTS_MAX = 20
"""Nodes told about in one survey: each may cost a write."""
NAMED_MAX = 10
"""Nodes named in the trouble; of the others the number is told."""
REASON = "NoCoordinator"


class Reachable(Protocol):
    """The nodes that can be reached; see `fleet.rpc.nodes.Nodes`."""

    def names(self) -> Collection[str]: ...


@dataclass(frozen=True, slots=True)
class Coverage:
    """A `fleet.control.binding.loop.Follower`."""

    nodes: Reachable
    known: Cached
    """All Nodes."""
    selectors: Sequence[LabelSelector]
    """Of all coordinators of this Ray."""
    events: Recording

    def step(self, views: Views, now: float) -> None:  # noqa: ARG002 - a follower's signature
        """Look at every node. Raises `SettingsInvalid` naming those that are not selected once."""
        if not self.known.synced:
            return
        labels = {name_of(found).name: labels_of(found) for found in self.known.items.values()}
        counted = {name: self._count(labels.get(name)) for name in sorted(self.nodes.names())}
        none = [name for name, count in counted.items() if not count]
        for name in none[:EVENTS_MAX]:
            about = Regarding(NODES, Name(name), name)
            self.events.record(about, REASON, self._told(labels.get(name)), kind=Kind.WARNING)
        if found := [*_wrong(counted)]:
            raise errors.SettingsInvalid(
                "; ".join(found),
                remedy="label these nodes, or change kubernetes.coordinator_nodes",
            )

    def _count(self, labels: Labels | None) -> int:
        """How many select a node of these labels; None: there is no Node object."""
        return 0 if labels is None else sum(one.matches(labels) for one in self.selectors)

    def _told(self, labels: Labels | None) -> str:
        asked = " or ".join(f"`{one.text}`" for one in self.selectors)
        if labels is None:
            return "there is no Node object, so that no coordinator is responsible for its claims"
        return f"no coordinator is responsible for its claims, which wait: it is not {asked}"


def _wrong(counted: Mapping[str, int]) -> Iterator[str]:
    none = [name for name, count in counted.items() if not count]
    several = [name for name, count in counted.items() if count > 1]
    if none:
        yield f"no coordinator is responsible for {_listed(none)}: claims there wait"
    if several:
        yield f"several coordinators are responsible for {_listed(several)}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
