"""What a claim costs does not depend on how many there are (E7, issue 4, point 2)."""

from __future__ import annotations

from tests.twin.fleets import bill


def test_ten_times_the_claims_cost_each_the_same() -> None:
    """E7: all converge with one exposure each; four API writes a claim, no slice write; the number
    of decisions about a claim is the same within a fifth."""
    few, many = bill(25, nodes=32), bill(250, nodes=32)
    for one in (few, many):
        assert one.ran
        assert one.left == ()
        assert one.exposures == one.claims
        assert {what.split()[1] for what in one.writes} == {"resourceclaims"}
        assert sum(one.writes.values()) == 4.0
    assert 0.8 <= many.looks / few.looks <= 1.2
