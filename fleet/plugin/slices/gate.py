"""The pool gate: whether a device may be allocated now, and the taints that say so. Pure.

A device is allocatable only while it is CLEAN, freshly checked and nobody is on its memory
(DESIGN 5, Gates), on a node that can prepare at all; everything else carries
``<driver>/not-clean``, except where an allocation of that very device keeps others off it anyway:
under our hold, or while it is made ready for a claim. That taint has no value while a device goes
its ordinary way (dirty, wiped, checked, in use): what the scheduler may do is the same, so moving
between those must not cost a write. Where waiting does not help, the value says why (`Why`), for
whoever reads slices. Quarantine is a second taint, ``<driver>/quarantined``, whose value is made of
the reasons' codes: one taint however many reasons there are (B09); the whole list is in
`fleet quarantine list`.

Taints are for availability and for people. Safety rests on the node's own checks: it refuses an
unfit device whatever the scheduler does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleet.core.messages import DeviceView, NodeView
from fleet.core.model import State
from fleet.kube.base import Object

EVICTING = frozenset({"device-lost"})
"""Codes of NoExecute grade (B24): the tenant's pod cannot go on, so that evicting it harms nobody.
Every other reason keeps the running tenant and only stops new ones (DESIGN 5, Slices)."""

VALUE_MAX = 63
"""Length of a label value, and of a taint's."""


class Effect(StrEnum):
    """What a taint does."""

    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


class Why(StrEnum):
    """Values of the taint ``not-clean``: what somebody has to look at."""

    ITS_WAY = ""
    """Nothing: the device is dirty, being wiped or checked, or in use."""
    HELD = "held"
    """Who used it before is not known."""
    ADMIN_ACCESS = "admin-access"
    """A claim looks into it with adminAccess."""
    HEALTH_NOT_READ = "health-not-read"
    NODE_BLOCKED = "node-blocked"
    """Nothing can be prepared on the node, whatever the device."""
    NODE_SILENT = "node-silent"
    """No owner of the node's journal has answered of late."""


@dataclass(frozen=True, slots=True)
class GateRules:
    """What the gate judges by. `fresh_s`: age, s, up to which a verdict or a view counts."""

    driver: str
    fresh_s: float

    @property
    def not_clean(self) -> str:
        """Key of the taint of a device that may not be allocated now."""
        return f"{self.driver}/not-clean"

    @property
    def quarantined(self) -> str:
        """Key of the taint of a device that is out of service."""
        return f"{self.driver}/quarantined"

    @property
    def keys(self) -> tuple[str, str]:
        """Keys of our taints, the one that counts last; every other taint is somebody else's."""
        return (self.not_clean, self.quarantined)


@dataclass(frozen=True, slots=True)
class Verdict:
    """May the device be allocated; why not ("" when it may); which taints say so."""

    allocatable: bool
    why: str
    taints: tuple[Object, ...]
    quarantined: bool


def verdicts(
    view: NodeView,
    *,
    now: float,
    rules: GateRules,
    evicted: Iterable[str] = (),
) -> Mapping[str, Verdict]:
    """The verdict on each device of the view by UUID.

    `evicted`: UUIDs of devices bound to a pod but not exposed to it; when such a device is
    quarantined its pod is evicted, so that its owner makes it again elsewhere.
    """
    stale = not _fresh(view.at, now=now, rules=rules)
    leaving = frozenset(evicted)
    found = {}
    for device in view.devices:
        why, word = _obstacle(device, now=now, rules=rules)
        if stale:
            why, word = "the node service has not answered of late", Why.NODE_SILENT
        elif view.blocked:
            why, word = view.blocked[0], Why.NODE_BLOCKED
        elif _kept(device):
            why = ""
        clean = (not_clean_taint(rules, word),) if why else ()
        found[device.uuid] = _verdict(
            device, why=why, unclean=clean, rules=rules, evict=device.uuid in leaving
        )
    return found


def is_quarantined(device: DeviceView) -> bool:
    """Whether the device is out of service: by its state, or by a reason open while in use."""
    return bool(device.reasons) or device.state in (State.QUARANTINED, State.RETESTING)


def unfit_taints(rules: GateRules, codes: Iterable[str], *, evict: bool) -> tuple[Object, ...]:
    """Both taints of a device out of service for `codes`."""
    effect = Effect.NO_EXECUTE if evict else Effect.NO_SCHEDULE
    return (
        not_clean_taint(rules),
        {"key": rules.quarantined, "value": folded(codes), "effect": effect.value},
    )


def not_clean_taint(rules: GateRules, why: Why = Why.ITS_WAY) -> Object:
    """The taint of a device that may not be allocated now."""
    value = {"value": why.value} if why else {}
    return {"key": rules.not_clean, **value, "effect": Effect.NO_SCHEDULE.value}


def folded(codes: Iterable[str]) -> str:
    """Reason codes as one label value: evicting ones first, then by name, what does not fit
    counted."""
    ordered = sorted(set(codes), key=lambda code: (code not in EVICTING, code))
    if not ordered:
        return "unknown"
    for kept in range(len(ordered), 0, -1):
        left = len(ordered) - kept
        value = ".".join((*ordered[:kept], *((f"and-{left}-more",) if left else ())))
        if len(value) <= VALUE_MAX:
            return value
    return f"{len(ordered)}-reasons"


def _verdict(
    device: DeviceView, *, why: str, unclean: tuple[Object, ...], rules: GateRules, evict: bool
) -> Verdict:
    codes = {reason.code for reason in device.reasons}
    quarantined = is_quarantined(device)
    taints = unclean
    if quarantined:
        taints = unfit_taints(rules, codes, evict=evict or bool(codes & EVICTING))
    return Verdict(
        allocatable=not taints and device.state == State.CLEAN and not device.claim,
        why=why,
        taints=taints,
        quarantined=quarantined,
    )


def _obstacle(device: DeviceView, *, now: float, rules: GateRules) -> tuple[str, Why]:
    """Why the device may not be given to anybody now, or "", and in one word.

    State, claim and attachments of a view are those of all units of the device, so that somebody on
    an overlapping device shows here too.
    """
    if is_quarantined(device):
        return "quarantined", Why.ITS_WAY
    if device.attached:
        return "looked into with adminAccess", Why.ADMIN_ACCESS
    if device.state != State.CLEAN:
        return device.state, Why.HELD if device.state == State.HELD else Why.ITS_WAY
    if device.claim:
        return "held by a claim", Why.ITS_WAY
    if not _fresh(device.checked_at, now=now, rules=rules):
        return "its health was not checked of late", Why.HEALTH_NOT_READ
    return "", Why.ITS_WAY


def _kept(device: DeviceView) -> bool:
    """Whether an allocation of this very device keeps others off it, so that no taint has to.

    Either our hold is on the claim that has it, or it is made ready for a claim that was given it.
    Whoever looks into it may stay longer than either.
    """
    if device.attached:
        return False
    if device.held:
        return True
    working = device.state in (State.WIPING, State.CHECKING)
    return working and _is_claims(device.operation, device.uuid)


def _is_claims(operation: str, uuid: str) -> bool:
    """Whether an operation makes the device ready for a claim: ``claim/<uid>/<token>/<uuid>/<n>``.

    One that works on an overlapping device says nothing of this one's allocation.
    """
    return operation.startswith("claim/") and operation.split("/")[3:4] == [uuid]


def _fresh(at: float, *, now: float, rules: GateRules) -> bool:
    """A moment far in the future is a broken clock, not a fresh answer."""
    return abs(now - at) <= rules.fresh_s
