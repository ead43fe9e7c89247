"""A coordinator's sign of life: written by it, read by verbs, and missed when it does not come."""

from __future__ import annotations

import os
from pathlib import Path

from fleet import errors
from fleet.binding import alive
from fleet.binding.alive import LATE_S, PERIOD_S, Heartbeat
from fleet.binding.running import BindingView, Loop, Reconciling
from fleet.clock import ManualClock, SystemClock

NOW = 1000.0


def beating(state: Path) -> tuple[Heartbeat, ManualClock]:
    """A coordinator of a state directory."""
    (state / "coordinator").mkdir()
    clock = ManualClock(NOW)
    return Heartbeat(state, clock), clock


def said(state: Path, now: float, *, awaited: bool = True) -> str:
    """What is wrong."""
    return "; ".join(alive.told(alive.read(state), now, awaited=awaited))


def test_it_is_written_every_few_seconds_and_when_trouble_changes(tmp_path: Path) -> None:
    """E5: verbs see who steps, when, and what keeps it from working."""
    beat, clock = beating(tmp_path)
    beat(BindingView(open_claims=3))
    found = alive.read(tmp_path)
    assert found is not None
    assert (found.pid, found.at, found.binding.open_claims) == (os.getpid(), NOW, 3)
    assert (
        alive.summary(found, NOW + 1) == f"coordinator: pid {os.getpid()}, 3 open claims, 1 s ago"
    )
    assert said(tmp_path, NOW) == ""
    clock.advance(PERIOD_S / 2)
    beat(BindingView(open_claims=4))
    assert (alive.read(tmp_path) or found).binding.open_claims == 3
    beat(BindingView(trouble="HTTP 403: resourceclaims/status", silent_nodes=("n2",)))
    assert "403" in said(tmp_path, NOW)
    assert "no answer from n2" in said(tmp_path, NOW)
    clock.advance(PERIOD_S)
    beat(BindingView())
    assert said(tmp_path, clock.now()) == ""


def test_a_coordinator_that_is_silent_is_missed(tmp_path: Path) -> None:
    """E5: how long nobody has stepped, what waits for it, and what to do."""
    beat, _ = beating(tmp_path)
    beat(BindingView())
    told = said(tmp_path, NOW + LATE_S + 53)
    assert told.startswith("no coordinator has stepped for 83 s: strict pods wait: start `fleet")
    assert "strict" not in said(tmp_path, NOW + 83, awaited=False)
    assert alive.summary(alive.read(tmp_path), NOW + 83) == ""


def test_one_that_ends_in_good_order_is_not_missed(tmp_path: Path) -> None:
    """Nobody is alarmed by what an operator stopped; without one, awaiting pods are told of."""
    beat, _ = beating(tmp_path)
    beat(BindingView())
    beat.end()
    assert said(tmp_path, NOW, awaited=False) == ""
    assert "no coordinator reports on this host" in said(tmp_path, NOW)
    beat.end()


def test_the_sign_of_another_stays(tmp_path: Path) -> None:
    """Of two coordinators only the one that wrote last takes its sign away."""
    beat, _ = beating(tmp_path)
    beat(BindingView())
    path = tmp_path / "coordinator" / alive.FILE
    path.write_text(path.read_text().replace(f'"pid":{os.getpid()}', '"pid":1'))
    beat.end()
    assert alive.read(tmp_path) is not None


def test_where_nothing_can_be_written_it_says_nothing(tmp_path: Path) -> None:
    """A coordinator's actor may run where the state directory is not."""
    Heartbeat(tmp_path / "away")(BindingView())
    assert not (tmp_path / "away").exists()
    path = tmp_path / "coordinator" / alive.FILE
    path.mkdir(parents=True)
    Heartbeat(tmp_path)(BindingView())
    assert alive.read(tmp_path) is None


def test_the_loop_tells_after_every_step(tmp_path: Path) -> None:
    """E5: also a step that failed is a sign of life, and says why."""
    beat, clock = beating(tmp_path)

    def opener() -> Reconciling:
        raise errors.ApiUnavailable("HTTP 503: away", status=503)

    Loop(opener, clock=clock, told=beat).turn()
    assert "503" in said(tmp_path, NOW)


def test_each_of_several_coordinators_is_missed_by_itself(tmp_path: Path) -> None:
    """E5: the life of one says nothing of the other, and names whose claims wait."""
    _, clock = beating(tmp_path)
    dead, living = (Heartbeat(tmp_path, clock, selecting=one) for one in ("pool=a", "!pool"))
    dead(BindingView(nodes="pool=a"))
    clock.advance(LATE_S + 1)
    living(BindingView(nodes="!pool", open_claims=2))
    now = clock.now()
    found = alive.read(tmp_path)
    assert found is not None
    assert (found.binding.nodes, [one.binding.nodes for one in found.others]) == (
        "!pool",
        ["pool=a"],
    )
    assert "others" not in found.model_dump()
    told = said(tmp_path, now)
    assert told.startswith("no coordinator of the nodes pool=a has stepped for 31 s: strict pods")
    assert "2 open claims, 0 s ago, and 1 of other nodes" in alive.summary(found, now)
    dead(BindingView(nodes="pool=a", trouble="away", silent_nodes=("n1",)))
    assert "the coordinator of the nodes pool=a (pid" in said(tmp_path, now)
    assert "pool=a gets no answer from n1" in said(tmp_path, now)
    dead.end()
    living.end()
    assert alive.read(tmp_path) is None


def test_a_coordinator_that_is_not_asked_for_any_more_is_not_missed(tmp_path: Path) -> None:
    """E5: the actor of an earlier selection was killed; its sign goes, once it is late, when one
    that knows all selections writes. Who does not know them leaves the others' alone.
    """
    former, clock = beating(tmp_path)
    former(BindingView())
    stray = Heartbeat(tmp_path, clock, selecting="pool=x")
    stray(BindingView(nodes="pool=x"))
    heir = Heartbeat(tmp_path, clock, selecting="pool=a", asked=("pool=a", "!pool"))
    other = Heartbeat(tmp_path, clock, selecting="!pool", asked=("pool=a", "!pool"))
    other(BindingView(nodes="!pool"))
    heir(BindingView(nodes="pool=a"))
    clock.advance(LATE_S + 1)
    stray(BindingView(nodes="pool=x"))
    assert said(tmp_path, clock.now()).count("no coordinator") == 3
    heir(BindingView(nodes="pool=a"))
    told = said(tmp_path, clock.now())
    assert told.startswith("no coordinator of the nodes !pool has stepped")
    assert "; " not in told
    clock.advance(LATE_S + 1)
    alone = Heartbeat(tmp_path, clock)
    alone(BindingView())
    assert said(tmp_path, clock.now()) == ""


def test_b49_a_clock_that_is_set_makes_no_coordinator_late(tmp_path: Path) -> None:
    """B49: how long it was silent is told by the machine's monotonic clock alone."""
    (tmp_path / "coordinator").mkdir()
    Heartbeat(tmp_path, SystemClock())(BindingView())
    found = alive.read(tmp_path)
    assert found is not None
    assert found.late_s(found.at + 7_200.0) == found.late_s(found.at - 7_200.0) == 0.0
    assert found.model_copy(update={"boot": "another"}).late_s(found.at + 7_200.0) == 7_200.0
    before = found.model_copy(update={"steady_s": found.steady_s - LATE_S - 1.0})
    assert before.late_s(found.at - 7_200.0) > LATE_S
