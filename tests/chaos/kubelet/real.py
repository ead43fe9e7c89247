"""Stories around kubelet's calls with a real Ray: one plugin with bridge, standby and actor.

Each seed is one pod on the first device, prepared and torn down; in both calls one kind of process
is killed at a seeded moment. All seeds share one theatre, since a Ray takes long to start; whatever
was killed is started again, by its supervisor or, for plugin and Ray, here.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from fleet.core.profiles import Profile
from tests.chaos import checks
from tests.chaos.kubelet import records
from tests.chaos.kubelet.story import Act, Call, Story
from tests.chaos.kubelet.theatre import Theatre
from tests.chaos.plain import GONE_WAIT_S, Case, wipe_workers

MOMENT_MAX_S = 0.3
"""Latest moment of a kill, s after the call began: a little more than a call with a wipe takes."""


class Target(StrEnum):
    """Who is killed."""

    ACTOR = "the node actor"
    BRIDGE = "the bridge"
    PLUGIN = "the plugin"
    HEAD = "the head of Ray"
    RAY = "the Ray of the node"


def run(seeds: Sequence[int], keep: Path | None = None) -> Iterator[Case]:
    """One case for each seed, in order; five in a row have one of each target."""
    calls = [Call(pod, act) for pod in range(len(seeds)) for act in Act]
    story = Story(seeds[0], Profile.STRICT, True, (0,) * len(seeds), frozenset(), tuple(calls))
    theatre = Theatre(story)
    cases: list[Case] = []
    try:
        theatre.start()
        for pod, seed in enumerate(seeds):
            case, began = Case(seed), time.monotonic()
            cases.append(case)
            try:
                _told(theatre, case, pod)
            except Exception:  # noqa: BLE001 - whatever a check stumbles over is a finding
                case.broken.append(traceback.format_exc())
            case.log += theatre.log
            case.broken += theatre.broken
            theatre.log.clear()
            case.seconds = time.monotonic() - began
            if case.broken:
                break
    finally:
        failed = any(case.broken for case in cases)
        theatre.end(keep=True)
        if not failed:
            cases[-1].broken += _at_rest(theatre)
        if failed or keep:
            cases[-1].state = theatre.root
        else:
            theatre.end()
    yield from cases


def _told(theatre: Theatre, case: Case, pod: int) -> None:
    chance = random.Random(f"kubelet-ray/{case.seed}")
    target = list(Target)[case.seed % len(Target)]
    if theatre.plugin is None or theatre.plugin.poll() is not None:
        theatre.start_plugin()
    waited_s = theatre.await_owner("node actor")
    theatre.until(theatre.world.control.free, "no device is on offer")
    case.log.append(f"the actor owns the node after {waited_s:.1f} s")
    for act in Act:
        after_s = round(chance.uniform(0.0, MOMENT_MAX_S), 3)
        killed: list[int] = []
        striking = threading.Thread(
            target=_strike, args=(theatre, target, after_s, killed), daemon=True
        )
        theatre.world.before = lambda _, striking=striking: striking.start()  # type: ignore[misc]
        theatre.world.perform(Call(pod, act))
        striking.join()
        case.kills += bool(killed)
        case.log.append(f"killed {target} {after_s:.3f} s into {act}: {killed}")
        if theatre.broken:
            return
    theatre.world.rest()


def _kill(theatre: Theatre, target: Target) -> list[int]:
    """SIGKILL; who was killed."""
    match target:
        case Target.HEAD:
            return theatre.rays.head.kill()
        case Target.RAY:
            return theatre.rays.node.kill()
        case Target.ACTOR:
            return theatre.rays.node.kill("ray::NodeActor")
        case Target.BRIDGE:
            pid = theatre.child("actors.bridge")
        case Target.PLUGIN:
            pid = theatre.plugin.pid if theatre.plugin is not None else 0
    if not pid:
        return []
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return [pid]


def _strike(theatre: Theatre, target: Target, after_s: float, killed: list[int]) -> None:
    """Kill at the moment, whoever is there; then do what a supervisor of plugin and Ray does."""
    threading.Event().wait(after_s)
    killed += _kill(theatre, target)
    if target is Target.PLUGIN and theatre.plugin is not None:
        theatre.plugin.wait()
        theatre.start_plugin()
    elif target is Target.HEAD:
        theatre.until(lambda: not theatre.rays.node.pids("raylet/raylet"), "the raylet lives on")
        theatre.rays.start()
    elif target is Target.RAY:
        theatre.rays.node.start()


def _at_rest(theatre: Theatre) -> list[str]:
    """The disk, once nothing runs any more."""
    deadline, pause = time.monotonic() + GONE_WAIT_S, threading.Event()
    while wipe_workers(theatre.root) and time.monotonic() < deadline:
        pause.wait(0.05)
    state = Path(theatre.plan.state)
    now = checks.sample(state)
    return [
        *checks.after_a_kill(state, now, now),
        *records.after_a_kill(theatre.plan, now),
        *records.at_rest(theatre.plan, now),
    ]
