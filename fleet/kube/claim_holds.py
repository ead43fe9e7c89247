"""Our hold and finalizer on one claim: put on before exposure, taken off after teardown (DESIGN 5).

Used by the node plugin and by the coordinator. Whatever is written was decided on a reading that
the server confirms by UID and resourceVersion: 409 and lost answers lead to a live GET and a new
decision. Normal life costs two writes to put the marks on and two to take them off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from time import sleep

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.kube import claim_bodies, claim_status
from fleet.kube.base import (
    CLAIMS,
    PODS,
    Cluster,
    Name,
    Object,
    PatchKind,
    uid_of,
)
from fleet.kube.claim import ClaimReading, Key, read
from fleet.kube.conflict_retry import settle
from fleet.kube.marks import Marks
from fleet.kube.rights import REVIEWS

BUDGET_S = 10.0
"""Time, s, after which nothing more is tried."""
ENDED = frozenset({"Succeeded", "Failed"})
"""Phases of a pod that uses nothing any more."""
TORN_DOWN = "TornDown"
"""Reason of a condition that was True for a use which has ended."""

LOG = logging.getLogger(__name__)

Write = Callable[[Cluster], Object]
Decide = Callable[[ClaimReading], Write | None]


@dataclass(frozen=True, slots=True)
class Marked:
    """How a claim stands after a call. `reading` None: it is gone, or another of its name came."""

    reading: ClaimReading | None
    writes: int = 0
    """Writes sent."""
    left: bool = False
    """Whether marks were left to a use that is not the one to be ended, or not yet its last."""

    @property
    def held(self) -> bool:
        """Whether our reservation is on the claim."""
        return self.reading is not None and self.reading.held

    @property
    def finalizer(self) -> bool:
        """Whether our finalizer is on the claim."""
        return self.reading is not None and self.reading.finalizer


@dataclass(frozen=True)
class Holds:
    """Puts our marks on claims and takes them off. Safe for threads; keeps nothing."""

    cluster: Cluster
    marks: Marks
    clock: Clock
    pause: Callable[[float], None] = sleep
    """How to wait between tries, s."""

    def granted(self) -> bool | None:
        """Whether the server would let us reserve; None: it does not tell. Writes nothing.

        Raises `ApiUnavailable`.
        """
        asked = {
            "group": CLAIMS.group,
            "resource": CLAIMS.plural,
            "subresource": "binding",
            "verb": "patch",
        }
        body: Object = {"apiVersion": REVIEWS.api_version, "kind": REVIEWS.kind, "metadata": {}}
        body["spec"] = {"resourceAttributes": asked}
        try:
            status = self.cluster.create(REVIEWS, body).get("status")
        except errors.ApiUnavailable:
            raise
        except errors.FleetError:
            return None
        allowed = status.get("allowed") if isinstance(status, dict) else None
        return allowed if isinstance(allowed, bool) else None

    def ensure(self, reading: ClaimReading, *, budget_s: float = BUDGET_S) -> Marked:
        """Hold the claim, then put the finalizer on, as far as they are missing.

        `reading` is taken as live. A claim that is Terminating can get neither (422), one that has
        nothing of ours to itself needs neither: answered as it is. One whose spec the server will
        not write again (`_Call.step`) is held without the finalizer. Raises `ClaimUnready` when its
        allocation is another one by now, `HoldsNotGranted`, and what the API raises.
        """
        if not reading.holding or reading.terminating or (reading.held and reading.finalizer):
            return Marked(reading)
        call = _Call(self, reading.name, reading.uid, budget_s, reading)
        examined = _allocation(reading)

        def hold(now: ClaimReading) -> Write | None:
            if _allocation(now) != examined:
                raise errors.ClaimUnready(f"claim {now.name} was allocated anew meanwhile")
            if now.held or now.terminating:
                return None
            body = claim_bodies.status(
                now, self.marks, told=(), hold=now.nodes[0], now=self.clock.now()
            )
            body["status"]["devices"] = _entries(now, self.marks)
            return _status(body, self.marks)

        def finalize(now: ClaimReading) -> Write | None:
            if now.finalizer or now.terminating or not now.held:
                return None
            return _main(now, claim_bodies.finalizer(now, self.marks, present=True))

        if call.step(hold, may_end=True) is not None:
            call.step(finalize, may_end=True, may_stay=True)
        return Marked(call.reading, call.writes)

    def release(
        self,
        name: Name,
        uid: str,
        *,
        of: ClaimReading | None = None,
        devices: Collection[tuple[str, str]] = (),
        node: str = "",
        keep_finalizer: bool = False,
        budget_s: float = BUDGET_S,
    ) -> Marked:
        """Take hold and finalizer off the claim, the finalizer last.

        `of`: the claim as it was when its use was found to have ended, with the pods that did not
        count; None: as the first look finds it. Another allocation, or a pod that was not there
        then, is another use, whose marks are left alone, whatever was sent meanwhile. So is an
        allocation of others than `devices` (node and name), or of another node than `node`, where
        they are named.

        The last reservation of a claim that is not Terminating goes together with the allocation;
        where the allocation stays, our conditions of the use that has ended go False. Without `of`
        the hold of a claim that the scheduler binds stays then, if a pod is still to use it: only
        the coordinator puts it on, and it takes it off after the last one. A claim that is gone or
        replaced needs nothing. Raises `HoldsNotGranted` and what the API raises.
        """
        call, ended = _Call(self, name, uid, budget_s, None), _Ended(of, frozenset(devices), node)

        def let_go(now: ClaimReading) -> Write | None:
            if ended.is_over(now):
                return None
            if now.held and not _stays(now):
                return _taken(now, claim_bodies.deallocation(now))
            ended.left = of is None and now.held and now.gated and self._awaited(now)
            said = _proven(now, self.marks) and not now.terminating
            if not said and (ended.left or not now.held):
                return None
            hold = now.nodes[0] if ended.left and now.nodes else ""
            told = claim_bodies.status(now, self.marks, told=(), hold=hold, now=self.clock.now())
            over = claim_bodies.stamp(self.clock.now())
            told["status"]["devices"] = _entries(now, self.marks, ended=over)
            return _status(told, self.marks)

        def take_off(now: ClaimReading) -> Write | None:
            if ended.is_over(now) or not now.held:
                return None
            body = (
                claim_bodies.unreserved(now, self.marks)
                if _stays(now)
                else claim_bodies.deallocation(now)
            )
            return _taken(now, body)

        def definalize(now: ClaimReading) -> Write | None:
            over = ended.is_over(now) or ended.left
            if over or now.held or not now.finalizer or keep_finalizer:
                return None
            return _main(now, claim_bodies.finalizer(now, self.marks, present=False))

        found = call.step(let_go)
        if found is not None and found.held and not ended.left:
            found = call.step(take_off)  # given up by us, and somebody else's field as well
        if found is not None and not ended.left:
            call.step(definalize, may_stay=True)
        return Marked(call.reading, call.writes, ended.left)

    def _awaited(self, reading: ClaimReading) -> bool:
        """Whether a pod the claim is reserved for may still use it; no answer is no proof."""
        return any(self._may_use(Name(p.name, reading.name.namespace), p.uid) for p in reading.pods)

    def _may_use(self, name: Name, uid: str) -> bool:
        try:
            found = self.cluster.get(PODS, name)
        except errors.ApiNotFound:
            return False
        except errors.FleetError:
            return True
        leaving = found["metadata"].get("deletionTimestamp") is not None
        phase = (found.get("status") or {}).get("phase")
        return uid_of(found) == uid and not leaving and phase not in ENDED


@dataclass
class _Ended:
    """The use of a claim that has ended, told from those that came after it."""

    of: ClaimReading | None
    """The claim then; None: as it is seen first."""
    devices: frozenset[tuple[str, str]]
    node: str
    left: bool = False
    """Whether the marks are another use's now."""

    def is_over(self, now: ClaimReading) -> bool:
        """Whether the claim is somebody else's by now. `left` stays true then."""
        if self.of is None:
            self.of = now
        new = {pod.uid for pod in now.pods} - {pod.uid for pod in self.of.pods}
        again = now.allocated and _allocation(now) != _allocation(self.of)
        if self.devices and now.holding:
            again |= self.devices != {(one.node, one.device) for one in now.holding}
        again |= self.node != "" and any(node != self.node for node in now.nodes)
        over = bool(new) or again or now.others > self.of.others
        self.left |= over
        return over


