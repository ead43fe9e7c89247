"""What a campaign's result says of a device, in the six words an operator counts by. Pure.

Outcomes say how an operation ended; a verdict says whether the device is covered (case B51). What
nobody has seen is `UNKNOWN`, whatever else is known of its node: never "done, 0 devices".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from fleet.core.messages import DeviceResult, Outcome
from fleet.core.model import State


class Verdict(StrEnum):
    """Whether a device is covered by a campaign."""

    DONE = "done"
    TAINTED_AND_DONE = "tainted-and-done"
    BUSY = "busy"
    FAILED = "failed"
    MISSING = "missing"
    UNKNOWN = "unknown"


COVERED = frozenset({Verdict.DONE, Verdict.TAINTED_AND_DONE})
WORDS: Mapping[Verdict, str] = {
    Verdict.DONE: "wiped, verified, checked and certified by this run",
    Verdict.TAINTED_AND_DONE: "was out of service before, and passed a full pass in this run",
    Verdict.BUSY: "somebody has it: left alone, and wiped when it is given back",
    Verdict.FAILED: "out of service: it did not pass, or waits for a decision",
    Verdict.MISSING: "known, and not there any more: the driver does not show it",
    Verdict.UNKNOWN: "nobody has seen it, or the run ended before its turn: nothing is known",
}

_ABSENT = frozenset({"present", "device-lost"})
"""Checks whose failure says that the hardware is not there."""
_BUSY = frozenset({Outcome.IN_USE, Outcome.BUSY, Outcome.HELD})
_FAILED = frozenset({Outcome.FAILED, Outcome.QUARANTINED})


def verdict(result: DeviceResult) -> Verdict:
    """The word for one result."""
    if result.outcome is Outcome.CERTIFIED:
        tainted = result.before == State.QUARANTINED
        return Verdict.TAINTED_AND_DONE if tainted else Verdict.DONE
    if any(one.check in _ABSENT and one.verdict == "fail" for one in result.findings):
        return Verdict.MISSING
    if result.outcome in _BUSY:
        return Verdict.BUSY
    return Verdict.FAILED if result.outcome in _FAILED else Verdict.UNKNOWN


def counted(results: Iterable[DeviceResult]) -> dict[Verdict, int]:
    """How many devices there are of each verdict that occurs, in the order of `Verdict`."""
    found = [verdict(result) for result in results]
    return {word: found.count(word) for word in Verdict if word in found}
