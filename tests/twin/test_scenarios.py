"""Scenarios on the twin cluster: the product's coordinator, plugins and rules, in virtual time."""

from __future__ import annotations

import pytest

from fleet.kube.base import CLAIMS, Name
from tests.twin import objects
from tests.twin.hardware import Fate
from tests.twin.wiping import steady
from tests.twin.world import Plan, World


def held(world: World) -> list[str]:
    """Claims with our reservation."""
    return [
        str(name)
        for name, claim in world.sight.all(CLAIMS).items()
        if any(map(world.checker.marks.is_hold, objects.reserved(claim)))
    ]


@pytest.mark.parametrize("profile", ["strict", "fast", "lab"])
def test_a_pod_runs_and_nothing_is_left_of_it(profile: str) -> None:
    """B1 to B6, D1, D3: wiped, bound, run, torn down; no lease, hold, finalizer, record, taint."""
    world = World(Plan(profile=profile))
    world.run(15.0)
    one, two = world.pod(), world.pod(count=2)
    assert world.run(60.0, lambda: world.running(one, two))
    assert bool(held(world)) == (profile != "lab")
    assert world.settle() == []


def test_prebind_costs_one_tick_of_the_scheduler() -> None:
    """B3: a wipe of a second is over long before the scheduler looks again at 5 s."""
    world = World(Plan(), fates=steady(1.0))
    world.run(15.0)
    began = world.timeline.now()
    pod = world.pod()
    assert world.run(60.0, lambda: pod in world.scheduler.on_bound)
    assert 5.0 <= world.scheduler.on_bound[pod] - began < 5.5


def test_a_device_that_fails_is_quarantined_before_another_is_chosen() -> None:
    """B4, B5, promise 6: the bad device is tainted first, the pod runs on another one."""
    bad: list[str] = []

    def fate(node: str, device: str) -> Fate:
        first = world.timeline.monotonic() > 15.0 and not bad
        if first:
            bad.append(f"{node}/{device}")
        return Fate(1.0, "memory-mismatch" if first else "")

    world = World(Plan(), fates=fate)
    world.run(15.0)
    pod = world.pod()
    assert world.run(60.0, lambda: world.running(pod))
    assert world.checker.failures == 1
    node, device = bad[0].split("/")
    view = {one.name: one for one in world.nodes[node].view().devices}[device]
    assert [reason.code for reason in view.reasons] == ["memory-mismatch"]
    assert world.settle() == []


def test_after_a_force_delete_nobody_gets_the_device_before_it_is_clean() -> None:
    """B7, B17: the hold outlives the pod; the next pod waits until the device is wiped."""
    world = World(Plan(nodes=1, devices=1), fates=steady(20.0))
    world.run(30.0)
    first = world.pod()
    assert world.run(90.0, lambda: world.running(first))
    world.delete(first, force=True)
    second = world.pod()
    world.run(10.0)
    assert world.phase(second) == "Pending"
    assert len(held(world)) == 1
    assert world.run(120.0, lambda: world.running(second))
    assert world.settle() == []


def test_a_named_claim_is_used_again_by_the_next_pod() -> None:
    """D1, D2: after its teardown a named claim is allocated, wiped and bound anew."""
    world = World(Plan())
    world.run(15.0)
    world.named_claim("data")
    for _ in range(3):
        pod = world.pod(claim="data")
        assert world.run(90.0, lambda pod=pod: world.running(pod))  # type: ignore[misc]
        world.delete(pod)
        assert world.run(90.0, lambda pod=pod: not world.phase(pod))  # type: ignore[misc]
    world.delete_claim(Name("data", "t"))
    assert world.settle() == []


def test_a_namespace_deleted_under_use_goes_away() -> None:
    """D4: hold and finalizer do not keep a namespace once its devices are clean."""
    world = World(Plan())
    world.run(15.0)
    pods = [world.pod(space="gone"), world.pod(space="gone", count=2)]
    assert world.run(60.0, lambda: world.running(*pods))
    world.delete_namespace("gone")
    assert world.run(120.0, lambda: not any(n.namespace == "gone" for n in world.sight.all(CLAIMS)))
    assert world.settle() == []


def test_a_killed_coordinator_is_replaced_without_loss() -> None:
    """E5, B42: killed between lease and binding, the next one goes on from what it finds."""
    world = World(Plan(), fates=steady(2.0))
    world.run(15.0)
    pods = [world.pod(), world.pod()]
    world.run(1.5)
    world.kill_coordinator()
    world.run(3.0)
    world.start_coordinator()
    assert world.run(60.0, lambda: world.running(*pods))
    assert world.settle() == []


