"""Campaigns that are started again and again while the storm lasts, by the command itself."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from fleet.core import errors
from fleet.stores.base import RunRecord, RunState
from tests.chaos.storm.system import System

PAUSE_S = (2.0, 6.0)
LASTS_MAX_S = 240.0
RUNS_LOOKED_AT = 1000
RESUME = 0.6
"""How often a run whose job died is gone on with, instead of a new one."""


@dataclass
class Campaigns:
    """One campaign after the other; `step` is one."""

    system: System
    runs: int = 0
    ended: dict[int, int] = field(default_factory=dict)
    """How many ended with which exit code; -9: killed."""
    _process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self._chance = random.Random(f"campaigns/{self.system.story.seed}")

    @property
    def pid(self) -> int:
        """Of the job that drives one now, 0 for none."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else 0

    def step(self) -> None:
        """Run one to its end, then pause."""
        unfinished = self.unfinished()
        resume = unfinished[-1].id if unfinished and self._chance.random() < RESUME else ""
        self.run(resume)
        threading.Event().wait(self._chance.uniform(*PAUSE_S))

    def run(self, resume: str = "") -> int:
        """Run one, or go on with one; its exit code."""
        self.runs += 1
        place = self.system.places[0]
        out = self.system.root / "campaign.json"
        command = [sys.executable, "-P", "-m", "jobs.scrub", "--address", self.system.rays.address]
        command += ["--policy", str(place.policy), "--state", str(self.system.root / "campaigns")]
        command += ["--json", *(["--resume", resume] if resume else [])]
        environment = self.system.rays.rays.environment()
        with out.open("wb") as stdout, (self.system.root / "campaign.log").open("ab") as stderr:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment
            )
            try:
                code = self._process.wait(LASTS_MAX_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                code = self._process.wait()
                self.system.story.tell("campaign killed", why=f"over {LASTS_MAX_S:g} s")
        self.ended[code] = self.ended.get(code, 0) + 1
        self.system.story.tell("campaign", code=code, resumed=resume, **_told(out))
        return code

    def unfinished(self) -> list[RunRecord]:
        """Runs that look alive or were stopped, oldest first; none where the store is away."""
        try:
            runs = self.system.stores().runs.runs(RUNS_LOOKED_AT)
        except errors.FleetError:
            return []
        found = [run for run in runs if run.state is not RunState.FINISHED]
        return sorted(found, key=lambda run: run.started_at)

    def end(self) -> None:
        """Kill the job, if there is one, and wait for the pause after it."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()

    def settle(self, deadline: float) -> list[str]:
        """Go on with every run that did not end, as an operator does; what is left then."""
        while (left := self.unfinished()) and time.monotonic() < deadline:
            self.run(left[0].id)
        return [run.id for run in left]


def _told(out: Path) -> dict[str, object]:
    try:
        report = json.loads(out.read_text())
        outcomes = [device["outcome"] for device in report["devices"]]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    counts = {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}
    return {"run": report.get("run"), "exit_reason": report.get("exit_reason"), **counts}
