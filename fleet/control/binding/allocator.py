"""Allocation by ourselves, for clusters whose scheduler does not do it (`fleet claim bind`).

Choose, lease, wipe, check; then the builtin finalizer, one guarded update with the allocation, a
look whether somebody else was given a device meanwhile, and only then hold and conditions. Until
the allocation stands nothing of it shows but a pledge (see `fleet.control.binding.pledge`).

The lease comes before the allocation and stays until the node's word. So whatever races there are
at the API, which does not check double use, only the holder of the lease can be exposed. Whatever
fails, everything is taken back: tokens closed and lease released, then the claim's part. Only an
allocation that somebody is reserved for by then is left to its use: it has the lease.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from fleet.control.binding import allocation
from fleet.control.binding.allocation_writes import Giving, Overtaken
from fleet.control.binding.claim_leases import ClaimLeases
from fleet.control.binding.device_choice import Choice, NoChoice, choose
from fleet.control.binding.device_proof import Patience, Proven, Proving, Unproven
from fleet.control.binding.offers import Scene
from fleet.core import errors
from fleet.core.clock import Clock
from fleet.core.messages import NodeView
from fleet.core.settings import WipePolicy
from fleet.kube.base import CLAIMS, CLASSES, SLICES, Cluster, Name, Object, name_of, uid_of
from fleet.kube.claim import ClaimReading, read
from fleet.kube.marks import Marks
from fleet.plugin import resource_claim as dra
from fleet.rpc.nodes import Nodes

CHOICES_MAX = 4
"""Choices tried before it is given up: each failed one costs a wipe."""
WAIT_S = 600.0
"""Time, s, the devices of one choice have to get ready: the scheduler's own bindingTimeout."""


@dataclass(frozen=True, slots=True)
class AllocatorTerms:
    """What is allocated by. Times in seconds."""

    marks: Marks
    fresh_s: float
    """Age up to which a verdict of health or a view counts."""
    wipe: WipePolicy
    """The fleet's own policy; a claim may demand more."""
    wait_s: float = WAIT_S
    choices_max: int = CHOICES_MAX


@dataclass(frozen=True, slots=True)
class Allocated:
    """A claim that is allocated and whose devices are proven."""

    reading: ClaimReading
    token: str
    certificates: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    """Earlier choices, with why they came to nothing."""
    already: bool = False
    """It was so before; nothing was done."""


