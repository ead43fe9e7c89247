"""The promises as named checks (DESIGN 2), for the model and for simulations of the whole system.

A check looks at what is physically true and what is durable, through the small protocols below;
whoever simulates fills them in. State checks hold in every state, step checks are asked at one
moment (a tenant starts, an act runs, an answer is given) and leave their name behind as a breach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

FOREIGN_MEMORY = "S1: a tenant starts on memory another one wrote (promise 1)"
TWO_EXPOSED = "S2: two claims exposed on one unit (promise 2)"
SPEC_WITHOUT_RECORD = "S3: a spec without a claim record (promise 3)"
WIPE_UNDER_TENANT = "S4: a worker on a unit whose tenant runs (promise 4)"
WIPE_UNDER_ATTACHED = "S4a: a worker on a unit somebody attached to it may write to (promise 4)"
WIPE_UNDER_RECORD = "S4b: a unit in use by a claim is being worked on (promise 4)"
CLEAN_UNTRUE = "S5: CLEAN, but the memory is not zero or in doubt (promise 5)"
UNCERTIFIED = "S5b: CLEAN without a durable certificate (promise 8)"
FIT_WITH_REASON = "S5c: CLEAN with a quarantine reason open (promise 6)"
STALE_ACT = "S6: an act under an older token after a newer one (promise 2)"
GRANT_BELOW = "S6b: the store grants a token already acted under (promise 2)"
OTHER_CERTIFICATE = "S7: exposed under a certificate of another token (promise 1)"
LEASE_ELSEWHERE = "S7b: an exposed unit whose lease is not that claim's (promise 2)"
RELEASED_UNREAD = "S8: a record closed before quarantine is read back (promise 6)"
QUARANTINE_LOST = "S8b: a confirmed quarantine is not visible any more (promise 6)"
LIFTED = "S8c: a rule lifts a reason only an operator may clear (promise 6)"
PATIENCE = "S5d: a third interruption in a row is taken for bad luck (promise 5)"
TENANT_UNKNOWN = "S9: a tenant runs on a unit counted as free (promise 5)"
ATTACHED_UNKNOWN = "S9a: somebody is attached to a unit that counts as free or clean (promise 5)"
TORN_DOWN = "S10: a teardown begins while a pod the claim is reserved for runs (promise 7)"
NEIGHBOUR = "S9b: a claim's act changes a unit outside its device (promise 9)"
DEALLOCATED = "S11: a claim loses its allocation while a pod is reserved for it (promise 2)"
UNEXAMINED = "S12: conditions are said of a claim that changed since its examination (promise 1)"
UNHEARD = "S13: what has happened to a device or claim has no row in its table (promise 5)"
NOBODY_STARTS = "S14: whatever happens, no tenant ever gets its device (promise 7)"
TRAP = "trap: no settled state can be reached any more (promise 7)"

STEP_CHECKS = (
    FOREIGN_MEMORY,
    STALE_ACT,
    GRANT_BELOW,
    RELEASED_UNREAD,
    LIFTED,
    PATIENCE,
    NEIGHBOUR,
    TORN_DOWN,
    UNEXAMINED,
    UNHEARD,
)
"""Names that arise in a step; `may_start` and its like judge, whoever moves leaves the name."""


class SeenUnit(Protocol):
    """A unit as an all-knowing observer sees it."""

    @property
    def state(self) -> str:
        """State in the node's journal."""

    @property
    def reasons(self) -> str:
        """Open reasons, one letter each; empty when none."""

    @property
    def claim(self) -> int:
        """Claim in the journal, below zero for none."""

    @property
    def memory(self) -> str:
        """Who wrote the memory last; "zero" after a full wipe."""

    @property
    def worker(self) -> str:
        """The process writing to the unit: own, ghost (it survived its service), or none."""

    @property
    def certified(self) -> int:
        """Token of the latest wipe if its certificate is durable, else below zero."""

    @property
    def published(self) -> int:
        """Quarantine in the slice: 0 no, 1 an earlier one, 2 confirmed, 3 gone again."""

    @property
    def holder(self) -> int:
        """Holder in the lease store, below zero for none."""

    @property
    def lease(self) -> int:
        """Token of that lease."""


class SeenClaim(Protocol):
    """A claim as an all-knowing observer sees it."""

    @property
    def record(self) -> str:
        """State in the node's journal."""

    @property
    def token(self) -> int:
        """Token in the record."""

    @property
    def spec(self) -> bool:
        """Whether a CDI spec is visible."""

    @property
    def pod(self) -> str:
        """Its pod: "live" while it waits or runs and the claim is reserved for it."""

    @property
    def allocated(self) -> bool:
        """Whether the claim has an allocation at the API."""

    @property
    def box(self) -> str:
        """The container: created, running or none."""


class Seen(Protocol):
    """One moment of a system under test."""

    @property
    def units(self) -> Sequence[SeenUnit]:
        """All units of the node."""

    @property
    def claims(self) -> Sequence[SeenClaim]:
        """All claims that name the node."""

    @property
    def node(self) -> str:
        """up, or why the journal's word does not count at the moment."""

    @property
    def restored(self) -> bool:
        """Whether the lease store was restored and not yet adopted."""

    @property
    def breach(self) -> str:
        """A step check that failed in the move that led here."""


Devices = Sequence[tuple[int, ...]]
"""For each claim, the units of its device, or those it is attached to."""


def may_start(memory: Iterable[str], tenant: str) -> bool:
    """S1: whether a tenant may start on memory whose last writers are these."""
    return all(writer in ("zero", tenant) for writer in memory)


