"""Leases given back in the one safe order: closed by the node, seen out of service, released.

A device that went out of service while a claim had it stays under the claim's lease until the
scheduler can see that (promise 6): afterwards the quarantine takes a lease of its own.

A card that was moved stays known to the node it was taken out of, whose word is none about the node
that has it now: a lease goes only where no other node can have its memory (promise 2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.control.binding.claim_judge import OUT
from fleet.control.binding.snapshot import Look
from fleet.control.binding.surroundings import Surroundings
from fleet.core import errors
from fleet.core.leases import Closure
from fleet.core.messages import DeviceView, NodeView
from fleet.core.model import Lease, UnitId
from fleet.kube.claim import read
from fleet.plugin.slices.device_attributes import names

UNDONE_MAX = 64
"""Claims whose leases are given back at one time; the others have their turn soon."""
UNDONE_NODE_MAX = 8
"""Of these at one node, which may have to stop a wipe for each."""
VISIBLE_WAIT_S = 10.0
"""Time, s, a node has to publish a quarantine before its pool is taken over."""
UNSEEN = "a device is out of service, and cannot be seen to be so yet"


def codes_of(device: DeviceView | None) -> tuple[str, ...]:
    """The node's own reasons: a rule that may lift them may lift our mark as well."""
    reasons = device.reasons if device is not None else ()
    return tuple(sorted({reason.code for reason in reasons})) or ("taken-over",)


def _having(node: str, view: NodeView | errors.FleetError | None, lease: Lease) -> str:
    if not isinstance(view, NodeView):
        return f"node {node} may have the card by now, and does not answer"
    has = any(UnitId(unit) in lease.units for one in view.devices for unit in one.units)
    return f"node {node} has the card by now" if has else ""


@dataclass
class Undoing:
    """Gives leases of claims back, however many at a time."""

    around: Surroundings
    look: Look
    _since: dict[tuple[str, str], float] = field(default_factory=dict)
    """Since when the quarantine of a device (node, name) has been waited for."""

    def fitting(self, wanted: Iterable[Sequence[Lease]]) -> Sequence[bool]:
        """Which of these claims' leases have their turn now, first come first served."""
        found: list[bool] = []
        busy: Counter[str] = Counter()
        for leases in wanted:
            nodes = {self.look.where.get(unit, "") for lease in leases for unit in lease.units}
            fits = sum(found) < UNDONE_MAX and all(busy[node] < UNDONE_NODE_MAX for node in nodes)
            found.append(fits)
            busy.update(nodes if fits else ())
        return found

    def undo(self, leases: Sequence[Lease], now: float) -> Sequence[str]:
        """What is left to wait for of each lease, "" when it is given back.

        One batch to the nodes, one look at them, one transaction. Raises the store's errors.
        """
        left = list(self._moved(leases))
        stayed = [place for place, why in enumerate(left) if not why]
        words = self.around.leases.close(
            [leases[place] for place in stayed], self.look.where, self.look.views
        )
        closed: list[Closure | str] = list(left)
        for place, word in zip(stayed, words, strict=True):
            closed[place], left[place] = word, word if isinstance(word, str) else ""
        shut = [place for place, one in enumerate(closed) if isinstance(one, Closure)]
        for place, why in zip(shut, self._unseen([leases[p] for p in shut], now), strict=True):
            left[place] = why
        going = {p: one for p in shut if isinstance(one := closed[p], Closure) and not left[p]}
        for place, why in zip(going, self.around.leases.release([*going.values()]), strict=True):
            left[place] = why
        return left

    def _moved(self, leases: Sequence[Lease]) -> Sequence[str]:
        """Why the memory of each may be another node's by now; "" where it cannot be."""
        asked = [self._elsewhere(lease) for lease in leases]
        known: dict[str, NodeView | errors.FleetError | None] = {**self.look.views}
        missing = {node for nodes in asked for node in nodes} - known.keys()
        if missing:
            known |= self.around.nodes.views(dict.fromkeys(sorted(missing), ()))
        return [
            next(filter(None, (_having(node, known.get(node), one) for node in sorted(nodes))), "")
            for one, nodes in zip(leases, asked, strict=True)
        ]

    def _elsewhere(self, lease: Lease) -> Collection[str]:
        """Nodes, besides its own, that may have memory of a lease: those of its claim where its
        own does not show it in service, all where its own does not show it at all."""
        where = {self.look.where.get(unit, "") for unit in lease.units}
        views = [self.look.views.get(node) for node in where]
        if None in views:
            return ()  # it is waited for
        shown = {UnitId(u): one for v in views if v for one in v.devices for u in one.units}
        nodes: set[str] = set()
        if any(unit not in shown or shown[unit].state in OUT for unit in lease.units):
            nodes.update(self._places(lease.holder.name))
        if lease.units - shown.keys():
            nodes.update(self.around.nodes.names())
        return nodes - where

    def _places(self, uid: str) -> Collection[str]:
        claim = self.around.claims.get(uid)
        try:
            return () if claim is None else self.around.charge.places(read(claim, self.look.marks))
        except errors.FleetError:
            return ()

    def _unseen(self, leases: Sequence[Lease], now: float) -> Sequence[str]:
        """Why each may not go yet: what the node said before it closed the token may be old."""
        nodes = {self.look.where[unit] for lease in leases for unit in lease.units}
        if not nodes:
            return ()
        found = self.around.nodes.views(dict.fromkeys(sorted(nodes), ()))
        waiting: dict[str, str] = {}
        mine = {unit for lease in leases for unit in lease.units}
        for node, view in found.items():
            if not isinstance(view, NodeView):
                here = {unit for unit in mine if self.look.where[unit] == node}
                waiting |= dict.fromkeys(here, view.detail)
                continue
            shown = names(view.devices)
            out = {shown[d.uuid]: d for d in view.devices if d.state in OUT and mine & {*d.units}}
            for name, why in self._hidden(node, out, now).items():
                waiting |= dict.fromkeys(out[name].units, why)
        return [next((waiting[u] for u in lease.units if u in waiting), "") for lease in leases]

    def _hidden(self, node: str, out: Mapping[str, DeviceView], now: float) -> Mapping[str, str]:
        """Devices out of service that the scheduler may still choose, and why they wait."""
        if not out:
            return {}
        try:
            hidden = self.around.visible.hidden(node, out)
            late = {name for name in hidden if self._waited(node, name, now)}
            codes = {name: codes_of(out[name]) for name in sorted(late)}
            if codes and self.around.visible.take_over(node, codes, now):
                hidden -= late
        except errors.FleetError as error:
            return dict.fromkeys(out, error.detail)
        for name in out.keys() - hidden:
            self._since.pop((node, name), None)
        return dict.fromkeys(hidden, UNSEEN)

    def _waited(self, node: str, name: str, now: float) -> bool:
        since = self._since.setdefault((node, name), now)
        if now < since:
            self._since[node, name] = now
        return now - since >= VISIBLE_WAIT_S