class Allocator:
    """Allocates claims, one call each. Safe beside coordinators, schedulers and its like."""

    def __init__(
        self,
        cluster: Cluster,
        leases: ClaimLeases,
        nodes: Nodes,
        *,
        terms: AllocatorTerms,
        clock: Clock,
        sleep: Callable[[float], None],
    ) -> None:
        """`sleep` is how to wait, s; the rest is used from the caller's thread only."""
        self._cluster = cluster
        self._nodes = nodes
        self._terms = terms
        self._clock = clock
        self._sleep = sleep
        self._proving = Proving(leases, nodes, clock, sleep, terms.fresh_s)

    def allocate(self, name: Name) -> Allocated:
        """Allocate the claim, or find it allocated by us and proven.

        Raises `ClaimUnready` where it cannot be allocated now, `DeviceUnfit` where no choice came
        to anything, `InputInvalid` for what we do not support, and the errors of API, store and
        nodes: all of them after everything was taken back, or with what is left in the message.
        """
        marks = self._terms.marks
        reading = read(self._cluster.get(CLAIMS, name), marks)
        if reading.allocated:
            return self._already(reading)
        giving = Giving(
            self._cluster, name, reading.uid, marks, self._clock, self._sleep, self._proving.leases
        )
        attempt = _Attempt(giving)
        try:
            giving.pledge()
            return self._run(attempt)
        except BaseException:  # an interrupt too: nothing may stay of a claim without it
            self._take_back(attempt)
            raise

    def _already(self, reading: ClaimReading) -> Allocated:
        leases = self._proving.left_over(reading.uid)
        if reading.holding and reading.bound and leases:
            return Allocated(reading, str(leases[-1].token), already=True)
        raise errors.ClaimUnready(
            f"claim {reading.name} is allocated already",
            remedy=f"see what it waits for with `fleet claim show {reading.name}`: the coordinator"
            " makes its devices ready",
        )

    def _run(self, attempt: _Attempt) -> Allocated:
        giving, proving = attempt.giving, self._proving
        proving.give_back(giving.uid, proving.left_over(giving.uid))
        for _ in range(self._terms.choices_max):
            giving.pledge()
            choice, view = self._choose(attempt)
            proven = proving.prove(
                giving.uid,
                view,
                choice.devices,
                wait=Patience(self._terms.wait_s, giving.keep_pledge),
                wipe=self._demand(giving, choice),
            )
            if isinstance(proven, Unproven):
                attempt.note(choice, proven.why, proven.devices)
                continue
            attempt.proven = proven
            if self._give(attempt, choice) or not self._take_back(attempt):
                reading = giving.expose(choice, proven)
                certificates = tuple(proven.results[uuid].certificate for uuid in choice.devices)
                token = str(proven.lease.token)
                return Allocated(reading, token, certificates, tuple(attempt.tried))
            attempt.note(choice, "somebody else was given a device meanwhile", ())
        raise errors.DeviceUnfit(
            f"claim {giving.name}: no choice came to anything: {'; '.join(attempt.tried)}",
            remedy="see `fleet quarantine list` for devices that failed, then repeat the command",
        )

    def _give(self, attempt: _Attempt, choice: Choice) -> bool:
        """Whether the claim is allocated, and no other has a better right to a device."""

        def stands(found: Object) -> bool:
            again = choose(found, self._scene(attempt.giving.uid, only=choice.devices))
            return isinstance(again, Choice) and again.devices == choice.devices

        try:
            reading = attempt.giving.give(choice, stands)
        except Overtaken:
            return False
        others = self._others(attempt.giving.uid)
        return allocation.rival(reading, others, self._terms.marks.driver) is None

    def _take_back(self, attempt: _Attempt) -> bool:
        """Lease first, by the node's word, then what is on the claim.

        Whether it was taken back: an allocation that somebody is reserved for is not.
        """
        if attempt.giving.in_use():
            return False
        try:
            if attempt.proven is not None:
                self._proving.give_back(attempt.giving.uid, [attempt.proven.lease])
                attempt.proven = None
        finally:
            attempt.giving.take_back()
        return True

    def _choose(self, attempt: _Attempt) -> tuple[Choice, NodeView]:
        giving = attempt.giving
        scene = self._scene(giving.uid, barred=attempt.barred)
        found = choose(giving.live(), scene)
        if isinstance(found, NoChoice):
            tried = f"; tried before: {'; '.join(attempt.tried)}" if attempt.tried else ""
            raise errors.ClaimUnready(
                f"claim {giving.name}: {found}{tried}",
                remedy="free or repair devices (`fleet devices`), then repeat the command",
            )
        return found, scene.nodes[found.node]

    def _demand(self, giving: Giving, choice: Choice) -> WipePolicy | None:
        """What the claim's configuration demands of a wipe beyond the fleet's policy.

        Raises `ClaimConfigInvalid` before anything is wiped for a pod that would be refused.
        """
        given = allocation.allocation(choice, now=self._clock.now())
        found = dra.read(
            allocation.with_allocation(giving.live(), given),
            uid=giving.uid,
            driver=self._terms.marks.driver,
            pool=choice.node,
            policy=self._terms.wipe,
        )
        return found.demand.wipe

    def _scene(
        self, uid: str, *, barred: Collection[str] = (), only: Collection[str] = ()
    ) -> Scene:
        views = self._nodes.views(dict.fromkeys(self._nodes.names(), ()))
        silent = [view for view in views.values() if isinstance(view, errors.FleetError)]
        if silent and len(silent) == len(views):
            raise silent[0]  # not one node answers: that is no matter of devices
        classes = self._cluster.list(CLASSES).items
        return Scene(
            driver=self._terms.marks.driver,
            classes={name_of(found).name: found for found in classes},
            slices=self._cluster.list(SLICES).items,
            claims=self._others(uid),
            nodes={name: view for name, view in views.items() if isinstance(view, NodeView)},
            now=self._clock.now(),
            fresh_s=self._terms.fresh_s,
            barred=frozenset(barred),
            only=frozenset(only),
        )

    def _others(self, uid: str) -> list[Object]:
        return [claim for claim in self._cluster.list(CLAIMS).items if uid_of(claim) != uid]


@dataclass
class _Attempt:
    """One call of `allocate`."""

    giving: Giving
    proven: Proven | None = None
    barred: set[str] = field(default_factory=set)
    """UUIDs of devices that were tried in vain."""
    tried: list[str] = field(default_factory=list)

    def note(self, choice: Choice, why: str, devices: Collection[str]) -> None:
        """A choice that came to nothing."""
        self.barred.update(devices)
        names = ", ".join(pick.offer.name for pick in choice.picks)
        self.tried.append(f"{choice.node}/{names}: {why}")
