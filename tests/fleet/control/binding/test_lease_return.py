"""Leases given back: closed, seen out of service, released."""

from __future__ import annotations

import pytest

from fleet.control.binding.lease_return import (
    UNDONE_MAX,
    UNDONE_NODE_MAX,
    UNSEEN,
    VISIBLE_WAIT_S,
    Undoing,
    codes_of,
)
from fleet.core import errors
from fleet.core.messages import Outcome
from fleet.core.model import Holder, HolderKind, Lease, Token, UnitId
from tests.fleet.control.binding import scenes
from tests.fleet.control.binding.benches import Bench


def working(bench: Bench) -> tuple[Undoing, Lease]:
    """A claim of device a that is wiped for it; what gives its lease back."""
    uid = bench.given("c", "a")
    bench.survey()
    bench.run(1.0, work=False)
    lease = bench.lease(uid)
    assert lease is not None
    return Undoing(bench.binder.look.around, bench.binder.look), lease


def fail(bench: Bench) -> None:
    """The wipe ends, and device a is out of service; its slice does not say so yet."""
    bench.nodes.outcomes[bench.uuid("a")] = Outcome.QUARANTINED
    bench.nodes.work()


def test_a_quarantine_is_visible_before_the_lease_goes() -> None:
    """Promise 6: the node has closed the token, and its slice still offers the device: wait."""
    bench = Bench()
    undoing, lease = working(bench)
    fail(bench)  # later than the last look
    assert undoing.undo([lease], bench.clock.now()) == [UNSEEN]
    assert bench.device("a").closed
    assert bench.store.leases() == [lease]
    bench.publish("n1")
    assert undoing.undo([lease], bench.clock.now()) == [""]
    assert bench.store.leases() == []


def test_a_quarantine_that_nobody_publishes_is_shown_by_us() -> None:
    """B6: with the node's own reasons, ten seconds on, also where the clock went back meanwhile."""
    bench = Bench()
    undoing, lease = working(bench)
    fail(bench)
    now = bench.clock.now()
    for at in (now, now + VISIBLE_WAIT_S - 1.0, now - 100.0, now - 100.0 + VISIBLE_WAIT_S - 1.0):
        assert undoing.undo([lease], at) == [UNSEEN]
    assert undoing.undo([lease], now - 100.0 + VISIBLE_WAIT_S) == [""]
    assert undoing.around.visible.hidden("n1", ["a"]) == frozenset()


def test_a_neighbour_out_of_service_keeps_nothing_back() -> None:
    """Only devices of the lease's own units are waited for."""
    bench = Bench()
    undoing, lease = working(bench)
    bench.change("b", state="QUARANTINED", reasons=(scenes.reason(),))
    assert undoing.undo([lease], bench.clock.now()) == [""]


@pytest.mark.parametrize("what", ["node", "server"])
def test_what_cannot_be_seen_is_no_permission(what: str) -> None:
    """A node that falls silent right after it closed the token, or a server, keeps the lease."""
    bench = Bench()
    undoing, lease = working(bench)
    fail(bench)
    bench.publish("n1")
    if what == "server":
        bench.cluster.faults.fail_next("list", errors.ApiUnavailable("away"))
    else:
        abandon = bench.nodes.abandon
        bench.nodes.abandon = lambda asked: (abandon(asked), bench.nodes.silent.add("n1"))[0]  # type: ignore[method-assign, func-returns-value]
    (left,) = undoing.undo([lease], bench.clock.now())
    assert left not in ("", UNSEEN)
    assert bench.store.leases() == [lease]


def test_work_is_bounded_for_each_node_and_in_all() -> None:
    """A node that has to stop wipes does not hold up those of others, nor the step."""
    bench = Bench()
    look = bench.binder.look
    undoing = Undoing(look.around, look)
    leases = []
    for number in range(4 * UNDONE_MAX):
        unit = UnitId(f"x{number}/all")
        look.where[unit] = f"n{number % 2}" if number < 40 else f"m{number}"
        holder = Holder(HolderKind.CLAIM, f"u{number}")
        leases.append([Lease(frozenset({unit}), holder, Token(1, number + 1))])
    fits = undoing.fitting(leases)
    assert sum(fits) == UNDONE_MAX
    assert sum(fits[:40]) == 2 * UNDONE_NODE_MAX
    assert fits[: 2 * UNDONE_NODE_MAX] == [True] * 2 * UNDONE_NODE_MAX


def test_a_mark_bears_the_nodes_own_reasons() -> None:
    """A rule that may lift them may lift our mark as well; without any it says who it is by."""
    out = scenes.device("a", reasons=(scenes.reason("ecc"), scenes.reason("bus")))
    assert codes_of(out) == ("bus", "ecc")
    assert codes_of(None) == codes_of(scenes.device("a")) == ("taken-over",)
