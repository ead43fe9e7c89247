"""How operations on leases are counted: by what was asked and what came of it. Pure."""

from __future__ import annotations

from fleet.core import errors

OPERATIONS = ("acquire", "renew", "release")
DONE, HELD, REFUSED, UNAVAILABLE = "done", "held", "refused", "unavailable"
RESULTS = (DONE, HELD, REFUSED, UNAVAILABLE)
"""`held`: another has it, which is everyday. `refused`: lost, stale, behind, against the rules.
`unavailable`: the store did not answer, so nobody knows."""


def result_of(answer: object) -> str:
    """Under which result one answer of the store counts."""
    if isinstance(answer, errors.StoreUnavailable):
        return UNAVAILABLE
    if isinstance(answer, errors.LeaseHeld):
        return HELD
    return REFUSED if isinstance(answer, errors.FleetError) else DONE


def key(operation: str, result: str) -> str:
    """What the coordinator's view calls it."""
    return f"{operation}/{result}"
