"""What there is to say about one claim: the API's word, the store's, the node's, and what is
missing, with the command that decides. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fleet.control.binding import pledge
from fleet.control.binding.claim_facts import Facts, Rules, devices_of
from fleet.control.binding.claim_judge import ATTEMPTS_MAX, decide
from fleet.control.binding.decisions import PodFact
from fleet.control.binding.tracking import Track
from fleet.core.messages import (
    DeviceResult,
    DeviceView,
    Finding,
    Message,
    MomentOrNone,
    NodeView,
    ReasonView,
)
from fleet.core.model import Holder, HolderKind, Lease, State, UnitId
from fleet.kube.claim import Allotted, ClaimReading
from fleet.plugin.slices.gate import is_quarantined


class DeviceStory(Message):
    """One of our devices that the claim was given."""

    request: str
    node: str
    device: str
    uuid: str = ""
    state: str = ""
    """"" where the node does not tell."""
    holder: str = ""
    """UID of the claim that has it on its node."""
    certificate: str = ""
    certified_under: str = ""
    conditions: Mapping[str, str] = {}
    receipt: Mapping[str, str] = {}
    reasons: tuple[ReasonView, ...] = ()


class ClaimStory(Message):
    """One claim now. Times in seconds since the epoch."""

    namespace: str
    name: str
    uid: str
    terminating: bool
    allocated: bool
    allocated_at: MomentOrNone
    gated: bool
    """Whether the scheduler waits for our conditions."""
    bound: bool
    failed: bool
    held: bool
    finalizer: bool
    protected: bool
    """Whether the builtin finalizer is on it."""
    pods: tuple[str, ...]
    others: int
    """Other entries of its reservations."""
    allocating_until: MomentOrNone
    """Until when somebody allocates it (`fleet claim bind`); None: nobody does."""
    leases: tuple[str, ...]
    """Tokens."""
    node: str
    node_answers: bool
    record: str
    """State of the node's record of it; "" without one."""
    coordinator: str
    """What the coordinator does about it, or waits for."""
    devices: tuple[DeviceStory, ...]
    missing: tuple[Finding, ...]
    coordinator_trouble: tuple[str, ...] = ()
    """What is wrong with the coordinator itself, as far as this host can tell."""


def explain(
    reading: ClaimReading,
    view: NodeView | None,
    leases: Sequence[Lease],
    pods: Sequence[PodFact],
    *,
    rules: Rules,
    now: float,
) -> ClaimStory:
    """The story of a claim; `view` is of the node of its devices, None: it does not answer.

    `leases`: the claim's own, the one that makes its pledge good, and whatever else is on the units
    of its devices. The view is to have the results of `operations`: with them the coordinator's
    reason is told, and not what it would do if it knew nothing.
    """
    pledged = pledge.read(reading.raw, rules.marks)
    good = [one for one in leases if pledged and pledge.covers(one, reading.uid, pledged.owner)]
    devices = devices_of(view, reading.holding) if view is not None else {}
    theirs = _theirs(leases, reading.uid, devices)
    leases = [lease for lease in leases if lease not in (*good, *theirs.values())]
    facts = _facts(reading, view, leases, pods, devices=devices, now=now)
    refused = next((str(lease.holder) for lease in theirs.values()), "")
    facts = replace(facts, pledged=bool(good), refused=refused)
    pledged = pledged if good else None
    record = next((c.state for c in view.claims if c.uid == reading.uid), "") if view else ""
    return ClaimStory(
        namespace=reading.name.namespace,
        name=reading.name.name,
        uid=reading.uid,
        terminating=reading.terminating,
        allocated=reading.allocated,
        allocated_at=reading.allocated_at,
        gated=reading.gated,
        bound=reading.gated and reading.bound,
        failed=reading.failed,
        held=reading.held,
        finalizer=reading.finalizer,
        protected=reading.builtin_finalizer,
        pods=tuple(pod.name for pod in reading.pods),
        others=reading.others,
        allocating_until=pledged.until if pledged and pledged.counts(now) else None,
        leases=tuple(str(lease.token) for lease in leases),
        node=", ".join(reading.nodes),
        node_answers=view is not None,
        record=record,
        coordinator=decide(facts, rules).why,
        devices=tuple(_device(reading, one, devices.get(one.device)) for one in reading.devices),
        missing=(
            *_missing(facts, devices, pledged=bool(pledged and pledged.counts(now))),
            *(_leased(name, lease) for name, lease in theirs.items()),
        ),
    )


def operations(reading: ClaimReading, view: NodeView, leases: Sequence[Lease]) -> tuple[str, ...]:
    """Names of what the coordinator may have ordered for the claim, by its newest lease."""
    if not leases:
        return ()
    token = max(lease.token for lease in leases)
    found = devices_of(view, reading.holding).values()
    track = Track(token=token)
    names = []
    for device in (one for one in found if one is not None):
        for number in range(ATTEMPTS_MAX):
            track.numbers[device.uuid] = number
            names.append(track.operation(reading.uid, device.uuid))
    return tuple(names)


def _theirs(
    leases: Sequence[Lease], uid: str, devices: Mapping[str, DeviceView | None]
) -> Mapping[str, Lease]:
    """Who else has a device of the claim by the store's word, by the device's name."""
    mine = Holder(HolderKind.CLAIM, uid)
    return {
        name: lease
        for name, device in devices.items()
        for lease in leases
        if device is not None and lease.holder != mine and not lease.units.isdisjoint(device.units)
    }


