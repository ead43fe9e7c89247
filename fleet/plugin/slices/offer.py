"""From the node's view and what was published before to the devices a pool should list. Pure.

A device is not offered (it is *withdrawn*) only where offering it would be wrong: another publisher
has it, the server refuses it, or the server drops taints and this one needs one. Being dirty, stale
or broken is said by taints, and a device the node no longer reports stays under its old name,
quarantined as lost: one that simply vanished would be marked bad by nobody (B24).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fleet.core.messages import NodeView
from fleet.kube.base import Object
from fleet.kube.marks import AGENT
from fleet.kube.slice_equality import Feature
from fleet.plugin.slices import counters
from fleet.plugin.slices.device_attributes import Terms, agent_device, attribute, names, render
from fleet.plugin.slices.gate import GateRules, Why, not_clean_taint, unfit_taints, verdicts
from fleet.plugin.slices.takeover import Marks, shown

LOST = "device-lost"
"""Reason code of a device the node no longer reports."""
NO_ROOM = "it is out of service and there is no room for another taint"
TAINTS_UNAVAILABLE = "the API server drops taints and the device needs one"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Everything besides the view that decides what is offered."""

    terms: Terms
    rules: GateRules
    remembered: Mapping[str, Object] = field(default_factory=dict)
    """Devices published before, by name, as they were read last."""
    barred: Mapping[str, str] = field(default_factory=dict)
    """Why a device must not be published, by UUID."""
    dropped: frozenset[Feature] = frozenset()
    """Fields the server does not keep."""
    agent: bool = False
    """Offer the agent device too."""
    evicted: frozenset[str] = frozenset()
    """UUIDs bound to a pod but not exposed to it."""
    marks: Marks = field(default_factory=dict)
    """Quarantines said for the node (`fleet.plugin.slices.takeover`) whose reasons it does not have
    yet: these devices are published as quarantined, whatever the view says."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What the pool should list, in order, without `timeAdded` of taints."""

    devices: tuple[Object, ...]
    names: Mapping[str, str]
    """Name in the slice by UUID, of every device of the view."""
    withdrawn: Mapping[str, str]
    """Why a device of the view is not offered, by UUID."""
    quarantined: Mapping[str, float]
    """Devices of the view out of service, by UUID: since when (`DeviceView.since`)."""
    lost: tuple[str, ...] = ()
    counter_sets: tuple[Object, ...] = ()
    """What the devices consume counters of (`fleet.plugin.slices.counters`), by name."""


def offer(view: NodeView, *, now: float, given: Circumstances) -> Offer:
    """What to publish for this view; a view older than `rules.fresh_s` makes every device stale."""
    judged = verdicts(view, now=now, rules=given.rules, evicted=given.evicted)
    named = names(view.devices)
    consumed = counters.consumption(view.devices, named)
    entries: list[Object] = []
    known: list[Object] = []
    withdrawn: dict[str, str] = {}
    for device in view.devices:
        plain = render(
            device,
            named[device.uuid],
            taints=judged[device.uuid].taints,
            terms=given.terms,
            counters=consumed.get(device.uuid, ()),
        )
        known.append(plain)
        entry = shown(plain, given.marks, given.rules)
        if why := _obstacle(device.uuid, entry, given):
            withdrawn[device.uuid] = why
        elif entry is not None:
            entries.append(_kept_fields(entry, given))
    lost = (*_lost(view, named, given), *_missed(view, named, given))
    certain = bool(view.devices) and not view.degraded
    for entry in lost:
        plain = {**entry, "taints": list(unfit_taints(given.rules, (LOST,), evict=certain))}
        gone = shown(plain, given.marks, given.rules)
        if gone is not None and not _obstacle(attribute(entry, "uuid"), gone, given):
            entries.append(_kept_fields(gone, given))
    if given.agent:
        entries.append(_kept_fields(agent_device(given.terms, simulated=view.simulated), given))
    return Offer(
        devices=tuple(entries),
        names=named,
        withdrawn=withdrawn,
        quarantined={d.uuid: d.since for d in view.devices if judged[d.uuid].quarantined},
        lost=tuple(str(entry["name"]) for entry in lost),
        counter_sets=counters.sets([*known, *lost], offered=entries),
    )


