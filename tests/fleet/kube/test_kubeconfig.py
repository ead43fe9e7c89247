"""Credentials from programs: renewed in time, one attempt at a time, and nothing left behind."""

from __future__ import annotations

import pickle
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.kube import kubeconfig
from fleet.kube.kubeconfig import Attempt, RenewedCredential

END = 1_000.0


@dataclass(frozen=True)
class Reading:
    """What a program gave."""

    header: str
    expires_at: float = END


class Program:
    """Gives a new header with each call, once it is let go on."""

    def __init__(self) -> None:
        self.calls = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self.fails = False

    def __call__(self) -> Reading:
        self.calls += 1
        assert self.go_on.wait(20.0)
        if self.fails:
            raise errors.SettingsInvalid("the program failed", problems=["it failed"])
        return Reading(f"t{self.calls}", END + 1_000.0)


@pytest.fixture
def program() -> Iterator[Program]:
    """A program that is let go on at the end at the latest."""
    made = Program()
    yield made
    made.go_on.set()


def credential(
    program: Program, clock: ManualClock, timeout_s: float = 0.1
) -> RenewedCredential[Reading]:
    """A credential that ends at END."""
    return RenewedCredential(Reading("t0"), program, clock=clock, timeout_s=timeout_s)


def until(true: Callable[[], bool]) -> None:
    """Wait for something another thread or process does."""
    deadline = time.monotonic() + 10.0
    while not true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def test_a_hanging_program_is_run_once_and_delays_one_request(program: Program) -> None:
    """B78: twelve requests while the program hangs: one attempt; the old credential serves them."""
    clock = ManualClock(END - 30.0)
    found = credential(program, clock)
    program.go_on.clear()
    begun = time.monotonic()
    for _ in range(12):
        assert found.header() == "t0"
        clock.advance(kubeconfig.RENEW_GAP_S)
    assert program.calls == 1
    assert time.monotonic() - begun < 0.1 + kubeconfig.END_S + 1.0


def test_a_refused_credential_with_a_hanging_program_fails_at_once(program: Program) -> None:
    """B78: after a 401 nobody waits again for a program that hangs; the error says what to do."""
    clock = ManualClock(0.0)
    found = credential(program, clock)
    program.go_on.clear()
    for _ in range(12):
        with pytest.raises(errors.ApiUnavailable, match="hangs") as caught:
            found.renew("t0")
        clock.advance(kubeconfig.RENEW_GAP_S)
    assert "by hand" in caught.value.remedy
    assert program.calls == 1


def test_a_program_that_works_again_is_used_again(program: Program) -> None:
    """B78: once the attempt that hung has ended, the next one, after the gap, may succeed."""
    clock = ManualClock(0.0)
    found = credential(program, clock)
    program.go_on.clear()
    with pytest.raises(errors.ApiUnavailable):
        found.renew("t0")
    program.go_on.set()
    until(lambda: not any(one.name == "kubeconfig" for one in threading.enumerate()))
    with pytest.raises(errors.ApiUnavailable):
        found.renew("t0")
    assert program.calls == 1
    clock.advance(kubeconfig.RENEW_GAP_S)
    assert found.renew("t0") == "t2"
    assert found.header() == "t2"


def test_requests_at_the_same_time_share_one_attempt(program: Program) -> None:
    """B78: eight requests find the credential ended: the program runs once and serves all."""
    found = credential(program, ManualClock(END + 1.0), timeout_s=10.0)
    program.go_on.clear()
    got: list[str] = []
    threads = [threading.Thread(target=lambda: got.append(found.header())) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: program.calls > 0)
    program.go_on.set()
    for thread in threads:
        thread.join(10.0)
    assert got == ["t1"] * 8
    assert program.calls == 1


def test_a_valid_credential_is_used_while_another_request_renews(program: Program) -> None:
    """B78: before the end of the credential only one request waits for the program."""
    found = credential(program, ManualClock(END - 30.0), timeout_s=10.0)
    program.go_on.clear()
    first = threading.Thread(target=found.header)
    first.start()
    until(lambda: program.calls > 0)
    assert found.header() == "t0"
    program.go_on.set()
    first.join(10.0)
    assert found.header() == "t1"


def test_a_program_that_fails_leaves_the_old_credential(program: Program) -> None:
    """B78: a failure is no hang: the server judges the old credential, and the gap is kept."""
    clock = ManualClock(0.0)
    found = credential(program, clock, timeout_s=10.0)
    program.fails = True
    assert found.renew("t0") == "t0"
    assert found.renew("t0") == "t0"
    assert program.calls == 1
    program.fails = False
    clock.advance(kubeconfig.RENEW_GAP_S)
    seen: list[Reading] = []
    found.adopt = seen.append
    assert found.renew("t0") == "t2"
    assert [one.header for one in seen] == ["t2"]
    assert found.renew("t0") == "t2"


def test_programs_that_hang_are_ended_with_what_they_started(tmp_path: Path) -> None:
    """B78: of a shell that waits for another program nothing stays: no process, no thread."""
    pids = tmp_path / "pids"
    script = f"sleep 300 & echo $! > {pids}; echo $$ >> {pids}; wait"

    def load() -> str:
        ended = subprocess.run(["/bin/sh", "-c", script], stdout=subprocess.PIPE, check=False)
        return str(ended.returncode)

    attempt = Attempt(load, timeout_s=1.0)
    until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    assert attempt.result() is None
    assert not attempt.running
    until(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()))
    assert attempt.result() is None


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_programs_of_others_are_left_alone() -> None:
    """Only what the attempt itself started is ended."""
    other = subprocess.Popen(["/bin/sleep", "300"])
    try:
        attempt = Attempt(lambda: subprocess.run(["/bin/sleep", "300"], check=False), timeout_s=0.3)
        assert attempt.result() is None
        assert not attempt.running
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_an_attempt_gives_what_was_found_or_raised() -> None:
    """An attempt in time is as a call."""

    def fail() -> str:
        raise errors.SettingsInvalid("bad", problems=["bad"])

    assert Attempt(lambda: "x", timeout_s=10.0).result() == "x"
    with pytest.raises(errors.SettingsInvalid):
        Attempt(fail, timeout_s=10.0).result()


def test_a_credential_leaves_its_process_in_no_form(program: Program) -> None:
    """B78: no pickle holds a credential."""
    found = credential(program, ManualClock(0.0))
    assert "t0" not in repr(found)
    with pytest.raises(TypeError, match="stays in its process"):
        pickle.dumps(found)
