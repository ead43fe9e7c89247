"""What is to be done about one claim now: a pure function of everything known about it (DESIGN 5).

Level-triggered: no step remembers that another was made. What was done shows in the claim (its
conditions and receipts), in the store (its lease) and on the node (its record, its results), and
the same facts lead to the same decision, whichever coordinator reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fleet.control.binding import pledge
from fleet.control.binding.claim_facts import UNDER, Facts, Rules
from fleet.control.binding.decisions import (
    BUSY_S,
    Acquire,
    Bind,
    Decision,
    Fail,
    Fault,
    Finalize,
    LetGo,
    LookUp,
    Order,
    Rest,
    Unbind,
    Undo,
    Unexposed,
    Wait,
)
from fleet.core.messages import UNMET, ClaimBrief, DeviceResult, DeviceView, Outcome
from fleet.core.model import State, Token
from fleet.kube.claim import ClaimReading

POLL_S = 0.25
"""Pause, s, between two looks at work under way on a node."""
SLOW_S = 5.0
"""Pause, s, where only other people can help."""
MARGIN_S = 30.0
"""Time, s, before the scheduler's own timeout at which we say why it will not be."""
WATCHED_S = 30.0
"""Time, s, we watch a claim that we found waiting before it is failed, whatever clocks say."""
UNUSED_S = 5.0
"""Time, s, a claim that nobody is reserved for may keep what was prepared for it: the scheduler
drops a pod's entry for a moment when another driver's claim of the pod was not ready."""
ATTEMPTS_MAX = 3
"""Wipes ordered of a device that come to nothing, without its being quarantined, before it counts
as failed."""

UNFIT = frozenset({Outcome.QUARANTINED, Outcome.FAILED})
OUT = frozenset({State.QUARANTINED, State.RETESTING})


# --- deciding -------------------------------------------------------------------------------------


def decide(facts: Facts, rules: Rules) -> Decision:
    """What is to be done about the claim."""
    reading = facts.reading
    if not reading.holding:
        return _without_devices(facts, rules)
    if len(reading.nodes) > 1:
        return Rest(f"its devices are on {len(reading.nodes)} nodes: it is not ours to bind")
    record = facts.record
    if not reading.pods and not reading.others:
        return _unused(facts, record, rules)
    if record is not None:
        return _recorded(facts, record)
    if not reading.gated:
        return Rest("its pool has no binding conditions: the node proves it in prepare")
    if reading.failed:
        return _failed(facts)
    if facts.owed:
        return Wait("its node still lets its last use go", BUSY_S)
    if facts.strays:
        return Undo(facts.strays, "they are of an earlier allocation")
    if reading.bound:
        return _bound(facts)
    return _pending(facts, rules)


def _without_devices(facts: Facts, rules: Rules) -> Decision:
    pledged = pledge.read(facts.reading.raw, rules.marks)
    by_clock = pledged is not None and pledged.counts(facts.now)
    by_watch = pledged is not None and facts.pledged_s < 2 * pledge.LIFETIME_S
    if facts.pledged and (by_clock or by_watch) and not facts.reading.allocated:
        return Wait("it is being allocated by us", SLOW_S)
    if leases := facts.leases:
        return Undo(leases, "it is not allocated to our devices any more")
    if facts.kept:
        return Wait("its node keeps the finalizer until its devices are verified", SLOW_S)
    if facts.reading.marked:
        return LetGo(why="it is not allocated to our devices any more")
    if facts.reading.gated and facts.reading.pods and not facts.reading.bound:
        if facts.reading.failed:
            return Rest("it has failed: the scheduler allocates it anew")
        if facts.unwritable:
            return Rest(facts.unwritable)
        if strange := _strange(facts.reading, rules):
            return _failing(facts, strange)
        return Bind({}, why="it only looks into devices, with adminAccess")
    return Rest("it holds nothing of ours")


