"""What the coordinator spends on claims: ``python -m tests.performance.reconciling``.

The product's binder over the API server's twin and a store of leases, on nodes of eight devices
that fence as real ones do. Three things are measured, each in CPU time of the coordinator: what
the twin and the nodes spend meanwhile is left out, what the store spends is in it and shown.

1. One look at every claim of a fleet at rest, as the resync makes it.
2. One new claim among them, from allocated to bound, with what it asks of API, nodes and store.
3. A tenth of as many claims that are new at once.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.control.binding.claim_facts import UNDER
from fleet.control.binding.object_cache import Cached
from fleet.control.binding.service import CLAIMS_MAX, RESYNC_S, Binder
from fleet.control.coordinator import Coordinator
from fleet.core.leases import AcquireRequest
from fleet.core.messages import ClaimBrief
from fleet.core.model import Holder, HolderKind, Lease, Token, UnitId
from fleet.stores.sqlite import open_stores
from tests.fleet.control.binding import scenes
from tests.fleet.control.binding.benches import STEP_S, Bench, Node, Nodes, NoSigner
from tests.lab.stores import MemoryRunStore

DEVICES = 8
"""Devices of a node, of which each claim has one."""
STORES = ("memory", "sqlite")
ALONE = 10
"""Claims that come one by one, each alone, before the others come at once."""
STEPS_MAX = 40
"""Steps in which new claims have to be bound."""


@dataclass
class Spent:
    """What one neighbour of the coordinator was asked, and the CPU seconds it took."""

    seconds: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)

    def clear(self) -> None:
        """Begin anew."""
        self.seconds = 0.0
        self.calls.clear()


class Aside:
    """A neighbour whose methods are timed and counted; whatever else it has is passed on."""

    def __init__(self, inner: object, spent: Spent) -> None:
        self._inner, self._spent = inner, spent

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._timed(name, found) if callable(found) else found

    def _timed(self, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._spent.calls[name] += 1
            began = time.process_time()
            try:
                return act(*args, **kwargs)
            finally:
                self._spent.seconds += time.process_time() - began

        return timed


class Fleet(Bench):
    """As many nodes as its claims fill, each with a device of its own."""

    def __init__(self, store: Any = None, *, claims: int, room: int = 0) -> None:
        """`store`: the leases', made and initialised; None: in memory. `room`: how many claims
        more may come; 0: a tenth."""
        super().__init__()
        self.api, self.asked, self.stored = Spent(), Spent(), Spent()
        self.size = claims
        count = -(-(claims + (room or max(2 * ALONE, claims // 10))) // DEVICES)
        self.nodes = Nodes(self.clock, [_node(f"node{number}") for number in range(count)])
        if store is not None:
            self.store = store
        aside: Any = Aside(self.store, self.stored)
        self.coordinator = Coordinator(
            aside, MemoryRunStore(self.clock), clock=self.clock, signer=NoSigner()
        )
        self._given = 0
        self.claims, self.binder = self.begin()
        self.claims.refresh()

    def begin(self) -> tuple[Cached, Binder]:
        """A coordinator that knows nothing yet; what it meets is timed, once there is a clock."""
        if not hasattr(self, "api"):
            return super().begin()
        cluster, nodes = self.cluster, self.nodes
        api: Any = Aside(cluster, self.api)
        asked: Any = Aside(nodes, self.asked)
        self.cluster, self.nodes = api, asked
        try:
            claims, binder = super().begin()
        finally:
            self.cluster, self.nodes = cluster, nodes
        return claims, binder

    def fill(self, count: int) -> list[str]:
        """So many claims more, allocated, a pod waiting for each; their names."""
        names = []
        for number in range(self._given, self._given + count):
            names.append(f"c{number}")
            node, device = divmod(number, DEVICES)
            self.given(names[-1], f"gpu-{device}", node=f"node{node}")
        self._given += count
        return names

    def multiply(self, name: str, count: int) -> None:
        """So many claims more that stand as `name` does, bound and exposed; the API server, which
        would take a second or two to make them, does not know of these.
        """
        model, text = self.reading(name), json.dumps(self.raw(name))
        (one,) = model.holding
        token = model.receipt(one, UNDER)
        for number in range(self._given, self._given + count):
            place, index = divmod(number, DEVICES)
            uid, node, device = f"{model.uid[:-8]}{number:08x}", f"node{place}", f"gpu-{index}"
            new = str(self.leased(uid, node, device))
            copy = text.replace(f'"{name}"', f'"c{number}"').replace(model.uid, uid)
            copy = copy.replace(one.node, node).replace(one.device, device).replace(token, new)
            self.claims.learn(json.loads(copy))
            self._show(uid, f"c{number}", self.uuid(device, node), node=node, token=new)
        self._given += count

    def leased(self, uid: str, node: str, device: str) -> Token:
        """The token of a claim's lease of one device, granted now."""
        units = frozenset(map(UnitId, self.device(device, node).units))
        request = AcquireRequest(units, Holder(HolderKind.CLAIM, uid))
        (lease,) = self.store.acquire([request])
        assert isinstance(lease, Lease), lease
        return lease.token

    def _show(self, uid: str, name: str, uuid: str, *, node: str, token: str) -> None:
        """Let a node say that it has exposed a device to a claim."""
        there = self.nodes.by_name[node]
        there.claims[uid] = ClaimBrief(
            uid=uid, state="PREPARED", namespace=scenes.SPACE, name=name, held=True
        )
        held = {"state": "IN_USE", "claim": uid, "held": True}
        there.change(uuid, **held, floor=token, certified_under=token)

    def bind_all(self, names: Sequence[str]) -> float:
        """Steps until they are bound and finalized; CPU seconds of the coordinator for it."""
        for name in names:
            self.claims.learn(self.raw(name))
        self.clear()
        spent_s = 0.0
        for _ in range(STEPS_MAX):
            spent_s += self.spent(lambda: self.binder.step(self.clock.now()))
            self.clock.advance(STEP_S)
            self.nodes.work()
            if all(self._is_bound(name) for name in names):
                return spent_s
        raise SystemExit("claims were not bound in time")

    def _is_bound(self, name: str) -> bool:
        reading = self.reading(name)
        return reading.bound and reading.finalizer

    def look(self) -> float:
        """One look at every claim, as the resync makes it; CPU seconds of the coordinator."""
        self.clock.advance(RESYNC_S + 1.0)
        self.freshen()
        before, spent_s = self.binder.looked_at, 0.0
        while self.binder.looked_at - before < self._given:
            spent_s += self.spent(lambda: self.binder.step(self.clock.now()))
        return spent_s

    def freshen(self) -> None:
        """Nodes have checked their devices just now."""
        for node in self.nodes.by_name.values():
            for uuid in node.devices:
                node.change(uuid, checked_at=self.clock.now())

    def spent(self, act: Callable[[], object]) -> float:
        """CPU seconds of `act` without those of the API server's twin and the nodes; the store is
        part of the coordinator."""
        aside = self.api.seconds + self.asked.seconds
        began = time.process_time()
        act()
        took = time.process_time() - began
        return took - (self.api.seconds + self.asked.seconds - aside)

    def clear(self) -> None:
        """Forget what neighbours were asked so far."""
        for spent in (self.api, self.asked, self.stored):
            spent.clear()


