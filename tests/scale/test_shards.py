"""Several coordinators share the nodes of one driver: each claim has exactly one."""

from __future__ import annotations

from contextlib import ExitStack
from random import Random

import pytest

from fleet.kube.base import CLAIMS, NODES, Name
from fleet.kube.claim import ClaimReading
from tests.fleet.control.binding.benches import STEP_S
from tests.scale.shards import Pools, Shard, run, shard

A, B, C = "pool=a", "pool in (b)", "pool notin (a,b),pool"
POOLS = {
    "a": [f"a{number}" for number in range(10)],
    "b": [f"b{number}" for number in range(10)],
    "c": [f"c{number}" for number in range(10)],
}
LATE_S = 700.0
"""Time, s, after which a claim that waits is failed (`binding_timeout_s` less 30 s)."""


def pods(site: Pools, names: list[str], suffix: str = "") -> list[str]:
    """A pod for each node named, waiting for the node's device a; the names of its claims."""
    found = [f"{name}{suffix}" for name in names]
    for claim, node in zip(found, names, strict=True):
        site.given(claim, "b" if suffix else "a", node=node)
    return found


def bound(site: Pools, claims: list[str]) -> list[ClaimReading]:
    """All of these are bound, held and not failed."""
    found = [site.reading(name) for name in claims]
    assert all(one.bound and one.held and one.finalizer and not one.failed for one in found)
    return found


def test_three_coordinators_share_the_nodes_of_a_cluster() -> None:
    """B4, promise 2: each claim is bound by its shard's coordinator alone. When one stops only its
    claims wait, far beyond the time at which they would be failed; a node whose label moves has its
    claim bound by the other one.
    """
    site = Pools(POOLS)
    with shard(site, A, A, B, C) as a, shard(site, B, A, B, C) as b, shard(site, C, A, B, C) as c:
        mine = {pool: pods(site, names) for pool, names in POOLS.items()}
        run(site, 4.0, a, b, c)
        for pool, one in zip("abc", (a, b, c), strict=True):
            readings = bound(site, mine[pool])
            assert one.wrote() == set(mine[pool])
            assert one.stepped.open_claims == len(readings) == 10
            assert one.stepped.trouble == ""
        tokens = [lease.token for lease in site.store.leases()]
        assert len({*tokens}) == len(tokens) == 30

        more = {pool: pods(site, names, "-b") for pool, names in POOLS.items()}
        run(site, 4.0, a, c)
        bound(site, [*more["a"], *more["c"]])
        site.clock.advance(LATE_S)
        for node in site.nodes.by_name.values():
            for uuid in node.devices:
                node.change(uuid, checked_at=site.clock.now())
        run(site, 60.0, a, c)
        waiting = [site.reading(name) for name in more["b"]]
        assert not any(one.bound or one.failed or one.marked for one in waiting)
        assert not (a.wrote() | c.wrote()) & {*more["b"], *mine["b"]}
        assert len(site.store.leases()) == 50

        site.label("b3", "a")
        run(site, 4.0, a, c)
        bound(site, ["b3-b"])
        assert "b3-b" in a.wrote()
        assert a.stepped.open_claims == 22, "a claim bound by another goes on under this one"
        assert site.reading("b4-b").bound is False


def test_a_claim_in_the_middle_of_its_binding_moves_with_its_node() -> None:
    """B42, promise 2: the wipe that one coordinator ordered is the other one's proof, under the
    same token; nothing is wiped twice.
    """
    site = Pools({"a": ["n"], "b": ["m"]})
    with shard(site, A, A, B) as a, shard(site, B, A, B) as b:
        uid = site.given("c", "a", node="n")
        run(site, 1.0, a, b, work=False)
        lease = site.lease(uid)
        assert lease is not None
        assert len(site.nodes.orders) == 1
        site.label("n", "b")
        run(site, 3.0, a, b)
        bound(site, ["c"])
        assert site.lease(uid) == lease
        assert {one.operation for one in site.nodes.orders} == {site.nodes.orders[0].operation}
        assert (a.wrote(), b.wrote()) == (set(), {"c"})
        assert (a.stepped.open_claims, b.stepped.open_claims) == (0, 1)


