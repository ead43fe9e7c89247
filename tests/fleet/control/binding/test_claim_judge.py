"""Every decision about a claim, from facts alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest

from fleet.control.binding import pledge
from fleet.control.binding.claim_facts import Facts, Rules
from fleet.control.binding.claim_judge import ATTEMPTS_MAX, MARGIN_S, UNUSED_S, WATCHED_S, decide
from fleet.control.binding.decisions import (
    Acquire,
    Bind,
    Fail,
    Finalize,
    LetGo,
    LookUp,
    Order,
    PodFact,
    Rest,
    Unbind,
    Undo,
    Unexposed,
    Wait,
)
from fleet.core.messages import UNMET, ClaimBrief, DeviceResult, DeviceView, Finding, Outcome, Owed
from fleet.core.model import Holder, HolderKind, Lease, Token, UnitId
from fleet.kube import claim_bodies
from fleet.kube.base import Object
from fleet.kube.claim import read
from fleet.kube.marks import Marks
from tests.fleet.control.binding.scenes import DRIVER, NOW, SPACE, device, reason, result, view

MARKS = Marks(DRIVER)
RULES = Rules(MARKS, binding_timeout_s=600.0, fresh_s=60.0, admins=frozenset({SPACE}))
TOKEN = Token(1, 5)
GATED = {
    "bindingConditions": [MARKS.sanitized, MARKS.healthy],
    "bindingFailureConditions": [MARKS.failed],
}
POD = {"resource": "pods", "name": "p", "uid": "pod"}
HOLD = MARKS.hold(node="n1", uid="u")
LATE = claim_bodies.stamp(NOW - 600.0 + MARGIN_S)
UNBOUND = (PodFact("p", "pod", bound=False, leaving=False),)
BOUND = (PodFact("p", "pod", bound=True, leaving=False),)
LEAVING = (PodFact("p", "pod", bound=True, leaving=True),)
A = "GPU-n1-a"
OURS = Lease(frozenset({UnitId(f"{A}/all")}), Holder(HolderKind.CLAIM, "u"), TOKEN)
STRAY = replace(OURS, units=frozenset({UnitId("x/all")}), token=Token(1, 4))
CERTIFIED = DeviceResult(
    node="n1", device="a", uuid=A, outcome=Outcome.CERTIFIED, state="CLEAN", certificate="sha256:1"
)
VAIN = CERTIFIED.model_copy(update={"outcome": Outcome.FAILED, "certificate": ""})


def proven(**more: object) -> DeviceView:
    """Device a, certified under the claim's token."""
    fields: dict[str, object] = {"certificate": "sha256:1", "certified_under": str(TOKEN)}
    return device("a").model_copy(update=fields | {"floor": str(TOKEN)} | more)


def told(*, true: bool = True, failed: bool = False, **data: str) -> Object:
    """What we have said about device a."""
    kinds = [(MARKS.sanitized, true), (MARKS.healthy, true), (MARKS.failed, failed)]
    conditions = [{"type": kind, "status": str(status)} for kind, status in kinds]
    entry: Object = {"driver": DRIVER, "pool": "n1", "device": "a", "conditions": conditions}
    return entry | {"data": {"token": str(TOKEN), **data}}


def facts(
    *results: Object, users: tuple[Object, ...] = (POD,), at: str = "", **more: object
) -> Facts:
    """A claim for which a pod waits; `more` are facts, or what its metadata and status say."""
    listed = list(results or (result("a") | GATED,))
    allocation = {
        "devices": {"results": listed},
        "allocationTimestamp": at or claim_bodies.stamp(NOW),
    }
    metadata: Object = {"name": "c", "namespace": SPACE, "uid": "u", "resourceVersion": "7"}
    status: Object = {"reservedFor": list(users), "devices": more.pop("said", [])}
    if more.pop("allocated", True):
        status["allocation"] = allocation
    if more.pop("terminating", False):
        metadata["deletionTimestamp"] = claim_bodies.stamp(NOW)
    if (annotations := more.pop("annotations", None)) is not None:
        metadata["annotations"] = annotations
    if more.pop("finalizer", False):
        metadata["finalizers"] = [MARKS.finalizer]
    seen = view(*more.pop("devices", (device("a"),)), **more.pop("node", {}))  # type: ignore[misc,arg-type]
    fields: dict[str, object] = {"view": seen, "now": NOW} | more
    reading = read({"metadata": metadata, "status": status}, MARKS)
    return Facts(reading=reading, **fields)  # type: ignore[arg-type]