def offer_unseen(*, silent_s: float, given: Circumstances) -> Offer | None:
    """What to publish while no view was ever had: what is there, stale after `rules.fresh_s`.

    The agent device always: on Kubernetes the owner, who has the view, starts only with it. None:
    there is nothing to hold on to, and an empty pool would claim that the node has no device.
    """
    remembered = dict(given.remembered)
    if given.agent:
        remembered.setdefault(AGENT, agent_device(given.terms, simulated=given.terms.simulated))
    if not remembered:
        return None
    stale = silent_s > given.rules.fresh_s
    entries = [
        shown(_made_stale(entry, given.rules) if stale else entry, given.marks, given.rules)
        for entry in remembered.values()
    ]
    offered = tuple(
        _kept_fields(entry, given)
        for entry in entries
        if entry is not None and not _obstacle("", entry, given)
    )
    return Offer(
        devices=offered,
        counter_sets=counters.sets(remembered.values(), offered=offered),
        names={},
        withdrawn={},
        quarantined={},
    )


def _made_stale(entry: Object, rules: GateRules) -> Object:
    taints = entry.get("taints") or []
    if entry["name"] == AGENT or any(taint.get("key") == rules.quarantined for taint in taints):
        return entry
    others = [taint for taint in taints if taint.get("key") != rules.not_clean]
    return {**entry, "taints": [not_clean_taint(rules, Why.NODE_SILENT), *others]}


def _obstacle(uuid: str, entry: Object | None, given: Circumstances) -> str:
    """Why this entry must not be offered, or ""."""
    if why := given.barred.get(uuid):
        return why
    if entry is None:
        return NO_ROOM
    if Feature.TAINTS in given.dropped and entry.get("taints"):
        return TAINTS_UNAVAILABLE
    return ""


def _kept_fields(entry: Object, given: Circumstances) -> Object:
    """The entry without fields the server is known to drop: they would differ for ever."""
    gone = {str(feature) for feature in given.dropped}
    if Feature.BINDING_CONDITIONS in given.dropped:
        gone |= {"bindingFailureConditions", "bindsToNode"}
    return {name: value for name, value in entry.items() if name not in gone}


def _lost(view: NodeView, named: Mapping[str, str], given: Circumstances) -> tuple[Object, ...]:
    """Entries published before whose device the view does not list.

    A name that the view uses again belongs to the device that has it now: a replaced card. One that
    was replaced is nobody's to wait for once no claim has it any more.
    """
    known = {device.uuid for device in view.devices}
    known |= {one.device.uuid for one in view.lost if one.closed and not one.device.claim}
    taken = {*named.values(), AGENT}
    return tuple(
        entry
        for name, entry in given.remembered.items()
        if name not in taken and attribute(entry, "uuid")[:64] not in _cut(known)
    )


def _missed(view: NodeView, named: Mapping[str, str], given: Circumstances) -> tuple[Object, ...]:
    """Devices the node's journal misses and no slice remembers, as they would have been published:
    a node that is new to its slices publishes what it has lost all the same (B38)."""
    lost = [one.device for one in view.lost if not one.closed or one.device.claim]
    every = names([*view.devices, *lost])
    consumed = counters.consumption(lost, every)
    taken = {*named.values(), *given.remembered, AGENT}
    said = _cut({attribute(entry, "uuid") for entry in given.remembered.values()})
    return tuple(
        render(
            device,
            every[device.uuid],
            taints=(),
            terms=given.terms,
            counters=consumed.get(device.uuid, ()),
        )
        for device in lost
        if every[device.uuid] not in taken and not _cut({device.uuid}) <= said
    )


def _cut(uuids: Iterable[str]) -> frozenset[str]:
    return frozenset(uuid.encode()[:64].decode(errors="ignore") for uuid in uuids)


REMEDIES: Mapping[Feature, str] = {
    Feature.TAINTS: "switch the gate DRADeviceTaints on; until then a device that is not fit to be"
    " allocated is taken out of the slice",
    Feature.BINDING_CONDITIONS: "switch the gate DRADeviceBindingConditions on; until then the"
    " scheduler does not wait for pre-bind, and devices are wiped in prepare",
    Feature.ALLOCATION_LIMIT: "nothing: without the gate DRAConsumableCapacity no device can be"
    " allocated twice",
    Feature.COUNTERS: "switch the gate DRAPartitionableDevices on (Kubernetes 1.35 or newer) and"
    " start the plugin again; until then the scheduler may allocate an accelerator together with a"
    " partition of it, and the node refuses the second of the two",
}
"""What to do about a field that the server does not keep."""
