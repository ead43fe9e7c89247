"""Whose silence it is, and when a hand-over is over: rules of time, shown on a clock of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.node.journal.lock import OwnerLock, read_owner
from fleet.node.service import NodeService
from fleet.node.standby import Patience, Standby
from fleet.rpc.node_api import HandOver
from fleet.wiring import adapters
from tests.fleet.node.conftest import Lab
from tests.fleet.node.owning import owner
from tests.fleet.node.standbys import owns

PATIENCE = Patience()
HOLD = """
import sys
from pathlib import Path
from fleet.node.journal.lock import OwnerLock
lock = OwnerLock(Path(sys.argv[1]))
lock.acquire(owner="node actor of n1")
for _ in iter(lambda: print("held", flush=True) or sys.stdin.readline(), ""):
    lock.release()
    lock.acquire(owner="node actor of n1")
"""
BREATH_S = 0.3
"""Time, s, in which a killed process would have ended."""


@dataclass
class Holder:
    """A process that has the lock and answers nobody."""

    process: subprocess.Popen[str]

    def again(self) -> None:
        """It gives the lock up and takes it again."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write("again\n")
        stdin.flush()
        assert stdout.readline() == "held\n"

    def spared(self) -> bool:
        """Whether nobody has killed it."""
        try:
            self.process.wait(BREATH_S)
        except subprocess.TimeoutExpired:
            return True
        return False


@contextmanager
def holder(lock: Path) -> Iterator[Holder]:
    """A silent owner of the lock, ended with the block."""
    made = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert made.stdin is not None
    assert made.stdout is not None
    try:
        assert made.stdout.readline() == "held\n"
        yield Holder(made)
    finally:
        made.kill()
        made.wait()
        made.stdin.close()
        made.stdout.close()


@dataclass
class Bench:
    """A standby on a clock of ours; the node is `found` by those who try to open it."""

    lock: Path
    answers: bool = False
    trouble: errors.FleetError | None = None
    """What keeps the node from being opened before its lock is tried."""
    found: Callable[[HandOver], NodeService] | None = None
    clock: ManualClock = field(default_factory=lambda: ManualClock(1000.0))

    def __post_init__(self) -> None:
        self.standby = Standby(open=self._open, door=self, lock=self.lock, clock=self.clock)

    def pulse(self, *, timeout_s: float = 2.0) -> Mapping[str, Any]:
        """What the standby hears."""
        if not self.answers:
            raise errors.NotOwner(f"nobody answers within {timeout_s} s")
        return {}

    def _open(self, hand_over: HandOver) -> NodeService:
        if self.trouble is not None:
            raise self.trouble
        if self.found is not None:
            return self.found(hand_over)
        mine = OwnerLock(self.lock)
        mine.acquire(owner="standby of n1")
        mine.release()
        raise errors.JournalUnreadable("no space left")

    def steps(self, seconds: float) -> None:
        """One look a second, for so long."""
        for _ in range(round(seconds)):
            self.standby.step()
            self.clock.advance(1.0)


@pytest.mark.parametrize("trouble", [errors.DriverAbsent("no driver answers"), None])
def test_an_owner_that_has_just_taken_the_journal_is_given_its_time(
    tmp_path: Path, trouble: errors.FleetError | None
) -> None:
    """Promise 7: an owner is silent since it took the journal, however long nobody had it."""
    bench = Bench(tmp_path / "lock", trouble=trouble)
    bench.steps(PATIENCE.silence_s * 2)
    with holder(bench.lock) as actor:
        bench.trouble = None
        bench.steps(PATIENCE.silence_s - 1)
        assert actor.spared()
        bench.steps(PATIENCE.grace_s + 2)
        assert actor.process.wait(10.0) == -9


def test_each_owner_has_its_own_silence(tmp_path: Path) -> None:
    """B44: a process that is started again, or takes the journal again, is an owner anew."""
    bench = Bench(tmp_path / "lock")
    with holder(bench.lock) as first:
        bench.steps(PATIENCE.silence_s - 2)
        first.again()
        bench.steps(PATIENCE.silence_s - 2)
        assert first.spared()
    with holder(bench.lock) as second:
        bench.steps(PATIENCE.silence_s - 2)
        assert second.spared()
        bench.steps(PATIENCE.grace_s + 2)
        assert second.process.wait(10.0) == -9


def test_an_owner_that_came_during_the_last_try_is_spared(tmp_path: Path) -> None:
    """B44: who took the journal between the look and the try is not the one who was silent."""
    bench = Bench(tmp_path / "lock", trouble=errors.DriverAbsent("no driver answers"))
    bench.steps(PATIENCE.silence_s * 2)
    bench.trouble = None
    with ExitStack() as stack:
        came: list[Holder] = []

        def overtaken(_: HandOver) -> NodeService:
            came.append(stack.enter_context(holder(bench.lock)))
            raise errors.NotOwner("owned by the node actor")

        bench.found = overtaken
        bench.steps(1)
        (actor,) = came
        assert actor.spared()


def test_an_owner_of_an_earlier_version_is_killed_by_its_name_too(tmp_path: Path) -> None:
    """B68: a record without its moment names one owner; its silence is counted all the same."""
    bench = Bench(tmp_path / "lock")
    with holder(bench.lock) as actor:
        named = read_owner(bench.lock)
        assert named is not None
        told = asdict(named)
        del told["since"]
        bench.lock.write_text(json.dumps(told))
        bench.steps(PATIENCE.silence_s)
        assert actor.spared()
        bench.steps(PATIENCE.grace_s)
        assert actor.process.wait(10.0) == -9


@pytest.mark.parametrize("heard", [True, False])
def test_a_hand_over_is_over_once_the_newcomer_has_come_and_gone(away: Lab, heard: bool) -> None:
    """DESIGN 5: after a newcomer that served for a moment only, kubelet has an owner again within
    the normal grace, whether or not it was heard between two looks.
    """
    bench = handed_over(away)
    with owner(away.plan, "fleet scrub") as newcomer:
        bench.answers = heard
        if heard:
            bench.steps(1)
        newcomer.end()
    bench.answers = False
    bench.steps(PATIENCE.grace_s - 1)
    assert not owns(bench.standby)
    bench.steps(2)
    assert owns(bench.standby)
    bench.standby.close()


def test_a_newcomer_that_has_not_come_yet_is_waited_for(away: Lab) -> None:
    """DESIGN 5: after a hand-over the standby keeps away for the whole of `yield_s`."""
    bench = handed_over(away)
    bench.steps(PATIENCE.yield_s)
    assert not owns(bench.standby)
    bench.steps(2)
    assert owns(bench.standby)
    bench.standby.close()


def handed_over(away: Lab) -> Bench:
    """A standby that owned the node and has just let go of it."""

    def opened(hand_over: HandOver) -> NodeService:
        return adapters.open_node(away.plan, owner="standby", hand_over=hand_over)

    bench = Bench(adapters.lock_path(away.plan), found=opened)
    bench.steps(PATIENCE.grace_s + 1)
    assert owns(bench.standby)
    door = adapters.open_door(away.plan)
    assert door.hand_over("fleet scrub")
    door.close()
    bench.standby.step()
    assert not owns(bench.standby)
    return bench
