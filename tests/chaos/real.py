"""Chaos with a real local Ray: the command itself is run, and its processes are killed.

Each story runs `fleet scrub` over a small simulated fleet whose memory is slow enough to be caught
in the act, kills one kind of process at a seeded moment, and brings the fleet to rest with
``--resume`` or a plain rerun. Processes are found by the tree below the command; nothing else is
touched.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from fleet.core.model import State
from fleet.core.processes import start_time
from fleet.core.settings import MIB
from fleet.stores.base import RunState
from fleet.wiring import adapters
from fleet.wiring.adapters import FleetPlan
from tests.chaos import checks
from tests.chaos.checks import Sample
from tests.chaos.plain import Case, hardware, plant, strike_slow
from tests.scratch import scratch

SHAPE = "2x2"
BYTES_PER_S = 2_000_000
"""Speed of the memory: 1 MiB takes about three seconds of passes."""
MOMENT_MAX_S = 3.0
"""Latest moment of a kill, s after its stage was reached."""
LIFE_MAX_S = 120.0
STAGE_MAX_S = 60.0
GONE_WAIT_S = 15.0
"""Time, s, processes have to notice that they are orphans; Ray's own agents may take longer."""
RERUNS_MAX = 3


class Target(StrEnum):
    """Who is killed."""

    WORKER = "a wipe worker"
    NODE = "a node actor"
    COORDINATOR = "the coordinator actor"
    JOB = "the job"
    RAY = "all of Ray and the job"


class Stage(StrEnum):
    """From when the seeded moment counts."""

    ACTORS = "the victim was there"
    WIPING = "the first wipe worker was there"


MORTAL = frozenset({Target.JOB, Target.RAY})
"""Kills that the command does not survive."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One story, drawn from its seed; five seeds in a row have one of each target."""

    seed: int
    target: Target
    stage: Stage
    after_s: float
    resume: bool

    def __str__(self) -> str:
        begun = "--resume" if self.resume else "a plain rerun"
        return f"kill {self.target} {self.after_s:.2f} s after {self.stage}, then {begun}"


def draw(seed: int) -> Plot:
    """The story of a seed."""
    chance = random.Random(f"ray/{seed}")
    target = list(Target)[seed % len(Target)]
    early = target is not Target.WORKER and chance.random() < 0.3
    return Plot(
        seed=seed,
        target=target,
        stage=Stage.ACTORS if early else Stage.WIPING,
        after_s=round(chance.uniform(0.0, MOMENT_MAX_S), 2),
        resume=chance.random() < 0.6,
    )


def run(seed: int, keep: Path | None = None) -> Case:
    """Live one story and judge it; `keep` is where its state stays afterwards."""
    case, plot, began = Case(seed), draw(seed), time.monotonic()
    case.log.append(str(plot))
    state = Path(tempfile.mkdtemp(prefix=f"chaos-ray-{seed}-", dir=keep or scratch()))
    short = Path(tempfile.mkdtemp(prefix="cr-", dir="/tmp"))  # paths of sockets must be short
    play = _Play(case, plot, state, short)
    try:
        play.play()
    except Exception:  # noqa: BLE001 - whatever a check stumbles over is a finding of this seed
        case.broken.append(traceback.format_exc())
    finally:
        play.end_all()
        shutil.rmtree(short, ignore_errors=True)
        if case.broken or keep:
            case.state = state
        else:
            shutil.rmtree(state)
    case.seconds = time.monotonic() - began
    return case


