"""Nodes behind actors, asked in batches: every call bounded, every failure in its place."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from actors import methods
from actors.handles import RemoteNode
from actors.node_api import ActorApi
from actors.nodes import HUNG_S, LOOK_AGAIN_S, LOOK_S, RayNodes, Reach
from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.leases import ClosedBy, Closure
from fleet.core.messages import Acceptance, DeviceView, NodeView, ScrubOrder
from fleet.core.model import Digest, Holder, HolderKind, NodeName, Token, UnitId
from fleet.evidence.ledger import LedgerHead
from fleet.rpc.calls import verbs
from fleet.rpc.nodes import Abandonment

ORDER = ScrubOrder.model_validate(
    {"operation": "op", "node": "a", "device": "GPU-1", "token": "1.1"}
)
DEVICE = DeviceView(
    uuid="GPU-1",
    name="gpu-0",
    accelerator="GPU-1",
    units=("GPU-1/all",),
    memory_bytes=64,
    state="QUARANTINED",
)


@dataclass
class Method:
    """A method of an actor as Ray shows it."""

    actor: Actor
    name: str

    def remote(self, node: str, *given: Any) -> Ref:
        """Start a call."""
        assert node == self.actor.node
        verb = verbs(ActorApi)[self.name]
        found = tuple(verb.unpack(dict(methods._given(verb, given))).values())
        self.actor.asked.append((self.name, found))
        return Ref(self.actor, self.name, found)


@dataclass(eq=False)
class Actor:
    """A node's actor that answers at once, with an error, or not at all."""

    node: str
    error: errors.FleetError | None = None
    silent: bool = False
    slow: str = ""
    """The method that is not answered in time."""
    incarnation: str = "i"
    asked: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)


@dataclass
class Ref:
    """A call that was started."""

    actor: Actor
    method: str
    arguments: tuple[Any, ...]

    def open(self) -> bool:
        """Whether it is not answered yet."""
        return self.actor.silent or self.actor.slow == self.method

    def answer(self) -> Any:
        """What the actor answers."""
        if self.actor.error is not None:
            return self.actor.error
        told: dict[str, Callable[..., object]] = {
            "view": self._view,
            "scrub": lambda orders: [
                Acceptance(operation=one.operation, accepted=True) for one in orders
            ],
            "abandon": self._closed,
            "head": lambda: LedgerHead(2, "0" * 64, {UnitId("u"): Digest("sha256:1")}),
            "quarantine_add": lambda *_: DEVICE,
        }
        found = verbs(ActorApi)[self.method].dump(told[self.method](*self.arguments))
        return found if self.method in methods.PLAIN else json.dumps(found)

    def _view(self, _: Sequence[str]) -> NodeView:
        return NodeView(
            node=self.actor.node,
            incarnation=self.actor.incarnation,
            boot_id="b",
            at=1.0,
            simulated=True,
            backend="x",
        )

    def _closed(self, uid: str, token: str, _: Sequence[str]) -> Closure:
        holder = Holder(HolderKind.CLAIM, uid)
        return Closure(holder, Token.parse(token), NodeName(self.actor.node), ClosedBy.ABANDON)


class Cluster:
    """Three actors; what looks for them can be held up or fail."""

    def __init__(self) -> None:
        self.clock = ManualClock(0.0)
        self.actors = {name: Actor(name) for name in "abc"}
        self.looks = 0
        self.away: errors.FleetError | None = None
        self.held = threading.Event()
        self.held.set()
        self.waits: list[float] = []
        self.nodes = RayNodes(
            Reach(self.find, self.gather, Ref.open),
            timeout_s=1.0,
            clock=self.clock,
        )

    def find(self) -> Sequence[RemoteNode]:
        """As `handles.find_nodes`."""
        self.looks += 1
        assert self.held.wait(10.0)
        if self.away is not None:
            raise self.away
        return tuple(RemoteNode(name, actor) for name, actor in self.actors.items())

    def gather(self, refs: Mapping[str, Ref], *, call: str, timeout_s: float) -> dict[str, Any]:
        """As `handles.gather`; nobody waits here."""
        self.waits.append(timeout_s)
        late = errors.RayUnavailable(f"{call}: no answer")
        return {key: late if ref.open() else ref.answer() for key, ref in refs.items()}


@pytest.fixture
def cluster() -> Cluster:
    """A fresh one."""
    return Cluster()


def kinds(found: Mapping[str, object]) -> dict[str, type]:
    """What stands in the place of each answer."""
    return {name: type(one) for name, one in found.items()}


