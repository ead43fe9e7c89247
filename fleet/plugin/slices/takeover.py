"""The coordinator's word in the slices of a silent node, and how it is read back. Pure.

A node that is away cannot say that a device of it is out of service, and until somebody does, the
scheduler gives the device to the next claim (promise 6). The coordinator then marks it in the
node's own slice: the taints keep it from being allocated, an annotation of the slice keeps who
said so, when, and for which reasons. The annotation is the record and loses nothing; a taint's
value has 63 characters.

The way back: the node's publisher leaves marked devices marked, and carries the records along with
whatever it writes, until the node has the reasons in its journal. See `Takeovers`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from fleet.core import errors
from fleet.core.messages import NodeView
from fleet.core.model import State
from fleet.kube.base import Object, name_of, objects_in
from fleet.plugin.slices.device_attributes import attribute
from fleet.plugin.slices.gate import GateRules, unfit_taints
from fleet.plugin.slices.merge import merged_taints
from fleet.plugin.slices.pool import Delete, Update, Write
from fleet.plugin.slices.pool_view import BLOCKING, carries_counters, devices_of, newest_entries

COORDINATOR = "coordinator"
NODE = "node"
AT_MAX = 2.0**35
"""Later than this, s since the epoch, nothing was written by us."""
UNTOLD = "taken-over"
"""Code that stands for reasons which were not kept; no rule lifts it."""


@dataclass(frozen=True, slots=True, order=True)
class Record:
    """That a device is out of service, as the slices keep it. `at`: seconds since the epoch."""

    device: str
    """Name in the slice."""
    uuid: str
    codes: tuple[str, ...]
    at: float
    by: str = COORDINATOR

    @property
    def told(self) -> str:
        """Where the reasons come from, for the node's record."""
        if self.by != COORDINATOR:
            return "published before the journal was lost"
        when = datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"taken over by the coordinator at {when}"


def annotation(driver: str) -> str:
    """Key of the annotation that keeps the records."""
    return f"{driver}/taken-over"


def taken_over(found: Object, *, driver: str) -> tuple[Record, ...]:
    """The records of a slice. What cannot be understood of them counts as a record of all its
    devices that are quarantined, for reasons unknown: it is never passed over (B19)."""
    text = (found.get("metadata", {}).get("annotations") or {}).get(annotation(driver))
    if text is None:
        return ()
    try:
        listed = json.loads(text)
        return tuple(sorted({_record(one) for one in listed}))
    except errors.MALFORMED:
        key = f"{driver}/quarantined"
        return tuple(
            Record(str(entry.get("name")), attribute(entry, "uuid"), (UNTOLD,), 0.0)
            for entry in devices_of(found)
            if any(taint.get("key") == key for taint in entry.get("taints") or ())
        )


def take_over(
    found: Object,
    devices: Mapping[str, Iterable[str]],
    *,
    driver: str,
    now: float,
    remove: bool = False,
) -> Object | None:
    """The slice with these devices (name: codes) out of service; None: it says so already.

    To be sent as a replacement: the resourceVersion is kept and guards it. The pool generation is
    kept too, since one slice changes at a time (`fleet.plugin.slices.pool`). `remove`: take the
    devices out instead, where the server keeps no taints; so is one whose 16 taints are all
    others'.
    """
    rules = GateRules(driver=driver, fresh_s=0.0)
    known = {(record.uuid, record.device): record for record in taken_over(found, driver=driver)}
    entries: list[Object] = []
    changed = False
    for entry in devices_of(found):
        name = str(entry.get("name"))
        if name not in devices:
            entries.append(entry)
            continue
        key = (attribute(entry, "uuid"), name)
        told = known.get(key)
        codes = tuple(sorted({*devices[name], *(told.codes if told else ())}))
        marked = None if remove else mark(entry, codes, rules)
        if marked is not None:
            entries.append(marked)
        if marked != entry or told is None or told.codes != codes:
            known[key] = Record(name, key[0], codes, told.at if told else float(int(now)))
            changed = True
    if not changed:
        return None
    body = {**found, "spec": {**found["spec"], "devices": entries}}
    return carrying(body, known.values(), driver=driver)