def test_two_that_select_one_node_do_no_harm_and_say_so() -> None:
    """B4: an overlap is two coordinators over one store, and is told."""
    site = Pools({"a": ["n"]})
    both = ("pool=a", "pool")
    with shard(site, both[0], *both) as one, shard(site, both[1], *both) as other:
        site.given("c", "a", "b", node="n")
        run(site, 3.0, one, other)
        bound(site, ["c"])
        assert len(site.store.leases()) == 1
        for each in (one, other):
            assert "several coordinators are responsible for n" in each.stepped.trouble


def test_a_node_that_nobody_selects_is_told_and_its_claims_wait() -> None:
    """E7: a label that was forgotten shows in every coordinator and on the Node."""
    site = Pools({"a": ["n"], "": ["m"]})
    with shard(site, A, A) as a:
        site.given("c", "a", node="m")
        site.given("d", "a", node="n")
        run(site, 3.0, a)
        bound(site, ["d"])
        assert not site.reading("c").marked
        assert "no coordinator is responsible for m" in a.stepped.trouble
        told = [one for one in a.cluster.writes() if one.resource.kind == "Event"]
        assert len(told) == 1
        site.label("m", "a")
        run(site, 5.0, a)
        bound(site, ["c"])
        assert a.stepped.trouble == ""


def test_a_deleted_node_stays_with_its_coordinator_and_others_leave_it_alone() -> None:
    """DESIGN 4: a Node object that is gone has no labels; whoever had it last gives it up, and one
    that began later says that it cannot know.
    """
    site = Pools({"a": ["n"], "b": ["m"]})
    with shard(site, A, A, B) as a, shard(site, B, A, B) as b:
        uid = site.given("c", "a", node="n")
        run(site, 3.0, a, b)
        bound(site, ["c"])
        site.admin.delete(NODES, Name("n"))
        del site.nodes.by_name["n"]
        with shard(site, A, A, B) as late, shard(site, B, A, B) as later:
            for _ in range(70):
                run(site, STEP_S, b, late, later)
                site.clock.advance(59.0)
            run(site, 3.0, b, late, later)
            assert site.lease(uid) is not None
            assert site.reading("c").marked
            assert "fleet node forget n" in late.stepped.trouble
            assert "fleet node forget n" in later.stepped.trouble
            assert b.stepped.trouble == ""
        for _ in range(70):
            run(site, STEP_S, a)
            site.clock.advance(59.0)
        run(site, 3.0, a)
        assert site.lease(uid) is None
        assert not site.reading("c").marked


def test_a_lease_left_on_a_node_of_another_shard_is_given_back_there() -> None:
    """A7: a claim that was allocated anew elsewhere leaves its lease where only the node's own
    coordinator can have it closed.
    """
    site = Pools({"a": ["n"], "b": ["m"]})
    with shard(site, A, A, B) as a, shard(site, B, A, B) as b:
        uid = site.given("c", "a", node="n")
        run(site, 1.0, a, b, work=False)
        assert site.lease(uid) is not None
        site.deallocate("c")
        site.allocate("c", "a", node="m")
        site.reserve("c", site.pod("later"))
        run(site, 12.0, a, b)
        bound(site, ["c"])
        (lease,) = (one for one in site.store.leases() if one.holder.name == uid)
        assert {*lease.units} == {*site.device("a", "m").units}
        assert b.wrote() == {"c"}
        assert site.device("a", "n").closed


