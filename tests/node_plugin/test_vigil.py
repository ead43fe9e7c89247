"""A standby that hangs is killed; one that works, waits for another or has ended is not."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from node_plugin.children import SILENCES_MIN, Vigil

STANDBY = 4711
OTHER = 4712
PERIOD_S = 12.0
"""How far apart pulses are while the owner hangs: each waits for its time-out."""


@dataclass
class Standin:
    """Stands in for the supervised child."""

    pid: int | None = STANDBY
    killed: int = 0

    def kill(self) -> None:
        self.killed += 1


@dataclass
class Bench:
    """A vigil over a stand-in, and who owns the journal."""

    standby: Standin = field(default_factory=Standin)
    owner: int | None = STANDBY
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.vigil = Vigil(self.standby, lambda: self.owner)  # type: ignore[arg-type] # has all it uses

    def silent(self, seconds: float) -> bool:
        """Pulses that nobody answers for this long; whether the standby was killed at one."""
        end = self.now + seconds
        killed = False
        while self.now < end:
            killed = self.vigil.step(self.now, answered=False) or killed
            self.now += PERIOD_S
        return killed

    def answered(self) -> None:
        """A pulse that was answered."""
        assert not self.vigil.step(self.now, answered=True)
        self.now += 1.0


def test_a_standby_that_owns_the_journal_and_hangs_is_killed() -> None:
    """DESIGN 5: an owner that answers nothing for 30 s is killed, the standby too; once."""
    bench = Bench()
    bench.answered()
    assert not bench.silent(bench.vigil.silence_s)
    assert bench.silent(2 * PERIOD_S)
    assert bench.standby.killed == 1


def test_a_standby_that_has_just_taken_the_journal_is_given_its_time() -> None:
    """Promise 7: it opens the node before it answers, so its silence begins with its ownership."""
    for earlier in (OTHER, None):
        bench = Bench(owner=earlier)
        bench.answered()
        assert not bench.silent(100.0)
        bench.owner = STANDBY
        assert not bench.silent(bench.vigil.silence_s)
        assert bench.silent(2 * PERIOD_S)
        bench.standby.pid = bench.owner = STANDBY + 10  # its supervision started it again
        assert not bench.silent(bench.vigil.silence_s)
        assert bench.standby.killed == 1


def test_a_standby_that_has_just_been_started_is_given_its_time() -> None:
    """Promise 7: while it did not run, between two starts, the silence was not its own."""
    bench = Bench(standby=Standin(pid=None), owner=None)
    assert not bench.silent(600.0)
    bench.standby.pid = STANDBY
    assert not bench.silent(bench.vigil.unowned_s)
    assert bench.silent(2 * PERIOD_S)


def test_a_moment_at_which_nobody_can_be_read_is_no_change_of_owner() -> None:
    """A record that is just being written names nobody: the same owner goes on being silent."""
    bench = Bench()
    bench.silent(25.0)
    bench.owner = None
    bench.silent(PERIOD_S)
    bench.owner = STANDBY
    assert bench.silent(PERIOD_S)


def test_an_answer_in_between_starts_the_count_again() -> None:
    """A slow owner is not a hanging one."""
    bench = Bench()
    for _ in range(5):
        assert not bench.silent(25.0)
        bench.answered()
    assert bench.standby.killed == 0


def test_another_owner_is_the_standbys_business() -> None:
    """A node actor that hangs is killed by the standby, and the standby must live to do it."""
    bench = Bench(owner=OTHER)
    assert not bench.silent(600.0)


def test_a_standby_that_never_takes_over_is_started_anew() -> None:
    """Promise 7, no state is a trap: nobody owns the node for two minutes though it should."""
    bench = Bench(owner=None)
    assert not bench.silent(bench.vigil.unowned_s)
    assert bench.silent(2 * PERIOD_S)


@pytest.mark.parametrize("pause_s", [60.0, 86400.0])
def test_our_own_standing_still_is_nobodys_silence(pause_s: float) -> None:
    """After a suspension one pulse may fail; that is no reason to kill."""
    bench = Bench()
    bench.answered()
    bench.now += pause_s
    for _ in range(SILENCES_MIN - 1):
        assert not bench.vigil.step(bench.now, answered=False)
    bench.answered()
    assert bench.standby.killed == 0


def test_a_standby_that_has_ended_is_left_to_its_supervision() -> None:
    """There is nothing to kill, and its process id may be somebody else's by now."""
    bench = Bench(standby=Standin(pid=None))
    assert not bench.silent(600.0)


def test_b72_a_standby_that_tells_why_it_cannot_open_the_node_is_not_killed() -> None:
    """B72: a standby that knows its cause and says so is left to try again; one that falls silent
    after that is killed as ever."""
    bench = Bench(owner=None)
    telling: list[int | None] = [STANDBY]
    bench.vigil.teller = lambda: telling[0]
    assert not bench.silent(10 * bench.vigil.unowned_s)
    bench.owner = STANDBY
    assert not bench.silent(10 * bench.vigil.silence_s)
    telling[0] = OTHER
    assert bench.silent(2 * bench.vigil.silence_s)
