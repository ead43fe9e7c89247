"""The nodes, and so the claims, that one of several coordinators is responsible for.

A coordinator is given a label selector over Nodes. A claim is its own if all nodes it was given
devices of are, or those that our hold on it names; one that names no node is everybody's, for
nothing is decided about it but to take away what is left of us. Who is responsible can change at
any moment, and two may be for a while: each write is guarded and nodes fence by token, so that is
the same as two coordinators without selectors.

A Node that is gone counts as it was last seen: its claims go on to be its coordinator's. One that
this coordinator never saw is nobody's: it may be served by another one, and a claim of it is only
ended by an operator (`fleet node forget`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fleet.control.binding.loop import Surveyed, Views
from fleet.control.binding.object_cache import Cached
from fleet.core import errors
from fleet.core.labels import LabelSelector
from fleet.kube.base import Object, name_of
from fleet.kube.claim import ClaimReading
from fleet.kube.marks import Marks


class Charge:
    """What a coordinator is responsible for; without a selector everything. For one thread, but
    `has_node`, which any may ask."""

    def __init__(
        self,
        marks: Marks | None = None,
        nodes: Cached | None = None,
        selector: LabelSelector | None = None,
        *,
        until_verified: bool = False,
        beside: Sequence[LabelSelector] = (),
    ) -> None:
        """`nodes`: all Nodes, whose changes nobody else takes. `until_verified`: a finalizer stays
        on a claim until its devices are clean (D3), which only their node's coordinator knows.
        `beside`: of all coordinators, where they are known."""
        self._marks = marks
        self._nodes = nodes
        self.selector = selector
        self._until_verified = until_verified
        self._beside = tuple(beside)
        self._mine: dict[str, bool] = {}
        """By name of each Node ever seen."""
        self._nobodys: set[str] = set()
        """Of these, those that none of all coordinators is known to select."""
        self._moved: set[str] = set()

    @property
    def whole(self) -> bool:
        """Whether it is responsible for every node there is or was."""
        return self.selector is None

    @property
    def ready(self) -> bool:
        """Whether all Nodes are known."""
        return self.whole or (self._nodes is not None and self._nodes.synced)

    def has_node(self, name: str) -> bool:
        """Whether the node's claims are its own."""
        return self.whole or self._mine.get(name, False)

    def knows(self, name: str) -> bool:
        """Whether it can tell whose the node is."""
        return self.whole or (name in self._mine and name not in self._nobodys)

    def has(self, reading: ClaimReading) -> bool:
        """Whether it decides about the claim."""
        if self.whole:
            return True
        if places := self.places(reading):
            return all(map(self.has_node, places))
        return not (self._until_verified and reading.finalizer)

    def places(self, reading: ClaimReading) -> Collection[str]:
        """The nodes that tell whose a claim is; none: it has no device and no hold of ours."""
        return {one.node for one in reading.devices} or self._held(reading)

    def moved(self) -> frozenset[str]:
        """Nodes that came under it, or left it, since the last call."""
        self.refresh()
        moved, self._moved = frozenset(self._moved), set()
        return moved

    def refresh(self) -> None:
        """Take in what changed of Nodes."""
        if self.selector is None or self._nodes is None:
            return
        for uid in self._nodes.take():
            found = self._nodes.get(uid)
            if found is None:
                continue
            name, labels = name_of(found).name, labels_of(found)
            mine = self.selector.matches(labels)
            if self._mine.get(name, False) is not mine:
                self._moved.add(name)
            self._mine[name] = mine
            self._nobodys.discard(name)
            if self._beside and not mine and not any(o.matches(labels) for o in self._beside):
                self._nobodys.add(name)

    def _held(self, reading: ClaimReading) -> Collection[str]:
        if not reading.held or self._marks is None:
            return ()
        entries = reading.raw["status"]["reservedFor"]
        return {str(one.get("name", "")) for one in entries if self._marks.is_hold(one)}


class ChargedNodes:
    """The nodes of a charge, as a survey asks them."""

    def __init__(self, nodes: Surveyed, charge: Charge) -> None:
        self._nodes = nodes
        self._charge = charge

    def names(self) -> Collection[str]:
        """Those that exist and are of the charge. Raises `ApiUnavailable` before Nodes are known:
        nothing is decided about a claim whose node nobody knows."""
        if not self._charge.ready:
            raise errors.ApiUnavailable("nodes are not known yet: the first list is awaited")
        self._charge.refresh()
        return tuple(filter(self._charge.has_node, self._nodes.names()))

    def views(self, asked: Mapping[str, Sequence[str]]) -> Views:
        """As the nodes answer."""
        return self._nodes.views(asked)


def labels_of(node: Object) -> Mapping[str, str]:
    """The labels of an object; none where they cannot be understood."""
    found = node.get("metadata", {}).get("labels")
    return found if isinstance(found, dict) else {}
