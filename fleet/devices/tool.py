"""Programs of a vendor that are run to their end or killed, with all they have started.

A program that asks a driver may outlive its kill, and so may what it started. It runs in a process
group of its own, is killed as a group, and everything of it carries a mark: until the last of it
is gone it may still act on the device, and nobody starts a second one beside it. What it prints
goes into a file, so that a child that keeps it open keeps nobody waiting.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet.core import errors
from fleet.core.processes import MARKER, marked
from fleet.rpc.child import DEVNULL, STDOUT, ChildProcess

MARK = "FLEET_TOOL"
"""Environment variable that carries the mark."""
REAP_S = 2.0
"""Time, s, killed processes get to end."""
OUTPUT_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Said:
    """How a program ended and what it printed."""

    code: int
    output: bytes


def run(
    command: Sequence[str],
    *,
    limit_s: float,
    mark: str,
    orders: str = "",
    environment: Mapping[str, str] | None = None,
    with_errors: bool = True,
) -> Said:
    """Run a program; `orders` is its standard input, `mark` names what it works on.

    What it prints to standard error is in the output `with_errors` only.

    Raises OSError where it cannot be run, `Wedged` where something of it or of an earlier one with
    that mark lives and cannot be ended, and `BackendFailed` where it was killed at its limit.
    """
    refuse_survivors(mark)
    given = dict(os.environ if environment is None else environment)
    given.pop(MARKER, None)  # it is no worker: whoever meets it on a device meets a holder
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as read:
        read.write(orders.encode())
        read.seek(0)
        child = ChildProcess(
            command,
            stdin=read,
            stdout=said,
            stderr=STDOUT if with_errors else DEVNULL,
            environment=given,
            mark=(MARK, mark),
            leads=True,
        )
        if not child.wait(limit_s):
            late = f"{' '.join(command)} did not end within {limit_s:g} s"
            if alive := child.kill(REAP_S):
                raise _wedged(f"{late}, could not be killed, and", alive)
            raise errors.BackendFailed(
                f"{late} and was killed",
                remedy="check the kernel log; reboot the node before the device is used again",
            )
        said.seek(0)
        return Said(child.code or 0, said.read(OUTPUT_MAX))


def survivors(mark: str) -> tuple[int, ...]:
    """Pids of living processes of programs that were started with this mark."""
    return marked(mark, variable=MARK)


def refuse_survivors(mark: str) -> None:
    """Raises `Wedged` while anything of a program with this mark lives."""
    if alive := survivors(mark):
        raise _wedged(f"an earlier `{mark}`", alive)


def _wedged(what: str, alive: Sequence[int]) -> errors.Wedged:
    pids = ", ".join(str(pid) for pid in alive)
    return errors.Wedged(f"{what} still lives (pid {pids}): what it does next is not known")
