"""What may start next: limits, fairness, determinism."""

from __future__ import annotations

from collections import Counter
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from fleet.control.campaign.budget import Accelerator, Service, Standing, limit, used
from fleet.control.campaign.plan import Line, Room, next_batch, plan
from fleet.control.campaign.targets import Target
from fleet.core.model import NO_TOKEN
from fleet.core.settings import CampaignPolicy


def target(node: str, uuid: str, rack: str = "", pool: str = "p") -> Target:
    return Target(
        node=node, name=uuid, uuid=uuid, accelerator=uuid, units=frozenset({uuid}),
        memory_bytes=1, floor=NO_TOKEN, state="CLEAN", rack=rack, pool=pool,
    )  # fmt: skip


def serving(targets: list[Target], standing: Standing = Standing.SERVING) -> Service:
    return Service({t.accelerator: Accelerator(t.node, t.rack, t.pool, standing) for t in targets})


def grid(nodes: int, each: int, racks: int = 1) -> list[Target]:
    return [
        target(f"n{n}", f"n{n}g{g}", rack=f"r{n % racks}")
        for n in range(nodes)
        for g in range(each)
    ]


def test_nodes_take_turns() -> None:
    """Fair: every node gets its first device before any gets its second."""
    fleet = grid(4, 4)
    batch = next_batch(fleet, (), serving(fleet), CampaignPolicy(max_parallel=6))
    assert [t.uuid for t in batch] == ["n0g0", "n1g0", "n2g0", "n3g0", "n0g1", "n1g1"]


def test_busy_nodes_wait_for_idle_ones() -> None:
    """What runs already counts for fairness and for the limits."""
    fleet = grid(2, 4)
    running = [t for t in fleet if t.node == "n0"][:2]
    pending = [t for t in fleet if t not in running]
    batch = next_batch(pending, running, serving(fleet), CampaignPolicy(max_parallel=4))
    assert [t.uuid for t in batch] == ["n1g0", "n1g1"]


def test_each_limit_holds_by_itself() -> None:
    """Node, rack, fleet and breaker each bound the batch."""
    fleet = grid(4, 4, racks=2)
    view = serving(fleet)
    assert len(next_batch(fleet, (), view, CampaignPolicy(max_parallel_per_node=2))) == 8
    assert len(next_batch(fleet, (), view, CampaignPolicy(max_parallel_per_rack=3))) == 6
    assert len(next_batch(fleet, (), view, CampaignPolicy(max_parallel=5))) == 5
    assert len(next_batch(fleet, (), view, CampaignPolicy(), most=1)) == 1
    assert len(next_batch(fleet, (), view, CampaignPolicy(out_of_service_max=0.25))) == 4
    assert len(next_batch(fleet, (), view, CampaignPolicy(pool_floor=0.5))) == 8


def test_a_retest_of_what_is_out_needs_no_more_budget() -> None:
    """B50: bringing a quarantined device back is never held up by the budget it already uses."""
    fleet = grid(1, 2)
    view = serving(fleet, Standing.OUT)
    policy = CampaignPolicy(out_of_service_max=0.5, out_of_service_min=0)
    assert len(next_batch(fleet, (), view, policy)) == 2


def test_a_dirty_pool_can_always_be_cleaned() -> None:
    """A floor protects what serves tenants, not what nobody can have."""
    fleet = grid(1, 4)
    view = serving(fleet, Standing.IDLE)
    assert len(next_batch(fleet, (), view, CampaignPolicy(pool_floor=0.9))) == 4


def test_waves_cover_everything_that_can_be_started() -> None:
    """--dry-run: the waves name each device once; what no wave can start is named apart."""
    fleet = grid(2, 5)
    waves = plan(fleet, serving(fleet), CampaignPolicy(max_parallel=4))
    assert [len(wave) for wave in waves.waves] == [4, 4, 2]
    assert Counter(t for wave in waves.waves for t in wave) == Counter(fleet)
    nothing = plan(fleet, serving(fleet), CampaignPolicy(pool_floor=0.99))
    assert (nothing.waves, len(nothing.blocked)) == ((), 10)


