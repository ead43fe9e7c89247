"""Which nodes a step asks, and what is left of what they said."""

from __future__ import annotations

from fleet.control.campaign.sight import ACTIVE_MAX, FIRST_LOOKS_MAX, LOOK_EVERY_S, LOOKS_MAX, Sight
from fleet.core.messages import DeviceView, NodeView


def view(node: str, state: str = "CLEAN") -> NodeView:
    device = DeviceView(
        uuid=f"g-{node}", name="gpu-0", accelerator=f"g-{node}", units=(f"g-{node}/0",),
        memory_bytes=1, state=state,
    )  # fmt: skip
    return NodeView(
        node=node, incarnation="1", boot_id="b", at=0, simulated=True, backend="scripted",
        devices=(device,),
    )  # fmt: skip


def fleet(count: int) -> tuple[Sight, list[str]]:
    """A sight of `count` nodes, none asked yet."""
    names, sight = [f"n{number:05d}" for number in range(count)], Sight()
    sight.begin(names)
    return sight, names


def step(sight: Sight, now: float, *active: str) -> list[str]:
    """One step in which all nodes asked answer."""
    asked = sight.turn(now, active)
    for name in asked:
        sight.asked(name, now)
        sight.heard(view(name))
    return asked


def test_a_small_fleet_is_asked_at_once_and_then_about_once_a_second() -> None:
    """E2: who works for the campaign is asked at every step, the others every second."""
    sight, names = fleet(8)
    assert step(sight, 0.0) == names
    assert step(sight, 0.1, "n00003") == ["n00003"]
    assert sorted(step(sight, LOOK_EVERY_S, "n00003")) == names


def test_a_step_asks_no_more_nodes_the_larger_the_fleet_is() -> None:
    """E5: a step of a campaign over thousands of nodes stays as short as its leases need it."""
    sight, names = fleet(5000)
    steps = 0
    while not sight.all_asked:
        assert len(step(sight, 0.1 * steps)) <= FIRST_LOOKS_MAX + LOOKS_MAX
        steps += 1
    assert sight.all_seen
    for number in range(100):
        asked = step(sight, 1000.0 + number, *names[:2000])
        assert len(asked) <= ACTIVE_MAX + LOOKS_MAX


def test_nobody_is_passed_over_for_ever() -> None:
    """E2: whatever the bounds, each node has its turn: the longest unasked come first."""
    sight, names = fleet(3000)
    for number in range(10):
        step(sight, float(number))
    active = names[:1500]
    seen: set[str] = set()
    for number in range(30):
        seen |= set(step(sight, 100.0 + number, *active))
    assert seen == set(names)


def test_a_node_that_does_not_answer_is_mute_until_it_does() -> None:
    """B29: silence is remembered by node; an answer ends it; a node given up is asked no more."""
    sight, _ = fleet(2)
    sight.unheard("n00000")
    sight.heard(view("n00001"))
    assert (sight.mute, sight.all_seen) == ({"n00000"}, False)
    assert sight.heard(view("n00000"))
    assert (sight.mute, sight.all_seen) == (set(), True)
    assert not sight.heard(view("n00000")), "only the first view is the first"
    sight.give_up("n00000")
    assert "n00000" not in sight.turn(100.0, ["n00000"])


def test_what_a_lost_node_was_doing_is_nothing_to_wait_for() -> None:
    """Promise 7: work in progress counts as long as its node is there."""
    sight, _ = fleet(1)
    sight.heard(view("n00000", "WIPING"))
    assert sight.working
    sight.give_up("n00000")
    assert not sight.working


def test_views_are_of_this_step_and_limits_remember() -> None:
    """B50: a start needs a view of its own step; the budget keeps what was seen before."""
    sight, _ = fleet(2)
    step(sight, 0.0)
    sight.turn(0.1, ())
    assert sight.views == {}
    assert sight.simulated
    assert len(sight.service.accelerators) == 2
