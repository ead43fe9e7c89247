"""What a node's wipes have come to, over restarts."""

from __future__ import annotations

import pytest

from fleet.core.messages import Outcome, Tally
from fleet.node import wipe_totals
from tests.fleet.node.conftest import Lab


def test_wipes_are_counted_for_good(lab: Lab) -> None:
    """B83: totals come from the journal, so a restarted service goes on where it was."""
    result = lab.scrub()
    tally = lab.node.view().tally
    assert tally.wipes == {Outcome.CERTIFIED: 1}
    assert tally.covered_bytes == tally.wanted_bytes == result.bytes.covered
    assert sum(tally.cleaned) == 1
    assert tally.cleaned_seconds > 0
    lab.restart()
    assert lab.node.view().tally == tally
    lab.fault("dirty-word")
    lab.scrub()
    assert lab.node.view().tally.wipes == {Outcome.CERTIFIED: 1, Outcome.QUARANTINED: 1}


def test_what_never_began_to_write_is_no_wipe(lab: Lab) -> None:
    """A device that an operator keeps out of service is left alone, and that is no failed wipe."""
    lab.node.quarantine_add("gpu-0", detail="noise", operator="ada")
    assert lab.scrub("gpu-0").outcome is Outcome.QUARANTINED
    assert lab.node.view().tally == Tally()


def test_a_tally_that_cannot_be_read_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    """It decides nothing, so it stops nothing either."""
    assert wipe_totals.read({wipe_totals.KEY: "{broken"}) == Tally()
    assert "begins anew" in caplog.text
    assert wipe_totals.read({}) == Tally()
