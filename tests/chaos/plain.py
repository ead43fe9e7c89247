"""Chaos without Ray: a fleet in one process that dies again and again over one state directory.

Each life is forked from a process that has imported everything and has no other thread, so that a
life costs milliseconds to begin. The parent looks at the disk between the lives.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import select
import shutil
import signal
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.core.messages import DeviceResult, Outcome
from fleet.core.model import State, Uuid
from fleet.core.settings import MIB
from fleet.devices.simulated import backend as simulated
from fleet.devices.simulated import faults
from fleet.evidence import layout
from fleet.wiring import adapters
from fleet.wiring.adapters import FleetPlan
from tests.chaos import checks, life
from tests.chaos.checks import Sample
from tests.chaos.story import Life, Story, Victim, draw
from tests.scratch import scratch

LIFE_MAX_S = 45.0
"""A life that lasts longer does not converge: it waits for a lease (60 s) it should own."""
RERUNS_MAX = 3
"""Plain reruns after the last kill until every device is at rest: one each for crashed workers."""
GONE_WAIT_S = 5.0
BYTES_PER_S = 8_000_000
"""Speed of slow memory: 1 MiB takes half a second of passes."""
REASONS: dict[str, frozenset[str]] = {
    "dirty-word": frozenset({"memory-mismatch"}),
    "dirty-zero": frozenset({"memory-mismatch"}),
    "worker-crash": frozenset({"interrupted"}),
    "hang": frozenset({"timed-out"}),
    "wedge": frozenset({"timed-out", "wedged"}),
    "device-lost": frozenset({"device-lost"}),
}
"""What a device may be quarantined for, by the fault set on it."""
ALWAYS = frozenset({"dirty-word", "dirty-zero"})
"""Faults with which no wipe can end well: such a device must not be CLEAN at the end."""


@dataclass
class Case:
    """What became of one story."""

    seed: int
    broken: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    """What happened, in lines."""
    state: Path | None = None
    """Kept when something is broken."""
    kills: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a life ended: `killed`, or what it told at its end, or the trouble it died of."""

    killed: bool
    told: dict[str, Any] | None
    trouble: str
    struck: tuple[str, ...]