@dataclass(frozen=True, slots=True)
class Process:
    """A process, recognisable after its pid was given to another."""

    pid: int
    start: int
    title: str

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return start_time(self.pid) == self.start

    def kill(self) -> None:
        """SIGKILL, if it is still there."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class _Play:
    """One story being lived."""

    def __init__(self, case: Case, plot: Plot, state: Path, scratch: Path) -> None:
        self._case, self._plot, self._state, self._scratch = case, plot, state, scratch
        self._known: dict[tuple[int, int], Process] = {}
        self._plan: FleetPlan = adapters.plan_fleet(state, simulate=SHAPE, memory_bytes=MIB)
        self._policy = state / "policy.json"
        self._policy.write_text(
            json.dumps(
                {
                    "wipe": {"expected_bytes_per_s": 100_000},
                    "campaign": {"breaker_failures": 1000},
                }
            )
        )

    def play(self) -> None:
        """The struck life, then as many as it takes."""
        chance = random.Random(f"tenant/{self._plot.seed}")
        for node in self._plan.nodes:
            backend = hardware(node)
            plant(backend, chance)
            strike_slow(backend, bytes_per_s=BYTES_PER_S)
        before = checks.sample(self._state)
        report = self._life(1, [], strike=True)
        if self._case.broken:
            return
        before = self._judge(1, before)
        for number in range(2, 2 + RERUNS_MAX):
            if report is not None and not _unsettled(before):
                break
            run = _resumable(before) if self._plot.resume and report is None else ""
            report = self._life(number, ["--resume", run] if run else [])
            before = self._judge(number, before)
            if self._case.broken:
                return
        run = str(report["run"]) if report else ""
        self._case.broken += checks.at_rest(self._state, before, run)
        self._case.broken += [
            f"{node.name}: {unit.id} is {unit.state} for {sorted(r.code for r in unit.reasons)}"
            for node in before.nodes.values()
            for unit in node.units.values()
            if unit.state is not State.CLEAN
        ]

    def _judge(self, number: int, before: Sample) -> Sample:
        deadline = time.monotonic() + GONE_WAIT_S
        while self._left(ours=True) or (self._left() and time.monotonic() < deadline):
            if time.monotonic() > deadline:
                told = ", ".join(f"{one.title} ({one.pid})" for one in self._left(ours=True))
                self._case.broken.append(f"life {number} left processes of ours: {told}")
                break
            time.sleep(0.05)
        for one in self._left():
            self._case.log.append(f"life {number} left a process of Ray itself: {one.title}")
        self.end_all()
        now = checks.sample(self._state)
        found = checks.after_a_kill(self._state, before, now)
        self._case.broken += [f"after life {number}: {broken}" for broken in found]
        return now

    # --- lives ---

    def _life(self, number: int, more: list[str], *, strike: bool = False) -> dict[str, Any] | None:
        """Run the command. None: it was killed with the rest."""
        fleet = [] if more else ["--simulate", SHAPE, "--memory", "1MiB"]
        command = [sys.executable, "-m", "jobs.scrub", *fleet, *more]
        command += ["--state", str(self._state), "--policy", str(self._policy), "--json"]
        began = time.monotonic()
        out, err = self._state / f"life-{number}.out", self._state / f"life-{number}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, "TMPDIR": str(self._scratch)},
                start_new_session=True,
            )
        struck = not strike or self._strike(process)
        code = self._await(process, number)
        took_s = time.monotonic() - began
        begun = " ".join(more) or "new run"
        self._case.log.append(f"life {number} {begun}: exit code {code} after {took_s:.1f} s")
        if code == -signal.SIGKILL and strike and self._plot.target in MORTAL and struck:
            return None
        try:
            report: dict[str, Any] = json.loads(out.read_text())
        except ValueError:
            said = out.read_text(errors="replace")[:200], err.read_text(errors="replace")[-1500:]
            self._case.broken.append(f"life {number} ended with {code} and no report: {said}")
            return None
        outcomes = {d["uuid"]: d["outcome"] for d in report["devices"]}
        self._case.log.append(f"  {report['run']} {report['exit_reason']} {outcomes}")
        return report

    def _await(self, process: subprocess.Popen[bytes], number: int) -> int:
        deadline = time.monotonic() + LIFE_MAX_S
        while (code := process.poll()) is None:
            self._look(process.pid)
            if time.monotonic() > deadline:
                self._case.broken.append(f"life {number} is not over after {LIFE_MAX_S:g} s")
                self.end_all()
                return process.wait()
            time.sleep(0.1)
        return code

    def _strike(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for the stage and the moment, then kill. Whether anybody was there to kill."""
        deadline = time.monotonic() + STAGE_MAX_S
        while not self._at_stage(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                self._case.broken.append(f"the stage was never reached: {self._plot}")
                return False
            time.sleep(0.02)
        due = time.monotonic() + self._plot.after_s
        while time.monotonic() < due and process.poll() is None:
            time.sleep(0.01)
        victims = self._victims(process.pid)
        for victim in victims:
            victim.kill()
        self._case.kills += len(victims)
        told = ", ".join(f"{one.title} ({one.pid})" for one in victims) or "nobody was there"
        self._case.log.append(f"killed {told}"[:300])
        return bool(victims)

    def _at_stage(self, root: int) -> bool:
        if self._plot.stage is Stage.WIPING:
            return any("fleet.devices.wipe.worker" in one.title for one in self._look(root))
        return bool(self._victims(root))

    def _victims(self, root: int) -> list[Process]:
        found = self._look(root)
        job = [one for one in found if one.pid == root]
        match self._plot.target:
            case Target.JOB:
                return job if len(found) > 1 else []
            case Target.RAY:
                return [*(one for one in found if one.pid != root), *job] if len(found) > 1 else []
            case Target.WORKER:
                return self._one(found, "fleet.devices.wipe.worker")
            case Target.NODE:
                return self._one(found, "ray::NodeActor")
            case Target.COORDINATOR:
                return self._one(found, "ray::CoordinatorActor")

    def _one(self, found: list[Process], word: str) -> list[Process]:
        """One of those whose title has `word`, by the seed."""
        some = sorted((one for one in found if word in one.title), key=lambda one: one.pid)
        return [some[self._plot.seed // len(Target) % len(some)]] if some else []

    # --- processes ---

    def _look(self, root: int) -> list[Process]:
        found = list(_tree(root))
        self._known.update({(one.pid, one.start): one for one in found})
        return found

    def _left(self, *, ours: bool = False) -> list[Process]:
        """What still lives of all we saw; `ours`: what could still change the fleet."""
        words = (
            "fleet.devices.wipe.worker",
            "ray::NodeActor",
            "ray::CoordinatorActor",
            "jobs.scrub",
        )
        return [
            one
            for one in self._known.values()
            if one.alive and (not ours or any(word in one.title for word in words))
        ]

    def end_all(self) -> None:
        """Kill whatever of this story's processes is still there."""
        for one in self._known.values():
            one.kill()
        for pid in checks.living("TMPDIR", str(self._scratch)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _tree(root: int) -> Iterator[Process]:
    """`root` and everything below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError):
                stat = (entry / "stat").read_text()
                parent = int(stat[stat.rindex(")") + 2 :].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    waiting = [root]
    while waiting:
        pid = waiting.pop(0)
        waiting += children.get(pid, [])
        start = start_time(pid)
        if start is None:
            continue
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            yield Process(pid, start, b" ".join(words).decode(errors="replace").strip()[:120])


def _unsettled(now: Sample) -> list[str]:
    return [
        unit_id
        for node in now.nodes.values()
        for unit_id, unit in node.units.items()
        if unit.state not in (State.CLEAN, State.QUARANTINED)
    ] or ([] if now.nodes else ["nothing was begun"])


def _resumable(now: Sample) -> str:
    """The newest run that is not over, "" without one."""
    open_runs = [run for run in now.runs.values() if run.state is not RunState.FINISHED]
    return max(open_runs, key=lambda run: run.started_at).id if open_runs else ""