@dataclass
class _Call:
    """One call of `Holds`: the claim as last seen, and what was sent."""

    holds: Holds
    name: Name
    uid: str
    budget_s: float
    last: ClaimReading | None
    """The claim as understood last: one answer is looked at several times."""
    writes: int = 0
    reading: ClaimReading | None = None
    known: Object | None = field(init=False)
    """The claim as read or answered last; None: to be read."""
    _until: float = field(init=False)

    def __post_init__(self) -> None:
        self.known = self.last.raw if self.last is not None else None
        self._until = self.holds.clock.monotonic() + self.budget_s

    def step(
        self, decide: Decide, *, may_end: bool = False, may_stay: bool = False
    ) -> ClaimReading | None:
        """Bring the claim to where `decide` needs no write; None: it is gone.

        `may_end`: a write refused because the claim is Terminating by now is no error. `may_stay`:
        nor is one refused as invalid. A claim whose opaque parameters were sent as JSON with spaces
        takes no write of its own fields from anybody who does not repeat those bytes, and nobody
        is shown them ("spec: field is immutable"); its status can be written.
        """
        try:
            settled = settle(
                self.holds.cluster, self._read, self._of(decide), self._write, pause=self._pause
            )
            self._seen(settled.found)
        except errors.ApiNotFound:
            self.reading = None
        except (errors.ApiInvalid, errors.ApiForbidden) as error:
            if may_stay and isinstance(error, errors.ApiInvalid):
                LOG.warning("claim %s keeps its finalizers as they are: %s", self.name, error)
            self._judge(error, may_end=may_end, may_stay=may_stay)
        return self.reading

    def _read(self, cluster: Cluster) -> Object:
        found, self.known = self.known, None
        return cluster.get(CLAIMS, self.name) if found is None else found

    def _of(self, decide: Decide) -> Callable[[Object], Write | None]:
        def decided(found: Object) -> Write | None:
            reading = self._understood(found)
            if reading.uid != self.uid:
                raise errors.ApiNotFound(f"claim {self.name} is another one by now")
            return decide(reading)

        return decided

    def _write(self, cluster: Cluster, write: Write) -> Object:
        self.writes += 1
        return write(cluster)

    def _seen(self, found: Object) -> None:
        self.known, self.reading = found, self._understood(found)

    def _understood(self, found: Object) -> ClaimReading:
        if self.last is None or self.last.raw is not found:
            self.last = read(found, self.holds.marks)
        return self.last

    def _pause(self, pause_s: float) -> None:
        """Raises `ApiUnavailable` where the budget ends before the pause."""
        if self.holds.clock.monotonic() + pause_s > self._until:
            raise errors.ApiUnavailable(
                f"claim {self.name} was not brought to where it should be within"
                f" {self.budget_s:g} s"
            )
        self.holds.pause(pause_s)

    def _judge(self, error: errors.FleetError, *, may_end: bool, may_stay: bool) -> None:
        """Look at the claim: it may have ended, or been replaced, before the refused write."""
        found: ClaimReading | None = None
        with suppress(errors.ApiNotFound):
            self.known = self.holds.cluster.get(CLAIMS, self.name)
            found = read(self.known, self.holds.marks)
        self.reading = found if found is not None and found.uid == self.uid else None
        if self.reading is None or (may_end and self.reading.terminating):
            return
        if may_stay and isinstance(error, errors.ApiInvalid):
            return
        if isinstance(error, errors.ApiForbidden) and error.fields.get("status") != 401:
            raise errors.HoldsNotGranted(error.detail, **error.fields) from error
        raise error


