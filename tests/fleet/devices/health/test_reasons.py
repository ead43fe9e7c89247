"""The catalogue of quarantine reasons."""

from __future__ import annotations

import pytest

from fleet.core import errors
from fleet.core.model import Source
from fleet.devices.health import reasons
from fleet.devices.wipe.result import Failure

NEVER_BY_RULE = {
    "memory-mismatch",
    "verifier-unsound",
    "remap-failed",
    "remaps-exhausted",
    "operator",
    "taken-over",
}


def test_every_failure_of_a_wipe_is_a_reason() -> None:
    """D4: however a wipe fails, there is a reason to quarantine for."""
    assert set(Failure) <= reasons.CATALOGUE.keys()


def test_what_only_an_operator_lifts() -> None:
    """Promise 6: exactly these reasons are never lifted by a passed retest."""
    assert {c for c, entry in reasons.CATALOGUE.items() if not entry.liftable} == NEVER_BY_RULE


@pytest.mark.parametrize("code", sorted(reasons.CATALOGUE))
def test_a_reason_says_what_is_wrong_and_what_to_do(code: str) -> None:
    """Every reason carries facts, remedy, time and whether a rule may lift it."""
    reason = reasons.make(code, Source.HEALTH, since=7.0)
    assert reason.key == (code, Source.HEALTH)
    assert reason.detail == reasons.CATALOGUE[code].text
    assert reason.remedy
    assert reason.since == 7.0
    assert reason.liftable is (code not in NEVER_BY_RULE)


def test_facts_and_remedy_of_the_caller_win() -> None:
    """Who knows more than the catalogue says so."""
    reason = reasons.make("xid", Source.KERNEL, detail="79", remedy="reboot", since=0)
    assert (reason.detail, reason.remedy) == ("79", "reboot")


def test_an_unknown_code_names_the_nearest() -> None:
    """A code nobody can explain is not stored."""
    with pytest.raises(errors.InputInvalid) as caught:
        reasons.make("remap-pendin", Source.HEALTH, since=0)
    assert caught.value.nearest == "remap-pending"
