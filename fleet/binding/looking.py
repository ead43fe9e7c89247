"""Gathering everything known about the claims of one step: one call per node, however many."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet import errors
from fleet.binding.claim import ClaimReading, Key, read
from fleet.binding.decisions import BUSY_S, Decision, PodFact, Rest, Wait
from fleet.binding.facts import Facts, devices_of
from fleet.binding.surroundings import BinderTerms, Surroundings
from fleet.binding.tracking import Track
from fleet.dra import reading as dra
from fleet.kube.base import PODS, Name, uid_of
from fleet.messages import DeviceResult, NodeView
from fleet.model import Lease, UnitId
from fleet.settings import WipePolicy

LOG = logging.getLogger(__name__)
ENDED = frozenset({"Succeeded", "Failed"})
"""Phases of a pod whose containers have all ended."""


@dataclass
class Case:
    """One claim within one step."""

    reading: ClaimReading
    track: Track
    leases: tuple[Lease, ...] = ()
    pods: tuple[PodFact, ...] | None = None
    decision: Decision = field(default_factory=lambda: Rest("it was not looked at"))
    again_s: float | None = None
    """When to look again, s from now; None: when something changes."""

    @property
    def node(self) -> str:
        """The node of its devices; "" without one."""
        return self.reading.nodes[0] if self.reading.nodes else ""

    def put_off(self, why: str, again_s: float) -> None:
        """Nothing more in this step."""
        self.decision, self.again_s = Wait(why, again_s), again_s
        self.track.why = why


class Look:
    """Reads claims, nodes and leases for the steps of a `Binder`."""

    def __init__(self, around: Surroundings, terms: BinderTerms) -> None:
        self._around = around
        self._terms = terms
        self._marks = terms.rules.marks
        self.tracks: dict[str, Track] = {}
        self.views: dict[str, NodeView | None] = {}
        """Nodes as seen last; None for one that did not answer."""
        self.where: dict[UnitId, str] = {}
        """Node of each unit ever seen."""

    def cases(self, uids: Iterable[str]) -> list[Case]:
        """The claims that have anything to do with us."""
        by_claim = self._around.leases.by_claim()
        found = (self._case(uid, tuple(by_claim.get(uid, ()))) for uid in uids)
        return [case for case in found if case is not None]

    def _case(self, uid: str, leases: tuple[Lease, ...]) -> Case | None:
        known = self._around.claims.get(uid)
        try:
            reading = read(known, self._marks) if known is not None else None
        except errors.FleetError as error:
            LOG.warning("claim %s is passed over: %s", uid, error)
            return None
        if reading is None or not (reading.devices or reading.marked or leases):
            self.tracks.pop(uid, None)  # leases left over are found by their holders
            return None
        return Case(reading, self.tracks.setdefault(uid, Track()), leases)

    def ask(self, cases: Iterable[Case]) -> None:
        """Ask the nodes concerned, once each, for all that these claims want to know."""
        asked: dict[str, list[str]] = defaultdict(list)
        for case in cases:
            for node in case.reading.nodes:
                asked[node] += self._operations(case, node)
        if asked:
            found = self._around.nodes.views({node: tuple(ops) for node, ops in asked.items()})
            self.saw({node: found.get(node) for node in asked})

    def saw(self, views: Mapping[str, NodeView | errors.FleetError | None]) -> None:
        """Take in views of nodes, whoever asked for them."""
        for node, view in views.items():
            self.views[node] = view if isinstance(view, NodeView) else None
            for device in view.devices if isinstance(view, NodeView) else ():
                for unit in device.units:
                    self.where[UnitId(unit)] = node

    def _operations(self, case: Case, node: str) -> list[str]:
        """What was, or may have been, ordered for a claim that is not bound yet."""
        known = self.views.get(node)
        token = max((lease.token for lease in case.leases), default=None)
        if known is None or token is None or not case.reading.pods or case.reading.bound:
            return []
        case.track.under(token, case.track.incarnation)
        devices = devices_of(known, case.reading.holding).values()
        return [case.track.operation(case.reading.uid, d.uuid) for d in devices if d is not None]

    def facts(self, case: Case, now: float) -> Facts:
        """Everything known about one claim at `now`."""
        reading, track = case.reading, case.track
        view = self.views.get(case.node)
        lease, others = self._own_lease(case, view)
        stuck = () if view is None else tuple(one for one in others if self._is_silent(one))
        track.under(lease.token if lease else None, view.incarnation if view else track.incarnation)
        results = self._results(case, view)
        unused = not reading.pods and not reading.others
        if not unused:
            track.unused_since = None
        elif track.unused_since is None:
            track.unused_since = now
        refused = track.refused if now < track.refused_until else ""
        return Facts(
            reading=reading,
            now=now,
            lease=lease,
            strays=tuple(one for one in others if one not in stuck),
            stuck=stuck,
            view=view,
            results=results,
            attempts={uuid: number + 1 for uuid, number in track.numbers.items()},
            ordered=frozenset(track.sent - results.keys()),
            refused=refused,
            taken=self._taken(reading, view, refused),
            kept=self._kept(reading),
            unused_s=now - track.unused_since if track.unused_since is not None else 0.0,
            pods=case.pods,
            misconfigured=self.demand(reading)[1],
        )

    def demand(self, reading: ClaimReading) -> tuple[WipePolicy | None, str]:
        """What the claim demands of a wipe beyond our policy; or why it must not be served."""
        if len(reading.nodes) != 1:
            return None, ""
        try:
            found = dra.read(
                reading.raw,
                uid=reading.uid,
                driver=self._marks.driver,
                pool=reading.nodes[0],
                policy=self._terms.wipe,
            )
        except errors.FleetError as error:
            return None, error.detail
        return found.demand.wipe, ""

    def _own_lease(
        self, case: Case, view: NodeView | None
    ) -> tuple[Lease | None, tuple[Lease, ...]]:
        """The lease of exactly the claim's units, and all others it has."""
        leases = sorted(case.leases, key=lambda lease: lease.token)
        if not leases or not case.reading.holding:
            return None, tuple(leases)
        if view is None:
            return leases[-1], tuple(leases[:-1])
        devices = [d for d in devices_of(view, case.reading.holding).values() if d is not None]
        units = {UnitId(unit) for device in devices for unit in device.units}
        own = next((lease for lease in reversed(leases) if lease.units == units), None)
        return own, tuple(lease for lease in leases if lease is not own)

    def _results(self, case: Case, view: NodeView | None) -> Mapping[str, DeviceResult]:
        if view is None:
            return {}
        told = {result.operation: result for result in view.results}
        uid, track = case.reading.uid, case.track
        devices = [d for d in devices_of(view, case.reading.holding).values() if d is not None]
        named = {device.uuid: track.operation(uid, device.uuid) for device in devices}
        return {uuid: told[operation] for uuid, operation in named.items() if operation in told}

    def _is_silent(self, lease: Lease) -> bool:
        """Whether nobody can be asked to close the lease's token now."""
        nodes = {self.where.get(unit) for unit in lease.units}
        return any(node is None or self.views.get(node) is None for node in nodes)

    def _kept(self, reading: ClaimReading) -> bool:
        """Whether a node has yet to take the finalizer off, which stays until it may go (D3)."""
        if not self._terms.rules.until_verified or reading.holding or not reading.finalizer:
            return False
        known = [view for view in self.views.values() if view is not None]
        return any(one.uid == reading.uid for view in known for one in view.owed)

    def _taken(self, reading: ClaimReading, view: NodeView | None, refused: str) -> bool:
        """Whether another claim, which was given one of the same devices, has it already."""
        holders = {refused.removeprefix("claim:")} if refused.startswith("claim:") else set()
        if view is not None:
            ours = devices_of(view, reading.holding).values()
            holders |= {one.claim for one in ours if one is not None and one.claim}
        mine = {one.key for one in reading.holding}
        return any(self._has(uid, mine) for uid in holders - {reading.uid})

    def _has(self, uid: str, devices: Collection[Key]) -> bool:
        found = self._around.claims.get(uid)
        try:
            other = read(found, self._marks) if found is not None else None
        except errors.FleetError:
            return False
        if other is None or other.failed:
            return False
        return any(one.key in devices for one in other.holding)

    def look_up(self, case: Case) -> None:
        """Read the claim's pods."""
        try:
            case.pods = tuple(self._pods(case.reading))
        except errors.FleetError as error:
            case.put_off(f"its pods cannot be read: {error.detail}", BUSY_S)

    def _pods(self, reading: ClaimReading) -> Iterable[PodFact]:
        for pod in reading.pods:
            try:
                found = self._around.cluster.get(PODS, Name(pod.name, reading.name.namespace))
            except errors.ApiNotFound:
                continue
            phase = (found.get("status") or {}).get("phase")
            if uid_of(found) == pod.uid and phase not in ENDED:
                yield PodFact(
                    pod.name,
                    pod.uid,
                    bound=bool((found.get("spec") or {}).get("nodeName")),
                    leaving="deletionTimestamp" in found["metadata"],
                )


def touched(views: Iterable[NodeView | errors.FleetError | None]) -> Sequence[str]:
    """UIDs of claims whose matters on their node need a look: torn down, or about to be let go."""
    found = []
    for view in views:
        if isinstance(view, NodeView):
            found += [claim.uid for claim in view.claims if claim.state == "UNPREPARING"]
            found += [owed.uid for owed in view.owed]
    return found
