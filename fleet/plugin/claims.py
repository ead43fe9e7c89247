"""Kubelet's two requests for one claim: read the claim, judge it, let the node do the work.

All that is durable is the node's, also the note by which to answer again without the API.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.core.messages import ClaimAnswer, ClaimOrder, NodeView, Owed, TeardownOrder
from fleet.core.model import ClaimUid
from fleet.core.settings import WipePolicy
from fleet.kube.base import CLAIMS, PODS, Cluster, Name, Object, uid_of
from fleet.kube.marks import AGENT, Marks
from fleet.node import kubelet_checkpoint
from fleet.plugin.agent_device import Agents
from fleet.plugin.holds import Marking
from fleet.plugin.requests import AskedClaim, PreparedClaim, PreparedDevice
from fleet.plugin.resource_claim import Consumer, Reading, Result, moment, read
from fleet.plugin.retries import SLOW_PAUSE_S, ShortLooks, Waiting
from fleet.plugin.slices.device_attributes import uuid_of
from fleet.plugin.slices.gate import is_quarantined
from fleet.plugin.tags_claim import REFUSALS, Isolation
from fleet.rpc.node_api import NodeApi

LOG = logging.getLogger(__name__)

ENDED = frozenset({"Succeeded", "Failed"})
"""Phases of a pod whose containers have all ended."""
TOLD_S = 1.5
"""Time, s, a teardown waits for what the API adds to what the node knows."""
VIEW_MAX_S = 1.0
"""Age, s, up to which a view says which device a name means; names are published as often."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where this plugin sits. `pool` is the node's one pool, named after it."""

    driver: str
    node: str
    pool: str


@dataclass(frozen=True, slots=True)
class Told:
    """What the API says of a claim in teardown, by a well-formed answer about that very claim."""

    reserved: tuple[str, ...] = ()
    """UIDs of the pods that it is reserved for."""
    agent: bool = False
    """Whether all of it that is ours is the agent device."""
    marked: bool = False
    """Whether our hold or finalizer is on it."""


@dataclass(frozen=True, slots=True)
class Served:
    """A claim of the API that somebody here is to use: what it means, and as it was sent."""

    reading: Reading
    claim: Object
    used_since: float = 0.0
    """Since when a live pod uses it, s since the epoch; 0.0: nothing of it is ours."""