TARGETS = st.lists(
    st.builds(
        lambda n, g, rack, pool: target(f"n{n}", f"n{n}g{g}", f"r{rack}", f"p{pool}"),
        st.integers(0, 3), st.integers(0, 4), st.integers(0, 1), st.integers(0, 1),
    ),
    unique_by=lambda t: t.uuid,
    max_size=14,
)  # fmt: skip


@given(
    TARGETS,
    st.integers(0, 6),
    st.builds(
        CampaignPolicy,
        max_parallel=st.integers(1, 8),
        max_parallel_per_node=st.integers(1, 4),
        max_parallel_per_rack=st.integers(1, 5),
        pool_floor=st.sampled_from([0.0, 0.4, 0.8]),
        out_of_service_max=st.sampled_from([0.1, 0.5, 1.0]),
        out_of_service_min=st.integers(0, 2),
    ),
    st.lists(st.sampled_from(list(Standing)), min_size=14, max_size=14),
)
def test_a_batch_never_breaks_a_limit(
    fleet: list[Target], running_count: int, policy: CampaignPolicy, standings: list[Standing]
) -> None:
    """Whatever runs already: after the batch every limit holds that held before, order included."""
    view = Service(
        {
            t.accelerator: Accelerator(t.node, t.rack, t.pool, standing)
            for t, standing in zip(fleet, standings, strict=False)
        }
    )
    running, pending = fleet[:running_count], fleet[running_count:]
    batch = next_batch(pending, running, view, policy)
    assert batch == next_batch(list(reversed(pending)), running, view, policy)
    held = [*running, *batch]
    if not batch:
        return
    assert set(batch) <= set(pending)
    assert len(held) <= policy.max_parallel
    for started in batch:
        assert sum(t.node == started.node for t in held) <= policy.max_parallel_per_node
        assert sum(t.rack == started.rack for t in held) <= policy.max_parallel_per_rack
    out = used(view, [t.accelerator for t in held])
    before = used(view, [t.accelerator for t in running])
    assert len(out) <= max(limit(view, policy), len(before))
    for pool in {t.pool for t in batch}:
        of_pool = {u: a for u, a in view.accelerators.items() if a.pool == pool}
        healthy = [a for a in of_pool.values() if a.standing in (Standing.SERVING, Standing.IDLE)]
        taken = {t.accelerator for t in held}
        left = [u for u, a in of_pool.items() if a.standing is Standing.SERVING and u not in taken]
        felt = [t for t in batch if of_pool.get(t.accelerator) and t.pool == pool
                and of_pool[t.accelerator].standing is Standing.SERVING]  # fmt: skip
        assert not felt or len(left) >= ceil(policy.pool_floor * len(healthy))


def test_a_line_is_kept_from_step_to_step() -> None:
    """E2: what is chosen from a line as devices come and go is what a new one would choose."""
    fleet = grid(5, 4, racks=2)
    policy = CampaignPolicy(max_parallel=6, max_parallel_per_rack=4)
    line, waiting = Line(), list(fleet)
    running: list[Target] = []
    for target in reversed(fleet):
        line.add(target)
    while waiting:
        room = Room(running, serving(fleet), policy)
        batch = line.batch(room, None, lambda _: True)
        assert batch == next_batch(waiting, running, serving(fleet), policy)
        for target in batch:
            waiting.remove(target)
            line.remove(target)
            line.load(target.node, 1)
        running += batch
        for target in running[::2]:
            line.load(target.node, -1)
        running = running[1::2]
    assert not line


def test_with_the_budget_spent_only_what_is_out_already_may_start() -> None:
    """B50: a quarantined device is retested although nothing else may be taken out of service."""
    fleet = grid(4, 2)
    out = {"n2g1": Accelerator("n2", "r0", "p", Standing.OUT)}
    service = Service({**serving(fleet).accelerators, **out})
    policy = CampaignPolicy(out_of_service_max=0.01, out_of_service_min=1)
    assert [t.uuid for t in next_batch(fleet, (), service, policy)] == ["n2g1"]
