"""Chapter of the demo: MIG slices made, wiped, exposed and removed, and a stranger's left alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from fleet.cli import reach
from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.messages import ClaimAnswer, ClaimOrder, DeviceView
from fleet.core.model import Holder, HolderKind, Token, UnitId
from fleet.evidence import layout
from tests.drivers.stage import Part, Stage

THREE = (Part(0, 1), Part(2, 2), Part(4, 4))
FOREIGN = Part(3, 1)
PATIENCE_S = 60.0
_PAUSE_S = 0.05

T = TypeVar("T")


class Slices:
    """Claims on partitions of the node, as whoever allocates them would make them."""

    def __init__(self, stage: Stage, fleet: reach.Fleet) -> None:
        self._stage = stage
        self._fleet = fleet
        self._node = fleet.nodes[stage.node]

    def adopt(self) -> None:
        """An operator's word that nobody has the GPUs; `fleet scrub` asks for it, too."""
        devices = [one.uuid for one in self._node.view().devices if one.profile == ""]
        self._node.adopt(devices=devices, operator="demo")

    def view(self, part: Part) -> DeviceView:
        """The partition as the node shows it now."""
        found = {device.name: device for device in self._node.view().devices}
        return found[self._stage.named(part, list(found))]

    def order(self, part: Part, uid: str) -> ClaimOrder:
        """A claim on a partition, with its lease."""
        device = self.view(part)
        floor = Token.parse(device.floor)
        request = AcquireRequest(
            frozenset(UnitId(unit) for unit in device.units),
            Holder(HolderKind.CLAIM, uid),
            None,
            floor if floor.counter else None,
        )

        def acquire() -> str:
            (answer,) = self._fleet.coordinator.acquire([request])
            if isinstance(answer, errors.FleetError):
                raise answer
            return str(max(answer.token, floor))

        return ClaimOrder(
            uid=uid,
            node=self._stage.node,
            devices=(device.uuid,),
            token=patiently(acquire),
            namespace="demo",
            name=uid,
            consumers=(uid,),
        )

    def prepare(self, order: ClaimOrder) -> ClaimAnswer:
        """Ask once: it is done, or `Retryable` says what it waits for."""
        return self._node.prepare(order)

    def end(self, orders: Sequence[ClaimOrder]) -> None:
        """Tear all of them down at once, until nothing is left."""
        left = list(orders)

        def step() -> None:
            waits: errors.Retryable | None = None
            for order in tuple(left):
                try:
                    self._node.unprepare(order.uid)
                    left.remove(order)
                except errors.Retryable as error:
                    waits = error
            if waits is not None:
                raise waits

        patiently(step)

    def settled(self) -> None:
        """Wait until every lease is given back and every instance of ours is gone."""

        def look() -> None:
            if self._node.view().outbox:
                raise errors.DeviceBusy("leases are not given back yet")

        patiently(look)


def patiently(attempt: Callable[[], T]) -> T:
    """Ask again until it works. Raises what the last attempt raised."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return attempt()
        except errors.Retryable:
            if time.monotonic() >= until:
                raise
            time.sleep(_PAUSE_S)


@contextmanager
def opened(stage: Stage) -> Iterator[Slices]:
    """The real node service on the stage's state, in this process."""
    with reach.fleet(stage.state, address=None, ticking=True) as fleet:
        yield Slices(stage, fleet)


def tell_three(stage: Stage, slices: Slices) -> None:
    """Three claims at once: three instances, each wiped, each with nodes of its own."""
    telling = stage.telling
    telling.step("Three MIG slices at once: 1g, 2g and 3g of one GPU for three claims")
    for part in THREE:
        stage.soil(part)
    telling.expect("no instance exists while nobody needs one", holds=not stage.instances())
    orders = {part: slices.order(part, f"claim-{part.size}-at-{part.start}") for part in THREE}
    answers: dict[Part, ClaimAnswer] = {}

    def step() -> None:
        waits: errors.Retryable | None = None
        for part in THREE:
            if part not in answers:
                try:
                    answers[part] = slices.prepare(orders[part])
                except errors.Retryable as error:
                    waits = error
        if waits is not None:
            raise waits

    began = time.monotonic()
    patiently(step)
    telling.line(f"   all three are prepared after {time.monotonic() - began:.1f} s")
    there, specs = stage.instances(), layout.node_directory(stage.state, stage.node) / "cdi"
    for (start, size), gi in sorted(there.items()):
        telling.line(f"   instance gi {gi}: memory slices {start}..{start + size - 1}")
    telling.expect(
        "exactly these three instances exist",
        holds=set(there) == {(part.start, part.size) for part in THREE},
    )
    for part in THREE:
        name, answer = slices.view(part).name, answers[part]
        telling.expect(
            f"{name} was wiped for its claim: {', '.join(answer.certificates)[:23]}",
            holds=len(answer.certificates) == 1 and not stage.soiled(part),
        )
        telling.expect(
            f"its CDI spec {answer.spec} has the nodes of its own instance only",
            holds=stage.judge_spec(specs / answer.spec, part),
        )
    certificates = {one for answer in answers.values() for one in answer.certificates}
    telling.expect("each has a certificate of its own", holds=len(certificates) == len(THREE))
    slices.end(list(orders.values()))
    slices.settled()
    telling.expect("torn down: every instance is gone", holds=not stage.instances())
    telling.expect("and so is every CDI spec", holds=not list(specs.glob("*.json")))


def tell_foreign(stage: Stage, slices: Slices) -> None:
    """Somebody else's instance is never touched, and keeps out what shares memory with it."""
    telling = stage.telling
    telling.step("Somebody else makes a MIG instance: it is not touched, and keeps its memory")
    gi, uuid = stage.divided.instance("1g", FOREIGN.start)
    stage.soil(FOREIGN)
    telling.line(f"   gi {gi} ({uuid}), memory slice {FOREIGN.start}, is not ours")
    beside, across = Part(0, 1), Part(2, 2)
    orders = [slices.order(beside, "claim-beside"), slices.order(across, "claim-across")]
    answer = patiently(lambda: slices.prepare(orders[0]))
    telling.expect("a slice beside it is prepared all the same", holds=bool(answer.certificates))
    said = ""
    until = time.monotonic() + PATIENCE_S
    while "not ours" not in said and time.monotonic() < until:
        try:
            slices.prepare(orders[1])
            break
        except errors.FleetError as error:
            said = error.detail
            time.sleep(_PAUSE_S)
    telling.line(f"   {slices.view(across).name}: {said}")
    telling.expect("one across it is refused, and says why", holds="not ours" in said)
    telling.expect(
        "the stranger's instance and memory are as they were",
        holds=stage.instances().get((FOREIGN.start, 1)) == gi
        and stage.uuid_of(gi) == uuid
        and stage.soiled(FOREIGN),
    )
    stage.divided.instance_gone(gi)
    again = patiently(lambda: slices.prepare(orders[1]))
    telling.expect(
        "once the stranger is gone the claim goes on by itself, on wiped memory",
        holds=bool(again.certificates) and not stage.soiled(FOREIGN),
    )
    slices.end(orders)
    slices.settled()
    telling.expect("nothing is left", holds=not stage.instances())
