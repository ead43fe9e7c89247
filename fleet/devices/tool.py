"""Programs of a vendor that are run to their end or killed, with all they have started.

A program that asks a driver may outlive its kill, and so may what it started. It runs in a process
group of its own, is killed as a group, and everything of it carries a mark: until the last of it
is gone it may still act on the device, and nobody starts a second one beside it. What it prints
goes into a file, so that a child that keeps it open keeps nobody waiting.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fleet.core import errors
from fleet.devices.wipe.identity import MARKER, marked, start_time

MARK = "FLEET_TOOL"
"""Environment variable that carries the mark."""
REAP_S = 2.0
"""Time, s, killed processes get to end."""
OUTPUT_MAX = 1 << 20
_STEP_S = 0.02
_LEFT: list[subprocess.Popen[bytes]] = []
"""Children that outlived their kill: whoever lets go of one that runs is warned about it."""
_PROC = Path("/proc")
_GROUP = 2
"""Field of ``stat``, counted from the state after the name."""


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
    _LEFT[:] = [child for child in _LEFT if child.poll() is None]
    given = dict(os.environ if environment is None else environment)
    given.pop(MARKER, None)  # it is no worker: whoever meets it on a device meets a holder
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as read:
        read.write(orders.encode())
        read.seek(0)
        child = subprocess.Popen(
            command,
            stdin=read,
            stdout=said,
            stderr=subprocess.STDOUT if with_errors else subprocess.DEVNULL,
            env={**given, MARK: mark},
            process_group=0,  # the session stays ours: who ends that ends it, too
        )
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired as late:
            _end(child, command, mark, limit_s)
            raise errors.BackendFailed(
                f"{' '.join(command)} did not end within {limit_s:g} s and was killed",
                remedy="check the kernel log; reboot the node before the device is used again",
            ) from late
        said.seek(0)
        return Said(code, said.read(OUTPUT_MAX))


def survivors(mark: str) -> tuple[int, ...]:
    """Pids of living processes of programs that were started with this mark."""
    return marked(mark, variable=MARK)


def refuse_survivors(mark: str) -> None:
    """Raises `Wedged` while anything of a program with this mark lives."""
    if alive := survivors(mark):
        raise _wedged(f"an earlier `{mark}`", alive)


def _end(child: subprocess.Popen[bytes], command: Sequence[str], mark: str, limit_s: float) -> None:
    """Kill the whole group. Raises `Wedged` for what is not gone then."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    deadline = time.monotonic() + REAP_S
    with suppress(subprocess.TimeoutExpired):
        child.wait(REAP_S)
    while alive := {*_group(child.pid), *survivors(mark)}:
        if time.monotonic() >= deadline:
            _LEFT.append(child)
            what = f"{' '.join(command)} did not end within {limit_s:g} s, could not be killed, and"
            raise _wedged(what, tuple(sorted(alive)))
        time.sleep(_STEP_S)


def _wedged(what: str, alive: Sequence[int]) -> errors.Wedged:
    pids = ", ".join(str(pid) for pid in alive)
    return errors.Wedged(f"{what} still lives (pid {pids}): what it does next is not known")


def _group(leader: int) -> tuple[int, ...]:
    """Living processes of the process group of `leader`."""
    found = []
    for entry in os.scandir(_PROC):
        if not entry.name.isdecimal():
            continue
        try:
            text = (_PROC / entry.name / "stat").read_text(errors="replace")
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        alive = len(fields) > _GROUP and start_time(int(entry.name)) is not None
        if alive and fields[_GROUP] == str(leader):
            found.append(int(entry.name))
    return tuple(found)