def _unused(facts: Facts, record: ClaimBrief | None, rules: Rules) -> Decision:
    """Nobody is reserved for it: after its use, after a pod that vanished, or before the first."""
    reading = facts.reading
    if record is not None:
        return Wait(f"its node still has it ({record.state})", SLOW_S)
    if facts.view is None:
        return Wait("its node does not answer", SLOW_S)
    if facts.lease is not None and facts.allocated_by_us and not reading.terminating:
        return Rest("we allocated it; it waits for its first pod")
    if leases := facts.leases:
        if not reading.terminating and facts.unused_s < UNUSED_S:
            return Wait("nobody is reserved for it", UNUSED_S - facts.unused_s + POLL_S)
        return Undo(leases, "nobody is reserved for it")
    if reading.marked:
        if facts.owed and facts.unused_s < UNUSED_S:
            return Wait("its node lets it go", BUSY_S)
        known = {name: device for name, device in facts.ours.items() if device is not None}
        out = tuple(name for name, device in known.items() if device.state in OUT)
        if restless := [name for name, device in known.items() if _restless(facts, device)]:
            return Wait(f"{', '.join(restless)} is not clean yet", SLOW_S)
        if out and rules.until_verified:
            return Wait(f"{', '.join(out)} is not verified", SLOW_S)
        return LetGo(quarantined=out)
    return Rest("nobody is reserved for it")


def _recorded(facts: Facts, record: ClaimBrief) -> Decision:
    reading, told = facts.reading, f"its node has it ({record.state})"
    if not reading.gated:
        return Rest(told)
    if record.state == "UNPREPARING":
        return _torn_down(facts, told)
    if not reading.bound and facts.unwritable:
        return Rest(f"{told}; {facts.unwritable}")
    if not reading.bound:
        proofs = _exposed(facts) if record.state == "PREPARED" else {}
        return Bind(proofs, why="its node exposes it under its lease") if proofs else Wait(told)
    if reading.held and not reading.finalizer and not reading.terminating:
        return Finalize()
    if facts.strays:
        return Undo(facts.strays, "they are of an earlier allocation")
    return Rest(told)


def _torn_down(facts: Facts, told: str) -> Decision:
    """Conditions said for the use that ends are no word to a pod that still waits for them.

    One that is bound does not: it is the pod that is leaving, or its node proves it again.
    """
    if not facts.reading.bound or facts.reading.terminating:
        return Wait(told)
    if facts.pods is None:
        return LookUp()
    if any(not pod.bound and not pod.leaving for pod in facts.pods):
        return Unbind("it is torn down, and another pod waits for it")
    return Rest(told)


def _exposed(facts: Facts) -> Mapping[str, DeviceResult]:
    """What proves devices that the node has exposed to this very claim, under its very lease; {}
    unless it proves all of them. The pods of a claim share it.
    """
    view, lease, found = facts.view, facts.lease, {}
    for name, device in facts.ours.items():
        mine = device is not None and device.claim == facts.reading.uid
        if view is None or lease is None or device is None or not mine:
            return {}
        if device.state != State.IN_USE or device.certified_under != str(lease.token):
            return {}
        found[name] = DeviceResult(
            node=view.node,
            device=device.name,
            uuid=device.uuid,
            outcome=Outcome.CERTIFIED,
            state=device.state,
            certificate=device.certificate,
        )
    return found


def _bound(facts: Facts) -> Decision:
    """Its conditions are True: for the lease it has, or for one that is gone."""
    reading, lease = facts.reading, facts.lease
    said = {reading.receipt(one, UNDER) for one in reading.holding}
    if lease is None or said != {str(lease.token)}:
        return Unbind("its conditions were said for an earlier lease")
    if facts.view is None:
        return Wait("its node does not answer", SLOW_S)
    faults = tuple(_faults(facts))
    if faults:
        return _failing(facts, faults)
    if any(_superseded(device, lease.token) for device in facts.ours.values() if device):
        if facts.pods is None:
            return LookUp()
        if any(pod.bound for pod in facts.pods):
            return Rest("the node proves it again in prepare")
        return Unbind("a device has to be wiped again")
    if not reading.finalizer and not reading.terminating and reading.held:
        return Finalize()
    return Rest("it is bound and waits for kubelet")


