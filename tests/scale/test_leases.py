"""Leases and quarantines stay cheap where there are many: by counts, never by absolute time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from actors.coordinator_actor import CoordinatorActor
from fleet.control.coordinator import Coordinator
from fleet.core.clock import SystemClock
from fleet.core.errors import EpochForeign, FleetError
from fleet.core.leases import AcquireRequest
from fleet.core.messages import ScrubOrder
from fleet.core.model import Holder, HolderKind, Lease, Token, UnitId
from fleet.kube.base import NODES
from fleet.stores.sqlite import open_stores
from fleet.wiring import adapters
from tests.actors.test_coordinator_actor import Remote
from tests.fleet.control.binding.benches import NoSigner
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.bench.leases import StoreLeasing, one_round
from tests.lab.stores import MemoryLeaseStore, MemoryRunStore
from tests.scale import struck
from tests.scale.leases import DEVICES

WAIT_S = 30.0
ROUNDS = 25


class Slow(MemoryLeaseStore):
    """A store that keeps its first acquisition waiting until it is let go on."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.batches: list[int] = []
        self.begun, self.go_on = threading.Event(), threading.Event()

    def acquire(
        self, requests: Sequence[AcquireRequest], *, out_of_service_max: int | None = None
    ) -> list[Lease | FleetError]:
        """As any store."""
        self.batches.append(len(requests))
        self.begun.set()
        assert self.go_on.wait(WAIT_S)
        return super().acquire(requests, out_of_service_max=out_of_service_max)


def until(fact: Callable[[], bool]) -> None:
    """Return once `fact` holds."""
    pause, ends = threading.Event(), time.monotonic() + WAIT_S
    while not fact():
        assert time.monotonic() < ends, "the fact waited for never held"
        pause.wait(0.01)


def asked(number: int) -> Sequence[AcquireRequest]:
    """A request for one unit."""
    holder = Holder(HolderKind.OPERATOR, f"o{number}")
    return (AcquireRequest(frozenset({UnitId(f"u{number}/0")}), holder, 60.0),)


def test_calls_that_wait_for_a_commit_share_the_next_one(tmp_path: Path) -> None:
    """Issue 8 (leases): thirty drivers that ask at once cost two transactions and not thirty; each
    has its own lease under a token of its own, and a ping is answered meanwhile (B59)."""
    store, plan = Slow(), adapters.plan_fleet(tmp_path, simulate="1x1").coordinator
    store.init()
    coordinator = Coordinator(
        store, MemoryRunStore(SystemClock()), clock=SystemClock(), signer=NoSigner()
    )
    actor = CoordinatorActor(plan.model_dump_json(), lambda _: coordinator)
    with ThreadPoolExecutor(30) as pool:
        calls = [pool.submit(Remote(actor).acquire, asked(0))]
        assert store.begun.wait(WAIT_S)
        calls += [pool.submit(Remote(actor).acquire, asked(number)) for number in range(1, 30)]
        until(lambda: actor.lease_calls_waiting == 29)
        assert actor.ping() > 0
        store.go_on.set()
        answers = [call.result(WAIT_S)[0] for call in calls]
    leases = [one for one in answers if isinstance(one, Lease)]
    assert store.batches == [1, 29]
    assert len({lease.token for lease in leases}) == 30
    assert [lease.holder.name for lease in leases] == [f"o{number}" for number in range(30)]


def test_a_nodes_devices_cost_less_together(tmp_path: Path) -> None:
    """Issue 8 (scale): asked for together, a device costs less than half of one asked for alone."""
    units = [f"gpu-{number}/0" for number in range(DEVICES)]
    holder = Holder(HolderKind.OPERATOR, "guard")
    with closing(open_stores(tmp_path / "store.db", clock=SystemClock())) as stores:
        stores.leases.init()
        leasing = StoreLeasing(stores.leases)

        def spent_s(batches: Sequence[Sequence[str]]) -> float:
            began = time.process_time()
            for _ in range(ROUNDS):
                for batch in batches:
                    one_round(leasing, batch, holder)
            return time.process_time() - began

        together, alone = spent_s([units]), spent_s([[unit] for unit in units])
    assert alone > 2 * together


def test_a_node_quarantined_whole_is_one_write_at_the_api(tmp_path: Path) -> None:
    """Promise 6, issue 8 (scale): eight devices struck at once are one write, read back."""
    plan = struck.fleet_plan(tmp_path / "state", nodes=1, devices=DEVICES, clean=0)
    cluster = MemoryCluster()
    name = plan.nodes[0].node
    cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    with struck.serving(plan.nodes[0], cluster) as one:
        one.service.tick(time.time())
        struck.publish(one)
        one.strike()
        one.suffer()
        fate = one.fate()
    assert len(fate.units) == DEVICES
    assert fate.writes == 1
    assert fate.reads <= 4  # the Node and the slices, at most before and after the write


def test_a_shards_node_refuses_the_tokens_of_another_shard(tmp_path: Path) -> None:
    """B4: coordinators of different stores share no epoch: what one grants for a node that follows
    the other is refused there, whatever the second one knows."""
    plans = [
        adapters.plan_fleet(tmp_path / pool, simulate="1x1", memory_bytes=1 << 20)
        for pool in ("a", "b")
    ]
    ours, theirs = (adapters.open_coordinator(plan.coordinator) for plan in plans)
    service = adapters.open_node(plans[0].nodes[0])
    try:
        service.tick(time.time())
        (device,) = service.view().devices
        unit, holder = frozenset({UnitId(device.units[0])}), Holder(HolderKind.OPERATOR, "o")
        answers = [one.acquire([AcquireRequest(unit, holder, 60.0)])[0] for one in (theirs, ours)]
        tokens = [answer.token for answer in answers if isinstance(answer, Lease)]
        foreign, own = (
            service.scrub([_order(plans[0].nodes[0].node, device.uuid, token)])[0]
            for token in tokens
        )
        assert (foreign.accepted, foreign.kind) == (False, EpochForeign.__name__)
        assert own.accepted, own.error
    finally:
        service.close()


def _order(node: str, device: str, token: Token) -> ScrubOrder:
    return ScrubOrder(operation=f"o/{token}", node=node, device=device, token=str(token))