def bound(*results: Object, **more: object) -> Facts:
    """A claim whose conditions are True under its lease, held."""
    fields: dict[str, object] = {
        "said": [told()],
        "lease": OURS,
        "devices": (proven(),),
        "users": (POD, HOLD),
    }
    return facts(*results, **(fields | more))  # type: ignore[arg-type]


def recorded(state: str, uid: str = "u") -> Object:
    """A node with a record of the claim."""
    return {"claims": (ClaimBrief(uid=uid, state=state),)}


OWED = {"owed": (Owed(uid="u", namespace=SPACE, name="c"),)}
ADMIN = result("a") | GATED | {"adminAccess": True}
PLEDGED = {pledge.key(MARKS): f"me {int(NOW) + 30}"}
BY_US = told(allocator=DRIVER)

CASES: dict[str, tuple[Callable[[], Facts], type, str]] = {
    # not ours, or not any more
    "nothing of ours": (lambda: facts(result("a") | {"driver": "x"}), Rest, "nothing"),
    "allocated by us soon": (
        lambda: facts(allocated=False, lease=OURS, annotations=PLEDGED, pledged=True),
        Wait, "by us"),
    "pledged by its owner only": (
        lambda: facts(allocated=False, lease=OURS, annotations=PLEDGED), Undo, "not allocated"),
    "deallocated": (lambda: facts(allocated=False, lease=OURS), Undo, "not allocated"),
    "deallocated, marks left": (
        lambda: facts(allocated=False, users=(HOLD,), finalizer=True), LetGo, "not allocated"),
    "finalizer stays until verified": (
        lambda: facts(allocated=False, finalizer=True, kept=True), Wait, "verified"),
    "stuck lease of a claim without devices": (
        lambda: facts(allocated=False, stuck=(STRAY,)), Undo, "not allocated"),
    "admin access only": (lambda: facts(ADMIN), Bind, "adminAccess"),
    "admin access, told": (lambda: facts(ADMIN, said=[told()]), Rest, "nothing"),
    "two nodes": (
        lambda: facts(result("a") | GATED, result("a", pool="n2") | GATED), Rest, "2 nodes"),
    # nobody uses it
    "unused, record": (
        lambda: facts(users=(HOLD,), node=recorded("UNPREPARING")), Wait, "still has it"),
    "unused, silent": (lambda: facts(users=(HOLD,), view=None, lease=OURS), Wait, "not answer"),
    "unused for a moment": (lambda: facts(users=(), lease=OURS), Wait, "nobody"),
    "unused": (lambda: facts(users=(), lease=OURS, unused_s=UNUSED_S), Undo, "nobody"),
    "unused, stuck lease": (
        lambda: facts(users=(), stuck=(STRAY,), unused_s=UNUSED_S), Undo, "nobody"),
    "terminating and unused": (
        lambda: facts(users=(HOLD,), lease=OURS, terminating=True), Undo, "nobody"),
    "allocated by us": (lambda: facts(users=(), lease=OURS, said=[BY_US]), Rest, "first pod"),
    "allocated by us, deleted unused": (
        lambda: facts(users=(HOLD,), lease=OURS, said=[BY_US], terminating=True), Undo, "nobody"),
    "after use": (lambda: facts(users=(HOLD,)), LetGo, "at rest"),
    "finalizer alone": (lambda: facts(users=(), finalizer=True), LetGo, "at rest"),
    "after use, node lets go": (lambda: facts(users=(HOLD,), node=OWED), Wait, "lets it go"),
    "after use, node does not": (
        lambda: facts(users=(HOLD,), node=OWED, unused_s=UNUSED_S), LetGo, "at rest"),
    "after use, not clean": (
        lambda: facts(users=(HOLD,), devices=(device("a", state="DIRTY"),)), Wait, "not clean"),
    "after use, holder unknown": (
        lambda: facts(users=(HOLD,), devices=(device("a", state="HELD"),)), Wait, "not clean"),
    "after use, another has it": (
        lambda: facts(users=(HOLD,), devices=(device("a", state="IN_USE", claim="v"),)),
        LetGo, "at rest"),
    "unused, no marks": (lambda: facts(users=()), Rest, "nobody"),
    # its node has a record
    "prepared early": (lambda: facts(node=recorded("PREPARING")), Wait, "PREPARING"),
    "in use, for others": (lambda: facts(result("a"), node=recorded("PREPARED")), Rest, "PREPARED"),
    "in use": (lambda: bound(node=recorded("PREPARED"), finalizer=True), Rest, "PREPARED"),
    "in use, not marked": (lambda: bound(node=recorded("PREPARED")), Finalize, "bound"),
    "in use, a lease elsewhere": (
        lambda: bound(node=recorded("PREPARED"), finalizer=True, strays=(STRAY,)),
        Undo, "earlier allocation"),
    "exposed before it was bound": (
        lambda: facts(lease=OURS, node=recorded("PREPARED"),
                      devices=(proven(state="IN_USE", claim="u"),)), Bind, "exposes it"),
    "exposed to another claim under the very token": (
        lambda: facts(lease=OURS, node=recorded("PREPARED"),
                      devices=(proven(state="IN_USE", claim="v"),)), Wait, "PREPARED"),
    "exposed under another lease": (
        lambda: facts(lease=OURS, node=recorded("PREPARED"),
                      devices=(proven(state="IN_USE", claim="u", certified_under="1.4"),)),
        Wait, "PREPARED"),
    "torn down": (lambda: bound(node=recorded("UNPREPARING")), LookUp, "looked up"),
    "torn down, pods gone": (
        lambda: bound(node=recorded("UNPREPARING"), pods=LEAVING), Rest, "UNPREPARING"),
    "torn down, another waits": (
        lambda: bound(node=recorded("UNPREPARING"), pods=(*LEAVING, *UNBOUND)), Unbind, "another"),
    "torn down for good": (
        lambda: bound(node=recorded("UNPREPARING"), terminating=True), Wait, "UNPREPARING"),
    # failed
    "failed": (lambda: facts(said=[told(failed=True)], lease=OURS), Undo, "failed"),
    "failed and undone": (lambda: facts(said=[told(failed=True)]), Rest, "anew"),
    "failed, a lease elsewhere": (
        lambda: facts(said=[told(failed=True)], stuck=(STRAY,)), Rest, "anew"),
    "failed, was a pod bound?": (
        lambda: facts(said=[told(failed=True)], devices=()), LookUp, "looked up"),
    "failed, a pod was bound": (
        lambda: facts(said=[told(failed=True)], devices=(), pods=BOUND), Unexposed, "no such"),
    "failed, no pod was bound": (
        lambda: facts(said=[told(failed=True)], devices=(), pods=UNBOUND), Rest, "anew"),
    # on the way
    "without conditions": (lambda: facts(result("a")), Rest, "in prepare"),
    "last use is let go": (lambda: facts(node=OWED), Wait, "last use"),
    "stray lease": (lambda: facts(strays=(STRAY,)), Undo, "earlier allocation"),
    "stuck lease": (lambda: facts(stuck=(STRAY,)), Acquire, "no lease"),
    "no lease": (facts, Acquire, "no lease"),
    "lease closed": (
        lambda: facts(lease=OURS, devices=(device("a", floor=str(TOKEN), closed=True),)),
        Acquire, "no lease"),
    "lease overtaken": (
        lambda: facts(lease=OURS, devices=(device("a", floor="1.6"),)), Acquire, "no lease"),
    "refused": (lambda: facts(refused="campaign:r"), Wait, "campaign:r"),
    "taken": (lambda: facts(refused="claim:v", taken=True), LookUp, "looked up"),
    "taken for good": (
        lambda: facts(refused="claim:v", taken=True, pods=UNBOUND), Fail, "another claim"),
    "taken and prepared": (
        lambda: facts(taken=True, pods=UNBOUND, devices=(device("a", state="IN_USE", claim="v"),)),
        Fail, "another claim"),
    "earlier holder in teardown": (
        lambda: facts(devices=(device("a", state="DIRTY", claim="v"),)), Wait, "not torn down"),
    "holder unknown": (lambda: facts(devices=(device("a", state="HELD"),)), Wait, "unknown"),
    "looked into": (lambda: facts(devices=(device("a", attached=("v",)),)), Wait, "adminAccess"),
    "not ordered": (lambda: facts(lease=OURS), Order, "to be wiped"),
    "ordered": (lambda: facts(lease=OURS, ordered=frozenset({A})), Wait, "wiped and checked"),
    "came to nothing": (lambda: facts(lease=OURS, results={A: VAIN}), Order, "to be wiped"),
    "certificate of another": (
        lambda: facts(lease=OURS, results={A: CERTIFIED}, devices=(proven(certificate="z"),)),
        Order, "to be wiped"),
    "certified under another token": (
        lambda: facts(lease=OURS, results={A: CERTIFIED}, devices=(proven(certified_under="1.4"),)),
        Order, "to be wiped"),
    "dirty again": (
        lambda: facts(lease=OURS, results={A: CERTIFIED}, devices=(proven(state="DIRTY"),)),
        Order, "to be wiped"),
    "health stale": (
        lambda: facts(lease=OURS, results={A: CERTIFIED}, devices=(proven(checked_at=NOW - 61),)),
        Wait, "health"),
    "proven": (
        lambda: facts(lease=OURS, results={A: CERTIFIED}, devices=(proven(),)), Bind, "proven"),
    "proven and terminating": (
        lambda: facts(lease=OURS, results={A: CERTIFIED}, devices=(proven(),), terminating=True),
        Bind, "proven"),
    "proven, late": (
        lambda: facts(lease=OURS, results={A: CERTIFIED}, devices=(proven(),), at=LATE),
        Bind, "proven"),
    # faults before it is bound
    "device lost": (lambda: facts(devices=(), pods=UNBOUND), Fail, "no such device"),
    "quarantined": (
        lambda: facts(devices=(device("a", state="QUARANTINED", reasons=(reason(),)),),
                      pods=UNBOUND), Fail, "ecc"),
    "retested": (
        lambda: facts(devices=(device("a", state="RETESTING"),), pods=UNBOUND), Fail, "out of"),
    "wiped in vain": (
        lambda: facts(lease=OURS, results={A: VAIN}, attempts={A: 3}, pods=UNBOUND,
                      devices=(device("a", state="DIRTY"),)), Fail, "not proven"),
    "wiped in vain twice": (
        lambda: facts(lease=OURS, results={A: VAIN}, attempts={A: 2}), Order, "to be wiped"),
    "misconfigured": (lambda: facts(misconfigured="no such wipe", pods=UNBOUND), Fail, "no such"),
    "fault, pods unknown": (lambda: facts(devices=()), LookUp, "looked up"),
    "fault, pod bound": (lambda: facts(devices=(), pods=BOUND), Unexposed, "no such device"),
    "misconfigured, pod bound": (
        lambda: facts(misconfigured="no such wipe", pods=BOUND), Wait, "in prepare"),
    "fault, cannot be failed": (
        lambda: facts(result("a") | {"bindingConditions": [MARKS.healthy]}, devices=()),
        Wait, "cannot be failed"),
    # time is up
    "silent": (lambda: facts(view=None), Wait, "not answer"),
    "silent too long": (lambda: facts(view=None, at=LATE, pods=UNBOUND), Fail, "not answer"),
    "silent, pod bound": (lambda: facts(view=None, at=LATE, pods=BOUND), Wait, "in prepare"),
    "late": (lambda: facts(lease=OURS, ordered=frozenset({A}), at=LATE), LookUp, "looked up"),
    "too late": (
        lambda: facts(lease=OURS, ordered=frozenset({A}), at=LATE, pods=UNBOUND), Fail, "wiped"),
    "too late for a lease": (lambda: facts(at=LATE, pods=UNBOUND), Fail, "no lease"),
    "too late for an order": (
        lambda: facts(lease=OURS, at=LATE, pods=UNBOUND), Fail, "to be wiped"),
    "late, pod bound": (lambda: facts(lease=OURS, at=LATE, pods=BOUND), Order, "to be wiped"),
    "no time stated": (lambda: facts(at="never"), Acquire, "no lease"),
    # conditions are True
    "bound": (bound, Finalize, "bound"),
    "bound and marked": (lambda: bound(finalizer=True), Rest, "kubelet"),
    "bound, terminating": (lambda: bound(terminating=True), Rest, "kubelet"),
    "bound, not held": (lambda: bound(users=(POD,)), Rest, "kubelet"),
    "bound, lease gone": (lambda: bound(lease=None), Unbind, "earlier lease"),
    "bound, another lease": (
        lambda: bound(lease=replace(OURS, token=Token(1, 6))), Unbind, "earlier lease"),
    "bound, silent": (lambda: bound(view=None), Wait, "not answer"),
    "bound, fault": (lambda: bound(devices=()), LookUp, "looked up"),
    "bound, fault, unbound": (lambda: bound(devices=(), pods=UNBOUND), Fail, "no such device"),
    "bound, fault, pod bound": (lambda: bound(devices=(), pods=BOUND), Unexposed, "no such device"),
    "bound, dirty": (lambda: bound(devices=(proven(state="DIRTY"),)), LookUp, "looked up"),
    "bound, dirty, unbound": (
        lambda: bound(devices=(proven(state="DIRTY"),), pods=UNBOUND), Unbind, "wiped again"),
    "bound, token closed": (
        lambda: bound(devices=(proven(closed=True),), pods=UNBOUND), Unbind, "wiped again"),
    "bound, dirty, pod bound": (
        lambda: bound(devices=(proven(state="DIRTY"),), pods=BOUND), Rest, "in prepare"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_facts_lead_to_one_decision(name: str) -> None:
    """B1, B5, B6, D3: each situation of a claim and what is to be done about it."""
    build, kind, why = CASES[name]
    found = decide(build(), RULES)
    assert type(found) is kind, found
    assert why in found.why


def test_every_decision_is_among_the_cases() -> None:
    """No decision goes untested."""
    kinds = {kind for _, kind, _ in CASES.values()}
    everything = {Rest, Wait, LookUp, Acquire, Order, Bind, Finalize, Unbind, Fail, Undo, LetGo}
    assert kinds == everything | {Unexposed}


def test_a_wait_always_takes_time() -> None:
    """No situation is looked at again at once, for ever."""
    waits = [found for build, _, _ in CASES.values()
             if isinstance(found := decide(build(), RULES), Wait)]  # fmt: skip
    assert len(waits) > 10
    assert all(wait.again_s >= 0.25 for wait in waits)


def test_a_silent_node_is_taken_over_at_once() -> None:
    """B6: only a node that answers is given time to publish its own quarantine."""
    silent = decide(facts(view=None, at=LATE, pods=UNBOUND), RULES)
    answering = decide(facts(devices=(), pods=UNBOUND), RULES)
    assert isinstance(silent, Fail)
    assert isinstance(answering, Fail)
    assert (silent.silent, answering.silent) == (True, False)
    assert all(fault.visible for fault in silent.faults)


def test_only_a_device_at_fault_is_taken_out_of_service() -> None:
    """B6: the device whose wipe did not end goes out of service, one that waited does not."""
    two = (result("a") | GATED, result("b") | GATED)
    devices = (proven(state="WIPING"), device("b"))
    late = facts(*two, devices=devices, lease=OURS, ordered=frozenset({A}), at=LATE, pods=UNBOUND)
    waiting = replace(late, results={"GPU-n1-b": CERTIFIED}, ordered=frozenset({A, "GPU-n1-b"}))
    one, both = decide(late, RULES), decide(waiting, RULES)
    assert isinstance(one, Fail)
    assert isinstance(both, Fail)
    assert {fault.device: fault.visible for fault in one.faults} == {"a": True, "b": False}
    assert {fault.device: bool(fault.codes) for fault in one.faults} == {"a": True, "b": False}


@pytest.mark.parametrize("number", [1, ATTEMPTS_MAX + 1])
def test_a_demand_that_is_not_met_takes_no_device_out_of_service(number: int) -> None:
    """T2: what only a tenant's demand refuses fails his claim, at once, and quarantines nothing."""
    finding = Finding(check=UNMET, verdict="fail", detail="cannot meet what the claim demands")
    refused = VAIN.model_copy(update={"outcome": Outcome.REFUSED, "findings": (finding,)})
    dirty = facts(lease=OURS, devices=(device("a", state="DIRTY"),), pods=UNBOUND)
    found = decide(replace(dirty, results={A: refused}, attempts={A: number}), RULES)
    assert isinstance(found, Fail)
    assert [(fault.visible, fault.codes) for fault in found.faults] == [(False, ())]
    assert "cannot meet" in found.why


@pytest.mark.parametrize(("left_s", "share_s"), [(inf, 285.0), (400.0, 200.0), (0.0, WATCHED_S)])
def test_no_claim_fails_by_the_clock_alone(left_s: float, share_s: float) -> None:
    """B6: a claim that is late by the clock is given the time that we have to watch it for."""
    late = facts(lease=OURS, ordered=frozenset({A}), at=LATE, pods=UNBOUND, left_s=left_s)
    kinds = [type(decide(replace(late, pending_s=share_s + more), RULES)) for more in (-1.0, 0.0)]
    assert kinds == [Wait, Fail]
    silent = replace(late, view=None, pending_s=share_s - 1.0)
    assert isinstance(decide(silent, RULES), Wait)
    assert isinstance(decide(replace(late, pending_s=9999.0, now=NOW - 60.0), RULES), Wait)


def test_a_wipe_that_was_ordered_of_late_is_not_blamed() -> None:
    """B6: its claim fails, and its device stays in service."""
    late = facts(
        lease=OURS, ordered=frozenset({A}), at=LATE, pods=UNBOUND, left_s=inf, pending_s=300.0
    )
    found = [decide(replace(late, ordered_s={A: s}), RULES) for s in (142.0, 143.0)]
    assert [fault.codes for one in found if isinstance(one, Fail) for fault in one.faults] == [
        (), ("timed-out",),
    ]  # fmt: skip


def test_a_pledge_counts_by_our_watching_too() -> None:
    """B5: an allocator whose clock is an hour off keeps its lease, and for two minutes at most."""
    late = {pledge.key(MARKS): f"me {int(NOW) - 3600}"}
    off = facts(allocated=False, lease=OURS, annotations=late, pledged=True)
    assert isinstance(decide(replace(off, pledged_s=2 * pledge.LIFETIME_S - 1.0), RULES), Wait)
    assert isinstance(decide(replace(off, pledged_s=2 * pledge.LIFETIME_S), RULES), Undo)


def test_a_claim_is_told_nothing_of_other_tenants() -> None:
    """What goes into a condition, and from there into a pod's event, names no other holder."""
    held = facts(refused="claim:somebody-else", at=LATE, pods=UNBOUND)
    found = decide(held, RULES)
    assert isinstance(found, Fail)
    assert "somebody-else" not in found.why
    waits = decide(replace(held, now=NOW - 60.0), RULES)
    assert isinstance(waits, Wait)
    assert "somebody-else" in waits.why
    assert "somebody-else" not in waits.told
    assert "held" in waits.told


def test_until_verified_keeps_marks_on_a_quarantined_device() -> None:
    """D3: with `finalizer: until-verified` a quarantine read back is not enough."""
    out = (device("a", state="QUARANTINED", reasons=(reason(),)),)
    used = facts(users=(HOLD,), finalizer=True, devices=out)
    assert isinstance(decide(used, replace(RULES, until_verified=True)), Wait)
    usual = decide(used, RULES)
    assert isinstance(usual, LetGo)
    assert usual.quarantined == ("a",)