def _pending(facts: Facts, rules: Rules) -> Decision:
    reading = facts.reading
    if facts.unwritable:  # no device is kept or wiped for what can never be said
        leases = facts.leases
        return Undo(leases, facts.unwritable) if leases else Rest(facts.unwritable)
    if strange := _strange(reading, rules):
        return _failing(facts, strange)
    if facts.misconfigured:
        text = facts.misconfigured
        return _failing(facts, tuple(_all(reading, "config-invalid", text, visible=False)))
    late = _is_late(facts, rules)
    if facts.view is None:
        if late and not reading.held:  # a claim that is held may be exposed
            return _failing(facts, tuple(_all(reading, "node-silent", "its node does not answer")))
        return Wait("its node does not answer", BUSY_S)
    faults = tuple(_faults(facts))
    if faults:
        return _failing(facts, faults)
    step = _proving(facts, rules)
    if not late or isinstance(step, Bind | Fail | LookUp):
        return step
    if facts.pods is None:
        return LookUp()
    if any(pod.bound for pod in facts.pods):
        return step  # the scheduler has done with it long ago; the node proves it in prepare
    return Fail(_late(facts, rules, "somebody else has a device" if facts.refused else step.why))


def _failed(facts: Facts) -> Decision:
    """It has failed: the scheduler allocates it anew, unless it was faster and bound a pod."""
    if facts.lease is not None or facts.strays:
        return Undo(facts.leases, "it has failed")
    faults = tuple(_faults(facts))
    if faults and facts.pods is None:
        return LookUp()
    bound = tuple(pod for pod in facts.pods or () if pod.bound)
    if faults and bound:
        return Unexposed(faults, bound)
    return Rest("it has failed: the scheduler allocates it anew")


def _failing(facts: Facts, faults: tuple[Fault, ...]) -> Decision:
    """Say that it failed; a pod that is bound already is told itself."""
    if not any(one.failures for one in facts.reading.devices):
        return Wait("it cannot be failed: its allocation names no condition for that", SLOW_S)
    if facts.pods is None:
        return LookUp()
    bound = tuple(pod for pod in facts.pods if pod.bound)
    if not bound:
        return Fail(faults, silent=facts.view is None)
    if facts.view is None or not any(fault.visible for fault in faults):
        return Wait("a pod is bound to it: its node decides in prepare", SLOW_S)
    return Unexposed(faults, bound)


def _late(facts: Facts, rules: Rules, why: str) -> tuple[Fault, ...]:
    """Whom to blame when time is up: a device whose wipe has not ended is out of service (B6);
    one that somebody else has is not at fault, nor one whose wipe was ordered of late.
    """
    long_s = _share(facts, rules) / 2
    wiped = {
        name
        for name, d in facts.ours.items()
        if d and d.uuid in facts.ordered and facts.ordered_s.get(d.uuid, long_s) >= long_s
    }
    return tuple(
        Fault(one.device, "not-in-time", why, visible=True, codes=("timed-out",))
        if one.device in wiped
        else Fault(one.device, "not-in-time", why, visible=False)
        for one in facts.reading.holding
    )


def _proving(facts: Facts, rules: Rules) -> Decision:
    """The next step towards proven devices; every fault has been looked for."""
    view, lease = facts.view, facts.lease
    assert view is not None  # noqa: S101  the caller has looked
    devices = {name: device for name, device in facts.ours.items() if device is not None}
    uid = facts.reading.uid
    if facts.taken:
        return _failing(
            facts, tuple(_all(facts.reading, "taken", "another claim has it", visible=False))
        )
    for name, device in devices.items():
        if device.claim not in ("", uid):
            return Wait(f"{name} is held by another claim that is not torn down yet")
        if device.state == State.HELD:
            told = f"who used {name} before is not known; whoever runs its node proves it free"
            return Wait(f"{name} is held by somebody unknown", SLOW_S, told)
        if device.attached:
            return Wait(f"{name} is looked into with adminAccess")
    if facts.refused:
        told = "a device is held by somebody else"
        return Wait(f"a device is held by {facts.refused}", told=told)
    if lease is None or any(_closed(device, lease.token) for device in devices.values()):
        return _anew(facts) or Acquire(tuple(devices.values()))
    proven = {name: p for name, d in devices.items() if (p := _proof(facts, d, lease.token))}
    missing = [device for name, device in devices.items() if name not in proven]
    unordered = tuple(d for d in missing if d.uuid not in facts.ordered)
    if unordered:
        return Order(unordered)
    if missing:
        return Wait(f"{', '.join(device.name for device in missing)} is wiped and checked", POLL_S)
    stale = [n for n, d in devices.items() if abs(view.at - d.checked_at) > rules.fresh_s]
    if stale:
        return Wait(f"the health of {', '.join(stale)} was not checked of late")
    return Bind(proven)


