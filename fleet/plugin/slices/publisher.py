"""The one writer of a node's ResourceSlices: a step compares, writes what differs, reads back.

The caller runs `step` on a period and feeds the events of a watch to `changed`. What is to be
published is decided in `fleet.plugin.slices.offer`, in which writes in `fleet.plugin.slices.pool`;
this module carries them out and judges the answers:

* 409 and 404: somebody was faster; read again, decide anew, in the same step.
* 422 and 400: the body will never be taken; the device named (or suspected) is left out, so that
  its neighbours are published, and tried again after a growing wait.
* no answer, 5xx: the write may land later; `fleet.plugin.slices.publisher` remembers it.
* 401, 403: a right is missing; wait.

Quarantine is confirmed only by a listing made after the last write, in a complete pool, with
nothing of ours under way (promise 6).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from fleet.core import errors
from fleet.core.messages import NodeView
from fleet.core.settings import Settings
from fleet.kube.base import SLICES, Cluster, Event, Name, Object, name_of, version_of
from fleet.kube.slice_equality import Feature, dropped
from fleet.plugin.slices import refusals as refusing
from fleet.plugin.slices.cache import NodeSlices
from fleet.plugin.slices.device_attributes import Terms, attribute
from fleet.plugin.slices.exclusivity import Exclusivity
from fleet.plugin.slices.foreign import covered
from fleet.plugin.slices.gate import GateRules
from fleet.plugin.slices.merge import merged_device
from fleet.plugin.slices.offer import NO_ROOM, REMEDIES, Circumstances, Offer, offer, offer_unseen
from fleet.plugin.slices.pool import Create, Delete, PoolIdentity, Update, Write, plan
from fleet.plugin.slices.pool_view import (
    PoolReading,
    blocked,
    devices_of,
    generation,
    newest_entries,
    pool_name,
    read_pools,
)
from fleet.plugin.slices.report import PublishReport, Trouble
from fleet.plugin.slices.takeover import Record, Takeovers

# Which quarantines the API shows for certain (promise 6). Pure.
#
# A quarantine is visible when, in a complete pool, every entry of the device is tainted as
# quarantined, or the device is not there at all: either way no scheduler can allocate it.

Version = tuple[str, str]
"""Name and resourceVersion of a slice."""


def version(found: Object) -> Version:
    """What a slice is told apart by from its earlier and later contents."""
    return (name_of(found).name, version_of(found))


def read_back(
    quarantined: Mapping[str, float],
    *,
    names: Mapping[str, str],
    reading: PoolReading,
    key: str,
    doubtful: AbstractSet[Version],
) -> Mapping[str, float]:
    """Those of `quarantined` (UUID to since) that can be seen, whatever still may land.

    `names`: device name by UUID; `key`: of the taint; `doubtful`: slices that, as they are, may
    still be overwritten by what an earlier process sent just before it ended. An absent device
    counts only if no slice is doubtful.
    """
    if not reading.complete:
        return {}
    reliable = [part for part in reading.slices if version(part) not in doubtful]
    there = {str(entry.get("name")) for part in reliable for entry in devices_of(part)}
    found = {}
    for uuid, since in quarantined.items():
        name = names[uuid]
        entries = reading.devices.get(name, ())
        tainted = bool(entries) and all(
            blocked(entry) and any(taint.get("key") == key for taint in entry.get("taints") or ())
            for entry in entries
        )
        if (tainted and name in there) or (not entries and len(reliable) == len(reading.slices)):
            found[uuid] = since
    return found


# Writes whose answer never came: they may still land, and must not undo what was confirmed. Pure.
#
# An update is guarded by the resourceVersion it was made from, so it is settled as soon as the
# slice has another one, or is gone. While the slice still has that version the update may land at
# any time, with older content: the pool is then written above its generation, which moves every
# version on. A creation needs no record here: the next plan finds the slice, or writes above its
# generation, and readers ignore what lands late.


class Outstanding:
    """Updates sent without an answer, by slice name and the version they were made from."""

    def __init__(self) -> None:
        self._sent: set[tuple[str, str]] = set()

    def __bool__(self) -> bool:
        return bool(self._sent)

    def add(self, body: Object) -> None:
        """Note that the answer to the update `body` did not come."""
        self._sent.add((name_of(body).name, version_of(body)))

    def settle(self, listed: Iterable[Object]) -> None:
        """Forget what can no longer land, by a listing made after the writes."""
        current = {(name_of(found).name, version_of(found)) for found in listed}
        self._sent &= current


# Devices an operator retired are not offered, present or gone. Pure.

WHY = "an operator retired it (`fleet devices retire`)"


def barred(view: NodeView, remembered: Mapping[str, Object]) -> Mapping[str, str]:
    """Why each retired device, and each part of one, must not be published, by UUID.

    `remembered`: devices published before, by name; a card that is gone is known from there only.
    """
    retired = frozenset(view.retired)
    found = dict.fromkeys(view.retired, WHY)
    for device in view.devices:
        if device.accelerator in retired:
            found[device.uuid] = WHY
    for entry in remembered.values():
        if attribute(entry, "parentUUID") in retired:
            found[attribute(entry, "uuid")] = WHY
    return found


ROUNDS = 6
"""Times a step reads, decides and writes: enough to settle a race, a refusal and a dropped field
together; more is left to the next step."""
OUTAGE_WAIT_MAX_S = 5.0
"""Longest wait, s, after the server did not answer or a right was missing."""


@dataclass(frozen=True, slots=True)
class PublisherTerms:
    """What a publisher is made from. Periods and ages in seconds."""

    terms: Terms
    rules: GateRules
    resync_s: float
    settle_s: float
    """Time a write of an earlier process may still need to land."""
    agent: bool = False

    @classmethod
    def from_settings(cls, settings: Settings, *, node: str, agent: bool = False) -> PublisherTerms:
        """The terms for the Node named `node`.

        `agent`: publish the agent device too.
        """
        kubernetes = settings.kubernetes
        return cls(
            terms=Terms(driver=kubernetes.driver, node=node, profile=settings.profile),
            rules=GateRules(driver=kubernetes.driver, fresh_s=settings.health.fresh_s),
            resync_s=kubernetes.resync_period_s,
            settle_s=kubernetes.api_timeout_s,
            agent=agent,
        )


class Publisher:
    """Publishes one node's devices. `step` is for one thread at a time, `changed` for any."""

    def __init__(
        self,
        cluster: Cluster,
        given: PublisherTerms,
        *,
        exclusivity: Exclusivity | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`exclusivity` None: no other publisher can exist. `monotonic`: never goes back."""
        self._monotonic = monotonic
        self._cluster = cluster
        self._given = given
        self._exclusivity = exclusivity or Exclusivity()
        terms = given.terms
        self._slices = NodeSlices(
            cluster, node=terms.node, driver=terms.driver, resync_s=given.resync_s
        )
        self._refusals = refusing.Refusals()
        self._pause = refusing.Pause()
        self._outstanding = Outstanding()
        self._takeovers = Takeovers(given.rules)
        self._remembered: dict[str, Object] | None = None
        self._read_last: dict[str, Object] = {}
        """Each device as it was last seen in the slices: what others wrote into it is kept for one
        that leaves for a while (withheld, withdrawn, its slice deleted)."""
        self._found: frozenset[Version] = frozenset()
        self._dropped: frozenset[Feature] = frozenset()
        self._evicted: frozenset[str] = frozenset()
        self._last = 0
        self._view: NodeView | None = None
        self._begun: float | None = None
        self._trouble: list[Trouble] = []
        self._turn = threading.Lock()

    def changed(self, event: Event) -> None:
        """Take what a watch on the node's slices (all drivers) reports; from any thread."""
        self._slices.changed(event)

    def evicting(self, uuids: Iterable[str]) -> None:
        """Devices bound to a pod but not exposed to it: a quarantine of these evicts the pod."""
        self._evicted = frozenset(uuids)

    def merged(self, records: Iterable[Record]) -> None:
        """The node has taken the reasons of these: what views say from now on counts again."""
        with self._turn:
            self._takeovers.merged(records)

    def retire(self, uuid: str) -> None:
        """Forget a device that the node no longer reports: it leaves the slices."""
        with self._turn:
            self._takeovers.retire(uuid)
            for name, entry in list((self._remembered or {}).items()):
                if attribute(entry, "uuid") == uuid and self._remembered is not None:
                    del self._remembered[name]

    def close(self) -> None:
        """Let go of the host's locks. Slices stay: kubelet removes them if nobody comes back."""
        self._exclusivity.close()

    def step(self, now: float, view: NodeView | None) -> PublishReport:
        """Make the slices say what `view` says; raises nothing the API or a store can cause.

        `now`: seconds since the epoch, for the stamps of the view only; what has to wait counts by
        `moment`, the time since the first step, which no step of the wall clock touches. `view`
        None: the node service is silent; what was published stays, and is stale after `fresh_s`.
        """
        with self._turn:
            if self._begun is None:
                self._begun = self._monotonic()
            moment = self._monotonic() - self._begun
            self._view = view or self._view
            if view is not None:
                self._takeovers.viewed()
            self._trouble = []
            writes = 0
            wanted: Offer | None = None
            quiet = False
            for _ in range(ROUNDS):
                if not self._read(moment):
                    break
                wanted = self._wanted(now, moment)
                if wanted is None:
                    break
                ordered = self._plan(wanted)
                quiet = not ordered
                if quiet or self._pause.holds(now=moment, content=wanted.devices):
                    break
                done, go_on = self._carry_out(ordered, wanted, moment=moment)
                writes += done
                if not go_on:
                    break
            return self._report(wanted, writes=writes, quiet=quiet, moment=moment)

    # --- reading ---

    def _read(self, moment: float) -> bool:
        """Make the cache current; whether it is."""
        try:
            if self._slices.refresh(moment):
                self._outstanding.settle(self._slices.ours)
        except errors.FleetError as error:
            self._note(error)
            return False
        self._last = max([self._last, *map(generation, self._own_pool())])
        marked = self._takeovers.read(self._slices.ours)
        if self._remembered is None:
            self._remembered = newest_entries(self._own_pool())
            self._takeovers.remember(self._remembered.values())
            self._found = frozenset(map(version, self._own_pool()))
        self._remembered |= marked
        self._read_last |= newest_entries(self._own_pool())
        if self._slices.skipped:
            self._trouble.append(Trouble.skipped(self._slices.skipped))
        return True

    def _own_pool(self) -> Sequence[Object]:
        return [s for s in self._slices.ours if pool_name(s) == self._given.terms.node]

    # --- deciding ---

    def _wanted(self, now: float, moment: float) -> Offer | None:
        """What the pool should list now, without refused devices and with all that others wrote."""
        remembered = self._remembered or {}
        given = Circumstances(
            terms=self._given.terms,
            rules=self._given.rules,
            remembered=remembered,
            barred=self._barred(moment),
            dropped=self._dropped,
            agent=self._given.agent,
            evicted=self._evicted,
            marks=self._takeovers.marks(self._view),
        )
        if self._view is None or (self._view.blocked and not self._view.devices):
            # Nothing is known of the devices, by whoever: no device is a fact of none (B14).
            found = offer_unseen(silent_s=moment, given=given)
        else:
            found = offer(self._view, now=now, given=given)
        if found is None:
            return None
        withdrawn = dict(found.withdrawn)
        devices = []
        uuids = {name: uuid for uuid, name in found.names.items()}
        for device in found.devices:
            name = str(device["name"])
            whole = merged_device(
                device,
                self._read_last.get(name, {}),
                driver=self._given.terms.driver,
                keys=self._given.rules.keys,
                earlier=remembered.get(name, {}),
            )
            why = NO_ROOM if whole is None else self._refusals.withheld(whole, now=moment)
            if whole is None or why:
                withdrawn[uuids.get(name, name)] = why
            else:
                devices.append(whole)
        return replace(found, devices=tuple(devices), withdrawn=withdrawn)

    def _barred(self, moment: float) -> Mapping[str, str]:
        """Why each device of the view must not be published by us."""
        if self._view is None:
            return {}
        devices = self._view.devices
        found = covered(
            devices,
            slices=self._slices.foreign,
            driver=self._given.terms.driver,
            node=self._slices.node,
        )
        refused = self._exclusivity.barred(devices, now=moment)
        if self._exclusivity.trouble is not None:
            self._note(self._exclusivity.trouble)
        return {**refused, **found, **barred(self._view, self._remembered or {})}

    def _plan(self, wanted: Offer) -> tuple[Write, ...]:
        terms = self._given.terms
        ordered = plan(
            self._slices.ours,
            wanted.devices,
            identity=PoolIdentity(
                driver=terms.driver, node=terms.node, node_uid=self._slices.node_uid
            ),
            last=self._last,
            counter_sets=wanted.counter_sets,
            outrun=bool(self._outstanding),
        )
        return self._takeovers.kept_by(ordered, self._slices.ours)

    # --- writing ---

    def _carry_out(
        self, ordered: Sequence[Write], wanted: Offer, *, moment: float
    ) -> tuple[int, bool]:
        """Perform the writes up to the first that fails: (writes done, decide again now)."""
        for done, write in enumerate(ordered):
            try:
                self._perform(write)
            except (errors.ApiConflict, errors.ApiNotFound):
                self._slices.expire()
                return done, True
            except errors.ApiInvalid as error:
                return done, self._invalid(write, error, wanted, moment=moment)
            except errors.ApiFailed as error:
                self._unanswered(write)
                return done, self._refused(write, error, wanted, moment=moment)
            except errors.ApiUnavailable as error:
                self._unanswered(write)
                return done, self._wait(error, moment=moment)
            except errors.FleetError as error:
                return done, self._wait(error, moment=moment)
            if wanted.counter_sets and Feature.COUNTERS in self._dropped:
                return done + 1, True  # without counters the pool has fewer slices
        self._pause.end()
        return len(ordered), True

    def _perform(self, write: Write) -> None:
        if isinstance(write, Delete):
            self._cluster.delete(
                SLICES, Name(write.name), uid=write.uid, resource_version=write.resource_version
            )
            self._slices.expire()
            return
        if isinstance(write, Update):
            answer = self._cluster.replace(SLICES, write.body)
        else:
            answer = self._cluster.create(SLICES, write.body)
        self._slices.written(answer)
        self._last = max(self._last, generation(write.body))
        self._refusals.accepted(devices_of(write.body))
        if self._remembered is not None:
            self._remembered |= {str(entry["name"]): entry for entry in devices_of(answer)}
        self._learn(dropped(write.body, answer))

    def _learn(self, fields: frozenset[Feature]) -> None:
        """Remember fields the server drops, and say so once."""
        for feature in sorted(fields - self._dropped):
            self._trouble.append(Trouble.dropped(feature, REMEDIES[feature]))
        self._dropped |= fields

    def _unanswered(self, write: Write) -> None:
        """The write may have been carried out, or may be later."""
        self._slices.expire()
        if isinstance(write, Update):
            self._outstanding.add(write.body)
        if isinstance(write, Update | Create):
            self._last = max(self._last, generation(write.body))

    def _invalid(
        self, write: Write, error: errors.ApiInvalid, wanted: Offer, *, moment: float
    ) -> bool:
        """Do without counters if it is them, else leave out devices; whether to decide again."""
        causes = error.fields.get("causes", ())
        if isinstance(write, Delete) or not refusing.about_counters(write.body, causes):
            return self._refused(write, error, wanted, moment=moment)
        self._slices.expire()
        self._note(error)
        self._refusals.refuse((), now=moment, why=error.detail)
        self._learn(frozenset({Feature.COUNTERS}))
        return True

    def _refused(
        self, write: Write, error: errors.FleetError, wanted: Offer, *, moment: float
    ) -> bool:
        """Leave out the devices at fault; whether to decide again at once."""
        self._slices.expire()
        sent = () if isinstance(write, Delete) else tuple(devices_of(write.body))
        guilty = refusing.blamed(sent, error.fields.get("causes", ())) or refusing.suspects(
            sent, self._stored()
        )
        named = tuple(str(device["name"]) for device in guilty)
        self._note(error, devices=named)
        self._refusals.refuse(guilty, now=moment, why=f"the API server refuses it: {error.detail}")
        if not guilty:
            self._pause.begin(now=moment, content=wanted.devices, longest_s=refusing.LONGEST_WAIT_S)
        return bool(guilty)

    def _stored(self) -> Mapping[str, Object]:
        """What the server has of each device, as read last."""
        return {str(d.get("name")): d for found in self._own_pool() for d in devices_of(found)}

    def _wait(self, error: errors.FleetError, *, moment: float) -> bool:
        self._note(error)
        self._pause.begin(now=moment, content=None, longest_s=OUTAGE_WAIT_MAX_S)
        return False

    # --- telling ---

    def _note(self, error: errors.FleetError, *, devices: tuple[str, ...] = ()) -> None:
        found = Trouble.of(error, devices=devices)
        if found not in self._trouble:
            self._trouble.append(found)

    def _report(
        self, wanted: Offer | None, *, writes: int, quiet: bool, moment: float
    ) -> PublishReport:
        terms = self._given.terms
        reading = read_pools(self._own_pool()).get((terms.driver, terms.node))
        still = self._slices.current and not self._outstanding
        settled = quiet and still and reading is not None and reading.complete
        confirmed: Mapping[str, float] = {}
        unlisted_at = 0.0
        if settled and wanted is not None and reading is not None:
            confirmed = read_back(
                wanted.quarantined,
                names=wanted.names,
                reading=reading,
                key=self._given.rules.quarantined,
                doubtful=self._doubtful(moment),
            )
            if self._view is not None and self._doubtful(moment).isdisjoint(
                map(version, reading.slices)
            ):
                unlisted_at = self._view.at
        return PublishReport(
            settled=settled,
            writes=writes,
            generation=reading.generation if reading else 0,
            offered=tuple(str(device["name"]) for device in wanted.devices) if wanted else (),
            withdrawn=wanted.withdrawn if wanted else {},
            lost=wanted.lost if wanted else (),
            confirmed_quarantine=confirmed,
            unlisted_at=unlisted_at,
            taken_over=self._takeovers.open(self._view),
            trouble=tuple(self._trouble),
            refused_total=self._refusals.total,
            dropped=self._dropped,
        )

    def _doubtful(self, moment: float) -> frozenset[Version]:
        """Slices an earlier process may still overwrite, as long as they are as they were found."""
        return frozenset() if moment >= self._given.settle_s else self._found
