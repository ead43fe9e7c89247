"""``python -m tests.fuzz --examples N [--surface NAME]``: the same tests, for as long as asked.

A surface is a module of this folder without its ``test_``. What fails is printed with the smallest
value that shows it, and is tried first the next time.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fuzz import EXAMPLES

HERE = Path(__file__).parent


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; pytest's own exit code."""
    surfaces = sorted(path.stem.removeprefix("test_") for path in HERE.glob("test_*.py"))
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--examples", type=int, default=2000, help="examples of each test")
    parser.add_argument("--surface", choices=surfaces, action="append", help="only this one")
    asked = parser.parse_args(arguments)
    if asked.examples < 1:
        parser.error("--examples is at least 1")
    os.environ[EXAMPLES] = str(asked.examples)
    files = [str(HERE / f"test_{name}.py") for name in asked.surface or surfaces]
    return int(
        pytest.main(["-q", "--timeout=0", "--durations=5", "-p", "no:cacheprovider", *files])
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
