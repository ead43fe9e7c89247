"""Gathering everything known about the claims of one step: one call per node, however many."""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from fleet.control.binding import pledge
from fleet.control.binding.claim_facts import Facts, devices_of
from fleet.control.binding.decisions import BUSY_S, Decision, PodFact, Rest, Wait
from fleet.control.binding.surroundings import BinderTerms, Surroundings
from fleet.control.binding.tracking import Track, Watch
from fleet.core import errors
from fleet.core.messages import DeviceResult, NodeView
from fleet.core.model import Lease, UnitId
from fleet.core.settings import WipePolicy
from fleet.kube.base import PODS, Cluster, Name, uid_of
from fleet.kube.claim import ClaimReading, Key, read
from fleet.plugin import resource_claim as dra

# Who uses a claim: its pods, read from the API a few at a time.
#
# A claim may be reserved for 256 pods, and whoever owns the namespace decides for how many. Each
# look reads at most `PODS_MAX` of them, and not again before `KEPT_S` is over or the claim has
# changed.

ENDED = frozenset({"Succeeded", "Failed"})
"""Phases of a pod whose containers have all ended."""
PODS_MAX = 8
"""Pods read in one look."""
KEPT_S = 2.0
"""Time, s, for which what was read of an unchanged claim is believed."""
CLAIMS_MAX = 4096
"""Claims whose pods are remembered."""
UNREAD = PodFact("", "", bound=True, leaving=False)
"""Stands for pods that were not read: one of them may be bound, and one may stay."""


@dataclass
class Consumers:
    """Reads pods of claims. For one thread."""

    cluster: Cluster
    _known: OrderedDict[str, tuple[str, float, tuple[PodFact, ...]]] = field(
        default_factory=OrderedDict
    )

    def of(self, reading: ClaimReading, now: float) -> tuple[PodFact, ...]:
        """The live pods of the claim at `now` (s, any clock that does not jump).

        Raises the errors of `Cluster.get` but for pods that are gone.
        """
        version, at, pods = self._known.get(reading.uid, ("", 0.0, ()))
        if version == reading.version and 0 <= now - at < KEPT_S:
            return pods
        found = [self._pod(reading, pod.name, pod.uid) for pod in reading.pods[:PODS_MAX]]
        pods = tuple(pod for pod in found if pod is not None)
        if len(reading.pods) > PODS_MAX:
            pods = (*pods, UNREAD)
        self._known[reading.uid] = (reading.version, now, pods)
        self._known.move_to_end(reading.uid)
        if len(self._known) > CLAIMS_MAX:
            self._known.popitem(last=False)
        return pods

    def _pod(self, reading: ClaimReading, name: str, uid: str) -> PodFact | None:
        try:
            found = self.cluster.get(PODS, Name(name, reading.name.namespace))
        except errors.ApiNotFound:
            return None
        phase = (found.get("status") or {}).get("phase")
        if uid_of(found) != uid or phase in ENDED:
            return None
        return PodFact(
            name,
            uid,
            bound=bool((found.get("spec") or {}).get("nodeName")),
            leaving="deletionTimestamp" in found["metadata"],
        )


LOG = logging.getLogger(__name__)
SKEW_S = 60.0
"""Difference, s, between clocks that is told; claims hear of their allocation within seconds."""
SKEW_TOLD_S = 60.0
"""Time, s, for which it stays told after a claim that showed it: that one may have come late."""
FORGOTTEN_S = 600.0
"""Time, s, after which a node that does not exist any more is forgotten."""


