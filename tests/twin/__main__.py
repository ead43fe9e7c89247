"""``python -m tests.twin --seeds 2000 [--first 0]``: play stories, print the seeds that fail."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.twin.runs import run_seed


def main() -> int:
    """Exit 1 when a story ended badly."""
    parser = argparse.ArgumentParser(prog="tests.twin", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many stories")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--stop", action="store_true", help="end with the first that fails")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    begun, failed, exposures = time.perf_counter(), [], 0
    for seed in range(asked.first, asked.first + asked.seeds):
        verdict = run_seed(seed)
        exposures += verdict.exposures
        if verdict.trouble:
            failed.append(seed)
            sys.stdout.write(f"{verdict.told}\n\n")
            if asked.stop:
                break
    spent_s = time.perf_counter() - begun
    sys.stdout.write(
        f"{asked.seeds} seeds, {len(failed)} failed {failed[:40]}, {exposures} exposures,"
        f" {spent_s:.1f} s\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
