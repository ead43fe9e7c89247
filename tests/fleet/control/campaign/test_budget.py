"""The one budget of out-of-service accelerators, and the floors of pools (case B50)."""

from __future__ import annotations

import pytest

from fleet.control.campaign.budget import (
    Accelerator,
    Floors,
    Service,
    Standing,
    in_service,
    limit,
    used,
)
from fleet.core.messages import DeviceView, NodeView
from fleet.core.settings import CampaignPolicy


def service(**standings: Standing) -> Service:
    return Service({u: Accelerator("n", "r", "p", found) for u, found in standings.items()})


def view(node: str, *devices: tuple[str, str, str], pool: str = "p") -> NodeView:
    """A node of (uuid, accelerator, state)."""
    return NodeView(
        node=node, incarnation="1", boot_id="b", at=0, simulated=True, backend="scripted",
        labels={"pool": pool, "rack": "r"},
        devices=tuple(
            DeviceView(uuid=u, name=u, accelerator=a, units=(u,), memory_bytes=1, state=state)
            for u, a, state in devices
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("count", "fraction", "least", "allowed"),
    [
        (288, 0.01, 3, 3),
        (288, 0.02, 3, 5),
        (2, 0.01, 1, 1),
        (2, 0.01, 0, 0),
        (1000, 0.0015, 0, 1),
        (8, 1.0, 1, 8),
    ],
)
def test_the_limit(count: int, fraction: float, least: int, allowed: int) -> None:
    """E2, B50: whole devices, rounded down, with a stated minimum for small fleets."""
    fleet = service(**{f"g{n}": Standing.SERVING for n in range(count)})
    policy = CampaignPolicy(out_of_service_max=fraction, out_of_service_min=least)
    assert limit(fleet, policy) == allowed


def test_nodes_without_accelerators_change_nothing() -> None:
    """B50: a thousand other nodes leave the denominator as it is."""
    ours = [view("n0", ("a", "a", "CLEAN"), ("b", "b", "CLEAN"))]
    others = [view(f"cpu{n}") for n in range(1000)]
    policy = CampaignPolicy(out_of_service_max=0.5, out_of_service_min=0)
    assert limit(in_service(ours + others), policy) == limit(in_service(ours), policy) == 1


def test_causes_share_the_budget_and_a_device_counts_once() -> None:
    """B50: quarantine and wipe of one device are one; devices HELD are not ours to count."""
    fleet = service(a=Standing.OUT, b=Standing.SERVING, c=Standing.HELD, d=Standing.IDLE)
    assert used(fleet, ["a", "b"]) == {"a", "b"}
    assert used(fleet, []) == {"a"}


@pytest.mark.parametrize(
    ("states", "standing"),
    [
        (("CLEAN",), Standing.SERVING),
        (("IN_USE",), Standing.SERVING),
        (("DIRTY",), Standing.IDLE),
        (("WIPING",), Standing.IDLE),
        (("QUARANTINED",), Standing.OUT),
        (("RETESTING",), Standing.OUT),
        (("HELD",), Standing.HELD),
        (("DIRTY", "IN_USE"), Standing.SERVING),
        (("CLEAN", "QUARANTINED"), Standing.OUT),
        (("CLEAN", "HELD"), Standing.HELD),
    ],
)
def test_the_standing_of_an_accelerator(states: tuple[str, ...], standing: Standing) -> None:
    """An accelerator with partitions stands as its worst part."""
    found = in_service([view("n", *((f"d{n}", "acc", s) for n, s in enumerate(states)))])
    assert found.accelerators["acc"].standing is standing


def test_a_pool_keeps_its_floor() -> None:
    """Half of a pool's healthy devices stay; idle and quarantined ones cost it nothing."""
    fleet = service(
        a=Standing.SERVING, b=Standing.SERVING, c=Standing.SERVING, d=Standing.IDLE, e=Standing.OUT
    )
    floors = Floors(fleet, 0.5)
    assert floors.allow("a")
    floors.take("a")
    floors.take("a")
    assert not floors.allow("b")
    assert floors.allow("d")
    assert floors.allow("e")
    assert floors.allow("a"), "what is taken already cannot be taken again"


def test_pools_do_not_pay_for_each_other() -> None:
    """A pool at its floor holds up only itself."""
    views = [
        view("n0", ("a", "a", "CLEAN"), ("b", "b", "CLEAN"), pool="x"),
        view("n1", ("c", "c", "CLEAN"), ("d", "d", "CLEAN"), pool="y"),
    ]
    floors = Floors(in_service(views), 0.5)
    floors.take("a")
    assert not floors.allow("b")
    assert floors.allow("c")


def test_views_keep_it_up_to_date() -> None:
    """B50: what a newer view says counts, and what it does not show any more is gone."""
    fleet = in_service([view("n0", ("a", "a", "CLEAN"), ("b", "b", "QUARANTINED"))])
    assert (set(fleet.out), fleet.spare(0.0)) == ({"b"}, {"p": 1})
    fleet.update(view("n0", ("a", "a", "QUARANTINED"), ("c", "c", "DIRTY")))
    assert set(fleet.accelerators) == {"a", "c"}
    assert (set(fleet.out), fleet.spare(0.0)) == ({"a"}, {"p": 0})
    fleet.update(view("n0", ("a", "a", "CLEAN"), ("c", "c", "CLEAN"), pool="q"))
    assert (set(fleet.out), fleet.spare(0.5)) == (set(), {"p": 0, "q": 1})


def test_an_accelerator_that_moved_to_another_node_is_counted_once() -> None:
    """B54: a card put into another node is that node's, whatever the old one showed before."""
    fleet = in_service([view("n0", ("a", "a", "CLEAN")), view("n1", ("a", "a", "QUARANTINED"))])
    fleet.update(view("n0"))
    assert fleet.accelerators["a"].node == "n1"
    assert set(fleet.out) == {"a"}