def two_exposed(seen: Seen, devices: Devices) -> bool:
    """S2, promise 2: two claims are exposed (container, or spec of a running node) on one unit."""
    up = seen.node == "up"
    taken: set[int] = set()
    for claim, device in zip(seen.claims, devices, strict=True):
        if claim.box or (up and claim.spec):
            if not taken.isdisjoint(device):
                return True
            taken.update(device)
    return False


def spec_without_record(seen: Seen, _: Devices) -> bool:
    """S3, promise 3: a spec is visible, and the running node has no record of its claim."""
    return seen.node == "up" and any(c.spec and c.record == "ABSENT" for c in seen.claims)


def wipe_under_tenant(seen: Seen, devices: Devices) -> bool:
    """S4, promise 4: any worker of ours, also a survivor, shares a unit with a running tenant."""
    for claim, device in zip(seen.claims, devices, strict=True):
        if claim.box == "running" and any(seen.units[unit].worker for unit in device):
            return True
    return False


def wipe_under_record(seen: Seen, _: Devices) -> bool:
    """S4b, promise 4: a unit is IN_USE and at the same time being worked on."""
    return any(unit.state == "IN_USE" and unit.worker for unit in seen.units)


def clean_untrue(seen: Seen, _: Devices) -> bool:
    """S5, promise 5: CLEAN in the journal of a running node, but not zero, or somebody writes.

    An intruder nobody has noticed yet is not known to the journal; exposure looks again (S1).
    """
    return seen.node == "up" and any(
        unit.state == "CLEAN" and (unit.memory not in ("zero", "intruder") or unit.worker != "")
        for unit in seen.units
    )


def uncertified(seen: Seen, _: Devices) -> bool:
    """S5b, promise 8: CLEAN while no certificate of the latest wipe is durable."""
    return any(unit.state == "CLEAN" and unit.certified < 0 for unit in seen.units)


def fit_with_reason(seen: Seen, _: Devices) -> bool:
    """S5c, promise 6: CLEAN or on the way there with a reason open."""
    return any(unit.reasons and unit.state in ("CLEAN", "DIRTY") for unit in seen.units)


def other_certificate(seen: Seen, _: Devices) -> bool:
    """S7, promise 1 (`strict`, `fast`): the certificate in force is not of the claim's token."""
    return any(
        unit.state == "IN_USE"
        and unit.claim >= 0
        and unit.certified != seen.claims[unit.claim].token
        for unit in seen.units
    )


def lease_elsewhere(seen: Seen, _: Devices) -> bool:
    """S7b, promise 2: the store's lease of an exposed unit is not that claim's with its token.

    A restored store knows no lease until it is adopted; meanwhile it must grant nothing (S6b).
    """
    return not seen.restored and any(
        unit.state == "IN_USE"
        and unit.claim >= 0
        and (unit.holder, unit.lease) != (unit.claim, seen.claims[unit.claim].token)
        for unit in seen.units
    )


def quarantine_lost(seen: Seen, _: Devices) -> bool:
    """S8b, promise 6: a quarantine once read back from the slice is not there any more."""
    return any(unit.state == "QUARANTINED" and unit.published == 3 for unit in seen.units)


def tenant_unknown(seen: Seen, devices: Devices) -> bool:
    """S9, promises 5 and 9: a tenant runs where the journal of a running node counts on nobody."""
    if seen.node != "up":
        return False
    for claim, device in zip(seen.claims, devices, strict=True):
        if claim.box == "running" and any(
            seen.units[unit].state in ("WIPING", "CHECKING", "CLEAN", "RETESTING")
            for unit in device
        ):
            return True
    return False


def deallocated(seen: Seen, _: Devices) -> bool:
    """S11, promise 2: a pod waits for a device, or has it, that others may be given meanwhile."""
    return any(claim.pod == "live" and not claim.allocated for claim in seen.claims)


STATE_CHECKS: dict[str, Callable[[Seen, Devices], bool]] = {
    TWO_EXPOSED: two_exposed,
    SPEC_WITHOUT_RECORD: spec_without_record,
    WIPE_UNDER_TENANT: wipe_under_tenant,
    WIPE_UNDER_RECORD: wipe_under_record,
    CLEAN_UNTRUE: clean_untrue,
    UNCERTIFIED: uncertified,
    FIT_WITH_REASON: fit_with_reason,
    OTHER_CERTIFICATE: other_certificate,
    LEASE_ELSEWHERE: lease_elsewhere,
    QUARANTINE_LOST: quarantine_lost,
    TENANT_UNKNOWN: tenant_unknown,
    DEALLOCATED: deallocated,
}
"""Name -> whether it is broken."""


ATTACHED_CHECKS: dict[str, Callable[[Seen, Devices], bool]] = {
    WIPE_UNDER_ATTACHED: wipe_under_tenant,
    ATTACHED_UNKNOWN: tenant_unknown,
}
"""The same for who is attached: a tenant to whoever would wipe, though it holds nothing."""


def broken(
    seen: Seen,
    devices: Devices,
    *,
    attached: Devices | None = None,
    skip: frozenset[str] = frozenset(),
) -> list[str]:
    """Names of all promises broken in this state or by the move that led to it.

    `attached`: for each claim, the units it looks into without holding them; None when none does.
    """
    names = [
        name for name, breaks in STATE_CHECKS.items() if name not in skip and breaks(seen, devices)
    ]
    if attached is not None:
        names += [
            name
            for name, breaks in ATTACHED_CHECKS.items()
            if name not in skip and breaks(seen, attached)
        ]
    return [seen.breach, *names] if seen.breach and seen.breach not in skip else names