def mark(entry: Object, codes: Iterable[str], rules: GateRules) -> Object | None:
    """The device with both of our taints; None: there is no room for the one that counts.

    Taints of others stay as they are, as do the times of ours. A NoExecute stays one. An own taint
    of the node is never replaced by a lesser one: its codes stay in the value.
    """
    present = objects_in(entry.get("taints"))
    evict = any(
        taint.get("key") == rules.quarantined and taint.get("effect") == "NoExecute"
        for taint in present
    )
    told = {code for taint in present for code in codes_of(taint, rules)} - {UNTOLD}
    taints = merged_taints(
        unfit_taints(rules, {*codes, *told}, evict=evict), present, keys=rules.keys, earlier=present
    )
    return None if taints is None else {**entry, "taints": taints}


def carrying(body: Object, records: Iterable[Record], *, driver: str) -> Object:
    """The slice with exactly these records; without the annotation when there are none."""
    metadata = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    notes = dict(metadata.get("annotations") or {})
    listed = [
        {
            "device": one.device,
            "uuid": one.uuid,
            "codes": list(one.codes),
            "at": one.at,
            "by": one.by,
        }
        for one in sorted(records)
    ]
    if listed:
        notes[annotation(driver)] = json.dumps(listed, separators=(",", ":"))
    else:
        notes.pop(annotation(driver), None)
    metadata.pop("annotations", None)
    return {**body, "metadata": {**metadata, "annotations": notes} if notes else metadata}


def with_records(
    ordered: Sequence[Write],
    slices: Iterable[Object],
    records: Collection[Record],
    *,
    driver: str,
) -> tuple[Write, ...]:
    """The writes of a plan, none of which loses a record of `records` and none keeps another.

    Every slice of devices written carries all of them, since devices move between slices; one of
    counters carries none. Slices that keep one no longer wanted are written for that alone. What
    deletes a slice comes last, as planned.
    """
    writes: list[Write] = []
    removals: list[Write] = []
    touched = set()
    safe = not any(isinstance(write, Delete) for write in ordered)
    for write in ordered:
        if isinstance(write, Delete):
            removals.append(write)
            touched.add(write.name)
            continue
        touched.add(name_of(write.body).name)
        if carries_counters(write.body):
            writes.append(write)
            continue
        safe = True
        writes.append(replace(write, body=carrying(write.body, records, driver=driver)))
    for part in slices:
        notes = part.get("metadata", {}).get("annotations") or {}
        if name_of(part).name in touched:
            continue
        fit = not carries_counters(part)
        found = set(taken_over(part, driver=driver))
        stale = annotation(driver) in notes and (not found or bool(found - {*records}))
        if stale or (fit and not safe):
            kept = records if fit and not safe else found & {*records}
            body = carrying(part, kept, driver=driver)
            if body.get("metadata", {}).get("annotations") != part["metadata"].get("annotations"):
                writes.append(Update(body))
            safe = safe or fit
    return (*writes, *removals)


def codes_of(taint: Mapping[str, Any], rules: GateRules) -> tuple[str, ...]:
    """The reason codes in the value of our quarantine taint; `UNTOLD` for those it had no room
    for. Empty for any other taint."""
    if taint.get("key") != rules.quarantined or taint.get("effect") not in BLOCKING:
        return ()
    value = str(taint.get("value") or "")
    codes = [part for part in value.split(".") if part]
    cut = not codes or codes[-1].endswith("-more") or codes[-1].endswith("-reasons")
    if cut or codes == ["unknown"]:
        codes = [*codes[:-1], UNTOLD]
    return tuple(codes)


Marks = Mapping[tuple[str, str], Collection[str]]
"""Reason codes by name and UUID of a device: a card put in its place is another device."""


