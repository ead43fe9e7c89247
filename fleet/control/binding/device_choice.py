"""Which devices of one node a claim gets when we allocate it ourselves. Pure and deterministic.

The rules are the scheduler's (requests, alternatives, selectors, tolerations, constraints, whole
pools of the highest generation), and ours on top: only devices that their node shows CLEAN, freshly
checked and free, and that share no memory with a device somebody was given. What we cannot do as
the scheduler does is refused, never approximated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.control.binding import offers, wishes
from fleet.control.binding.offers import Offer, Scene
from fleet.control.binding.wishes import Wish, Wishes
from fleet.core import errors
from fleet.kube.base import Object

STEPS_MAX = 50_000
"""Devices tried in one choice: constraints over many like devices could else take for ever."""


@dataclass(frozen=True, slots=True)
class Pick:
    """One device for one request."""

    wish: Wish
    offer: Offer


@dataclass(frozen=True, slots=True)
class Choice:
    """Devices of one node for all requests of a claim, in the order of the requests."""

    node: str
    picks: tuple[Pick, ...]
    config: tuple[Object, ...]
    """``allocation.devices.config``."""

    @property
    def devices(self) -> tuple[str, ...]:
        """UUIDs."""
        return tuple(pick.offer.uuid for pick in self.picks)

    @property
    def units(self) -> frozenset[str]:
        """What has to be leased."""
        return frozenset(unit for pick in self.picks for unit in pick.offer.units)


@dataclass(frozen=True, slots=True)
class NoChoice:
    """No node can serve the claim now."""

    nodes: Mapping[str, str]
    """Why not, by node."""
    why: Mapping[str, int]
    """Devices by what is in their way, over all nodes."""

    def __str__(self) -> str:
        """In the scheduler's manner: how many nodes, then the devices counted by reason."""
        counted = sorted(self.why.items(), key=lambda item: (-item[1], item[0]))
        told = ", ".join(f"{count} {_plural(count)} {why}" for why, count in counted)
        whole = Counter(self.nodes.values())
        nodes = ", ".join(f"{count} {why}" for why, count in sorted(whole.items()))
        return f"0/{len(self.nodes)} nodes can serve the claim: {nodes or 'there is none'}" + (
            f" ({told})" if told else ""
        )


def choose(claim: Object, scene: Scene) -> Choice | NoChoice:
    """The first node, by name, that can serve every request of the claim.

    Raises `InputInvalid` for a claim or class that asks for what we do not support, names a class
    that is missing, or selects by an expression that cannot be evaluated.
    """
    wanted = wishes.read(claim, scene.classes)
    nodes: dict[str, str] = {}
    why: Counter[str] = Counter()
    for node in sorted(scene.nodes):
        search = _Search(wanted, offers.of_node(scene, node))
        picks = search.run()
        if picks is not None:
            return Choice(node, picks, wanted.config(pick.wish.name for pick in picks))
        nodes[node] = search.why or "cannot allocate all requests"
        why.update(search.obstacles())
    return NoChoice(nodes, why)


@dataclass
class _Search:
    """Backtracking over the requests on one node. `run` once."""

    wanted: Wishes
    offers: Sequence[Offer]
    why: str = ""
    _steps: int = 0
    _selected: dict[tuple[str, str], bool] = field(default_factory=dict)

    def run(self) -> tuple[Pick, ...] | None:
        """The picks; None: this node cannot, and `why` may say more."""
        return next(self._requests(0, ()), None)

    def obstacles(self) -> Iterator[str]:
        """For each of our devices, the first thing in its way for any request."""
        for offer in self.offers:
            if offer.ours:
                yield self._obstacle(offer)

    def _obstacle(self, offer: Offer) -> str:
        every = [wish for wishes in self.wanted.requests for wish in wishes]
        selecting = [wish for wish in every if self._selects(wish, offer)]
        if not selecting:
            return "not selected"
        if offer.obstacle:
            return offer.obstacle
        return offer.taint(selecting[0]) or "not enough with the others"

    def _requests(self, index: int, picks: tuple[Pick, ...]) -> Iterator[tuple[Pick, ...]]:
        if index == len(self.wanted.requests):
            yield picks
            return
        for wish in self.wanted.requests[index]:
            found = self._all(wish, picks) if wish.every else self._some(wish, picks, 0, wish.count)
            for more in found:
                yield from self._requests(index + 1, more)

    def _all(self, wish: Wish, picks: tuple[Pick, ...]) -> Iterator[tuple[Pick, ...]]:
        """Every device selected, or none: one that cannot be had fails the request."""
        for offer in self.offers:
            if not self._selects(wish, offer):
                continue
            if not self._fits(wish, offer, picks):
                told = offer.obstacle or offer.taint(wish) or "taken, or against a constraint"
                self.why = f"lacks {offer.name}, which request {wish.name} asks for: {told}"
                return
            picks = (*picks, Pick(wish, offer))
        if any(pick.wish is wish for pick in picks):
            yield picks

    def _some(
        self, wish: Wish, picks: tuple[Pick, ...], start: int, count: int
    ) -> Iterator[tuple[Pick, ...]]:
        """Each way to take `count` devices from `start` on, in the slice's order."""
        if count == 0:
            yield picks
            return
        for place in range(start, len(self.offers) - count + 1):
            self._steps += 1
            if self._steps > STEPS_MAX:
                raise errors.InputInvalid(
                    f"the requests allow too many combinations: {STEPS_MAX} devices were tried",
                    remedy="narrow the selectors down, or ask for fewer devices in one claim",
                )
            offer = self.offers[place]
            if self._fits(wish, offer, picks) and self._selects(wish, offer):
                more = (*picks, Pick(wish, offer))
                yield from self._some(wish, more, place + 1, count - 1)

    def _fits(self, wish: Wish, offer: Offer, picks: Sequence[Pick]) -> bool:
        """Whether the device is to be had and goes with those picked already."""
        if not offer.ours or offer.obstacle or offer.taint(wish):
            return False
        if any(_shared(offer, pick.offer) for pick in picks):
            return False
        for constraint in self.wanted.constraints:
            if not constraint.covers(wish):
                continue
            value = offer.attribute(constraint.attribute)
            if value is None:
                return False
            others = (pick for pick in picks if constraint.covers(pick.wish))
            if any(other.offer.attribute(constraint.attribute) != value for other in others):
                return False
        return True

    def _selects(self, wish: Wish, offer: Offer) -> bool:
        if not (offer.ours or wish.every):
            return False  # another driver's: only the scheduler gives those
        key = (wish.name, f"{offer.driver}/{offer.name}")
        if key not in self._selected:
            self._selected[key] = all(
                selector.matches(offer.entry, driver=offer.driver) for selector in wish.selectors
            )
        return self._selected[key]


def _shared(one: Offer, other: Offer) -> bool:
    """Whether both are of the same memory, by their node or by what the scheduler counts."""
    return bool(one.units & other.units or one.counters & other.counters)


def _plural(count: int) -> str:
    return "device" if count == 1 else "devices"