def _leased(name: str, lease: Lease) -> Finding:
    holder = lease.holder
    remedies = {
        HolderKind.CLAIM: "wait for its teardown; `fleet reconcile --dry-run` says whether that"
        " claim is nobody's",
        HolderKind.QUARANTINE: f"repair it, then `fleet quarantine clear {name} --reason ...`",
        HolderKind.CAMPAIGN: f"wait for the run; `fleet runs {holder.name}` shows it",
        HolderKind.OPERATOR: f"wait, or ask {holder.name}; see `fleet audit`",
        HolderKind.PUBLISHER: "see `fleet audit`",
    }
    return _finding(
        name, f"the store has it leased to {holder} under {lease.token}", remedies[holder.kind]
    )


def _facts(
    reading: ClaimReading,
    view: NodeView | None,
    leases: Sequence[Lease],
    pods: Sequence[PodFact],
    *,
    devices: Mapping[str, DeviceView | None],
    now: float,
) -> Facts:
    units = {UnitId(unit) for one in devices.values() if one is not None for unit in one.units}
    own = next((lease for lease in reversed(leases) if lease.units == units), None)
    results, attempts = _results(view, devices)
    at_work = {
        one.uuid for one in devices.values() if one and one.state in (State.WIPING, State.CHECKING)
    }
    return Facts(
        reading=reading,
        now=now,
        lease=own,
        strays=tuple(lease for lease in leases if lease is not own),
        view=view,
        pods=tuple(pods),
        results=results,
        attempts=attempts,
        ordered=frozenset(at_work - results.keys()),
    )


def _results(
    view: NodeView | None, devices: Mapping[str, DeviceView | None]
) -> tuple[Mapping[str, DeviceResult], Mapping[str, int]]:
    """The newest result by device UUID, and how many there are."""
    newest: dict[str, DeviceResult] = {}
    counts: dict[str, int] = {}
    for result in sorted(view.results if view else (), key=lambda one: one.operation):
        if any(one is not None and one.uuid == result.uuid for one in devices.values()):
            newest[result.uuid] = result
            counts[result.uuid] = counts.get(result.uuid, 0) + 1
    return newest, counts


def _device(reading: ClaimReading, one: Allotted, seen: DeviceView | None) -> DeviceStory:
    receipt = reading.receipts.get(one.key, {})
    told = DeviceStory(
        request=one.request,
        node=one.node,
        device=one.device,
        conditions=dict(reading.conditions.get(one.key, {})),
        receipt={key: str(value) for key, value in receipt.items()},
    )
    if seen is None:
        return told
    return told.model_copy(
        update={
            "uuid": seen.uuid,
            "state": seen.state,
            "holder": seen.claim,
            "certificate": seen.certificate,
            "certified_under": seen.certified_under,
            "reasons": seen.reasons,
        }
    )


def _missing(
    facts: Facts, devices: Mapping[str, DeviceView | None], *, pledged: bool
) -> Iterator[Finding]:
    reading = facts.reading
    if not reading.allocated:
        yield _finding(
            "allocation",
            "somebody allocates it now" if pledged else "nobody has allocated it",
            "wait for its end"
            if pledged
            else f"let the scheduler do it, or run `fleet claim bind {reading.name}`",
        )
        return
    if not reading.holding:
        return
    if facts.view is None:
        yield _finding(
            "node",
            f"{', '.join(reading.nodes)} does not answer",
            "start its node service; if it never comes back: `fleet node forget`",
        )
        return
    for name, device in devices.items():
        yield from _lacking(facts, name, device)
    if facts.lease is None and not any(c.uid == reading.uid for c in facts.view.claims):
        yield _finding(
            "lease",
            "it has no lease of its devices",
            "the coordinator takes one while a pod waits; see that it runs (`fleet coordinate`)",
        )
    if reading.gated and not reading.bound and not reading.failed:
        yield _finding(
            "conditions",
            "the scheduler waits for conditions that are not True",
            "the coordinator says them once every device is proven",
        )


def _lacking(facts: Facts, name: str, device: DeviceView | None) -> Iterator[Finding]:
    node = ", ".join(facts.reading.nodes)
    if device is None:
        yield _finding(
            name, f"{node} has no such device any more", "see `fleet devices`; let the pod be moved"
        )
    elif is_quarantined(device):
        codes = ", ".join(sorted({one.code for one in device.reasons})) or device.state
        yield _finding(
            name,
            f"out of service: {codes}",
            f"repair it, then `fleet quarantine clear {name} --node {node} --reason ...`",
        )
    elif device.state == State.HELD:
        yield _finding(
            name,
            "held by somebody unknown since the node's journal began",
            f"if you know it to be free: `fleet node adopt --node {node} --device {name}`",
        )
    elif device.claim not in ("", facts.reading.uid):
        yield _finding(
            name, f"held by claim {device.claim} that is not torn down", "wait for its teardown"
        )
    elif device.state not in (State.CLEAN, State.IN_USE):
        yield _finding(name, f"it is {device.state}", "wait: it is wiped and checked")


def _finding(check: str, detail: str, remedy: str) -> Finding:
    return Finding(check=check, verdict="warn", detail=detail, remedy=remedy)