def _node(name: str) -> Node:
    devices = [scenes.device(f"gpu-{number}", node=name) for number in range(DEVICES)]
    return Node(name, {device.uuid: device for device in devices})


@contextmanager
def at_rest(kind: str, claims: int, *, room: int = 0) -> Iterator[Fleet]:
    """A fleet all of whose claims are bound and exposed. `kind`: one of `STORES`."""
    with ExitStack() as stack:
        fleet = Fleet(claims=claims, room=room)
        if kind == "sqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-reconcile-"))
            stores = open_stores(Path(folder) / "store.db", clock=fleet.clock)
            stack.callback(stores.close)
            stores.leases.init()
            fleet = Fleet(stores.leases, claims=claims, room=room)
        (first,) = fleet.fill(1)
        fleet.bind_all([first])
        fleet.prepare(first, node="node0")
        fleet.multiply(first, claims - 1)
        fleet.look()
        yield fleet


def counted(spent: Spent) -> str:
    """The calls, the most frequent first."""
    return ", ".join(f"{count} {name}" for name, count in spent.calls.most_common()) or "none"


def report(kind: str, claims: int, rounds: int) -> None:
    """Measure and print. The least of `rounds`: disturbance only ever adds."""
    with at_rest(kind, claims) as fleet:
        gc.collect()
        gc.disable()
        fleet.clear()
        rest_s = min(fleet.look() for _ in range(rounds))
        store_us = fleet.stored.seconds / rounds / claims * 1e6
        line(f"{kind}: {claims} claims at rest, a look at each", rest_s / claims * 1e6)
        line("  of it the store", store_us)
        least = min(claims, CLAIMS_MAX)
        line("  most that a step has in use, per claim", allocated(fleet) / least, unit="bytes")
        alone_s = [fleet.bind_all(fleet.fill(1)) for _ in range(ALONE)]
        line("one new claim, from allocated to bound, p50", statistics.median(alone_s) * 1e6)
        for what, spent in (("API", fleet.api), ("nodes", fleet.asked), ("store", fleet.stored)):
            sys.stdout.write(f"  asked of {what}: {counted(spent)}\n")
        new = max(1, claims // 10 - ALONE)
        new_s = fleet.bind_all(fleet.fill(new))
        line(f"{new} new claims at once, per claim", new_s / new * 1e6)
        line("  of it the store", fleet.stored.seconds / new * 1e6)
        gc.enable()


def allocated(fleet: Fleet) -> int:
    """Most bytes that a step over `CLAIMS_MAX` claims has in use beyond those it began with."""
    fleet.clock.advance(RESYNC_S + 1.0)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    fleet.binder.step(fleet.clock.now())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    fleet.look()
    return most - before


def line(what: str, figure: float, *, unit: str = "us CPU") -> None:
    """One line of figures."""
    sys.stdout.write(f"{what:58} {figure:9.1f} {unit}\n")


def profile(kind: str, claims: int, *, new: bool) -> None:
    """Where the time goes in looks at claims at rest, or in binding new ones."""
    with at_rest(kind, claims) as fleet:
        names = fleet.fill(max(1, claims // 10)) if new else []
        gc.collect()
        gc.disable()
        profiler = cProfile.Profile()
        profiler.runcall(lambda: fleet.bind_all(names) if new else fleet.look())
        gc.enable()
        for order in ("tottime", "cumulative"):
            pstats.Stats(profiler, stream=sys.stdout).sort_stats(order).print_stats(45)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.performance.reconciling")
    parser.add_argument("--claims", type=int, default=1000)
    parser.add_argument("--store", choices=STORES, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", choices=("rest", "new"))
    chosen = parser.parse_args(arguments)
    for kind in chosen.store or STORES:
        if chosen.profile:
            profile(kind, chosen.claims, new=chosen.profile == "new")
        else:
            report(kind, chosen.claims, chosen.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
