"""One state of the protocol model: what is durable, what is volatile and what is physically true.

Everything is a named tuple of small values, so that a state hashes and compares fast. Tokens are
plain counters of one store epoch; `rules` turns them into real `Token`s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

NOBODY = -1
CAMPAIGN = 9
"""Lease holder code of the one campaign; claims are their index."""

Move = tuple[str, bool, "World"]
"""(what happens, whether it is a fault, the state after)."""
Moves = Iterator[Move]


FAULTS = frozenset(
    {
        "crash",
        "take-over",
        "reboot",
        "journal lost",
        "journal restored",
        "wipe",
        "fault",
        "driver reload",
        "intruder",
        "tenant stays",
        "older write",
        "lost answer",
        "force delete",
        "early unprepare",
        "timeout",
        "duplicate",
        "coordinator crash",
        "store restored",
        "clear",
        "adopt",
        "binding timeout",
        "stale allocation",
        "kubelet restart",
    }
)
"""What may go wrong, or be decided by an operator, as often as a scenario's budget allows."""


class Unit(NamedTuple):
    """A unit: first the journal's record, then the truth that no process knows for sure."""

    state: str = "DIRTY"
    reasons: str = ""
    """"L": a reason a rule may lift, "X": one only an operator may clear."""
    floor: int = 0
    closed: bool = False
    """Whether the floor itself is closed."""
    token: int = 0
    certificate: bool = False
    claim: int = NOBODY
    interruptions: int = 0
    work: str = ""
    """Who asked for the wipe in work: p<claim> prepare, t<claim> teardown, b<claim> pre-bind,
    c campaign, i<unit> idle cleaner, r<unit> retest. Volatile."""
    memory: str = "unknown"
    """Last writer: zero, a claim's number, unknown, foreign (after a reboot), intruder, worker."""
    worker: str = ""
    """The wiping process: own, or ghost when it outlived its service or its kill."""
    certified: int = -1
    """Token of the latest wipe, once its certificate is durable in the ledger; -1 before."""
    acted: int = 0
    """Newest token under which anything was really done."""
    published: int = 0
    """Quarantine in the slice: 0 no, 1 an earlier one, which a write under way may take off,
    2 written and read back, 3 overwritten by an older write."""
    holder: int = NOBODY
    """The store's lease of the unit."""
    lease: int = 0
    """Token of that lease."""


CERTIFIED = Unit(state="CLEAN", certificate=True, memory="zero", certified=0)


class Claim(NamedTuple):
    """A claim: its objects at the API, its record on the node, kubelet and the container."""

    pod: str = "new"
    """new, live (reserved), retry (the scheduler took its reservation back), dying (deleted),
    gone."""
    bound: bool = False
    """Whether the pod has got its node; only where the scheduler takes part."""
    seat: int = 0
    """Which of the scenario's seats it is, or was last, allocated to."""
    spare: bool = False
    """A second pod will name the same claim."""
    allocated: bool = False
    hold: bool = False
    """Our own entry in reservedFor, and the finalizer that goes with it."""
    condition: str = ""
    record: str = "ABSENT"
    token: int = 0
    spec: bool = False
    op: str = ""
    """The one operation in work on the node, by its next step. Volatile."""
    op_token: int = 0
    kubelet: str = ""
    """What kubelet wants next: prepare, ready, unprepare, done; early: an unprepare it asks for by
    mistake, while the pod lives."""
    box: str = ""
    """The container: created, running."""
    outbox: int = 0
    """Token of a release in the outbox."""
    seek: int = 0
    """Releases by holder in the outbox: of whatever lease there is, its token is not known."""
    giving: int = 0
    """Token closed for that release and about to be given back. Volatile."""
    away: bool = False
    """Named by a second pod, the claim got another device: it has a record again, over that one."""


class Coordinator(NamedTuple):
    """A coordinator between two steps; it may stay there for ever and go on later."""

    phase: str = ""
    claim: int = NOBODY
    token: int = 0
    seat: int = 0
    """The device it is about: the claim may have another one by now."""
    stale: bool = False
    """Whether the claim has changed since it was read for the write that comes next; only without
    the guard that has such a write refused."""