def test_orphans_and_quarantines_are_each_nodes_own_coordinators() -> None:
    """A7, B50: leases of claims that are gone, and of devices out of service, are taken and given
    back by the coordinator of their node alone.
    """
    site = Pools({"a": ["n"], "b": ["m"]})
    with shard(site, A, A, B) as a, shard(site, B, A, B) as b:
        uids = [site.given(name, "a", node=name) for name in ("n", "m")]
        run(site, 0.5, a, b, work=False)
        assert all(site.lease(uid) for uid in uids)
        for name in ("n", "m"):
            site.deallocate(name)
            body = site.raw(name)
            body["metadata"]["finalizers"] = []
            site.admin.replace(CLAIMS, body)
            site.delete(name)
            floor = str(site.store.newest())  # its node has asked the store
            site.change("b", node=name, state="QUARANTINED", floor=floor)
            site.publish(name)
        run(site, 12.0, a)
        assert [site.lease(uid) is None for uid in uids] == [True, False]
        quarantined = {str(one.holder) for one in site.store.leases()} - {f"claim:{uids[1]}"}
        assert quarantined == {f"quarantine:{site.uuid('b', 'n')}"}
        run(site, 12.0, b)
        assert site.lease(uids[1]) is None
        assert len(site.store.leases()) == 2


class Story:
    """One seed: pods come and go, labels move, coordinators die and come back; then peace."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.site = Pools({"a": ["a0", "a1"], "b": ["b0", "b1"], "c": ["c0"]})
        self.pool = {"a0": "a", "a1": "a", "b0": "b", "b1": "b", "c0": "c"}
        self.living: dict[str, str] = {}
        """Node by claim that a pod waits for."""
        self.placed: dict[str, str] = {}
        """The same of every claim that names a node."""
        self.made = 0

    def strike(self) -> None:
        """Something happens, or nothing."""
        match self.random.randrange(8):
            case 0 | 1:
                self.come()
            case 2 if self.living:
                self.go(self.random.choice(sorted(self.living)))
            case 3:
                node = self.random.choice(sorted(self.pool))
                self.pool[node] = self.random.choice(["a", "b", "c"])
                self.site.label(node, self.pool[node])

    def come(self) -> None:
        """A pod on a free device."""
        names = [f"p{number}" for number in range(self.made)]
        taken = {(one.node, one.device) for n in names for one in self.site.reading(n).devices}
        free = [(n, d) for n in sorted(self.pool) for d in "ab" if (n, d) not in taken]
        if free:
            node, device = self.random.choice(free)
            name, self.made = f"p{self.made}", self.made + 1
            self.site.given(name, device, node=node)
            self.living[name] = self.placed[name] = node

    def go(self, name: str) -> None:
        """Its pod vanishes before it ran; without our entry the scheduler gives the device up."""
        self.site.reserve(name)
        if not self.site.reading(name).held:
            self.site.deallocate(name)
            self.placed.pop(name)
        self.living.pop(name)

    def told(self, shards: dict[str, Shard], before: dict[str, int]) -> None:
        """What was written since `before` is of claims on each one's own nodes."""
        for pool, one in shards.items():
            for call in one.cluster.writes()[before[pool] :]:
                if call.resource == CLAIMS and call.name.name in self.placed:
                    node = self.placed[call.name.name]
                    assert self.pool[node] == pool, (call.name, node, pool)
        for name in self.living:
            assert not self.site.reading(name).failed, name


@pytest.mark.parametrize("seed", range(5))
def test_whoever_has_a_node_alone_writes_to_its_claims(seed: int) -> None:
    """B4, B42, A7, promise 2: while labels move and coordinators die, every write to a claim is by
    the coordinator that its node has at that moment and none is failed; in peace every pod that
    waits is bound, and no other lease is left.
    """
    story = Story(seed)
    site, selectors = story.site, (A, B, "pool=c")
    with ExitStack() as stack:
        shards: dict[str, Shard] = {}
        for step in range(120):
            if step % 40 == 0:
                for pool, one in zip("abc", selectors, strict=True):
                    if pool not in shards or story.random.random() < 0.5:
                        shards[pool] = stack.enter_context(shard(site, one, *selectors))
            story.strike()
            running = [p for p in shards if step >= 100 or (step // 10 + ord(p) + seed) % 4]
            before = {pool: len(one.cluster.writes()) for pool, one in shards.items()}
            run(site, STEP_S, *(shards[pool] for pool in running), work=step % 3 == 0)
            story.told(shards, before)
        run(site, 30.0, *shards.values())
    bound(site, sorted(story.living))
    held = {lease.holder.name for lease in site.store.leases()}
    assert held == {site.reading(name).uid for name in story.living}
    assert story.made > 5
