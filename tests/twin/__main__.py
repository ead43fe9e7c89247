"""``python -m tests.twin --seeds 2000 [--first 0]``: play stories, print the seeds that fail.

Of the first that fail a minimal story is printed. Rows of the tables never taken, and kinds of
trouble that never struck, fail a run of `COMPLETE` seeds or more.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator

from tests.twin.coverage import Coverage
from tests.twin.runs import Verdict, run_seed
from tests.twin.shrink import shrink

COMPLETE = 2000
"""Seeds from which on everything that can be reached has to be."""
SHRUNK_MAX = 3
"""Failing seeds that are made small; each costs some hundred stories."""


def main() -> int:
    """Exit 1 when a story ended badly, or when too little was met."""
    parser = argparse.ArgumentParser(prog="tests.twin", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many stories")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--stop", action="store_true", help="end with the first that fails")
    parser.add_argument("--processes", type=int, default=1, help="how many play at once")
    parser.add_argument("--whole", action="store_true", help="make no failing story small")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    begun, failed, exposures, coverage = time.perf_counter(), list[int](), 0, Coverage()
    for verdict in _verdicts(range(asked.first, asked.first + asked.seeds), asked.processes):
        exposures += verdict.exposures
        coverage.add(verdict.coverage)
        if verdict.trouble:
            failed.append(verdict.seed)
            small = not asked.whole and len(failed) <= SHRUNK_MAX
            sys.stdout.write(f"{shrink(verdict).told if small else verdict.told}\n\n")
            sys.stdout.flush()
            if asked.stop:
                break
    spent_s = time.perf_counter() - begun
    sys.stdout.write("".join(f"{line}\n" for line in coverage.lines()))
    sys.stdout.write(
        f"{asked.seeds} seeds, {len(failed)} failed {failed[:40]}, {exposures} exposures,"
        f" {spent_s:.1f} s\n"
    )
    gaps = bool(coverage.untaken() or coverage.unstruck()) and asked.seeds >= COMPLETE
    return 1 if failed or gaps or coverage.impossible() else 0


def _verdicts(seeds: range, processes: int) -> Iterator[Verdict]:
    if processes <= 1:
        yield from map(run_seed, seeds)
        return
    with multiprocessing.Pool(processes, _quiet) as pool:
        yield from pool.imap(run_seed, seeds, chunksize=4)


def _quiet() -> None:
    logging.disable(logging.CRITICAL)


if __name__ == "__main__":
    sys.exit(main())