@dataclass
class ClaimServing:
    """Serves claims on one node. Safe for threads; one call per claim at a time is the node's."""

    seat: Seat
    node: NodeApi
    cluster: Cluster
    waiting: Waiting
    clock: Clock
    policy: WipePolicy
    checkpoint: Path
    """Kubelet's own record of claims and pods."""
    agents: Agents | None = None
    marking: Marking | None = None
    """Puts our hold on claims; None: somebody else does, or nobody."""
    isolation: Isolation = field(default_factory=Isolation)
    """What claims must show before they are given a device."""
    budget_s: float = 40.0
    looks: ShortLooks = field(default_factory=ShortLooks)
    _view: tuple[float, NodeView] | None = field(default=None)
    _unfit: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Devices by UID of the claim whose prepare was refused because one of them is unfit."""

    # --- prepare ---

    def prepare(self, asked: AskedClaim) -> PreparedClaim:
        """Prepare one claim. Raises a `FleetError` fit for an event of its pod."""
        deadline = self.clock.monotonic() + self.budget_s
        try:
            served = self._served(asked)
        except (errors.ApiUnavailable, errors.ApiForbidden) as error:
            if known := self._again(asked):
                return known
            if isinstance(error, errors.ApiForbidden):
                raise
            served = self.waiting.until(deadline - self.budget_s / 2, lambda _: self._served(asked))
        reading = served.reading
        ours = [result for result in reading.results if result.device != AGENT]
        if len(ours) == len(reading.results):
            try:
                return PreparedClaim(tuple(self._prepared(asked, served, ours, deadline)))
            except REFUSALS:
                if known := self._again(asked):  # its pod runs: what it has is not at stake (A4)
                    return known
                raise
        if ours:
            raise errors.ClaimConfigInvalid(
                f"claim {asked.namespace}/{asked.name} asks for the device {AGENT!r} and others",
                remedy="give the node service a claim of its own",
            )
        return PreparedClaim((self._agent(asked, reading),))

    def _served(self, asked: AskedClaim) -> Served:
        """The claim, once it is known that somebody here is to use what is ours of it."""
        try:
            served = self._read(asked)
            if served.reading.results:
                served = replace(served, used_since=self._used_since(asked, served.reading))
        except errors.ApiFailed as error:
            # Only reads were sent: unlike a write they can be repeated whatever went wrong.
            raise errors.ApiUnavailable(error.detail) from error
        return served

    def _read(self, asked: AskedClaim) -> Served:
        found = self.cluster.get(CLAIMS, Name(asked.name, asked.namespace))
        reading = read(
            found,
            uid=asked.uid,
            driver=self.seat.driver,
            pool=self.seat.pool,
            policy=self.policy,
        )
        return Served(reading, found)

    def _prepared(
        self, asked: AskedClaim, served: Served, ours: Sequence[Result], deadline: float
    ) -> list[PreparedDevice]:
        if not ours:
            return []
        reading = served.reading
        view = self.waiting.until(deadline, lambda _: self._seen(r.device for r in ours))
        uuids = {result.device: self._uuid(view, result.device) for result in ours}
        self.isolation.refuse(reading, view, uuids, used_since=served.used_since)
        shown = [
            (result.request, result.pool, result.device, result.share_id, uuids[result.device])
            for result in ours
        ]
        held = {uuids[r.device] for r in ours if not r.admin}
        order = ClaimOrder(
            uid=asked.uid,
            node=self.seat.node,
            devices=tuple(sorted(held)),
            # Who holds a device needs not look into it as well: nobody could wipe it then.
            attached=tuple(sorted({uuids[r.device] for r in ours if r.admin} - held)),
            namespace=asked.namespace,
            name=asked.name,
            consumers=tuple(consumer.uid for consumer in reading.consumers),
            wipe=reading.demand.wipe,
            fresh=reading.demand.fresh,
        )
        noted = {"shown": shown, "pods": [one.uid for one in reading.consumers]}
        return _devices(self._exposed(order, noted, served.claim, deadline))

    def _exposed(
        self, order: ClaimOrder, noted: dict[str, object], claim: Object, deadline: float
    ) -> ClaimAnswer:
        """Hold the claim, then let the node do the work; what the node refuses stays held until
        the claim is let go, like a device that it has.
        """
        with ExitStack() as using:
            if self.marking is not None:
                using.enter_context(self.marking.using(order.uid))
                noted["held"] = self.marking.hold(claim)
            update = {"held": noted.get("held", False), "note": json.dumps(noted)}
            order = order.model_copy(update=update)
            try:
                answer = self.waiting.until(
                    deadline, lambda left_s: self.node.prepare(order, budget_s=left_s)
                )
            except errors.DeviceUnfit:
                self._unfit[order.uid] = order.devices
                raise
        self._unfit.pop(order.uid, None)
        return answer

    def unexposed(self, view: NodeView) -> frozenset[str]:
        """Devices out of service that a pod is bound to and was refused: it cannot start here."""
        refused = {uuid for devices in list(self._unfit.values()) for uuid in devices}
        bad = {device.uuid for device in view.devices if is_quarantined(device)}
        return frozenset(refused & bad)

    def _again(self, asked: AskedClaim) -> PreparedClaim | None:
        """Answer a prepared claim from its record alone: the API is away, the devices are not.

        Away is also an API that does not let us in: an expired token is no word about the claim.
        """
        if self.agents is not None and self.agents.knows(asked.uid):
            ids = self.agents.prepare(asked)
            return PreparedClaim((PreparedDevice((), self.seat.pool, AGENT, ids),))
        with suppress(errors.NotOwner):
            for known in self.node.claims():
                if known.uid == asked.uid and known.state == "PREPARED" and _note(known.note):
                    order = ClaimOrder(
                        uid=asked.uid,
                        node=self.seat.node,
                        devices=known.devices,
                        attached=tuple(uuid for uuid in known.cdi if uuid not in known.devices),
                    )
                    answer = self.node.prepare(order, budget_s=self.budget_s / 2)
                    return PreparedClaim(tuple(_devices(answer)))
        return None

    def _agent(self, asked: AskedClaim, reading: Reading) -> PreparedDevice:
        if self.agents is None:
            raise errors.DeviceUnknown(f"node {self.seat.node} offers no device {AGENT!r}")
        ids = self.agents.prepare(asked)
        requests = tuple({r.request: None for r in reading.results if r.device == AGENT})
        return PreparedDevice(requests, self.seat.pool, AGENT, ids)

    def _used_since(self, asked: AskedClaim, reading: Reading) -> float:
        """Since when a live pod uses the claim: a late prepare revives none without one (B12).

        Seconds since the epoch, of the oldest of them where tags are judged by it, else of any.
        Our own entry in reservedFor, and those of other kinds, are no consumers: a group of pods
        says nothing of which pods there are, so that nobody could prove that they have gone.
        """
        lives = (self._live_since(asked.namespace, pod) for pod in reading.consumers)
        since = (at for at in lives if at is not None)
        found = next(since, None) if self.isolation.keys is None else min(since, default=None)
        if found is None:
            if reading.others:
                raise errors.ClaimUnready(
                    f"claim {asked.namespace}/{asked.name} is reserved for no live pod of this"
                    f" node, but for {', '.join(reading.others)}: a claim that a group of pods"
                    " shares is not served",
                    remedy="take the claim out of the group's resourceClaims: with a"
                    " resourceClaimTemplate in the pods alone each pod gets a claim of its own",
                )
            raise errors.ClaimUnready(
                f"claim {asked.namespace}/{asked.name} is reserved for no live pod of this node"
            )
        return found

    def _live_since(self, namespace: str, consumer: Consumer) -> float | None:
        """When the pod was made, if it lives here; one that the server did not date is of now."""
        try:
            pod = self.cluster.get(PODS, Name(consumer.name, namespace))
        except errors.ApiNotFound:
            return None
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        here = spec.get("nodeName") == self.seat.node
        if not here or uid_of(pod) != consumer.uid or status.get("phase") in ENDED:
            return None
        made = moment((pod.get("metadata") or {}).get("creationTimestamp"))
        return self.clock.now() if made is None else made

    def _seen(self, devices: Iterable[str]) -> NodeView:
        """A view that is young and knows the devices, or the view of now."""
        now = self.clock.monotonic()
        if self._view is not None:
            at, known = self._view
            if now - at <= VIEW_MAX_S and all(uuid_of(known, name) for name in devices):
                return known
        view = self.node.view()
        self._view = now, view
        return view

    def _uuid(self, view: NodeView, device: str) -> str:
        found = uuid_of(view, device)
        if found is None:
            raise errors.DeviceUnknown(
                f"node {self.seat.node} has no device {device!r} any more",
                remedy="delete the pod: the scheduler then chooses among the devices there are",
            )
        return found

    # --- unprepare ---

    def unprepare(self, asked: AskedClaim) -> None:
        """Tear one claim down. Returns when it is done; raises why it is not done yet.

        What this node knows decides, and what the API adds is waited for shortly. Of a claim that
        nobody here knows it is not asked at all: kubelet's own record says whose pod may still run.
        """
        deadline = self.clock.monotonic() + self.budget_s
        if self.agents is not None and self.agents.unprepare(asked.uid):
            return
        try:
            known = self.node.claims()
        except errors.NotOwner:
            # Whoever owns the node may sit in the very pod that is leaving.
            told = self._told(asked)
            if self.agents is not None and told is not None and told.agent:
                return
            known = self.waiting.until(deadline, lambda _: self.node.claims())
        remembered = self._consumers(asked)
        record = next((one for one in known if one.uid == asked.uid), None)
        if record is None:
            self._torn_down(asked, remembered, remembered, deadline)
            self._owe(asked, deadline)
            return
        if record.name:  # the uid is the claim: the name that came with it is the caller's word
            asked = replace(asked, namespace=record.namespace, name=record.name)
        told = self._told(asked)
        # Pods the claim is for now: kubelet can ask too early. A silent API is no leave to do so.
        reserved = told.reserved if told is not None else (*remembered, *_noted(known, asked))
        self._torn_down(asked, remembered, tuple(dict.fromkeys(reserved)), deadline)
        if (told is None or told.marked) and not _noted_held(record.note):
            self._owe(asked, deadline)

    def _torn_down(
        self,
        asked: AskedClaim,
        consumers: tuple[str, ...],
        reserved: tuple[str, ...],
        deadline: float,
    ) -> None:
        order = TeardownOrder(uid=asked.uid, consumers=consumers, reserved=reserved)
        self.waiting.until(
            deadline,
            lambda left_s: self.node.unprepare(order, budget_s=left_s),
            busy_pause_max_s=SLOW_PAUSE_S,
        )
        self._unfit.pop(asked.uid, None)

    def _owe(self, asked: AskedClaim, deadline: float) -> None:
        """Our marks are taken off by and by. The node's record may know nothing of them (the claim
        was held before its prepare was refused, or the answer to the hold was lost), and kubelet,
        once told of success, asks no more: the debt is in the journal by then.
        """
        if self.marking is None:
            return
        owed = Owed(uid=asked.uid, namespace=asked.namespace, name=asked.name)
        try:
            self.waiting.until(deadline, lambda _: self.node.owe(owed))
        except errors.InputInvalid as error:  # an owner of an earlier version knows no such call
            LOG.warning("marks on %s/%s are not noted: %s", asked.namespace, asked.name, error)

    def _consumers(self, asked: AskedClaim) -> tuple[str, ...]:
        """Pods that kubelet itself remembers; what cannot be read is asked again by the node."""
        with suppress(errors.FleetError):
            found = kubelet_checkpoint.read(self.checkpoint)
            return tuple(sorted(found.pods.get(ClaimUid(asked.uid), ())))
        return ()

    def _told(self, asked: AskedClaim) -> Told | None:
        """What the API says of the claim, which may be gone or replaced (invariant 19).

        None: nothing, or not in `TOLD_S`. Whatever is not a well-formed answer about this claim
        says nothing: neither an error nor a proxy's page is proof that nobody uses it.
        """
        return self.looks.within(TOLD_S, lambda: self._asked_api(asked))

    def _asked_api(self, asked: AskedClaim) -> Told | None:
        name = Name(asked.name, asked.namespace)
        try:
            found = self.cluster.get(CLAIMS, name)
        except errors.ApiNotFound:
            return Told()
        except errors.FleetError:
            return None
        uid = claim_uid(found, name)
        if uid and uid != asked.uid:
            return Told()
        return _told(found, self.seat) if uid else None


def claim_uid(found: Object, name: Name) -> str:
    """The UID of a claim of this name; "" when this is no such claim, whatever it is."""
    metadata = found.get("metadata")
    if not isinstance(metadata, dict):
        return ""
    if (metadata.get("name"), metadata.get("namespace")) != (name.name, name.namespace):
        return ""
    uid = metadata.get("uid")
    return uid if isinstance(uid, str) else ""


def _noted(known: Iterable[ClaimAnswer], asked: AskedClaim) -> tuple[str, ...]:
    """Pods that the claim was reserved for when it was last prepared here."""
    notes = [_note(one.note) for one in known if one.uid == asked.uid]
    return tuple(pod for note in notes if note for pod in note[1])


def _told(found: Object, seat: Seat) -> Told | None:
    """What a claim says to its teardown; None: not understood.

    Its configuration is not looked at: today's policy has no say in whose the claim is.
    """
    status = found.get("status") or {}
    entries = (status.get("reservedFor") or []) if isinstance(status, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return None
    pods = [one for one in entries if one.get("resource") == "pods" and not one.get("apiGroup")]
    uids = [one.get("uid") for one in pods]
    if not all(isinstance(uid, str) and uid for uid in uids):
        return None
    devices = [one.get("device") for one in _allocated(status.get("allocation"), seat)]
    agent = bool(devices) and all(device == AGENT for device in devices)
    return Told(tuple(map(str, uids)), agent, _is_marked(found, entries, Marks(seat.driver)))


def _is_marked(found: Object, entries: Sequence[Object], marks: Marks) -> bool:
    finalizers = found["metadata"].get("finalizers")
    ours = isinstance(finalizers, list) and marks.finalizer in finalizers
    return ours or any(marks.is_hold(entry) for entry in entries)


def _allocated(allocation: object, seat: Seat) -> list[Object]:
    """The results that are ours, as far as there are any to be understood."""
    devices = allocation.get("devices") if isinstance(allocation, dict) else None
    results = devices.get("results") if isinstance(devices, dict) else None
    if not isinstance(results, list):
        return []
    ours = (seat.driver, seat.pool)
    found = [one for one in results if isinstance(one, dict)]
    return [one for one in found if (one.get("driver"), one.get("pool")) == ours]


def _noted_held(text: str) -> bool:
    """Whether the record knows of our hold, so that its burial owes the marks."""
    with suppress(ValueError, AttributeError):
        return json.loads(text).get("held") is True
    return False


def _note(text: str) -> tuple[list[list[str]], tuple[str, ...]] | None:
    """A record's note: results as they are answered, and the pods of that time.

    None for a claim that somebody else prepared. Records outlive an update: a list is a note from
    before pods were noted.
    """
    try:
        found = json.loads(text)
        if isinstance(found, list):
            return found, ()
        return found["shown"], tuple(found["pods"])
    except (ValueError, KeyError, TypeError):
        return None


def _devices(answer: ClaimAnswer) -> list[PreparedDevice]:
    """The devices of an answer, one entry per device and share, in the order of the results."""
    found: dict[tuple[str, str, str | None], PreparedDevice] = {}
    shown, _ = _note(answer.note) or ([], ())
    for request, pool, device, share_id, uuid in shown:
        known = found.get((pool, device, share_id))
        requests = (*(known.requests if known else ()), request)
        found[pool, device, share_id] = PreparedDevice(
            tuple(dict.fromkeys(requests)), pool, device, answer.cdi[uuid], share_id
        )
    return list(found.values())
