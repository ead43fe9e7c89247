"""What an audit can find."""

from __future__ import annotations

from fleet.control.repair.troubles import REMEDIES, Trouble, finding


def test_each_trouble_has_its_remedy() -> None:
    """E7: nothing is reported without what to do about it."""
    assert set(REMEDIES) == set(Trouble)
    made = [finding(one, "place", "detail") for one in Trouble]
    assert all(one.remedy == REMEDIES[one.trouble] for one in made)
    assert all(REMEDIES.values())
