"""What a GPU check found, as one JSON file and a short table.

``python -m tests.gpu.report gpu-check.json`` prints it as the rows of docs/measurements.md.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.gpu.goals import FAILED, MISSED, Goal

SCHEMA = 1
LIMIT_S = 480.0
"""Time, s, that all of it may take for each GPU, and once more for what concerns none alone."""
PACKAGES = ("cuda-bindings", "nvidia-ml-py", "numpy", "pydantic", "pytest")


class OutOfTime(AssertionError):
    """The whole check has no time left for the next step."""


def _host() -> dict[str, Any]:
    name = os.uname()
    return {
        "kernel": f"{name.sysname} {name.release}",
        "machine": name.machine,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    }


def _packages() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "not installed as a package"


@dataclass
class Report:
    """Grows while the tests run."""

    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    began: float = field(default_factory=time.monotonic)
    host: dict[str, Any] = field(default_factory=_host)
    driver: str = ""
    cuda: str = ""
    gpus: dict[str, dict[str, Any]] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    goals: dict[str, list[Goal]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    taken_s: dict[str, float] = field(default_factory=dict)
    """Time each GPU has had; under "" what concerns none alone."""
    _turn: str = ""
    _since: float = field(default_factory=time.monotonic)

    def turn(self, gpu: str) -> None:
        """From now on time is that of this GPU ("": of none)."""
        now = time.monotonic()
        self.taken_s[self._turn] = self.taken_s.get(self._turn, 0.0) + now - self._since
        self._turn, self._since = gpu, now

    def left_s(self, most_s: float) -> float:
        """Time for the next piece of work: at most `most_s`. Raises `OutOfTime`."""
        self.turn(self._turn)
        left = LIMIT_S - self.taken_s[self._turn]
        if left <= 0:
            whose = f"of {self._turn}" if self._turn else "of no GPU alone"
            raise OutOfTime(f"the check {whose} may take {LIMIT_S:.0f} s and has taken them")
        return min(most_s, left)

    def note(self, text: str) -> None:
        """Something whoever reads the figures must know."""
        if text not in self.notes:
            self.notes.append(text)

    def add(self, gpu: str, section: str, facts: Mapping[str, Any]) -> None:
        """Figures of one GPU."""
        self.gpus.setdefault(gpu, {}).setdefault(section, {}).update(facts)

    def judge(self, gpu: str, goal: Goal) -> None:
        """Record a figure and its goal. AssertionError below the floor."""
        self.goals.setdefault(gpu, []).append(goal)
        assert goal.verdict != FAILED, str(goal)

    def step(self, test: str, seconds: float, outcome: str, failure: str) -> None:
        """Time and outcome of one phase of one test; phases of a test add up, the worst counts."""
        found = next((step for step in self.steps if step["test"] == test), None)
        if found is None:
            found = {"test": test, "seconds": 0.0, "outcome": "passed", "failure": ""}
            self.steps.append(found)
        found["seconds"] = round(found["seconds"] + seconds, 3)
        if outcome != "passed":
            found["outcome"], found["failure"] = outcome, found["failure"] or failure

    def shortfalls(self) -> list[str]:
        """Goals that were missed, in words."""
        return [
            f"{gpu}: {goal}"
            for gpu, goals in self.goals.items()
            for goal in goals
            if goal.verdict in (MISSED, FAILED)
        ]

    def as_json(self, *, passed: bool) -> dict[str, Any]:
        """All of it."""
        gpus = {
            gpu: {**facts, "goals": [goal.as_json() for goal in self.goals.get(gpu, ())]}
            for gpu, facts in self.gpus.items()
        }
        return {
            "schema": SCHEMA,
            "passed": passed,
            "date": self.date,
            "seconds": round(time.monotonic() - self.began, 3),
            "host": self.host,
            "packages": dict(_packages()),
            "driver": self.driver,
            "cuda": self.cuda,
            "gpus": gpus,
            "shortfalls": self.shortfalls(),
            "notes": self.notes,
            "steps": self.steps,
        }

    def write(self, path: Path, *, passed: bool) -> None:
        """Write it down, whole or not at all."""
        fresh = path.with_name(path.name + ".new")
        fresh.write_text(json.dumps(self.as_json(passed=passed), indent=1) + "\n")
        fresh.replace(path)


REPORT = Report()
"""Of this process."""


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """The short table: what was measured, what fell short, what to know."""
    host = found["host"]
    yield f"{found['date']}  {host['kernel']}  driver {found['driver']}  CUDA {found['cuda']}"
    for uuid, gpu in found["gpus"].items():
        identity = gpu.get("inventory", {})
        yield ""
        yield f"{identity.get('product', uuid)}  {uuid}"
        for name, value in _figures(gpu):
            yield f"  {name:<44}{value}"
        for goal in gpu["goals"]:
            yield f"  {goal['name']:<44}{goal['value']:<12.4g}{goal['verdict']} ({goal['goal']:g})"
    yield ""
    for step in sorted(found["steps"], key=lambda step: -float(step["seconds"])):
        if step["seconds"] >= 1 or step["outcome"] != "passed":
            yield f"  {step['seconds']:8.1f} s  {step['outcome']:<7} {step['test']}"
    yield f"  {found['seconds']:8.1f} s  in all (limit {LIMIT_S:.0f} s for each GPU)"
    yield from (f"SHORTFALL  {text}" for text in found["shortfalls"])
    yield from (f"NOTE  {text}" for text in found["notes"])


def _figures(gpu: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    wipe, speed, secret = (gpu.get(name, {}) for name in ("wipe", "speed", "secret"))
    for done in wipe.get("passes", ()):
        yield f"wipe, {done['name']}", f"{done['seconds'] * 1e3:.1f} ms, {_rate(done)}"
    for name in ("ready_s", "wall_s"):
        if name in wipe:
            yield f"wipe, {name}", f"{wipe[name]:.3f}"
    for name in ("open_s", "allocate_s", "jit_cold_s", "jit_warm_s"):
        if name in speed:
            yield name, f"{speed[name]:.3f}"
    for name, done in speed.get("passes", {}).items():
        yield (
            f"median of {done['rounds']}, {name}",
            f"{done['seconds'] * 1e3:.1f} ms, {_rate(done)}",
        )
    if "on_chip" in wipe:
        yield "on-chip memory", str(wipe["on_chip"])
    if "found_after" in secret:
        yield (
            "secret: planted, found, before wipe, after",
            " ".join(
                str(secret[key]) for key in ("planted", "found", "before_wipe", "found_after")
            ),
        )


def _rate(done: Mapping[str, Any]) -> str:
    seconds = float(done["seconds"])
    return f"{done['bytes'] / seconds / 1e9:.1f} GB/s" if seconds else "not timed"


def markdown(found: Mapping[str, Any]) -> Iterator[str]:
    """Rows for docs/measurements.md."""
    host = found["host"]
    yield f"`make gpu-check` on {found['date'][:10]}: {host['kernel']}, driver {found['driver']},"
    verdict = "passed" if found["passed"] else "FAILED"
    yield f"CUDA {found['cuda']}; {verdict}, {found['seconds']} s."
    for uuid, gpu in found["gpus"].items():
        yield ""
        yield f"{gpu.get('inventory', {}).get('product', uuid)}:"
        yield ""
        yield "| what | figure | wanted | verdict |"
        yield "|---|---|---|---|"
        yield from (f"| {name} | {value} | | |" for name, value in _figures(gpu))
        for goal in gpu["goals"]:
            side = "at most" if goal["at_most"] else "at least"
            wanted = f"{side} {goal['goal']:g}"
            yield f"| {goal['name']} | {goal['value']:.4g} | {wanted} | {goal['verdict']} |"
    yield from ("", *(f"- {text}" for text in (*found["shortfalls"], *found["notes"])))


if __name__ == "__main__":
    sys.stdout.write("\n".join(markdown(json.loads(Path(sys.argv[1]).read_text()))) + "\n")