def _status(body: Object, marks: Marks) -> Write:
    return lambda cluster: claim_status.write(cluster, body, marks)


def _taken(now: ClaimReading, body: Object) -> Write:
    """A patch of the status that takes away what `body` names, whoever wrote it."""
    return lambda cluster: cluster.patch(
        CLAIMS, now.name, body, kind=PatchKind.MERGE, subresource="status"
    )


def _stays(now: ClaimReading) -> bool:
    """Whether the allocation outlives our reservation."""
    return now.terminating or bool(now.pods) or now.others > 0


def _main(now: ClaimReading, body: Object) -> Write:
    return lambda cluster: cluster.patch(CLAIMS, now.name, body, kind=PatchKind.MERGE)


def _allocation(reading: ClaimReading) -> tuple[float | None, frozenset[Key]]:
    """What makes an allocation this one."""
    return reading.allocated_at, frozenset(one.key for one in reading.devices)


def _proven(reading: ClaimReading, marks: Marks) -> bool:
    """Whether a condition of ours says that a device of the claim is ready now."""
    kinds = (marks.sanitized, marks.healthy)
    return any(reading.is_true(one, kind) for one in reading.devices for kind in kinds)


def _entries(reading: ClaimReading, marks: Marks, *, ended: str = "") -> list[Object]:
    """All that is ours in ``status.devices``, as it is on the claim: an apply that left it out
    would take it away. `ended`: what was True goes False, at this time.
    """
    allotted = {one.key for one in reading.devices}
    found = []
    for entry in (reading.raw.get("status") or {}).get("devices") or ():
        if not isinstance(entry, dict) or entry.get("driver") != marks.driver:
            continue
        key = (str(entry.get("pool")), str(entry.get("device")), str(entry.get("shareID") or ""))
        ours = _ours(entry, marks, ended=ended)
        if key in allotted and len(ours) > 0:
            identity = ("driver", "pool", "device", "shareID")
            found.append({name: entry[name] for name in identity if entry.get(name)} | ours)
    return found


def _ours(entry: Object, marks: Marks, *, ended: str) -> Object:
    """Our conditions and receipt of one device."""
    proofs = (marks.sanitized, marks.healthy)
    conditions = []
    for one in entry.get("conditions") or ():
        if not isinstance(one, dict) or one.get("type") not in (*proofs, marks.failed):
            continue
        over = ended and one["type"] in proofs and one.get("status") == "True"
        changed = {"status": "False", "reason": TORN_DOWN, "lastTransitionTime": ended}
        conditions.append({**one, **changed, "message": ""} if over else one)
    found: Object = {"conditions": conditions} if conditions else {}
    if entry.get("data") is not None:
        found["data"] = entry["data"]
    return found
