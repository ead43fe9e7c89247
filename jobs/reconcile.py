"""Finds what was left behind anywhere and takes it away, in the right order (E7).

Everything is looked at twice: only what is proven to be nobody's both times is touched.
``python -m jobs.reconcile`` is the scheduled form of `fleet reconcile`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from fleet.cli.cluster import Surroundings
from fleet.cli.reach import Fleet
from fleet.control.repair.facts import Facts
from fleet.control.repair.leftovers import Orphan, find
from fleet.control.repair.repair import Hands, Outcome, fix
from fleet.control.repair.survey import LISTED, Sources, gather
from fleet.core import errors
from fleet.core.clock import SystemClock
from fleet.core.messages import Message, Moment
from fleet.evidence import layout
from fleet.kube.claim_holds import Holds
from fleet.node.cdi.directory import SpecDirectory
from fleet.rpc.calls import answer
from fleet.rpc.node_api import NodeApi
from fleet.rpc.nodes import CalledNodes, NodeCall
from fleet.wiring import adapters
from fleet.wiring.plans import NodePlan
from jobs.sweep import each


@dataclass(frozen=True)
class AtHand(CalledNodes):
    """The nodes a verb has reached, asked together."""

    nodes: Mapping[str, NodeApi]

    def names(self) -> Collection[str]:
        """The nodes reached."""
        return tuple(self.nodes)

    def each(self, calls: Mapping[str, NodeCall]) -> Mapping[str, Any | errors.FleetError]:
        """As `CalledNodes.each`."""
        return each(calls, self._answer)

    def _answer(self, call: NodeCall) -> Any:
        if call.node not in self.nodes:
            raise errors.NotOwner(f"node {call.node} cannot be reached from here")
        return answer(call.verb, self.nodes[call.node], call.given)

    def tear_down(self, node: str, uid: str) -> None:
        """Begin the teardown of a claim. Raises `DeviceBusy` once it has begun."""
        if node not in self.nodes:
            raise errors.NotOwner(f"node {node} cannot be reached from here")
        self.nodes[node].unprepare(uid)


@dataclass(frozen=True, slots=True)
class Bench:
    """A fleet and, if there is one, its cluster, as repairs need them."""

    sources: Sources
    hands: Hands
    unasked: str = ""
    """Why the cluster that is served cannot be asked."""


class Reconciliation(Message):
    """What a repair found and did."""

    at: Moment
    dry_run: bool
    simulated: bool
    outcomes: tuple[Outcome, ...] = ()
    silent: dict[str, str] = Field(default_factory=dict)
    """Nodes that did not answer: what is theirs was left."""
    notes: tuple[str, ...] = ()
    """What was not looked at, and why."""
    unseen: bool = False
    """Whether something that should have been looked at was not: more may be left behind."""
    blind: bool = False
    """Whether nothing at all could be looked at."""

    @property
    def exit_code(self) -> int:
        """Nothing is called good that was not seen: 1; 2 where nothing was."""
        return 2 if self.blind else int(bool(self.left) or self.unseen)

    @property
    def left(self) -> tuple[Outcome, ...]:
        """What is still there."""
        return tuple(one for one in self.outcomes if not one.done)


def bench(fleet: Fleet, around: Surroundings) -> Bench:
    """Put together what a repair needs."""
    marks, cluster = around.marks, around.cluster
    nodes = AtHand(fleet.nodes)
    specs = {plan.node: specs_of(plan) for plan in around.plans}
    return Bench(
        Sources(
            marks=marks,
            coordinator=fleet.coordinator,
            nodes=nodes,
            cluster=cluster,
            specs=specs,
            settle_s=around.settings.kubernetes.binding_timeout_s,
        ),
        Hands(
            marks=marks,
            coordinator=fleet.coordinator,
            nodes=nodes,
            cluster=cluster,
            holds=None if cluster is None else Holds(cluster, marks, SystemClock()),
            tear_down=nodes.tear_down,
            specs=specs,
        ),
        unasked=around.unasked,
    )


def specs_of(plan: NodePlan) -> SpecDirectory:
    """Where the specs of a node of this host are."""
    return adapters.specs_of(plan, layout.node_directory(Path(plan.state), plan.node))


def run(found: Bench, *, now: float, dry_run: bool) -> Reconciliation:
    """Look, look again, take away. Raises what the lease store raises."""
    facts = gather(found.sources, now)
    first = find(facts)
    if dry_run:
        outcomes = tuple(_untouched(one) for one in first)
    else:
        facts = gather(found.sources, now) if first else facts
        outcomes = fix(_twice(first, find(facts)), found.hands)
    return Reconciliation(
        at=now,
        dry_run=dry_run,
        simulated=any(view.simulated for view in facts.views.values()),
        outcomes=outcomes,
        silent=dict(facts.silent),
        notes=notes(facts, found.unasked),
        unseen=unseen(facts, found.unasked),
        blind=blind(facts),
    )


def _untouched(one: Orphan) -> Outcome:
    return Outcome(orphan=one, done=False, detail="" if one.proven else one.why)


def _twice(first: Sequence[Orphan], second: Sequence[Orphan]) -> list[Orphan]:
    """What was proven the second time only is not proven yet."""
    proven = {one.key for one in first if one.proven}
    return [
        one
        if one.key in proven or not one.proven
        else one.model_copy(update={"proven": False, "why": f"seen once only: {one.why}"})
        for one in second
    ]


def unseen(facts: Facts, unasked: str = "") -> bool:
    """Whether something that belongs to the fleet could not be looked at."""
    api = facts.api
    return bool(unasked or facts.silent or (api is not None and (api.unknown or api.unclear)))


def blind(facts: Facts) -> bool:
    """Whether nothing at all answered, neither a node nor the API server."""
    api = facts.api
    mute = api is None or set(api.unknown) >= LISTED
    return mute and not facts.views and bool(facts.silent or api is not None)


def notes(facts: Facts, unasked: str = "") -> tuple[str, ...]:
    """What was not looked at. `unasked`: why the cluster that is served was not."""
    if facts.api is None:
        left_out = "claims, holds, finalizers and slices were not looked at"
        why = f" ({unasked})" if unasked else ""
        end = "; name it with --kubeconfig, or say --no-cluster where there is none"
        return (f"no cluster was asked{why}: {left_out}{end if unasked else ''}",)
    told = [f"{kind} were not all read: {why}" for kind, why in facts.api.unknown.items()]
    unread = [f"claim {uid} cannot be understood: {w}" for uid, w in facts.api.unclear.items()]
    return (*told, *unread)


if __name__ == "__main__":
    from fleet.cli.main import run as run_verb

    run_verb("reconcile")