def test_each_node_answers_for_itself(cluster: Cluster) -> None:
    """A dead, a refusing or an unknown actor is an error in its place, the rest are answers."""
    cluster.actors["b"].error = errors.RayUnavailable("the actor died")
    cluster.actors["c"].error = errors.NodeDegraded("held")
    found = cluster.nodes.views({"a": ("op",), "b": (), "c": (), "d": ()})
    assert kinds(found) == {
        "a": NodeView,
        "b": errors.RayUnavailable,
        "c": errors.NodeDegraded,
        "d": errors.RayUnavailable,
    }
    assert cluster.actors["a"].asked == [("view", (("op",),))]
    assert set(cluster.nodes.names()) == {"a", "b", "c"}
    assert cluster.waits == [1.0], "one wait for the whole batch"


def test_orders_and_abandonments_are_answered_one_by_one(cluster: Cluster) -> None:
    """Every order and every token has its own answer, in the order asked."""
    cluster.actors["b"].error = errors.IllegalTransition("it has a record")
    orders = cluster.nodes.scrub({"a": (ORDER, ORDER), "b": (ORDER,)})
    assert kinds(orders) == {"a": tuple, "b": errors.IllegalTransition}
    asked = [Abandonment(node, f"c{n}", f"1.{n}", ("GPU-1",)) for n, node in enumerate("abca")]
    closed = cluster.nodes.abandon(asked)
    assert [type(one) for one in closed] == [Closure, errors.IllegalTransition, Closure, Closure]
    holders = [one.holder.name for one in closed if isinstance(one, Closure)]
    assert holders == ["c0", "c2", "c3"]
    cluster.nodes.node("a").quarantine_add("gpu-0", detail="smoke", operator="me", codes=("x",))
    assert cluster.actors["a"].asked[-1] == ("quarantine_add", ("gpu-0", "smoke", "me", ("x",)))
    with pytest.raises(errors.IllegalTransition):
        cluster.nodes.node("b").quarantine_add("gpu-0", detail="smoke", operator="me")


def test_ends_of_ledgers_are_read_for_countersigning(cluster: Cluster) -> None:
    """E3: every node's, in one batch; one that does not answer is an error in its place."""
    cluster.actors["b"].error = errors.RayUnavailable("the actor died")
    found = cluster.nodes.heads()
    assert kinds(found) == {"a": LedgerHead, "b": errors.RayUnavailable, "c": LedgerHead}
    assert cluster.actors["a"].asked == [("head", ())]


def test_a_silent_node_is_waited_for_once(cluster: Cluster) -> None:
    """B59: while its call is open it is an error at once; then it is asked again."""
    cluster.actors["a"].silent = True
    for _ in range(3):
        found = cluster.nodes.views({"a": (), "b": ()})
        assert kinds(found) == {"a": errors.RayUnavailable, "b": NodeView}
    assert len(cluster.actors["a"].asked) == 1
    assert len(cluster.actors["b"].asked) == 3
    cluster.actors["a"].silent = False
    assert kinds(cluster.nodes.views({"a": ()})) == {"a": NodeView}


def test_a_call_that_hangs_stops_its_kind_alone(cluster: Cluster) -> None:
    """B59: a wipe that will not end makes `abandon` slow: its node's other claims go on, and no
    batch waits for the same again within seconds, though the call has ended meanwhile."""
    slow = Abandonment("a", "c", "1.1", ("GPU-1",))
    cluster.actors["a"].slow = "abandon"
    for _ in range(3):
        (found,) = cluster.nodes.abandon([slow])
        assert isinstance(found, errors.RayUnavailable)
        assert kinds(cluster.nodes.views({"a": ()})) == {"a": NodeView}
        assert kinds(cluster.nodes.scrub({"a": (ORDER,)})) == {"a": tuple}
    asked = [method for method, _ in cluster.actors["a"].asked]
    assert asked.count("abandon") == 1
    cluster.actors["a"].slow = ""
    assert isinstance(cluster.nodes.abandon([slow])[0], errors.RayUnavailable)
    cluster.clock.advance(HUNG_S)
    assert isinstance(cluster.nodes.abandon([slow])[0], Closure)


def test_f73_a_call_is_given_up_with_the_actor_that_was_asked(cluster: Cluster) -> None:
    """F73: what the actor of before never answered keeps nobody from asking the one of now."""
    old = cluster.actors["a"]
    old.silent = True
    assert kinds(cluster.nodes.heads())["a"] is errors.RayUnavailable
    assert kinds(cluster.nodes.views({"a": ()})) == {"a": errors.RayUnavailable}
    cluster.actors["a"] = Actor("a", incarnation="later")  # its calls to the old one stay open
    cluster.clock.advance(LOOK_S)
    cluster.nodes.names()
    assert cluster.nodes._looked.wait(10.0)
    assert kinds(cluster.nodes.views({"a": ()})) == {"a": NodeView}
    assert kinds(cluster.nodes.heads())["a"] is LedgerHead


