"""What there is to say about one claim: the API's word, the store's, the node's, and what is
missing, with the command that decides. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fleet.binding import pledge
from fleet.binding.claim import Allotted, ClaimReading
from fleet.binding.deciding import decide
from fleet.binding.decisions import PodFact
from fleet.binding.facts import Facts, Rules, devices_of
from fleet.messages import DeviceView, Finding, Message, NodeView, ReasonView
from fleet.model import Lease, State, UnitId
from fleet.slices.gate import is_quarantined


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
    allocated_at: float | None
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
    allocating_until: float | None
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


def explain(
    reading: ClaimReading,
    view: NodeView | None,
    leases: Sequence[Lease],
    pods: Sequence[PodFact],
    *,
    rules: Rules,
    now: float,
) -> ClaimStory:
    """The story of a claim; `view` is of the node of its devices, None: it does not answer."""
    devices = devices_of(view, reading.holding) if view is not None else {}
    facts = _facts(reading, view, leases, pods, devices=devices, now=now)
    record = next((c.state for c in view.claims if c.uid == reading.uid), "") if view else ""
    pledged = pledge.read(reading.raw, rules.marks)
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
        missing=tuple(_missing(facts, devices, pledged=bool(pledged and pledged.counts(now)))),
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
    return Facts(
        reading=reading,
        now=now,
        lease=own,
        strays=tuple(lease for lease in leases if lease is not own),
        view=view,
        pods=tuple(pods),
    )


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
