"""The words of decisions."""

from __future__ import annotations

from fleet.control.binding.decisions import Fail, Fault, PodFact, Unexposed

FAULTS = (
    Fault("a", "quarantined", "out of service (ecc)", visible=True),
    Fault("b", "not-in-time", "too late", visible=False),
)


def test_a_failure_names_every_device() -> None:
    """What an operator reads about a failed claim names each device and why."""
    assert Fail(FAULTS).why == "a: out of service (ecc); b: too late"


def test_a_pod_is_told_what_failed() -> None:
    """A pod that waits for a failed device is told of the fault."""
    pods = (PodFact("p", "u", bound=True, leaving=False),)
    assert "out of service (ecc)" in Unexposed(FAULTS, pods).why