class World(NamedTuple):
    """The whole state."""

    units: tuple[Unit, ...]
    claims: tuple[Claim, ...]
    coordinators: tuple[Coordinator, ...]
    node: str = "up"
    """up, down, rebooted, lost (journal lost), older (journal restored)."""
    newest: int = 0
    restored: bool = False
    """The store was restored and nobody has adopted it yet."""
    campaign: str = "off"
    """off, ready, leased, asked, done."""
    campaign_token: int = 0
    message: tuple[str, int, int] = ("", 0, 0)
    """A duplicate still under way: (wipe | release | untaint, claim or unit, token)."""
    loose: tuple[str, int] = ("", 0)
    """A thread that outlived its operation or its ownership; only broken protocols have one."""
    budget: int = 0
    breach: str = ""
    """Name of the step property broken by the last move."""

    def unit(self, index: int, **changes: Any) -> World:
        """The world with one unit changed."""
        units = self.units
        return self._replace(
            units=(*units[:index], units[index]._replace(**changes), *units[index + 1 :])
        )

    def put(self, index: int, unit: Unit) -> World:
        """The world with one unit replaced."""
        return self._replace(units=(*self.units[:index], unit, *self.units[index + 1 :]))

    def claim(self, index: int, **changes: Any) -> World:
        """The world with one claim changed."""
        claims = self.claims
        return self._replace(
            claims=(*claims[:index], claims[index]._replace(**changes), *claims[index + 1 :])
        )

    def each(self, indexes: Iterable[int], **changes: Any) -> World:
        """The world with several units changed alike."""
        units = list(self.units)
        for index in indexes:
            units[index] = units[index]._replace(**changes)
        return self._replace(units=tuple(units))

    def coordinator(
        self, index: int, phase: str, claim: int = NOBODY, token: int = 0, seat: int = 0
    ) -> World:
        """The world with one coordinator moved on; coordinators are interchangeable, so sorted."""
        others = list(self.coordinators)
        others[index] = Coordinator(phase, claim, token, seat)
        return self._replace(coordinators=tuple(sorted(others)))

    def spend(self) -> World:
        """The world with one fault fewer to come."""
        return self._replace(budget=self.budget - 1)


@dataclass(frozen=True)
class Scenario:
    """A bounded part of the protocol: who takes part and which faults may strike, how often."""

    name: str
    devices: tuple[tuple[int, ...], ...]
    """For each claim, the units of its device."""
    profile: str = "strict"
    """strict, fast or lab."""
    coordinators: int = 1
    campaign: bool = False
    faults: frozenset[str] = frozenset()
    budget: int = 0
    spare: bool = False
    """The first claim is named by a second pod after the first."""
    elsewhere: bool = False
    """That second pod gets another device, which is not part of the scenario."""
    ordered: bool = False
    """Prepare is ordered with the token of a lease, as a coordinator does; kubelet gives none."""
    attached: tuple[tuple[int, ...], ...] = ()
    """For each claim, units it looks into with adminAccess; it has no device of its own then."""
    seats: tuple[tuple[int, ...], ...] = ()
    """Devices from which the scheduler, which then takes part, chooses one for each claim."""
    clean: bool = False
    """All units begin CLEAN and certified instead of DIRTY."""
    coarse: bool = False
    """Steps that other scenarios take apart are taken together: a wipe's pass and its
    certificate, spec and answer, creation and start of a container; the idle cleaner takes one
    unit after the other."""
    overlaps: tuple[tuple[int, ...], ...] = field(init=False)
    """For each claim, the other claims whose devices share a unit with its own."""

    def __post_init__(self) -> None:
        """Derive the overlaps once; they are asked for in every step."""
        if unknown := self.faults - FAULTS:
            raise ValueError(f"no such faults: {sorted(unknown)}")
        object.__setattr__(self, "attached", self.attached or ((),) * len(self.devices))
        claims = range(len(self.devices))
        found = tuple(
            tuple(d for d in claims if d != c and set(self.devices[c]) & set(self.devices[d]))
            for c in claims
        )
        object.__setattr__(self, "overlaps", found)

    def includes(self, other: Scenario) -> bool:
        """Whether each state of the other is one of this: the same people, no fault more.

        What holds in all of them then holds there, and a trap there, which is one without faults,
        is one here.
        """
        fewer = other.faults <= self.faults and other.budget <= self.budget
        bound = replace(self, name=other.name, faults=other.faults, budget=other.budget)
        return fewer and bound == other

    def initial(self) -> World:
        """The one state the search starts from."""
        named = (*self.devices, *self.attached, *self.seats)
        units = 1 + max(unit for device in named for unit in device)
        claims = [Claim() for _ in self.devices]
        if self.spare:
            claims[0] = Claim(spare=True)
        return World(
            units=(CERTIFIED if self.clean else Unit(),) * units,
            claims=tuple(claims),
            coordinators=(Coordinator(),) * self.coordinators,
            campaign="ready" if self.campaign else "off",
            budget=self.budget,
        )