def _anew(facts: Facts) -> Decision | None:
    """A claim that was used before is proven again for a pod that stays, not for the one that is
    leaving: its entry outlives the teardown by a moment.
    """
    reading = facts.reading
    if not (reading.marked or reading.receipts):
        return None
    if facts.pods is None:
        return LookUp()
    if any(not pod.leaving for pod in facts.pods):
        return None
    return Wait("its pods are leaving")


def _proof(facts: Facts, device: DeviceView, token: Token) -> DeviceResult | None:
    """The result that proves the device, its certificate being in force under this very token."""
    found = facts.results.get(device.uuid)
    if found is None or found.outcome is not Outcome.CERTIFIED:
        return None
    if device.state != State.CLEAN or device.certified_under != str(token):
        return None
    return found if device.certificate == found.certificate else None


def _faults(facts: Facts) -> Iterable[Fault]:
    """What keeps devices of the claim from ever becoming ready for it."""
    for name, device in facts.ours.items():
        if device is None:
            yield Fault(name, "device-lost", "the node has no such device any more", visible=True)
        elif device.state in OUT or device.reasons:
            codes = ", ".join(sorted({reason.code for reason in device.reasons})) or "unknown"
            yield Fault(name, "quarantined", f"out of service ({codes})", visible=True)
        elif unmet := _unmet(facts, device):
            yield Fault(name, UNMET, unmet, visible=False)
        elif _wiped_in_vain(facts, device):
            text = "its wipe was not proven"
            yield Fault(name, "wipe-failed", text, visible=True, codes=("backend-failed",))


def _wiped_in_vain(facts: Facts, device: DeviceView) -> bool:
    found = facts.results.get(device.uuid)
    if found is None or found.outcome not in UNFIT or device.state == State.CLEAN:
        return False
    return facts.attempts.get(device.uuid, 0) >= ATTEMPTS_MAX


def _unmet(facts: Facts, device: DeviceView) -> str:
    """Why a device that is fit for everybody else is not for what the claim demands; "": it is.

    Never its fault: a tenant's demand takes no device out of service.
    """
    result = facts.results.get(device.uuid)
    found = result.findings if result is not None and result.outcome is Outcome.REFUSED else ()
    return next((one.detail for one in found if one.check == UNMET), "")


def _superseded(device: DeviceView, token: Token) -> bool:
    proven = device.state == State.CLEAN and device.certified_under == str(token)
    return not proven or _closed(device, token)


def _restless(facts: Facts, device: DeviceView) -> bool:
    """Whether our reservation still has to keep a device from others."""
    theirs = device.claim not in ("", facts.reading.uid)
    return facts.reading.held and not theirs and device.state not in OUT | {State.CLEAN}


def _closed(device: DeviceView, token: Token) -> bool:
    floor = Token.parse(device.floor)
    return floor > token or (floor == token and device.closed)


def _all(reading: ClaimReading, code: str, text: str, *, visible: bool = True) -> Iterable[Fault]:
    codes = (code,) if visible else ()
    return [Fault(one.device, code, text, visible, codes) for one in reading.holding]


def _strange(reading: ClaimReading, rules: Rules) -> tuple[Fault, ...]:
    """Devices the claim would look into, and its namespace may not (F60).

    Its node refuses it as well, and decides; said here it is said before the pod is bound.
    """
    if reading.name.namespace in rules.admins:
        return ()
    text = f"namespace {reading.name.namespace} may not look into devices (adminAccess)"
    looked = [one for one in reading.devices if one.admin]
    return tuple(Fault(one.device, "admin-access", text, visible=False) for one in looked)


def _is_late(facts: Facts, rules: Rules) -> bool:
    """Whether time is up, by the clock that allocated the claim and by our own watching alike:
    a difference between two clocks costs nobody his device.
    """
    at = facts.reading.allocated_at
    if at is None or facts.now < at + rules.binding_timeout_s - MARGIN_S:
        return False
    return facts.pending_s >= _share(facts, rules)


def _share(facts: Facts, rules: Rules) -> float:
    """How much of its time, s, we must have watched a claim wait."""
    half_s = max(0.0, rules.binding_timeout_s - MARGIN_S) / 2
    return min(half_s, max(WATCHED_S, facts.left_s / 2))