def test_f73_a_call_is_given_up_with_the_incarnation_of_the_node(cluster: Cluster) -> None:
    """F73: an actor that was started again has none of the calls from before in work."""
    actor = cluster.actors["a"]
    assert kinds(cluster.nodes.views({"a": ()})) == {"a": NodeView}
    actor.slow = "head"
    assert kinds(cluster.nodes.heads())["a"] is errors.RayUnavailable
    actor.slow = ""
    assert kinds(cluster.nodes.heads())["a"] is errors.RayUnavailable
    actor.incarnation = "later"
    assert kinds(cluster.nodes.views({"a": ()})) == {"a": NodeView}
    assert kinds(cluster.nodes.heads())["a"] is LedgerHead


def test_threads_may_decide_side_by_side(cluster: Cluster) -> None:
    """Writes go in several threads, and each may have to quarantine: every call reaches its node,
    and one that hangs is asked once however many come."""
    cluster.nodes.views({"a": ()})
    start, ends = threading.Barrier(8, timeout=10.0), list[str]()
    cluster.actors["b"].silent = True
    cluster.nodes.views({"b": ()})

    def decide(number: int) -> None:
        start.wait()
        for node in ("a", "b"):
            try:
                cluster.nodes.node(node).quarantine_add(f"gpu-{number}", detail="x", operator="me")
                ends.append(node)
            except errors.RayUnavailable:
                ends.append(f"not {node}")

    threads = [threading.Thread(target=decide, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert sorted(ends) == ["a"] * 8 + ["not b"] * 8
    assert [method for method, _ in cluster.actors["b"].asked] == ["view"]


def test_actors_are_looked_for_when_one_is_missing(cluster: Cluster) -> None:
    """A new node or a new actor of a known one is found within seconds, at no cost in between."""
    old = cluster.actors.pop("c")
    cluster.nodes.views({"a": ()})
    assert cluster.looks == 1
    cluster.actors["c"] = old
    assert kinds(cluster.nodes.views({"c": ()})) == {"c": errors.RayUnavailable}
    cluster.clock.advance(LOOK_AGAIN_S)
    assert kinds(cluster.nodes.views({"c": ()})) == {"c": NodeView}
    old.error = errors.RayUnavailable("the actor died")
    cluster.actors["c"] = Actor("c")
    assert kinds(cluster.nodes.views({"c": ()})) == {"c": errors.RayUnavailable}
    looks = cluster.looks
    cluster.clock.advance(LOOK_AGAIN_S)
    cluster.nodes.names()
    assert cluster.nodes._looked.wait(10.0)
    assert cluster.looks == looks + 1
    assert kinds(cluster.nodes.views({"c": ()})) == {"c": NodeView}
    cluster.clock.advance(LOOK_S - 1.0)
    cluster.nodes.names()
    assert cluster.looks == looks + 1


def test_without_a_head_what_is_known_is_used(cluster: Cluster) -> None:
    """Looking asks the head, which may hang for a minute: calls to live actors go on meanwhile."""
    cluster.nodes.views({"a": ()})
    cluster.held.clear()
    cluster.clock.advance(LOOK_S)
    assert kinds(cluster.nodes.views({"a": ()})) == {"a": NodeView}
    assert cluster.looks == 2
    cluster.clock.advance(LOOK_S)
    assert kinds(cluster.nodes.views({"a": ()})) == {"a": NodeView}
    assert cluster.looks == 2, "one look at a time"
    cluster.away = errors.RayUnavailable("no head")
    cluster.held.set()
    assert cluster.nodes._looked.wait(10.0)
    assert set(cluster.nodes.names()) == {"a", "b", "c"}, "a failed look forgets nobody"


def test_a_first_look_that_hangs_holds_nobody_up(cluster: Cluster) -> None:
    """With no head at the start the first call waits for its time and no longer."""
    cluster.held.clear()
    found = RayNodes(
        Reach(cluster.find, cluster.gather, lambda _: False), timeout_s=0.05, clock=cluster.clock
    ).views({"a": ()})
    assert kinds(found) == {"a": errors.RayUnavailable}
    cluster.held.set()


def test_an_answer_of_another_version_is_said_to_be_one(cluster: Cluster) -> None:
    """B19: what cannot be read is that node's trouble alone."""
    found = RayNodes(
        Reach(cluster.find, lambda refs, **_: dict.fromkeys(refs, "{}"), lambda _: False),
        clock=cluster.clock,
    ).views({"a": ()})
    assert kinds(found) == {"a": errors.InputInvalid}