def shown(entry: Object, marks: Marks, rules: GateRules) -> Object | None:
    """The device to publish, with an open mark on top of its taints; None: it cannot carry it."""
    codes = marks.get((str(entry.get("name")), attribute(entry, "uuid")))
    return entry if codes is None else mark(entry, codes, rules)


@dataclass
class Takeovers:
    """What a publisher remembers of the records it found, until the node has their reasons.

    A record is *open* until `merged` was called for it and a view was taken after that: only such
    a view may say otherwise than the record. Kept in memory alone: after a restart an open record
    is merged again, which changes nothing at the node.
    """

    rules: GateRules
    _told: frozenset[Record] = frozenset()
    _settled: frozenset[Record] = frozenset()
    _found: frozenset[Record] = frozenset()
    _own: frozenset[Record] = frozenset()

    def viewed(self) -> None:
        """A view was taken after every call of `merged` so far."""
        self._settled |= self._told

    def merged(self, records: Iterable[Record]) -> None:
        """The node has the reasons of these records in its journal."""
        self._told |= frozenset(records)

    def retire(self, uuid: str) -> None:
        """The device will not come back: nothing is owed to its records."""
        self._told |= {record for record in self._found | self._own if record.uuid == uuid}

    def read(self, slices: Sequence[Object]) -> Mapping[str, Object]:
        """Take the records of the node's slices, as read last.

        Returns the devices of open ones as they stand there, by name: with their taints' times.
        """
        driver = self.rules.driver
        self._found = frozenset(r for part in slices for r in taken_over(part, driver=driver))
        self._settled &= self._found | self._own
        self._told &= self._found | self._own
        names = {record.device for record in self._found - self._told}
        there = newest_entries(slices)
        return {name: there[name] for name in names & there.keys()}

    def remember(self, entries: Iterable[Object]) -> None:
        """Take the quarantines that an earlier process of this node published itself."""
        self._own = frozenset(
            Record(str(entry.get("name")), attribute(entry, "uuid"), codes, 0.0, NODE)
            for entry in entries
            for taint in entry.get("taints") or ()
            if (codes := codes_of(taint, self.rules))
        )

    def kept_by(self, ordered: Sequence[Write], slices: Iterable[Object]) -> tuple[Write, ...]:
        """The writes of a plan, with the records that must go on being kept; no others stay."""
        return with_records(ordered, slices, self.carried, driver=self.rules.driver)

    @property
    def carried(self) -> frozenset[Record]:
        """The coordinator's records that a slice must go on keeping."""
        return self._found - self._settled

    def open(self, view: NodeView | None) -> tuple[Record, ...]:
        """Records whose reasons the node has yet to take, as far as it has the device.

        Of the node's own quarantines those count whose device has an unknown holder: the journal
        was lost (DESIGN 4), and they are what is left of its reasons.
        """
        if view is None:
            return ()
        there = {device.uuid: device for device in view.devices}
        waiting = self.carried | {
            record
            for record in self._own - self._settled
            if (device := there.get(record.uuid)) is not None
            and device.state == State.HELD
            and not {*record.codes} <= {reason.code for reason in device.reasons}
        }
        return tuple(sorted(r for r in waiting - self._told if r.uuid in there))

    def marks(self, view: NodeView | None) -> Marks:
        """What the slices must go on showing, whatever the view says."""
        found: dict[tuple[str, str], frozenset[str]] = {}
        for record in self.carried | frozenset(self.open(view)):
            key = (record.device, record.uuid)
            found[key] = found.get(key, frozenset()) | {*record.codes}
        return found


def _record(one: Mapping[str, Any]) -> Record:
    at = float(one["at"])
    codes = tuple(sorted({str(code) for code in one["codes"]}))
    if not 0 <= at < AT_MAX or not one["device"] or not codes:
        raise ValueError(f"not a record: {one!r}")
    return Record(str(one["device"]), str(one["uuid"]), codes, at, str(one.get("by", COORDINATOR)))