def test_two_coordinators_do_no_harm() -> None:
    """E5, B45: both decide alike; every claim is exposed once, nothing is left."""
    world = World(Plan())
    world.start_coordinator()
    world.run(15.0)
    pods = [world.pod() for _ in range(6)]
    assert world.run(90.0, lambda: world.running(*pods))
    assert world.checker.exposures == len(pods)
    assert world.settle() == []


def test_of_two_claims_given_one_device_one_is_exposed() -> None:
    """B8: another allocator gave the device away twice; the loser is allocated anew."""
    world = World(Plan(nodes=1, devices=2))
    world.run(15.0)
    first = world.pod()
    assert world.run(60.0, lambda: world.running(first))
    thief = world.named_claim("thief")
    victim = next(name for name in world.sight.all(CLAIMS) if name != thief)
    world.steal(thief, victim)
    second = world.pod(claim="thief")
    assert world.run(200.0, lambda: world.running(second))
    assert world.running(first)
    world.delete_claim(thief)
    assert world.settle() == []


def test_a_node_that_reboots_wipes_before_its_pods_start_again() -> None:
    """B32: kubelet prepares the same claims anew after a boot; what was clean is not trusted."""
    world = World(Plan(nodes=1))
    world.run(15.0)
    pod = world.pod()
    assert world.run(60.0, lambda: world.running(pod))
    before = world.checker.exposures
    world.power_off("n0")
    world.run(20.0)
    world.power_on("n0")
    assert world.run(120.0, lambda: world.checker.exposures > before)
    assert world.settle() == []


def test_a_silent_node_is_taken_over_and_comes_back() -> None:
    """B5, promise 6: in time before the scheduler's timeout the claim fails, visibly quarantined;
    back again, the node takes the coordinator's word over and tests the device anew."""
    world = World(Plan(nodes=2, devices=1, timeout_s=60.0))
    world.run(15.0)
    world.nodes["n0"].silent = True
    world.nodes["n1"].silent = True
    pod = world.pod()
    world.run(45.0)
    assert world.checker.failures >= 1
    world.nodes["n0"].silent = False
    world.nodes["n1"].silent = False
    assert world.run(900.0, lambda: world.running(pod))
    assert world.settle(700.0) == []


def test_a_claim_shared_while_it_is_torn_down_is_shared_again() -> None:
    """D2, B70: the next pod is bound on conditions of the use that ends; once its node has proven
    the device anew in prepare, a third pod may share the claim as well."""
    world = World(Plan(nodes=1, devices=2), fates=steady(8.0))
    world.run(30.0)
    world.named_claim("data")
    first = world.pod(claim="data")
    assert world.run(90.0, lambda: world.running(first))
    world.delete(first)
    world.run(4.0)
    second = world.pod(claim="data")
    assert world.run(200.0, lambda: world.running(second))
    third = world.pod(claim="data")
    assert world.run(300.0, lambda: world.running(third))
    world.delete_claim(Name("data", "t"))
    assert world.settle() == []


def test_a_pod_that_ends_while_its_node_is_silent_keeps_its_hold() -> None:
    """Promise 6: neither silence nor a deadline that has passed fails a claim under teardown."""
    world = World(Plan(nodes=1, devices=2, timeout_s=60.0), fates=steady(8.0))
    world.run(30.0)
    pod = world.pod()
    assert world.run(90.0, lambda: world.running(pod))
    world.run(40.0)
    world.finish(pod)
    world.run(3.0)
    world.nodes["n0"].silent = True
    world.run(3.0)
    world.nodes["n0"].silent = False
    world.run(30.0)
    assert world.checker.failures == 0
    assert world.settle() == []


def test_an_outage_of_the_api_stops_no_teardown() -> None:
    """D5: with the API away a deleted pod's device is wiped; what is owed is paid afterwards."""
    world = World(Plan(nodes=1, devices=1), fates=steady(3.0))
    world.run(30.0)
    pod = world.pod()
    assert world.run(90.0, lambda: world.running(pod))
    world.dice.outage = True
    world.delete(pod)
    world.run(20.0)
    assert [device.state for device in world.nodes["n0"].view().devices] == ["CLEAN"]
    assert len(held(world)) == 1
    world.dice.outage = False
    assert world.settle() == []


def test_a_card_that_was_changed_under_a_bound_claim_leaves_no_lease() -> None:
    """B24, promise 7: another card has the name by now; a coordinator that never saw the old one
    still has its token closed by the node, whose journal knows it."""
    world = World(Plan(nodes=1, devices=1), fates=steady(1.0))
    world.run(15.0)
    pod = world.pod()
    assert world.run(60.0, lambda: world.checker.bindings > 0)
    world.power_off("n0")
    world.checker.blame("n0", "gpu-0")
    world.swap_card("n0", 0)
    world.kill_coordinator()
    world.delete(pod, force=True)
    world.run(5.0)
    world.power_on("n0")
    world.start_coordinator()
    assert world.settle(2000.0) == []
    assert world.store.leases() == []
