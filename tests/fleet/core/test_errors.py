"""One tree of errors that survives the way to another process and says what to do."""

from __future__ import annotations

import inspect
import pickle

import pytest

from fleet.core import errors
from fleet.core.errors import FleetError

CLASSES = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, FleetError)
]


@pytest.mark.parametrize("kind", CLASSES)
def test_round_trip(kind: type[FleetError]) -> None:
    """B60: class, text and fields of every error survive pickling, so except clauses match."""
    sent = kind("unit 3 is held", remedy="wait for it", holder="claim:7", floor=(1, 4))
    came = pickle.loads(pickle.dumps(sent))  # noqa: S301 - our own bytes
    assert type(came) is kind
    assert (came.detail, came.remedy) == ("unit 3 is held", "wait for it")
    assert came.fields == {"holder": "claim:7", "floor": (1, 4)}
    assert (came.holder, came.floor) == ("claim:7", (1, 4))
    with pytest.raises(kind):
        raise came


@pytest.mark.parametrize("kind", CLASSES)
def test_text(kind: type[FleetError]) -> None:
    """Every message has what is wrong and what to do, also when the caller names no remedy."""
    assert str(kind("two of two", remedy="add one")) == "two of two — add one"
    silent = kind("two of two")
    assert silent.remedy == kind.default_remedy
    assert str(silent).startswith("two of two — ")
    assert len(silent.remedy) > 10
    assert kind.__doc__


@pytest.mark.parametrize("kind", CLASSES)
def test_exit_code(kind: type[FleetError]) -> None:
    """A command that fails ends with 1 (found something) or 2 (could not run), never 0."""
    assert kind.exit_code in (1, 2)


@pytest.mark.parametrize("kind", CLASSES)
def test_retry_is_in_the_type(kind: type[FleetError]) -> None:
    """Whether to try again is decided by class: each one is exactly one of the two kinds."""
    if kind not in (FleetError, errors.Retryable, errors.Permanent):
        assert issubclass(kind, errors.Retryable) != issubclass(kind, errors.Permanent)


def test_unknown_field() -> None:
    """A field nobody gave is an AttributeError, so that getattr with a default and copy work."""
    error = errors.LeaseHeld("held", unit="u0")
    assert error.unit == "u0"
    with pytest.raises(AttributeError, match="LeaseHeld has no field 'holder'"):
        _ = error.holder
    assert getattr(error, "holder", None) is None


def test_the_owner_of_a_claim_is_told_less() -> None:
    """T8: what names other tenants stays with operators, also when the error comes from another
    process; without such a text both read the same."""
    told = errors.DeviceBusy("gpu-0 is held by claim x", holder="claim:x", told="gpu-0 is held")
    for error in (told, pickle.loads(pickle.dumps(told))):  # noqa: S301
        assert error.told == f"gpu-0 is held — {error.remedy}"
        assert "claim x" in str(error)
    plain = errors.DeviceBusy("gpu-0 is held")
    assert plain.told == str(plain)
