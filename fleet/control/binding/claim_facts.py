"""Everything known about one claim: what decisions about it are made of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from weakref import ref

from fleet.control.binding.decisions import PodFact
from fleet.core.messages import ClaimBrief, DeviceResult, DeviceView, NodeView
from fleet.core.model import Lease
from fleet.kube.claim import Allotted, ClaimReading
from fleet.kube.marks import Marks
from fleet.plugin.slices.device_attributes import names

ALLOCATOR = "allocator"
"""Key of a receipt: set where we allocated the claim ourselves (`fleet claim bind`)."""
UNDER = "token"
"""Key of a receipt: the token the device was wiped under."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What is judged by. Times in seconds."""

    marks: Marks
    binding_timeout_s: float
    fresh_s: float
    until_verified: bool = False
    """Whether marks stay on a claim until its devices are clean: D3 to the letter."""
    admins: frozenset[str] = frozenset()
    """Namespaces whose claims may look into devices with adminAccess (F60)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything known about one claim. `now`: seconds since the epoch."""

    reading: ClaimReading
    now: float
    lease: Lease | None = None
    """The claim's own lease, of exactly the units of its devices."""
    strays: tuple[Lease, ...] = ()
    """Its leases of anything else: of an earlier allocation."""
    stuck: tuple[Lease, ...] = ()
    """Such leases on nodes that do not answer: in nobody's way, and given back later."""
    view: NodeView | None = None
    """The node its devices are on; None: it does not answer."""
    results: Mapping[str, DeviceResult] = field(default_factory=dict)
    """Result by device UUID of the newest operation ordered for this lease."""
    attempts: Mapping[str, int] = field(default_factory=dict)
    """Operations ordered so far for this lease, by device UUID."""
    ordered: frozenset[str] = frozenset()
    """UUIDs of devices whose newest operation has no result yet."""
    refused: str = ""
    """Who has a unit of ours by the store's word, as `Holder` prints; "": nobody."""
    taken: bool = False
    """Whether who has a unit of ours is another claim that was given the same device."""
    pledged: bool = False
    """Whether the store agrees that whoever has pledged to allocate it may; see `pledge`."""
    kept: bool = False
    """Whether its node still has the finalizer to take off (`Rules.until_verified`)."""
    unused_s: float = 0.0
    """How long nobody has been reserved for the claim, by our own watching."""
    pending_s: float = inf
    """How long it has waited for its conditions, by our own watching: clocks differ."""
    ordered_s: Mapping[str, float] = field(default_factory=dict)
    """How long the newest operation has been in work, by our own watching and device UUID."""
    left_s: float = 0.0
    """How much of its time was left, by the clock, when we first saw it wait; infinite where we saw
    it come: then no clock is asked."""
    pledged_s: float = inf
    """How long its pledge has been seen on it, by our own watching."""
    misconfigured: str = ""
    """Why its configuration must not be served (C2); "": it may."""
    unwritable: str = ""
    """Why the server takes no word of ours about the claim, ever (F61); "": it does."""
    pods: tuple[PodFact, ...] | None = None
    """The live pods of the claim; None: not looked up."""

    @property
    def leases(self) -> tuple[Lease, ...]:
        """All that the claim has."""
        return (*((self.lease,) if self.lease else ()), *self.strays, *self.stuck)

    @property
    def record(self) -> ClaimBrief | None:
        """The claim's record on its node."""
        claims = self.view.claims if self.view else ()
        return next((claim for claim in claims if claim.uid == self.reading.uid), None)

    @property
    def owed(self) -> bool:
        """Whether its node still lets its last use go."""
        owed = self.view.owed if self.view else ()
        return any(one.uid == self.reading.uid for one in owed)

    @property
    def ours(self) -> Mapping[str, DeviceView | None]:
        """The claim's devices by name in the slice, as the node sees them."""
        return {} if self.view is None else devices_of(self.view, self.reading.holding)

    @property
    def allocated_by_us(self) -> bool:
        """Whether it may wait long for its first pod (`fleet claim bind`)."""
        return any(self.reading.receipt(one, ALLOCATOR) for one in self.reading.holding)


def devices_of(view: NodeView, wanted: Iterable[Allotted]) -> Mapping[str, DeviceView | None]:
    """The devices that names of an allocation mean; None where the node has none of that name."""
    there = _by_name(view)
    return {one.device: there.get(one.device) for one in wanted}


_KNOWN: dict[int, tuple[ref[NodeView], Mapping[str, DeviceView]]] = {}
"""Devices by name for the views that are alive: a view never changes, and each of the claims on a
node asks it several times."""


def _by_name(view: NodeView) -> Mapping[str, DeviceView]:
    place = id(view)
    known = _KNOWN.get(place)
    if known is not None and known[0]() is view:
        return known[1]
    devices = {device.uuid: device for device in view.devices}
    found = {name: devices[uuid] for uuid, name in names(view.devices).items()}
    _KNOWN[place] = (ref(view, lambda _: _KNOWN.pop(place, None)), found)
    return found
