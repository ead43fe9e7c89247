"""The six words for a device of a campaign (case B51)."""

from __future__ import annotations

import pytest

from fleet.control.campaign.verdict import COVERED, WORDS, Verdict, counted, verdict
from fleet.core.messages import Outcome
from tests.fleet.cli.pages.records import certified, failed, lost


@pytest.mark.parametrize(
    ("outcome", "check", "word"),
    [
        (Outcome.IN_USE, "", Verdict.BUSY),
        (Outcome.BUSY, "foreign-holder", Verdict.BUSY),
        (Outcome.HELD, "holder", Verdict.BUSY),
        (Outcome.QUARANTINED, "ecc", Verdict.FAILED),
        (Outcome.FAILED, "device-timeout", Verdict.FAILED),
        (Outcome.QUARANTINED, "device-lost", Verdict.MISSING),
        (Outcome.UNREACHABLE, "present", Verdict.MISSING),
        (Outcome.UNREACHABLE, "node", Verdict.UNKNOWN),
        (Outcome.INTERRUPTED, "run", Verdict.UNKNOWN),
        (Outcome.REFUSED, "run", Verdict.UNKNOWN),
    ],
)
def test_a_device_that_is_not_done_says_why(outcome: Outcome, check: str, word: Verdict) -> None:
    """B51: busy, failed, missing and unknown are told apart, and none of them is covered."""
    found = verdict(failed(0, outcome, *([check] if check else [])))
    assert found is word
    assert found not in COVERED


def test_a_device_that_was_out_of_service_is_told_apart() -> None:
    """B51: tainted-and-done is done as well, and is a word of its own."""
    assert verdict(certified(0)) is Verdict.DONE
    assert verdict(certified(0, before="QUARANTINED")) is Verdict.TAINTED_AND_DONE


def test_a_warning_about_a_lost_device_does_not_unmake_a_certificate() -> None:
    """A certificate is what counts: what is said beside it is a finding."""
    one = failed(0, Outcome.CERTIFIED, "device-lost", certificate="sha256:1")
    assert verdict(one) is Verdict.DONE


def test_words_are_counted_in_their_order_and_all_are_explained() -> None:
    """Every word has its meaning in words; one that does not occur is not listed."""
    assert list(WORDS) == list(Verdict)
    found = counted([lost("n"), certified(0), certified(1)])
    assert list(found.items()) == [(Verdict.DONE, 2), (Verdict.UNKNOWN, 1)]