def run(seed: int, keep: Path | None = None) -> Case:
    """Live one story and judge it. Call only from a process with a single thread.

    `keep` is where its state stays afterwards.
    """
    case, story, began = Case(seed), draw(seed), time.monotonic()
    case.log += story.told()
    state = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-", dir=keep or scratch()))
    try:
        _Play(case, story, state).play()
    except Exception:  # noqa: BLE001 - whatever a check stumbles over is a finding of this seed
        case.broken.append(traceback.format_exc())
    finally:
        for pid in checks.living(life.MARKER, str(state)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if case.broken or keep:
            case.state = state
        else:
            shutil.rmtree(state)
    case.seconds = time.monotonic() - began
    return case


class _Play:
    """One story being lived."""

    def __init__(self, case: Case, story: Story, state: Path) -> None:
        self._case, self._story, self._state = case, story, state
        self._chance = random.Random(f"tenant/{story.seed}")
        self._plan: FleetPlan = adapters.plan_fleet(
            state,
            simulate=story.shape,
            memory_bytes=2 * MIB if "p" in story.shape else MIB,
            settings=life.settings_of(story),
        )
        self._backends = [hardware(node) for node in self._plan.nodes]

    def play(self) -> None:
        """All lives, with a look at the disk after each."""
        self._break()
        self._plant()
        before = checks.sample(self._state)
        for number, one in enumerate(self._story.lives, 1):
            if one.reboot:
                self._reboot()
            ended = self._live(number, one)
            before = self._judge(number, before)
            if self._case.broken:
                return
        run = str(ended.told["run"]) if ended.told else ""
        for number in range(RERUNS_MAX):
            unsettled = self._unsettled(before)
            if not unsettled:
                break
            self._case.log.append(f"rerun {number + 1}, for {', '.join(unsettled)}")
            ended = self._live(len(self._story.lives) + number + 1, Life())
            before = self._judge(0, before)
            run = str(ended.told["run"]) if ended.told else ""
        self._case.broken += checks.at_rest(self._state, before, run)
        self._case.broken += self._ends(before, run)
        self._case.broken += self._processes()

    # --- the world around ---

    def _break(self) -> None:
        for node, backend in enumerate(self._backends):
            if self._story.slow:
                strike_slow(backend, bytes_per_s=BYTES_PER_S)
            for number, accelerator in enumerate(backend.inventory()):
                units = [unit.id for unit in accelerator.units]
                fault = self._story.fault_on(node, number)
                if fault is not None:
                    made = faults.make(
                        fault.name,
                        units=[str(unit) for unit in units],
                        parameters=dict(fault.parameters),
                        times=fault.times,
                        seed=self._story.seed,
                    )
                    backend.set_fault(Uuid(accelerator.uuid), made)

    def _plant(self) -> None:
        for backend in self._backends:
            plant(backend, self._chance)

    def _reboot(self) -> None:
        self._case.log.append("the nodes boot, a tenant writes")
        for backend in self._backends:
            backend.reboot()
        self._plant()

    # --- lives ---

    def _live(self, number: int, one: Life) -> _Ended:
        log = self._state / f"life-{number}.log"
        ended = _life(self._story, one, self._plan, log)
        self._case.kills += len(ended.struck)
        how = "killed" if ended.killed else "ended" if ended.told else "FAILED"
        self._case.log.append(f"life {number} {how}: {'; '.join(ended.struck) or 'not struck'}")
        if ended.told:
            self._case.log.append(f"  {json.dumps(ended.told)}")
            for note in ended.told["notes"]:
                self._case.broken.append(f"life {number} ended with a note: {note}")
        if ended.trouble:
            self._case.broken.append(f"life {number}: {ended.trouble}")
        mortal = any(strike.victim is Victim.SERVICE for strike in one.strikes)
        if ended.killed and not mortal:
            self._case.broken.append(f"life {number} was killed by nobody we know")
        return ended

    def _judge(self, number: int, before: Sample) -> Sample:
        self._await_workers_gone()
        now = checks.sample(self._state)
        found = checks.after_a_kill(self._state, before, now)
        self._case.broken += [f"after life {number or 'last'}: {broken}" for broken in found]
        return now

    def _await_workers_gone(self) -> None:
        """Workers die with the service: none may write when the next life begins."""
        deadline = time.monotonic() + GONE_WAIT_S
        while left := wipe_workers(self._state):
            if time.monotonic() > deadline:
                self._case.broken.append(f"workers {left} outlived their service")
                return
            time.sleep(0.005)

    # --- ends ---

    def _unsettled(self, now: Sample) -> list[str]:
        """Devices neither CLEAN nor QUARANTINED: only a lost worker or a reboot leaves such."""
        found = [
            str(unit_id)
            for node in now.nodes.values()
            for unit_id, unit in sorted(node.units.items())
            if unit.state not in (State.CLEAN, State.QUARANTINED)
        ]
        booted = any(one.reboot for one in self._story.lives)
        if found and not self._story.worker_deaths() and not booted:
            self._case.broken.append(f"{found} are not at rest although no worker was lost")
        return found

    def _ends(self, now: Sample, run: str) -> list[str]:
        """Each device ended as the faults set on it say."""
        found = []
        record = now.runs.get(run)
        for number, (plan, backend) in enumerate(
            zip(self._plan.nodes, self._backends, strict=True)
        ):
            units = now.nodes[plan.node].units
            for place, accelerator in enumerate(backend.inventory()):
                mine = [units[spec.id] for spec in accelerator.units]
                fault = self._story.fault_on(number, place)
                allowed = REASONS[fault.name] if fault else frozenset()
                if self._story.worker_deaths() >= 3:
                    allowed |= {"interrupted"}
                reasons = {reason.code for unit in mine for reason in unit.reasons}
                clean = all(unit.state is State.CLEAN for unit in mine)
                name = f"{plan.node} {accelerator.device.name}"
                if not reasons <= allowed:
                    found.append(f"{name} is out for {sorted(reasons)}, the fault set is {fault}")
                if clean and fault and fault.name in ALWAYS:
                    found.append(f"{name} is CLEAN although {fault}")
                result = record.results.get(accelerator.uuid) if record else None
                if result and not _fits(result, clean=clean):
                    found.append(f"{name}: {result.outcome}, units {[u.state for u in mine]}")
        return found

    def _processes(self) -> list[str]:
        """Nothing of ours is left; what a wedge leaves is the simulated hardware's."""
        left = checks.living(life.MARKER, str(self._state))
        if left and not self._story.hangs:
            return [f"processes {left} are left"]
        return []


def _fits(result: DeviceResult, *, clean: bool) -> bool:
    """Whether an outcome fits the state; what a run left DIRTY the node wipes by itself later."""
    if result.outcome is Outcome.CERTIFIED:
        return clean
    return not clean or result.outcome is Outcome.INTERRUPTED


def hardware(node: adapters.NodePlan) -> simulated.SimulatedBackend:
    """The simulated hardware of a node, made if it is not there."""
    assert node.simulated is not None
    return simulated.create(
        layout.node_directory(Path(node.state), node.node) / "sim",
        node=node.node,
        accelerators=node.simulated.accelerators,
        memory_bytes=node.simulated.memory_bytes,
        partitionable=node.simulated.partitionable,
        seed=node.simulated.seed,
    )


def plant(backend: simulated.SimulatedBackend, chance: random.Random) -> None:
    """A tenant's bytes over all memory of a node: none of them is zero."""
    pattern = bytes(chance.randrange(1, 256) for _ in range(4096))
    for accelerator in backend.inventory():
        memory = backend.memory(accelerator.uuid)
        memory.write_bytes(pattern * (memory.size_bytes // len(pattern)))


def strike_slow(backend: simulated.SimulatedBackend, *, bytes_per_s: int) -> None:
    """Slow all memory of a node down, so that a kill falls into the passes."""
    for accelerator in backend.inventory():
        units = [str(unit.id) for unit in accelerator.units]
        parameters = {"bytes_per_s": str(bytes_per_s)}
        made = faults.make("slow-memory", units=units, parameters=parameters, times=0, seed=0)
        backend.set_fault(Uuid(accelerator.uuid), made)


def wipe_workers(state: Path) -> list[int]:
    """Pids of wipe workers that somebody with this state left."""
    found = []
    for pid in checks.living(life.MARKER, str(state)):
        with suppress(OSError):
            if b"fleet.devices.wipe.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def _life(story: Story, one: Life, plan: FleetPlan, log: Path) -> _Ended:
    """Fork a child, let it live, and tell how it ended."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be(story, one, plan, writing, log)
    os.close(writing)
    text, late = _read(reading, LIFE_MAX_S)
    os.close(reading)
    if late:
        os.kill(pid, signal.SIGUSR1)  # the child writes its stacks to the log
        time.sleep(1.0)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    lines = text.splitlines()
    struck = tuple(line.removeprefix("struck ") for line in lines if line.startswith("struck "))
    ends = [json.loads(line.removeprefix("ended ")) for line in lines if line.startswith("ended ")]
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and not late
    trouble = ""
    if late:
        trouble = f"not over after {LIFE_MAX_S:g} s; stacks: {log.read_text()[-4000:]}"
    elif not killed and not (ends and status == 0):
        trouble = f"ended with status {status}: {log.read_text()[-3000:]}"
    return _Ended(killed, ends[-1] if ends else None, trouble, struck)


def _read(reading: int, wait_s: float) -> tuple[str, bool]:
    """Everything until the other end is closed; whether that took longer than `wait_s`."""
    deadline = time.monotonic() + wait_s
    pieces: list[bytes] = []
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return b"".join(pieces).decode(), True
        piece = os.read(reading, 65536)
        if not piece:
            return b"".join(pieces).decode(), False
        pieces.append(piece)


def _be(story: Story, one: Life, plan: FleetPlan, told: int, log: Path) -> None:
    """The child. Never returns."""
    code = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        faulthandler.enable(file=2)
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        life.live(story, one, plan, told)
        code = 0
    except BaseException:  # noqa: BLE001 - the log tells, and the parent must see that it failed
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
