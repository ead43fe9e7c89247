"""How many examples a surface gets, and how long one of them may take.

Without ``FLEET_FUZZ_EXAMPLES`` the runs are small and always the same (CI). With it each test makes
that many examples, drawn anew, and hypothesis keeps what failed outside the tree.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from fleet.core import errors, sqlite
from tests.fuzz import EXAMPLES

KEPT = Path(tempfile.gettempdir()) / f"fleet-fuzz-{os.getuid()}"
"""Where hypothesis keeps examples that failed."""
EXAMPLE_CPU_S = 3.0
"""CPU time, s, one example may take: all of them take milliseconds, and a hang takes for ever."""


def fuzzed(in_ci: int, *, cost: int = 1) -> Callable[[Any], Any]:
    """Settings of one test: `in_ci` examples, or as many as asked for, divided by `cost`."""
    asked = os.environ.get(EXAMPLES, "")
    return settings(
        max_examples=max(1, int(asked) // cost) if asked else in_ci,
        derandomize=not asked,
        database=DirectoryBasedExampleDatabase(KEPT) if asked else None,
        deadline=None,
        suppress_health_check=tuple(HealthCheck),
    )


@contextmanager
def bounded(cpu_s: float = EXAMPLE_CPU_S) -> Iterator[None]:
    """Fails what needs more CPU time, where it stands. A wait that never ends is pytest's to cut.

    Measured as CPU time, so that a busy machine is no fault of what is tested.
    """

    def too_long(_number: int, _frame: FrameType | None) -> NoReturn:
        raise AssertionError(f"took more than {cpu_s:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def told(error: errors.FleetError, *names: str, most: int = 100_000) -> errors.FleetError:
    """The error, which says in words what is wrong and what to do, and names one of `names`.

    It blames the input and not the program, can be printed, and has `most` characters at most.
    """
    assert not isinstance(error, errors.Unforeseen | sqlite.StatementFailed), error
    assert len(str(error)) <= most, str(error)[:1000]
    assert str(error).encode("utf-8", "surrogateescape")
    assert error.detail.strip(), repr(error)
    assert error.remedy.strip(), repr(error)
    assert not names or any(name in str(error) for name in names), (str(error), names)
    return error