@dataclass
class Case:
    """One claim within one step."""

    reading: ClaimReading
    track: Track
    leases: tuple[Lease, ...] = ()
    pledged: bool = False
    """Whether somebody has the right, by the store's word, to allocate it now."""
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
        self.around = around
        self._terms = terms
        self.marks = terms.rules.marks
        self.tracks: dict[str, Track] = {}
        self.views: dict[str, NodeView | None] = {}
        """Nodes as seen last; None for one that did not answer."""
        self.where: dict[UnitId, str] = {}
        """Node of each unit ever seen."""
        self.consumers = Consumers(around.cluster)
        self.watch = Watch()
        self.found_at_start: set[str] = set()
        """Claims that were there when we began, as long as none has looked at them."""
        self.unwritable: dict[str, str] = {}
        """Why the server takes no status of a claim: that stays so, for its spec is immutable."""
        self._apart = ""
        """What the clocks of this host and of the API server seem to differ by, and when a claim
        showed it last, by the time watched."""
        self._apart_at = 0.0
        self._missed: dict[str, float] = {}
        self._noticed: set[str] = set()

    @property
    def trouble(self) -> str:
        """What new claims show of the clocks; "" once none has for `SKEW_TOLD_S`."""
        return self._apart if self.watch.seconds - self._apart_at <= SKEW_TOLD_S else ""

    def cases(self, uids: Iterable[str], now: float) -> list[Case]:
        """The claims that have anything to do with us."""
        mine, unclear = self._readings(uids)
        by_claim = self.around.leases.by_claim((*mine, *unclear))
        for uid in by_claim.keys() & unclear:
            self.tracks.setdefault(uid, Track())  # noticed, and not again before it changes
        found = [self._case(one, tuple(by_claim.get(uid, ())), now) for uid, one in mine.items()]
        self.found_at_start.difference_update(mine)
        cases = [case for case in found if case is not None]
        self._ask_of_pledges(cases)
        return cases

    def _readings(self, uids: Iterable[str]) -> tuple[dict[str, ClaimReading], set[str]]:
        """Those of these claims that are ours to decide about, and those nobody understands."""
        mine: dict[str, ClaimReading] = {}
        unclear: set[str] = set()
        for uid in uids:
            known = self.around.claims.get(uid)
            try:
                reading = read(known, self.marks) if known is not None else None
            except errors.FleetError as error:
                LOG.warning("claim %s is passed over: %s", uid, error)
                unclear.add(uid)
                continue
            if reading is not None and self.around.charge.has(reading):
                mine[uid] = reading
                continue
            self.tracks.pop(uid, None)  # leases left over are found by their holders
            if reading is None:
                self.found_at_start.discard(uid)
                self.unwritable.pop(uid, None)
            else:
                self.found_at_start.add(uid)  # should it become ours, we will not have followed it
        return mine, unclear

    def claims_on(self, nodes: Collection[str]) -> Sequence[str]:
        """The claims that name any of these nodes, which came under our charge or left it."""
        found = []
        for uid, known in self.around.claims.items.items() if nodes else ():
            try:
                places = self.around.charge.places(read(known, self.marks))
            except errors.FleetError:
                continue
            if any(place in nodes for place in places):
                found.append(uid)
        return found

    def _ask_of_pledges(self, cases: Iterable[Case]) -> None:
        """Their annotation is anybody's to write: it counts with a lease in the store only."""
        told = {case.reading.uid: pledge.read(case.reading.raw, self.marks) for case in cases}
        owners = {uid: found.owner for uid, found in told.items() if found is not None}
        good = self.around.leases.pledges(owners)
        for case in cases:
            case.pledged = case.reading.uid in good

    def notice(self, uids: Iterable[str]) -> None:
        """These claims have leases: those that are no cases of ours are to be looked at."""
        self._noticed |= {uid for uid in uids if uid not in self.tracks}

    def take_noticed(self) -> set[str]:
        """Claims noticed since the last call."""
        taken, self._noticed = self._noticed, set()
        return taken

    def _case(self, reading: ClaimReading, leases: tuple[Lease, ...], now: float) -> Case | None:
        uid = reading.uid
        new = uid not in self.tracks
        track = self.tracks.setdefault(uid, Track(followed=uid not in self.found_at_start))
        pledged = self._pledged(reading, track, now)
        if not (reading.devices or reading.marked or leases or pledged):
            del self.tracks[uid]
            return None
        if new and track.followed:
            self._compare(reading, now)
        return Case(reading, track, leases)

    def _pledged(self, reading: ClaimReading, track: Track, now: float) -> bool:
        """Whether somebody allocates it: the lease he takes for it must not be overlooked."""
        found = pledge.read(reading.raw, self.marks)
        if found is None:
            return False
        seen_s = track.pledged(f"{found.owner} {found.until}", self.watch.seconds)
        return found.counts(now) or seen_s < 2 * pledge.LIFETIME_S

    def _compare(self, reading: ClaimReading, now: float) -> None:
        """What was allocated just now tells how far the clocks are apart."""
        if reading.allocated_at is None:
            return
        apart_s = now - reading.allocated_at
        if abs(apart_s) <= SKEW_S:
            self._apart = ""
            return
        if not self.trouble:
            self._apart = (
                f"claim {reading.name} is new and was allocated {apart_s:.0f} s ago by our clock:"
                " this host's clock differs from the scheduler's, or claims are told late"
            )
            LOG.warning("%s", self._apart)
        self._apart_at = self.watch.seconds

    def ask(self, cases: Iterable[Case]) -> None:
        """Ask the nodes concerned, once each, for all that these claims want to know."""
        asked: dict[str, list[str]] = defaultdict(list)
        for case in cases:
            for node in case.reading.nodes:
                asked[node] += self._operations(case, node)
        if asked:
            found = self.around.nodes.views({node: tuple(ops) for node, ops in asked.items()})
            self.saw({node: found.get(node) for node in asked})

    def saw(self, views: Mapping[str, NodeView | errors.FleetError | None]) -> None:
        """Take in views of nodes, whoever asked for them."""
        for node, view in views.items():
            self.views[node] = view if isinstance(view, NodeView) else None
            for device in view.devices if isinstance(view, NodeView) else ():
                for unit in device.units:
                    self.where[UnitId(unit)] = node
            for unit in view.gone if isinstance(view, NodeView) else ():
                self.where.setdefault(UnitId(unit), node)

    def missed(self, there: Collection[str]) -> None:
        """`there` are all nodes that exist: what is known of others is not believed any more."""
        for node in [*self.views]:
            if node in there:
                self._missed.pop(node, None)
                continue
            self.views[node] = None
            since = self._missed.setdefault(node, self.watch.seconds)
            if self.watch.seconds - since > FORGOTTEN_S:
                del self.views[node], self._missed[node]
                self.where = {unit: name for unit, name in self.where.items() if name != node}

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
        stuck = tuple(one for one in others if view is not None and self._is_stuck(case, one))
        track.under(lease.token if lease else None, view.incarnation if view else track.incarnation)
        results = self._results(case, view)
        watched_s = self.watch.seconds
        self._time(reading, track, now)
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
            pledged=case.pledged,
            unused_s=_since(track.unused_since, watched_s),
            pending_s=_since(track.pending_since, watched_s),
            ordered_s={uuid: watched_s - at for uuid, at in track.ordered_since.items()},
            left_s=track.left_s,
            pledged_s=watched_s - track.pledged_since,
            pods=case.pods,
            misconfigured=self.demand(reading)[1],
            unwritable=self.unwritable.get(reading.uid, ""),
        )

    def _time(self, reading: ClaimReading, track: Track, now: float) -> None:
        """Since when it is unused, or waits for its conditions."""
        watched_s = self.watch.seconds
        if reading.pods or reading.others:
            track.unused_since = None
        elif track.unused_since is None:
            track.unused_since = watched_s
        track.given((reading.allocated_at, tuple(one.key for one in reading.holding)))
        if not reading.pods or reading.bound or reading.failed:
            track.pending_since = None
        elif track.pending_since is None:
            until = (reading.allocated_at or now) + self._terms.rules.binding_timeout_s
            track.pending_since = watched_s
            track.left_s = inf if track.followed else max(0.0, until - now)

    def demand(self, reading: ClaimReading) -> tuple[WipePolicy | None, str]:
        """What the claim demands of a wipe beyond our policy; or why it must not be served."""
        if len(reading.nodes) != 1:
            return None, ""
        try:
            found = dra.read(
                reading.raw,
                uid=reading.uid,
                driver=self.marks.driver,
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
        found = devices_of(view, case.reading.holding).values()
        devices = [device for device in found if device is not None]
        if len(devices) < len(found):
            # Which units the lost one had nobody tells any more: the newest lease is of it, too.
            for unit in leases[-1].units:
                self.where.setdefault(unit, case.node)
            return leases[-1], tuple(leases[:-1])
        units = {UnitId(unit) for device in devices for unit in device.units}
        own = next((lease for lease in reversed(leases) if lease.units == units), None)
        if own is None and not case.reading.pods:
            # Another card may have the name of one that is gone. Nobody waits for the claim: its
            # node is asked to close the token, by the units its journal knows.
            for unit in leases[-1].units:
                self.where.setdefault(unit, case.node)
        return own, tuple(lease for lease in leases if lease is not own)

    def _results(self, case: Case, view: NodeView | None) -> Mapping[str, DeviceResult]:
        if view is None:
            return {}
        told = {result.operation: result for result in view.results}
        uid, track = case.reading.uid, case.track
        devices = [d for d in devices_of(view, case.reading.holding).values() if d is not None]
        named = {device.uuid: track.operation(uid, device.uuid) for device in devices}
        return {uuid: told[operation] for uuid, operation in named.items() if operation in told}

    def is_silent(self, lease: Lease) -> bool:
        """Whether a node that would have to be asked about the lease cannot be."""
        nodes = {self.where.get(unit) for unit in lease.units}
        return any(node is None or self.views.get(node) is None for node in nodes)

    def _is_stuck(self, case: Case, lease: Lease) -> bool:
        """Whether nobody can be asked to close the lease's token now, or another node would not:
        what is left elsewhere is in nobody's way here.
        """
        if self.is_silent(lease):
            return True
        nodes = {self.where[unit] for unit in lease.units}
        return case.track.is_stuck(lease.token, self.watch.seconds) and case.node not in nodes

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
        found = self.around.claims.get(uid)
        try:
            other = read(found, self.marks) if found is not None else None
        except errors.FleetError:
            return False
        if other is None or other.failed:
            return False
        return any(one.key in devices for one in other.holding)

    def look_up(self, case: Case) -> None:
        """Read the claim's pods."""
        try:
            case.pods = self.consumers.of(case.reading, self.watch.seconds)
        except errors.FleetError as error:
            case.put_off(f"its pods cannot be read: {error.detail}", BUSY_S)


def _since(since: float | None, watched_s: float) -> float:
    return 0.0 if since is None else watched_s - since


def touched(views: Iterable[NodeView | errors.FleetError | None]) -> Sequence[str]:
    """UIDs of claims whose matters on their node need a look: torn down, or about to be let go."""
    found = []
    for view in views:
        if isinstance(view, NodeView):
            found += [claim.uid for claim in view.claims if claim.state == "UNPREPARING"]
            found += [owed.uid for owed in view.owed]
    return found
