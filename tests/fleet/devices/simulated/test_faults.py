"""The table of faults, and how one is set."""

from __future__ import annotations

import pytest

from fleet.core.errors import InputInvalid
from fleet.devices.health.readings import Readings
from fleet.devices.simulated import faults
from fleet.devices.simulated.registers import Fault
from fleet.devices.simulated.struck import DISTURBING, STRIKES
from fleet.devices.wipe.result import PASSES

UNITS = ["SIM-1/all"]


def make(name: str, **parameters: str) -> Fault:
    """A fault with the table's own times."""
    return faults.make(name, units=UNITS, parameters=parameters, times=None, seed=1)


def test_every_fault_of_the_issue_is_there() -> None:
    """All faults that can be asked for, each with what it does and what must follow."""
    asked = {
        "hang", "wedge", "allocation-shortfall", "dirty-word", "stale-verifier",
        "ecc-uncorrectable", "device-lost", "foreign-holder", "infrastructure-holder",
        "remap-pending", "remap-failed", "link-degraded", "thermal-slowdown", "xid",
        "reset-required", "slow-memory", "reading-hang", "worker-crash",
    }  # fmt: skip
    assert asked <= set(faults.catalogue())
    assert all(kind.text and kind.outcome for kind in faults.catalogue().values())


def test_every_fault_does_something() -> None:
    """A fault either strikes a session or changes readings that exist; none is only a name."""
    known = set(Readings.__slots__)
    for name, kind in faults.catalogue().items():
        changed = {*kind.readings, *kind.load_readings}
        assert changed <= known
        assert changed or name in DISTURBING or name == "reading-hang"
        if "pass" in kind.parameters:
            assert name in STRIKES
            assert kind.parameters["pass"] in PASSES


@pytest.mark.parametrize(("wrong", "near"), [("dirtyword", "dirty-word"), ("wegde", "wedge")])
def test_an_unknown_fault_names_the_nearest(wrong: str, near: str) -> None:
    """A typing error is answered with what was probably meant."""
    with pytest.raises(InputInvalid, match=f"nearest is '{near}'"):
        make(wrong)


def test_an_unknown_parameter_names_the_nearest_and_all() -> None:
    """Parameters are checked like names."""
    with pytest.raises(InputInvalid, match=r"nearest is 'seconds'.*pass, at, seconds"):
        make("wedge", second="3")


def test_a_value_of_the_wrong_kind_is_refused() -> None:
    """A word where a number belongs is told, not taken as zero."""
    with pytest.raises(InputInvalid, match="at='early'"):
        make("hang", at="early")


def test_when_it_strikes_follows_from_the_seed() -> None:
    """The same seed breaks the same place; the place is within the pass."""
    first = make("hang").parameters["at"]
    assert first == make("hang").parameters["at"]
    assert 0.2 <= first <= 0.8
    other = faults.make("hang", units=UNITS, parameters={}, times=None, seed=2)
    assert other.parameters["at"] != first


@pytest.mark.parametrize(("times", "remaining"), [(None, 1), (0, None), (3, 3)])
def test_how_often_it_strikes(times: int | None, remaining: int | None) -> None:
    """The table's own number, none at all, or as many as asked."""
    fault = faults.make("hang", units=UNITS, parameters={}, times=times, seed=0)
    assert fault.remaining == remaining
