"""``python -m tests.chaos.run --plain N --kubelet K --ray M ...``: kill -9 at seeded moments.

Each seed is one story; a failing one is printed whole, with the command that tells it again. Exit
code 0: every story held; 1: one did not; 2: it could not run.
"""

from __future__ import annotations

import os

# Before anything imports numpy: its threads would make every fork a gamble.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import json
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; see the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__)
    parser.add_argument("--plain", type=int, default=0, help="stories without Ray")
    parser.add_argument("--kubelet", type=int, default=0, help="stories around kubelet's calls")
    parser.add_argument("--ray", type=int, default=0, help="stories with a real local Ray")
    parser.add_argument("--kubelet-ray", type=int, default=0, help="the same with a real Ray")
    parser.add_argument("--seed", type=int, default=1, help="first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="stories at once")
    parser.add_argument("--tell", action="store_true", help="print every story, not only failures")
    parser.add_argument("--keep", type=Path, help="directory in which all states are kept")
    asked = parser.parse_args(arguments)
    if asked.plain + asked.kubelet + asked.ray + asked.kubelet_ray < 1 or asked.jobs < 1:
        parser.error("nothing to do: ask for --plain N, --kubelet K, --ray M or --kubelet-ray M")
    if asked.keep:
        asked.keep.mkdir(parents=True, exist_ok=True)
    failures = 0
    for kind, count in (("plain", asked.plain), ("kubelet", asked.kubelet)):
        if count:
            seeds = range(asked.seed, asked.seed + count)
            cases = _forked(kind, seeds, asked.jobs, asked.keep)
            failures += _report(kind, cases, tell=asked.tell)
    if asked.ray:
        seeds = range(asked.seed, asked.seed + asked.ray)
        failures += _report("ray", _real(seeds, asked.jobs, asked.keep), tell=asked.tell)
    if asked.kubelet_ray:
        from tests.chaos.kubelet import real

        seeds = range(asked.seed, asked.seed + asked.kubelet_ray)
        cases = (vars(case) for case in real.run(seeds, asked.keep))
        failures += _report("kubelet-ray", cases, tell=asked.tell)
    return 1 if failures else 0


@dataclass
class _Tally:
    stories: int = 0
    failed: int = 0
    kills: int = 0


def _report(kind: str, cases: Iterator[dict[str, Any]], *, tell: bool) -> int:
    """Print failures whole and one line at the end; returns how many failed."""
    tally, began = _Tally(), time.monotonic()
    for case in cases:
        tally.stories += 1
        tally.kills += case["kills"]
        tally.failed += bool(case["broken"])
        if case["broken"] or tell:
            _say(_told(kind, case))
    seconds = time.monotonic() - began
    _say(
        f"{kind}: {tally.stories} stories, {tally.kills} kills, {tally.failed} failed,"
        f" {seconds:.1f} s"
    )
    return tally.failed


def _told(kind: str, case: dict[str, Any]) -> str:
    again = f"python -m tests.chaos.run --{kind} 1 --seed {case['seed']}"
    verdict = "FAILED" if case["broken"] else "held"
    lines = [f"{kind} seed {case['seed']} {verdict} ({case['seconds']:.1f} s), again: {again}"]
    lines += [f"  {line}" for line in case["log"]]
    lines += [f"  BROKEN {line}" for line in case["broken"]]
    if case["state"]:
        lines.append(f"  state kept in {case['state']}")
    return "\n".join(lines)


def _told_by(kind: str) -> Callable[[int, Path | None], object]:
    """Who tells a story of this kind; imported before anything is forked."""
    if kind == "plain":
        from tests.chaos import plain

        return plain.run
    from fleet.kube import client  # noqa: F401 - every plugin that is forked has it then
    from node_plugin import wiring  # noqa: F401
    from tests.chaos.kubelet import play
    from tests.lab.kubelet import connection, control, resources, runtime  # noqa: F401

    return play.run


def _forked(
    kind: str, seeds: Sequence[int], jobs: int, keep: Path | None
) -> Iterator[dict[str, Any]]:
    """Stories in `jobs` forked processes, each with one thread; results as they come."""
    tell = _told_by(kind)
    if threading.active_count() > 1:
        raise RuntimeError("this process has threads already and cannot be forked safely")
    pipes, children = [], []
    for number in range(min(jobs, len(seeds))):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            code = 1
            try:
                for seed in seeds[number::jobs]:
                    case = vars(tell(seed, keep))
                    os.write(writing, (json.dumps(case, default=str) + "\n").encode())
                code = 0
            except Exception:  # noqa: BLE001 - it is told, and the parent sees the status
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writing)
        pipes.append(reading)
        children.append(pid)
    yield from _lines(pipes)
    for pid in children:
        _, status = os.waitpid(pid, 0)
        if status:
            raise RuntimeError(f"a process that tells stories ended with status {status}")


def _lines(pipes: list[int]) -> Iterator[dict[str, Any]]:
    rest = dict.fromkeys(pipes, b"")
    while rest:
        for pipe in select.select(list(rest), [], [])[0]:
            piece = os.read(pipe, 1 << 20)
            if not piece:
                del rest[pipe]
                os.close(pipe)
                continue
            *lines, rest[pipe] = (rest[pipe] + piece).split(b"\n")
            yield from (json.loads(line) for line in lines)


def _real(seeds: Sequence[int], jobs: int, keep: Path | None) -> Iterator[dict[str, Any]]:
    """Stories in `jobs` threads: all work is done by the processes they start."""
    from tests.chaos import real

    with ThreadPoolExecutor(jobs) as pool:
        for told in as_completed([pool.submit(real.run, seed, keep) for seed in seeds]):
            yield vars(told.result())


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
