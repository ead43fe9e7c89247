"""Kubelet's two requests for one claim: read the claim, judge it, let the node do the work.

All that is durable is the node's. This side reads the API and turns names into devices; what it
needs to answer again without the API goes into the node's record as a note.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fleet import errors
from fleet.clock import Clock
from fleet.dra.agents import Agents
from fleet.dra.asking import AskedClaim, PreparedClaim, PreparedDevice
from fleet.dra.ports import AGENT, Node
from fleet.dra.reading import Consumer, Reading, Result, read
from fleet.dra.waiting import Waiting
from fleet.kube.base import CLAIMS, PODS, Cluster, Name, uid_of
from fleet.messages import ClaimAnswer, ClaimOrder, NodeView, TeardownOrder
from fleet.model import ClaimUid
from fleet.node import kubelet_checkpoint
from fleet.settings import WipePolicy
from fleet.slices.rendering import uuid_of

ENDED = frozenset({"Succeeded", "Failed"})
"""Phases of a pod whose containers have all ended."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where this plugin sits. `pool` is the node's one pool, named after it."""

    driver: str
    node: str
    pool: str


@dataclass
class ClaimServing:
    """Serves claims on one node. Safe for threads; one call per claim at a time is the node's."""

    seat: Seat
    node: Node
    cluster: Cluster
    waiting: Waiting
    clock: Clock
    policy: WipePolicy
    checkpoint: Path
    """Kubelet's own record of claims and pods."""
    agents: Agents | None = None
    budget_s: float = 40.0
    _view: NodeView | None = field(default=None)

    # --- prepare ---

    def prepare(self, asked: AskedClaim) -> PreparedClaim:
        """Prepare one claim. Raises a `FleetError` fit for an event of its pod."""
        deadline = self.clock.monotonic() + self.budget_s
        try:
            reading = self.waiting.until(deadline - self.budget_s / 2, lambda _: self._read(asked))
        except errors.ApiUnavailable:
            return self._again(asked)
        ours = [result for result in reading.results if result.device != AGENT]
        devices = []
        if len(ours) < len(reading.results):
            devices.append(self._agent(asked, reading))
        if ours:
            self._refuse_gone(asked, reading, deadline)
            devices += self._prepared(asked, reading, ours, deadline)
        return PreparedClaim(tuple(devices))

    def _read(self, asked: AskedClaim) -> Reading:
        found = self.cluster.get(CLAIMS, Name(asked.name, asked.namespace))
        return read(
            found,
            uid=asked.uid,
            driver=self.seat.driver,
            pool=self.seat.pool,
            policy=self.policy,
        )

    def _prepared(
        self, asked: AskedClaim, reading: Reading, ours: Sequence[Result], deadline: float
    ) -> list[PreparedDevice]:
        uuids = {result.device: self._uuid(result.device) for result in ours}
        shown = [
            (result.request, result.pool, result.device, result.share_id, uuids[result.device])
            for result in ours
        ]
        order = ClaimOrder(
            uid=asked.uid,
            node=self.seat.node,
            devices=tuple(sorted({uuids[r.device] for r in ours if not r.admin})),
            attached=tuple(sorted({uuids[r.device] for r in ours if r.admin})),
            namespace=asked.namespace,
            name=asked.name,
            consumers=tuple(consumer.uid for consumer in reading.consumers),
            wipe=reading.demand.wipe,
            fresh=reading.demand.fresh,
            note=json.dumps(shown),
        )
        answer = self.waiting.until(
            deadline, lambda left_s: self.node.prepare(order, budget_s=left_s)
        )
        return _devices(answer)

    def _again(self, asked: AskedClaim) -> PreparedClaim:
        """Answer a prepared claim from its record alone: the API is away, the devices are not."""
        if self.agents is not None and self.agents.knows(asked.uid):
            ids = self.agents.prepare(asked)
            return PreparedClaim((PreparedDevice((), self.seat.pool, AGENT, ids),))
        for known in self.node.claims():
            if known.uid == asked.uid and known.state == "PREPARED" and known.note:
                order = ClaimOrder(
                    uid=asked.uid,
                    node=self.seat.node,
                    devices=known.devices,
                    attached=tuple(uuid for uuid in known.cdi if uuid not in known.devices),
                )
                return PreparedClaim(
                    tuple(_devices(self.node.prepare(order, budget_s=self.budget_s / 2)))
                )
        raise errors.ApiUnavailable(
            f"claim {asked.namespace}/{asked.name} cannot be read: the API server does not answer"
        )

    def _agent(self, asked: AskedClaim, reading: Reading) -> PreparedDevice:
        if self.agents is None:
            raise errors.DeviceUnknown(f"node {self.seat.node} offers no device {AGENT!r}")
        ids = self.agents.prepare(asked)
        requests = tuple({r.request: None for r in reading.results if r.device == AGENT})
        return PreparedDevice(requests, self.seat.pool, AGENT, ids)

    def _refuse_gone(self, asked: AskedClaim, reading: Reading, deadline: float) -> None:
        """A late prepare must not revive a claim whose pod has gone (B12).

        Our own entry in reservedFor, and those of other kinds, are no consumers.
        """

        def any_lives(_: float) -> bool:
            return any(self._lives(asked.namespace, pod) for pod in reading.consumers)

        if not self.waiting.until(deadline, any_lives):
            raise errors.ClaimUnready(
                f"claim {asked.namespace}/{asked.name} is reserved for no live pod of this node"
            )

    def _lives(self, namespace: str, consumer: Consumer) -> bool:
        try:
            pod = self.cluster.get(PODS, Name(consumer.name, namespace))
        except errors.ApiNotFound:
            return False
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        here = spec.get("nodeName") == self.seat.node
        return here and uid_of(pod) == consumer.uid and status.get("phase") not in ENDED

    def _uuid(self, device: str) -> str:
        """The device of an allocation result; the inventory is read again for a new name."""
        found = uuid_of(self._view, device) if self._view is not None else None
        if found is None:
            self._view = self.node.view()
            found = uuid_of(self._view, device)
        if found is None:
            raise errors.DeviceUnknown(
                f"node {self.seat.node} has no device {device!r} any more",
                remedy="delete the pod: the scheduler then chooses among the devices there are",
            )
        return found

    # --- unprepare ---

    def unprepare(self, asked: AskedClaim) -> None:
        """Tear one claim down. Returns when it is done; raises why it is not done yet."""
        deadline = self.clock.monotonic() + self.budget_s
        if self.agents is not None and self.agents.knows(asked.uid):
            self.agents.unprepare(asked.uid)
        order = TeardownOrder(
            uid=asked.uid, consumers=self._consumers(asked), reserved=self._reserved(asked)
        )
        self.waiting.until(deadline, lambda left_s: self.node.unprepare(order, budget_s=left_s))

    def _consumers(self, asked: AskedClaim) -> tuple[str, ...]:
        """Pods that kubelet itself remembers; what cannot be read is asked again by the node."""
        with suppress(errors.FleetError):
            found = kubelet_checkpoint.read(self.checkpoint)
            return tuple(sorted(found.pods.get(ClaimUid(asked.uid), ())))
        return ()

    def _reserved(self, asked: AskedClaim) -> tuple[str, ...]:
        """Pods the claim is for now; the claim may be gone and the API away (invariant 19)."""
        try:
            return tuple(consumer.uid for consumer in self._read(asked).consumers)
        except errors.FleetError:
            return ()


def _devices(answer: ClaimAnswer) -> list[PreparedDevice]:
    """The devices of an answer, one entry per device and share, in the order of the results."""
    found: dict[tuple[str, str, str | None], PreparedDevice] = {}
    for request, pool, device, share_id, uuid in json.loads(answer.note):
        known = found.get((pool, device, share_id))
        requests = (*(known.requests if known else ()), request)
        found[pool, device, share_id] = PreparedDevice(
            tuple(dict.fromkeys(requests)), pool, device, answer.cdi[uuid], share_id
        )
    return list(found.values())
